//! Results as they are stored: one JSON object per line. Tables, reports and comparisons are views of these.

mod attempt;
mod bench;
mod conditions;
mod counters;
mod interrupted;
mod origin;
mod peers;
mod probe;
mod problem;
mod python;
mod run;
mod rung;
mod timing;
mod turns;
mod upgrade;

use serde::{Deserialize, Serialize};

pub use attempt::{AttemptRecord, Finalist, TuneSubject, TunedRecord};
pub use bench::{
    AlternativeResult, BenchRecord, DTypes, KernelUsed, Roof, TrafficCounts, benchmark_name,
};
pub use conditions::{Conditions, Reading};
pub use counters::{Binding, CountersRecord};
pub use fourtap_admin::{SCHEMA, VERSION};
pub use interrupted::InterruptedRecord;
pub use origin::Origin;
pub use peers::{PeerVerdict, PeersRecord};
pub use probe::{Outcome, ProbeRecord, Unit};
pub use problem::{ProblemRecord, Sizes};
pub use python::PythonRecord;
pub use run::Run;
pub use rung::{
    PairedComparison, RungClaim, RungLaunch, RungOperator, RungProblem, RungRecord, RungSizes,
    SmallProblems,
};
pub use timing::Timing;
pub use turns::{Round, TurnsRecord};

/// What a line of a results file can be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// What `fourtap bench` found.
    Bench(Box<BenchRecord>),
    /// What `fourtap probe` found, or a ceiling that `bench` measured for its own use.
    Probe(Box<ProbeRecord>),
    /// What `fourtap profile` counted.
    Counters(Box<CountersRecord>),
    /// What `fourtap-ladder` found.
    Rung(Box<RungRecord>),
    /// What `fourtap tune` tried.
    Attempt(Box<AttemptRecord>),
    /// What it found.
    Tuned(Box<TunedRecord>),
    /// What `fourtap bench --against` found.
    Turns(Box<TurnsRecord>),
    /// What `fourtap bench` leaves after Ctrl-C, unless the run is continued below.
    Interrupted(InterruptedRecord),
    /// What a script that times other implementations found. It is no writing of ours: the form of its lines differs.
    #[serde(skip)]
    Peers(Vec<PeersRecord>),
    /// What a benchmark in Python found, likewise.
    #[serde(skip)]
    Python(Box<PythonRecord>),
}

/// Billions per second, of a count and milliseconds.
pub fn billions_a_second(count: u64, milliseconds: f64) -> f64 {
    count as f64 / milliseconds / 1e6
}

//! `fourtap doctor`: what this machine has and what is missing.

mod cuda;

use std::path::Path;

use fourtap::cpu::Simd;
use fourtap::tuning::{Table, active};
use serde::Serialize;

use self::cuda::CudaDiagnosis;
use crate::check::{self, Report};
use crate::cli::DoctorArgs;
use crate::console::{print, print_json};
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::tuning::missing_in_words;
use crate::units::gib;
use crate::{SCHEMA, VERSION, machine};

/// Random problems of the self-check: under a second.
const CASES: u64 = 20;

/// The diagnosis, as printed and as a JSON record.
#[derive(Debug, Serialize)]
struct Diagnosis {
    schema: u32,
    version: &'static str,
    command: &'static str,
    system: &'static str,
    architecture: &'static str,
    processor: Option<String>,
    hardware_threads: Option<usize>,
    threads: usize,
    vector_paths: Vec<&'static str>,
    vector_path_chosen: &'static str,
    vector_paths_missing: Vec<&'static str>,
    memory_bytes: Option<u64>,
    memory_available_bytes: Option<u64>,
    tuning: Vec<TuningTable>,
    /// What is wrong with the user's own table, which is left out then.
    #[serde(skip_serializing_if = "Option::is_none")]
    tuning_unreadable: Option<String>,
    /// The table that FOURTAP_TUNE names, where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    tuning_missing: Option<String>,
    gpu: String,
    cuda: CudaDiagnosis,
    self_check: Report,
}

/// A tuning table in use.
#[derive(Debug, Serialize)]
struct TuningTable {
    /// The user's file; `None` for the built-in table.
    file: Option<String>,
    entries: usize,
    /// Entries of other versions, by line, and why each is not used.
    set_aside: Vec<(usize, String)>,
}

/// The tables in use.
fn tuning() -> Vec<TuningTable> {
    let table = |(file, table): (Option<&Path>, &Table)| TuningTable {
        file: file.map(|file| file.display().to_string()),
        entries: table.entries().len(),
        set_aside: table
            .skipped_lines()
            .iter()
            .map(|one| (one.line, one.why.clone()))
            .collect(),
    };
    active().tables().map(table).collect()
}

pub fn execute(arguments: &DoctorArgs) -> Result<ExitCode> {
    let available: Vec<Simd> = Simd::available().collect();
    let missing = Simd::ALL.iter().filter(|simd| !simd.is_available());
    let cuda = CudaDiagnosis::new();
    let diagnosis = Diagnosis {
        schema: SCHEMA,
        version: VERSION,
        command: "doctor",
        system: std::env::consts::OS,
        architecture: std::env::consts::ARCH,
        processor: machine::cpu_model(),
        hardware_threads: std::thread::available_parallelism().ok().map(usize::from),
        threads: rayon::current_num_threads(),
        vector_paths: available.iter().map(|simd| simd.name()).collect(),
        vector_path_chosen: Simd::best().name(),
        vector_paths_missing: missing.map(|simd| simd.name()).collect(),
        memory_bytes: machine::memory_total(),
        memory_available_bytes: machine::memory_available(),
        tuning: tuning(),
        tuning_unreadable: active().unreadable().map(ToString::to_string),
        tuning_missing: missing_in_words(),
        gpu: cuda.used(),
        cuda,
        self_check: check::msda_on_cpu(0..CASES, &available),
    };
    let printed = match arguments.json {
        true => print_json(&diagnosis),
        false => print(diagnosis.in_words()),
    };
    printed.map_err(Error::Stdout)?;
    Ok(diagnosis.self_check.exit_code())
}

impl Diagnosis {
    fn tuning_in_words(&self) -> String {
        let words = self.tuning.iter().map(|table| {
            let from = table.file.as_deref().unwrap_or("the built-in table");
            let mut words = match table.entries {
                1 => format!("1 entry of {from}"),
                count => format!("{count} entries of {from}"),
            };
            for (line, why) in &table.set_aside {
                words += &format!(" (not line {line}: {why})");
            }
            words
        });
        let words = words.collect::<Vec<_>>().join(", then ");
        match (&self.tuning_unreadable, &self.tuning_missing) {
            (Some(why), _) => format!("{words}; left out: {why}"),
            (None, Some(why)) => format!("{words}; {why}"),
            (None, None) if words.is_empty() => "off".to_string(),
            (None, None) => words,
        }
    }

    fn in_words(&self) -> String {
        let chosen = self.vector_path_chosen;
        let others: Vec<_> = self
            .vector_paths
            .iter()
            .copied()
            .filter(|path| *path != chosen)
            .collect();
        let mut vectors = format!("{chosen}, the widest this processor has");
        if !others.is_empty() {
            vectors += &format!("; also {}", others.join(", "));
        }
        if !self.vector_paths_missing.is_empty() {
            vectors += &format!("; missing: {}", self.vector_paths_missing.join(", "));
        }
        let threads = match self.hardware_threads {
            Some(hardware) if hardware == self.threads => format!("{hardware}, all there are"),
            Some(hardware) => format!("{} of {hardware}", self.threads),
            None => self.threads.to_string(),
        };
        let memory = match (self.memory_bytes, self.memory_available_bytes) {
            (Some(all), Some(free)) => format!("{}, {} free", gib(all), gib(free)),
            _ => "unknown on this system".to_string(),
        };
        let mut lines = [
            ("fourtap", self.version.to_string()),
            ("system", format!("{} {}", self.system, self.architecture)),
            (
                "processor",
                self.processor
                    .clone()
                    .unwrap_or("unknown on this system".to_string()),
            ),
            ("vectors", vectors),
            ("threads", threads),
            ("memory", memory),
            ("tuning", self.tuning_in_words()),
            ("gpu", self.gpu.clone()),
        ]
        .map(|(what, found)| (what.to_string(), found))
        .to_vec();
        lines.extend(self.cuda.lines());
        lines.push(("self-check".to_string(), self.self_check.summary()));
        if !self.self_check.mismatches.is_empty() {
            lines.push((
                "advice".to_string(),
                "results are wrong here: please report what `fourtap doctor --json` prints"
                    .to_string(),
            ));
        }
        lines
            .iter()
            .map(|(what, found)| format!("{what:12}{found}\n"))
            .collect()
    }
}

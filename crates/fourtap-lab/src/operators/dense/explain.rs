//! What a problem of dense attention costs, and what limits it.

use fourtap::cpu::Cpu;
use fourtap::cuda::Step;
use fourtap::cuda::dense::{KernelVariant, Tuning};
use fourtap::dense::{Problem, Traffic};
use fourtap::tuning::Class;
use fourtap::{Backend, DType};
use serde::Serialize;

use super::attn_mask::traffic;
use super::{Dense, ProblemSizes, Workload};
use crate::choices::Choices;
use crate::cli::CaseArgs;
use crate::error::Result;
use crate::explain::{
    self, Case as _, Ceilings, DeviceDesc, Efficiency, ExplainInputs, Floor, Floors, KernelUse,
    Limit, LimitCondition, bytes, count, kernel_in_words, plural,
};
use crate::operators::{Operator, without_backward};
use crate::record::{BenchRecord, DTypes, ProblemRecord, VERSION};
use crate::table::wrapped;
use crate::target::Device;

/// Everything there is to say about a problem.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    version: &'static str,
    /// What it is called, as in "dense-s512-d64/normal/f16/forward".
    pub name: String,
    problem: ProblemSizes,
    dtypes: DTypes,
    /// "cpu" or "cuda".
    kind: String,
    ceilings_of: Device,
    ceilings_from: String,
    /// Pairs of a query and a key it sees: an exponential each.
    exponentials: u64,
    /// Operations of both products.
    flop: u64,
    /// Bytes if every input was read and the output written once.
    compulsory_bytes: u64,
    /// Operations for each of them.
    intensity: f64,
    limits: Vec<Limit>,
    floor_hot: Option<Floor>,
    floor_cold: Option<Floor>,
    /// What was measured, against that.
    pub achieved: Option<Efficiency>,
    /// What is launched on a CUDA device, in order.
    pub kernels: Vec<KernelUse>,
    /// What was chosen about the kernel, and why.
    pub choices: Choices,
    /// What a reader should know of the sources.
    pub notes: Vec<String>,
}

/// A workload in an element type.
#[derive(Debug)]
pub struct Case {
    workload: Workload,
    dtype: DType,
    problem: Problem,
}

impl Case {
    /// The one `arguments` name of a workload.
    pub fn new(workload: Workload, arguments: &CaseArgs) -> Result<Self> {
        if !Dense.passes().contains(&arguments.direction) {
            return Err(without_backward(
                "--direction backward",
                &Dense,
                workload.name,
            ));
        }
        let dtype = DType::from(arguments.dtype);
        Ok(Case {
            problem: workload.problem(dtype)?,
            workload,
            dtype,
        })
    }
}

impl explain::Case for Case {
    fn name(&self) -> String {
        format!("{}/normal/{}/forward", self.workload.name, self.dtype)
    }

    fn problem(&self) -> ProblemRecord {
        ProblemSizes::new(&self.problem, self.workload.attn_mask).into()
    }

    fn dtypes(&self) -> DTypes {
        DTypes::from(&self.problem)
    }

    fn explained(&self, known: ExplainInputs<'_>) -> Result<Box<dyn explain::Explanation>> {
        Ok(Box::new(explained(self, known)?))
    }
}

/// Explains a case by what is known.
fn explained(case: &Case, mut known: ExplainInputs<'_>) -> Result<Explanation> {
    let Case {
        workload,
        dtype,
        problem,
    } = case;
    let (dtype, ceilings, device) = (*dtype, known.ceilings, known.device);
    let attn_mask = workload.attn_mask;
    let traffic = traffic(problem, attn_mask);
    let sizes = ProblemSizes::new(problem, attn_mask);
    let dtypes = DTypes::from(problem);
    let kind = ceilings.device.kind.clone();
    let class = Class::of_dense(problem.sizes(), &problem.options().mask);
    let tuned_as = ("dense-forward", class, dtype);
    let (choices, entry) = match device {
        // Tables say nothing of tensors that mask, and the library does not ask them.
        Some(device) if attn_mask.is_some() => {
            let (choices, _) = Choices::on_device(&device.name, tuned_as);
            (choices.without_tables(), None)
        }
        Some(device) => Choices::on_device(&device.name, tuned_as),
        None => (Choices::by(&Backend::Cpu(Cpu::new()), tuned_as), None),
    };
    let tuning = entry.map(|entry| Tuning::of(&entry.choice));
    let kernels = match device {
        Some(device) => kernels(workload, dtype, device, &tuning.unwrap_or_default())?,
        None => Vec::new(),
    };
    let limits = match kind.as_str() {
        "cuda" => on_cuda(&traffic, dtype, ceilings),
        _ => on_cpu(&traffic, dtype, ceilings),
    };
    let (floor_hot, floor_cold) = (Floor::of(&limits, false), Floor::of(&limits, true));
    let same = |record: &&BenchRecord| {
        record.workload == workload.name
            && record.problem.of() == Some(&sizes)
            && record.dtypes == dtypes
            && record.device.kind == kind
            && record.hot.is_some()
    };
    let record = known.run().and_then(|run| run.benches.iter().rfind(same));
    let achieved =
        record.map(|record| Efficiency::of(record, (floor_hot.as_ref(), floor_cold.as_ref())));
    if achieved.is_none() {
        known.note_no_result(&case.name());
    }
    Ok(Explanation {
        version: VERSION,
        name: case.name(),
        achieved,
        problem: sizes,
        dtypes,
        kind,
        ceilings_of: ceilings.device.clone(),
        ceilings_from: ceilings.origin.clone(),
        exponentials: traffic.pairs,
        flop: traffic.flop,
        compulsory_bytes: traffic.compulsory_bytes,
        intensity: traffic.flop as f64 / (traffic.compulsory_bytes as f64).max(1.0),
        limits,
        floor_hot,
        floor_cold,
        kernels,
        choices,
        notes: known.notes,
    })
}

/// What the library would launch for row-major tensors.
fn kernels(
    workload: &Workload,
    dtype: DType,
    device: &DeviceDesc,
    tuning: &Tuning,
) -> Result<Vec<KernelUse>> {
    let used = |step: &Step<KernelVariant>| {
        let [blocks, parts] = step.blocks;
        KernelUse::new(
            &step.kernel,
            device,
            [blocks * parts, step.threads],
            step.shared_bytes,
        )
    };
    let plan = workload.on_cuda(dtype).tuned(device.size, tuning)?;
    Ok(plan.steps().map(used).collect())
}

/// Products of f16 on tensor cores for one of the type; none for f64.
fn products_of_f16(dtype: DType) -> Option<u64> {
    match dtype {
        DType::F16 | DType::BF16 => Some(1),
        DType::F32 => Some(3),
        DType::F64 => None,
    }
}

fn on_cuda(traffic: &Traffic, dtype: DType, ceilings: &Ceilings) -> Vec<Limit> {
    let limit = |name, what: &str, amount, probes: &[&str], when| {
        Limit::new(ceilings, name, what, amount, probes, when)
    };
    let moved = |bytes: u64| (bytes as f64, "bytes");
    let memory = ["copy", "dram-read"];
    let all = traffic.compulsory_bytes;
    let cuda = ceilings.device.cuda.as_ref();
    let beyond = all.saturating_sub(cuda.map_or(0, |cuda| u64::from(cuda.l2_bytes)));
    let mut limits = vec![limit(
        "dram",
        "DRAM: all once",
        moved(all),
        &memory,
        LimitCondition::Cold,
    )];
    if beyond > 0 {
        let what = "DRAM: what L2 cannot keep";
        limits.push(limit(
            "dram",
            what,
            moved(beyond),
            &memory,
            LimitCondition::Always,
        ));
    }
    let once = ["l2-read"];
    limits.push(limit(
        "l2",
        "L2: all once",
        moved(all),
        &once,
        LimitCondition::Always,
    ));
    if let Some(each) = products_of_f16(dtype) {
        let products = ((each * traffic.flop) as f64, "operations");
        let both = ["tensor-wgmma-f16", "tensor-mma-f16"];
        let what = "both products, tensor cores";
        limits.push(limit(
            "tensor",
            what,
            products,
            &both,
            LimitCondition::Always,
        ));
        let what = "if by mma.sync, as before Hopper";
        limits.push(limit(
            "tensor",
            what,
            products,
            &both[1..],
            LimitCondition::If,
        ));
    }
    limits.push(exponentials(traffic, ceilings));
    let launch = ["launch-latency-graph"];
    let one = (1.0, "launches");
    limits.push(limit(
        "launch",
        "one launch in a graph",
        one,
        &launch,
        LimitCondition::Always,
    ));
    limits
}

fn on_cpu(traffic: &Traffic, dtype: DType, ceilings: &Ceilings) -> Vec<Limit> {
    let all = (traffic.compulsory_bytes as f64, "bytes");
    let what = "memory: all once";
    let mut limits = vec![Limit::new(
        ceilings,
        "dram",
        what,
        all,
        &["copy"],
        LimitCondition::Cold,
    )];
    if dtype != DType::F64 {
        let products = (traffic.flop as f64, "operations");
        let what = "both products, multiply-adds in f32";
        let probe = ["fma-f32"];
        limits.push(Limit::new(
            ceilings,
            "fma",
            what,
            products,
            &probe,
            LimitCondition::Always,
        ));
    }
    limits.push(exponentials(traffic, ceilings));
    limits
}

/// An exponential a pair: counted, but no probe tells how fast they are.
fn exponentials(traffic: &Traffic, ceilings: &Ceilings) -> Limit {
    let pairs = (traffic.pairs as f64, "operations");
    Limit {
        probe: "none".to_string(),
        ..Limit::new(
            ceilings,
            "exp",
            "exponentials",
            pairs,
            &[],
            LimitCondition::Always,
        )
    }
}

impl Explanation {
    /// All of it.
    pub fn in_words(&self) -> String {
        let floors = Floors {
            limits: &self.limits,
            hot: self.floor_hot.as_ref(),
            cold: self.floor_cold.as_ref(),
        };
        let mut parts = vec![self.problem_in_words(), floors.in_words()];
        if let Some(achieved) = &self.achieved {
            let kernel = format!("Computed by: {}.", achieved.kernel);
            let words = [floors.against(achieved), kernel].map(|text| wrapped(&text, 0));
            parts.push(format!("Measured\n{}", words.concat()));
        }
        if !self.kernels.is_empty() {
            let kernel = |used| wrapped(&format!("- {}", kernel_in_words(used)), 2);
            let kernels: String = self.kernels.iter().map(kernel).collect();
            parts.push(format!("Kernels\n{kernels}"));
        }
        parts.push(format!("Choices\n{}", wrapped(&self.choices.in_words(), 0)));
        parts.join("\n")
    }

    fn problem_in_words(&self) -> String {
        let ProblemSizes {
            batch,
            query_heads,
            key_heads,
            queries,
            keys,
            channels,
            value_channels,
            ..
        } = self.problem;
        let heads = match query_heads == key_heads {
            true => plural(query_heads, "head", "heads"),
            false => format!("{query_heads} heads that share {key_heads} of keys and values"),
        };
        let channels = match channels == value_channels {
            true => plural(channels, "channel", "channels"),
            false => format!("{channels} channels, values of {value_channels}"),
        };
        let text = format!(
            "{}: {}, {heads} of {channels}, {}, {}; {}.",
            self.name,
            plural(batch, "sequence", "sequences"),
            plural(queries, "query", "queries"),
            plural(keys, "key", "keys"),
            self.problem.seen_in_words("every query sees every key"),
        );
        let costs = format!(
            "{} FLOP in both products, 2 per channel for each pair of a query and a key it sees; {} exponentials, \
             one per pair; {} if all is read and written once: {:.1} FLOP/byte. The attention matrix is never stored \
             in memory.",
            count(self.flop as f64),
            count(self.exponentials as f64),
            bytes(self.compulsory_bytes as f64),
            self.intensity,
        );
        let model = self.ceilings_of.model.as_deref().unwrap_or("unknown");
        let ceilings = match self.limits.iter().any(|limit| limit.ceiling.is_some()) {
            true => format!("Ceilings: measured on {model} ({}).", self.ceilings_from),
            false => "Ceilings: none measured.".to_string(),
        };
        let unknown = match self.kind.as_str() {
            "cuda" if self.kernels.is_empty() => {
                "Not known: the rate of exponentials, which no probe measures, and which kernel runs with what \
                 resources."
            }
            _ => "Not known: the rate of exponentials, which no probe measures.",
        };
        [text.as_str(), &costs, &ceilings, unknown]
            .map(|text| wrapped(text, 0))
            .concat()
    }
}

impl explain::Explanation for Explanation {
    fn in_words(&self) -> String {
        Explanation::in_words(self)
    }

    fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}

//! Which benchmarks to run.

use std::path::{Path, PathBuf};

use fourtap::DType;
use fourtap::dense::Traffic;

use crate::cli::{BenchArgs, Direction, Distribution};
use crate::error::{Error, Result};
use crate::nearest::nearest;
use crate::tensors::MappedFile;
use crate::workload::{AnyWorkload, DenseWorkload, Operator, Workload};

const QUICK_WORKLOADS: [&str; 3] = ["detr-encoder", "dino-decoder", "rtdetr-decoder"];
/// Also quick, where what is asked for can be asked of dense attention.
const QUICK_DENSE: &str = "dense-s512-d64";
const QUICK_DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];
const CUDA_DTYPES: [DType; 3] = [DType::F16, DType::BF16, DType::F32];
/// Dense attention is for tensor cores there.
const DENSE_CUDA_DTYPES: [DType; 2] = [DType::F16, DType::BF16];

/// A processor takes seconds for so many operations, and each benchmark is many computations.
const MOST_FLOP_ON_CPU: u64 = 100_000_000_000;

/// Where the numbers come from.
#[derive(Debug)]
pub enum Subject {
    /// Random numbers of these sizes.
    Synthetic(AnyWorkload),
    /// The tensors of this file.
    File(MappedFile),
}

/// What the numbers of a benchmark are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// Sampling points that lie so.
    Points(Distribution),
    /// Queries, keys and values of the normal distribution.
    Normal,
    /// Those of a file.
    File,
}

impl Numbers {
    /// As recorded.
    pub fn name(self) -> &'static str {
        match self {
            Numbers::Points(distribution) => distribution.name(),
            Numbers::Normal => "normal",
            Numbers::File => "file",
        }
    }
}

/// One row of the table, before it is measured.
#[derive(Clone, Debug)]
pub struct Benchmark {
    /// What is computed.
    pub workload: String,
    /// What the numbers are like.
    pub numbers: Numbers,
    /// `None` for a file, which has its own type.
    pub dtype: Option<DType>,
    /// Which pass.
    pub direction: Direction,
}

impl Benchmark {
    /// What `--filter` looks at.
    pub fn name(&self) -> String {
        let dtype = self.dtype.map_or("file", DType::name);
        format!(
            "{}/{}/{dtype}/{}",
            self.workload,
            self.numbers.name(),
            self.direction.name()
        )
    }
}

/// What was chosen.
#[derive(Debug)]
pub struct Selection {
    /// Everything to time.
    pub subjects: Vec<Subject>,
    /// Workloads that an operator's name stands for too, but that take too long here.
    pub left_out: Vec<String>,
}

/// What was named, or the default; every name looked up and every file opened.
pub fn selected(arguments: &BenchArgs, on_cuda: bool) -> Result<Selection> {
    let chosen: Vec<PathBuf> = match (&arguments.workloads[..], arguments.quick) {
        ([], true) => {
            let passes = &arguments.direction;
            let forward = passes.is_empty() || passes.contains(&Direction::Forward);
            let dense = (forward && arguments.target.kernel.is_none()).then_some(&QUICK_DENSE);
            let all = QUICK_WORKLOADS.iter().chain(dense);
            all.map(PathBuf::from).collect()
        }
        ([], false) => vec![Operator::Msda.name().into()],
        (named, _) => named.to_vec(),
    };
    let batch = arguments.images.or(arguments.quick.then_some(1));
    let mut selection = Selection {
        subjects: Vec::new(),
        left_out: Vec::new(),
    };
    for name in &chosen {
        let all = Operator::ALL
            .into_iter()
            .find(|it| *name == Path::new(it.name()));
        let Some(operator) = all else {
            selection.subjects.push(subject(name, batch)?);
            continue;
        };
        for name in operator.workloads() {
            let subject = subject(Path::new(name), batch)?;
            match on_cuda || subject.is_soon_done()? {
                true => selection.subjects.push(subject),
                false => selection.left_out.push(name.to_string()),
            }
        }
    }
    Ok(selection)
}

/// The workload of deformable attention of this name or file, which needs sizes of its own, not tensors.
pub fn workload(name: &Path, images: Option<u32>) -> Result<Workload> {
    match any_workload(name, images)? {
        AnyWorkload::Msda(workload) => Ok(workload),
        AnyWorkload::Dense(workload) => Err(Error::Workload {
            origin: workload.name,
            found: "expected a workload of deformable attention, found one of dense attention"
                .to_string(),
        }),
    }
}

/// The workload of either operator of this name or file.
pub fn any_workload(name: &Path, batch: Option<u32>) -> Result<AnyWorkload> {
    match subject(name, batch)? {
        Subject::Synthetic(workload) => Ok(workload),
        Subject::File(file) => Err(Error::Workload {
            origin: file.path().display().to_string(),
            found: "expected a built-in workload or a .toml file, found a file of tensors"
                .to_string(),
        }),
    }
}

fn subject(name: &Path, batch: Option<u32>) -> Result<Subject> {
    let resized = |workload: AnyWorkload| match batch {
        Some(batch) => workload.with_batch(batch),
        None => Ok(workload),
    };
    if let Some(workload) = name.to_str().and_then(AnyWorkload::built_in) {
        return Ok(Subject::Synthetic(resized(workload?)?));
    }
    match name.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => Ok(Subject::Synthetic(resized(AnyWorkload::read(name)?)?)),
        Some("safetensors") => Ok(Subject::File(MappedFile::open(name)?)),
        _ => {
            let name = name.display().to_string();
            let known = Workload::names().chain(DenseWorkload::names());
            let near = nearest(&name, known).map(String::from);
            Err(Error::UnknownWorkload { name, near })
        }
    }
}

impl Subject {
    /// What it is called.
    pub fn name(&self) -> String {
        match self {
            Subject::Synthetic(AnyWorkload::Msda(workload)) => workload.name.clone(),
            Subject::Synthetic(AnyWorkload::Dense(workload)) => workload.name.clone(),
            Subject::File(file) => file.path().display().to_string(),
        }
    }

    /// What is computed of it.
    pub fn operator(&self) -> Operator {
        match self {
            Subject::Synthetic(workload) => workload.operator(),
            Subject::File(file) => file.operator(),
        }
    }

    /// Whether a processor is done in reasonable time.
    fn is_soon_done(&self) -> Result<bool> {
        let Subject::Synthetic(AnyWorkload::Dense(workload)) = self else {
            return Ok(true);
        };
        let traffic = Traffic::of_forward(&workload.problem(DType::F32)?);
        Ok(traffic.flop <= MOST_FLOP_ON_CPU)
    }

    /// Everything asked of it; the defaults differ on CUDA.
    pub fn benchmarks(&self, arguments: &BenchArgs, on_cuda: bool) -> Result<Vec<Benchmark>> {
        let directions = self.directions(arguments)?;
        let (numbers, dtypes): (Vec<_>, Vec<_>) = match self {
            Subject::File(_) => (vec![Numbers::File], vec![None]),
            Subject::Synthetic(workload) => {
                let numbers = match workload {
                    AnyWorkload::Dense(_) => vec![Numbers::Normal],
                    AnyWorkload::Msda(_) => {
                        let usual: &[_] = match arguments.quick {
                            true => &[Distribution::Local],
                            false => &Distribution::USUAL,
                        };
                        let asked = or_default(&arguments.distribution, usual);
                        asked.into_iter().map(Numbers::Points).collect()
                    }
                };
                let usual: &[_] = match (on_cuda, self.operator(), arguments.quick) {
                    (true, Operator::Msda, _) => &CUDA_DTYPES,
                    (true, Operator::Dense, _) => &DENSE_CUDA_DTYPES,
                    (false, _, true) => &QUICK_DTYPES,
                    (false, _, false) => &[DType::F32],
                };
                let asked: Vec<DType> = arguments.dtype.iter().map(|&dtype| dtype.into()).collect();
                let dtypes = or_default(&asked, usual);
                (numbers, dtypes.into_iter().map(Some).collect())
            }
        };
        let mut benchmarks = Vec::new();
        for &numbers in &numbers {
            for &dtype in &dtypes {
                for &direction in &directions {
                    benchmarks.push(Benchmark {
                        workload: self.name(),
                        numbers,
                        dtype,
                        direction,
                    });
                }
            }
        }
        Ok(benchmarks)
    }

    /// The passes asked for; dense attention has forward only.
    fn directions(&self, arguments: &BenchArgs) -> Result<Vec<Direction>> {
        let asked = or_default(&arguments.direction, &Direction::ALL);
        let refused = |option| Error::WrongOperator {
            option,
            expected: Operator::Msda,
            found: self.name(),
        };
        match self.operator() {
            Operator::Msda => Ok(asked),
            Operator::Dense if arguments.target.kernel.is_some() => Err(refused("--kernel")),
            Operator::Dense if !asked.contains(&Direction::Forward) => {
                Err(refused("--direction backward"))
            }
            Operator::Dense => Ok(vec![Direction::Forward]),
        }
    }
}

/// What was asked for, each once, else the default.
fn or_default<T: Copy + PartialEq>(asked: &[T], default: &[T]) -> Vec<T> {
    let mut each_once = Vec::new();
    for &one in if asked.is_empty() { default } else { asked } {
        if !each_once.contains(&one) {
            each_once.push(one);
        }
    }
    each_once
}

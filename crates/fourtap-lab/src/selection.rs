//! Which benchmarks to run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fourtap::DType;

use crate::cli::{BenchArgs, Direction, Distribution, InputsChoice};
use crate::error::{Error, Result};
use crate::nearest::nearest;
use crate::operators::{self, Numbers, OPERATORS, Operator, Workload, refused, without_backward};
use crate::tensors::MappedFile;

/// Those that stand for what models do.
const USUAL_POINTS: [Distribution; 2] = [Distribution::Uniform, Distribution::Local];

const QUICK_DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// Where the numbers come from.
#[derive(Debug)]
pub enum Subject {
    /// Random numbers of these sizes.
    Synthetic(Arc<dyn Workload>),
    /// The tensors of this file.
    File(MappedFile),
}

/// One row of the table, before it is measured.
#[derive(Clone, Debug)]
pub struct Benchmark {
    /// What is computed.
    pub workload: String,
    /// What the numbers are like.
    pub numbers: Numbers,
    /// What it is computed from, if that is not the usual.
    pub variant: Option<&'static str>,
    /// `None` for a file, which has its own type.
    pub dtype: Option<DType>,
    /// Which pass.
    pub direction: Direction,
}

impl Benchmark {
    /// What `--filter` looks at.
    pub fn name(&self) -> String {
        let dtype = self.dtype.map_or("file", DType::name);
        let (workload, numbers) = (&self.workload, self.numbers.name);
        let name = format!("{workload}/{numbers}/{dtype}/{}", self.direction.name());
        match self.variant {
            Some(variant) => format!("{name}/{variant}"),
            None => name,
        }
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
            let serving = OPERATORS.into_iter().filter(|it| serves(*it, arguments));
            let names = serving.flat_map(|it| it.quick_workloads());
            names.map(PathBuf::from).collect()
        }
        ([], false) => vec![OPERATORS[0].name().into()],
        (named, _) => named.to_vec(),
    };
    let batch = arguments.images.or(arguments.quick.then_some(1));
    let mut selection = Selection {
        subjects: Vec::new(),
        left_out: Vec::new(),
    };
    for name in &chosen {
        let mut all = OPERATORS.into_iter();
        let Some(operator) = all.find(|it| *name == Path::new(it.name())) else {
            let named = in_each_way(subject(name, batch)?, &arguments.inputs)?;
            selection.subjects.extend(named);
            continue;
        };
        for (name, _) in operator.built_in() {
            let workload = workload(Path::new(name), batch)?;
            match !on_cuda && workload.takes_long_on_cpu()? {
                false => {
                    let built_in = Subject::Synthetic(workload);
                    let ways = in_each_way(built_in, &arguments.inputs)?;
                    selection.subjects.extend(ways);
                }
                true => selection.left_out.push(name.to_string()),
            }
        }
    }
    Ok(selection)
}

/// A subject once for each of the inputs asked for. A file has its own.
fn in_each_way(subject: Subject, asked: &[InputsChoice]) -> Result<Vec<Subject>> {
    let Subject::Synthetic(workload) = subject else {
        return Ok(vec![subject]);
    };
    let ways = or_default(asked, &[InputsChoice::Given]);
    ways.into_iter()
        .map(|way| Ok(Subject::Synthetic(computed_from(workload.clone(), way)?)))
        .collect()
}

/// A workload computed from these inputs, if its operator knows them.
pub fn computed_from(
    workload: Arc<dyn Workload>,
    inputs: InputsChoice,
) -> Result<Arc<dyn Workload>> {
    let name = workload.name().to_string();
    match inputs {
        InputsChoice::Given => Ok(workload),
        InputsChoice::Projections => workload
            .with_projections()
            .ok_or_else(|| refused("--inputs projections", name, |it| it.has_projections())),
    }
}

/// Whether an operator has what is asked for.
fn serves(operator: &dyn Operator, arguments: &BenchArgs) -> bool {
    let asked = &arguments.direction;
    let has = |pass| operator.passes().contains(pass);
    (asked.is_empty() || asked.iter().any(has))
        && (arguments.target.kernel.is_none() || operator.has_named_kernels())
        && (!arguments.inputs.contains(&InputsChoice::Projections) || operator.has_projections())
}

/// The workload of this name or file, which needs sizes of its own, not tensors.
pub fn workload(name: &Path, batch: Option<u32>) -> Result<Arc<dyn Workload>> {
    match subject(name, batch)? {
        Subject::Synthetic(workload) => Ok(workload),
        Subject::File(file) => Err(Error::Workload {
            origin: file.path().display().to_string(),
            found: "expected a built-in workload or a .toml file, found a file of tensors"
                .to_string(),
        }),
    }
}

/// That a workload is of another operator than `expected`.
pub fn of_another(workload: &dyn Workload, expected: &dyn Operator) -> Error {
    Error::Workload {
        origin: workload.name().to_string(),
        found: format!(
            "expected a workload of {}, found one of {}",
            expected.in_words(),
            workload.operator().in_words()
        ),
    }
}

/// The names of all built-in workloads.
pub fn workload_names() -> impl Iterator<Item = &'static str> {
    let built_in = OPERATORS.into_iter().flat_map(|it| it.built_in());
    built_in.map(|(name, _)| *name)
}

fn subject(name: &Path, batch: Option<u32>) -> Result<Subject> {
    let resized = |workload: Arc<dyn Workload>| match batch {
        Some(batch) => workload.with_batch(batch),
        None => Ok(workload),
    };
    if let Some(workload) = name.to_str().and_then(operators::built_in) {
        return Ok(Subject::Synthetic(resized(workload?)?));
    }
    match name.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => Ok(Subject::Synthetic(resized(operators::read(name)?)?)),
        Some("safetensors") => Ok(Subject::File(MappedFile::open(name)?)),
        _ => {
            let name = name.display().to_string();
            let near = nearest(&name, workload_names()).map(String::from);
            Err(Error::UnknownWorkload { name, near })
        }
    }
}

impl Subject {
    /// What it is called.
    pub fn name(&self) -> String {
        match self {
            Subject::Synthetic(workload) => workload.name().to_string(),
            Subject::File(file) => file.path().display().to_string(),
        }
    }

    /// What is computed of it.
    pub fn operator(&self) -> &'static dyn Operator {
        match self {
            Subject::Synthetic(workload) => workload.operator(),
            Subject::File(file) => file.operator(),
        }
    }

    /// Everything asked of it; the defaults differ on CUDA.
    pub fn benchmarks(&self, arguments: &BenchArgs, on_cuda: bool) -> Result<Vec<Benchmark>> {
        let directions = self.directions(arguments)?;
        let (numbers, dtypes): (Vec<_>, Vec<_>) = match self {
            Subject::File(_) => (vec![Numbers::FILE], vec![None]),
            Subject::Synthetic(workload) => {
                let usual: &[_] = match arguments.quick {
                    true => &[Distribution::Local],
                    false => &USUAL_POINTS,
                };
                let asked = or_default(&arguments.distribution, usual).into_iter();
                let numbers: Vec<_> = asked.map(|points| workload.numbers(points)).collect();
                let usual: &[_] = match (on_cuda, arguments.quick) {
                    (true, _) => self.operator().cuda_dtypes(),
                    (false, true) => &QUICK_DTYPES,
                    (false, false) => &[DType::F32],
                };
                let asked: Vec<DType> = arguments.dtype.iter().map(|&dtype| dtype.into()).collect();
                let dtypes = or_default(&asked, usual);
                (
                    // Without sampling points, they are alike wherever those would lie.
                    or_default(&numbers, &[]),
                    dtypes.into_iter().map(Some).collect(),
                )
            }
        };
        let variant = match self {
            Subject::File(_) => None,
            Subject::Synthetic(workload) => workload.variant(),
        };
        let mut benchmarks = Vec::new();
        for &numbers in &numbers {
            for &dtype in &dtypes {
                for &direction in &directions {
                    benchmarks.push(Benchmark {
                        workload: self.name(),
                        numbers,
                        variant,
                        dtype,
                        direction,
                    });
                }
            }
        }
        Ok(benchmarks)
    }

    /// The passes asked for, of those the operator has.
    fn directions(&self, arguments: &BenchArgs) -> Result<Vec<Direction>> {
        let operator = self.operator();
        if arguments.target.kernel.is_some() && !operator.has_named_kernels() {
            return Err(refused("--kernel", self.name(), |it| {
                it.has_named_kernels()
            }));
        }
        let mut asked = or_default(&arguments.direction, &Direction::ALL);
        asked.retain(|pass| operator.passes().contains(pass));
        match asked.is_empty() {
            true => Err(without_backward(
                "--direction backward",
                operator,
                self.name(),
            )),
            false => Ok(asked),
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

//! Which benchmarks to run.

use std::path::{Path, PathBuf};

use fourtap::DType;

use crate::cli::{BenchArgs, Direction, Distribution};
use crate::error::{Error, Result};
use crate::nearest::nearest;
use crate::tensors::MappedFile;
use crate::workload::Workload;

const QUICK_WORKLOADS: [&str; 3] = ["detr-encoder", "dino-decoder", "rtdetr-decoder"];
const QUICK_DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];
const CUDA_DTYPES: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

/// Where the numbers come from.
#[derive(Debug)]
pub enum Subject {
    /// Random numbers of these sizes.
    Synthetic(Workload),
    /// The tensors of this file.
    File(MappedFile),
}

/// One row of the table, before it is measured.
#[derive(Clone, Debug)]
pub struct Benchmark {
    /// What is computed.
    pub workload: String,
    /// `None` for a file, which has its own points.
    pub distribution: Option<Distribution>,
    /// `None` for a file, which has its own type.
    pub dtype: Option<DType>,
    /// Which pass.
    pub direction: Direction,
}

impl Benchmark {
    /// As recorded.
    pub fn distribution_name(&self) -> &'static str {
        self.distribution.map_or("file", Distribution::name)
    }

    /// What `--filter` looks at.
    pub fn name(&self) -> String {
        let dtype = self.dtype.map_or("file", DType::name);
        format!(
            "{}/{}/{dtype}/{}",
            self.workload,
            self.distribution_name(),
            self.direction.name()
        )
    }
}

/// What was named, or the default; every name looked up and every file opened.
pub fn subjects(arguments: &BenchArgs) -> Result<Vec<Subject>> {
    let chosen: Vec<PathBuf> = match (&arguments.workloads[..], arguments.quick) {
        ([], true) => QUICK_WORKLOADS.iter().map(PathBuf::from).collect(),
        ([], false) => Workload::names().map(PathBuf::from).collect(),
        (named, _) => named.to_vec(),
    };
    let images = arguments.images.or(arguments.quick.then_some(1));
    chosen.iter().map(|name| subject(name, images)).collect()
}

/// The workload of this name or file, which needs sizes of its own, not tensors.
pub fn workload(name: &Path, images: Option<u32>) -> Result<Workload> {
    match subject(name, images)? {
        Subject::Synthetic(workload) => Ok(workload),
        Subject::File(file) => Err(Error::Workload {
            origin: file.path().display().to_string(),
            found: "expected a built-in workload or a .toml file, found a file of tensors"
                .to_string(),
        }),
    }
}

fn subject(name: &Path, images: Option<u32>) -> Result<Subject> {
    let resized = |workload: Workload| match images {
        Some(images) => workload.with_images(images),
        None => Ok(workload),
    };
    if let Some(workload) = name.to_str().and_then(Workload::built_in) {
        return Ok(Subject::Synthetic(resized(workload?)?));
    }
    match name.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => Ok(Subject::Synthetic(resized(Workload::read(name)?)?)),
        Some("safetensors") => Ok(Subject::File(MappedFile::open(name)?)),
        _ => {
            let name = name.display().to_string();
            let near = nearest(&name, Workload::names()).map(String::from);
            Err(Error::UnknownWorkload { name, near })
        }
    }
}

impl Subject {
    fn name(&self) -> String {
        match self {
            Subject::Synthetic(workload) => workload.name.clone(),
            Subject::File(file) => file.path().display().to_string(),
        }
    }

    /// Everything asked of it; the defaults differ on CUDA.
    pub fn benchmarks(&self, arguments: &BenchArgs, on_cuda: bool) -> Vec<Benchmark> {
        let quick = arguments.quick;
        let directions = or_default(&arguments.direction, &Direction::ALL);
        let (distributions, dtypes): (Vec<_>, Vec<_>) = match self {
            Subject::File(_) => (vec![None], vec![None]),
            Subject::Synthetic(_) => {
                let distributions: &[_] = if quick {
                    &[Distribution::Local]
                } else {
                    &Distribution::USUAL
                };
                let dtypes: &[_] = match (on_cuda, quick) {
                    (true, _) => &CUDA_DTYPES,
                    (false, true) => &QUICK_DTYPES,
                    (false, false) => &[DType::F32],
                };
                let asked: Vec<DType> = arguments.dtype.iter().map(|&dtype| dtype.into()).collect();
                (
                    or_default(&arguments.distribution, distributions)
                        .into_iter()
                        .map(Some)
                        .collect(),
                    or_default(&asked, dtypes).into_iter().map(Some).collect(),
                )
            }
        };
        let mut benchmarks = Vec::new();
        for &distribution in &distributions {
            for &dtype in &dtypes {
                for &direction in &directions {
                    benchmarks.push(Benchmark {
                        workload: self.name(),
                        distribution,
                        dtype,
                        direction,
                    });
                }
            }
        }
        benchmarks
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

//! Errors, and hints what to do about them.

use std::io;
use std::path::PathBuf;

use crate::console;
use crate::exit::ExitCode;
use crate::operators::Operator;
use crate::units::gib;
use fourtap_admin::write_hint;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the message of a variant says what its fields are"
)]
pub enum Error {
    /// A file cannot be read.
    #[error("{}: cannot be read: {source}", .file.display())]
    Read { file: PathBuf, source: io::Error },
    /// A path leads to something that is no file.
    #[error("{}: expected a file, found {found}", .file.display())]
    NotAFile { file: PathBuf, found: &'static str },
    /// A file cannot be written.
    #[error("{}: cannot be written: {source}", .file.display())]
    Write { file: PathBuf, source: io::Error },
    /// The output file is there already.
    #[error("{}: expected no such file yet, found one", .file.display())]
    OutputExists { file: PathBuf },
    /// Standard output is no place for tensors now.
    #[error(
        "-o -: expected standard output to be a file or a pipe for the tensors alone, found {found}"
    )]
    TensorsToStdout { found: &'static str },
    /// The output would replace the input.
    #[error("{}: expected an output other than the input, found the same file", .file.display())]
    OutputIsInput { file: PathBuf },
    /// A file is no proper safetensors file.
    #[error("{}: expected a safetensors file, found {found}", .file.display())]
    Header { file: PathBuf, found: String },
    /// A tensor is not in the file.
    #[error("{}: expected a tensor {tensor}, found {found}", .file.display())]
    MissingTensor {
        file: PathBuf,
        tensor: &'static str,
        found: String,
        near: Option<String>,
    },
    /// A tensor's elements are of a type that has no meaning here.
    #[error("{}: {tensor}: expected element type {expected}, found {found}", .file.display())]
    TensorType {
        file: PathBuf,
        tensor: &'static str,
        expected: &'static str,
        found: String,
    },
    /// A file's metadata asks for something that has no meaning.
    #[error("{}: metadata {entry}: expected {expected}, found {found}", .file.display())]
    Metadata {
        file: PathBuf,
        entry: &'static str,
        expected: &'static str,
        found: String,
    },
    /// A file says in two ways where to sample.
    #[error("{}: expected sampling_locations and attention_weights, or reference_points, sampling_offsets and attention_logits, found {given} and {projected}", .file.display())]
    MixedTensors {
        file: PathBuf,
        given: &'static str,
        projected: &'static str,
    },
    /// The tensors of a file do not fit each other.
    #[error("{}: {source}", .file.display())]
    Tensors {
        file: PathBuf,
        source: Box<fourtap::Error>,
    },
    /// No workload has this name.
    #[error("{name}: expected a built-in workload or a .toml or .safetensors file, found neither")]
    UnknownWorkload { name: String, near: Option<String> },
    /// A workload file does not say what it must.
    #[error("{origin}: {found}")]
    Workload { origin: String, found: String },
    /// Tuning tables could not tell the workload from one without a mask.
    #[error("{workload}: expected a workload without attn_mask to tune, found one with it")]
    TunedMask { workload: String },
    /// A results file does not hold what it must.
    #[error("{}{}: expected records of fourtap, found {found}", .file.display(), .line.map_or(String::new(), |line| format!(", line {line}")))]
    Records {
        file: PathBuf,
        line: Option<usize>,
        found: String,
    },
    /// A results file ends in the middle of a record.
    #[error("{}: expected to end with a whole record, found {bytes} bytes of an incomplete one", .file.display())]
    TornRecords { file: PathBuf, bytes: u64 },
    /// An option that needs another one.
    #[error("{option}: expected {expected}, found none")]
    Incomplete {
        option: &'static str,
        expected: &'static str,
    },
    /// A page of a kind that cannot be written.
    #[error("{}: expected a name that ends in .html, found another", .file.display())]
    PageFormat { file: PathBuf },
    /// A page that can only be HTML here.
    #[error("--report {}: expected a name that ends in .html, found another", .file.display())]
    HtmlFormat { file: PathBuf },
    /// A page cannot be made.
    #[error("expected records that make a page, found {reason}")]
    Report { reason: String },
    /// Nothing is left to do.
    #[error("--filter {filter}: expected part of a benchmark's name, found it in none of {count}")]
    NothingSelected { filter: String, count: usize },
    /// Two sets of results have nothing to compare.
    #[error("{}: expected benchmarks that {} has too, with times, found none", .after.display(), .before.display())]
    NothingInCommon { before: PathBuf, after: PathBuf },
    /// A problem without samples takes no time.
    #[error("{workload}: expected something to compute, found a problem without samples or keys")]
    NothingToTime { workload: String },
    /// Memory is not enough.
    #[error("{what}: expected {} of free memory, found {}", gib(*.needed), .available.map_or("less".to_string(), gib))]
    Memory {
        what: String,
        needed: u64,
        available: Option<u64>,
    },
    /// The device asked for cannot be used.
    #[error("--device {requested}: expected a CUDA device, found none to use: {source}")]
    NoCuda {
        requested: String,
        source: Box<fourtap::cuda::CudaError>,
    },
    /// There is no device to share work among.
    #[error("--devices all: expected CUDA devices, found none to use: {0}")]
    NoDevices(#[source] Box<fourtap::cuda::CudaError>),
    /// Devices whose times cannot stand side by side.
    #[error(
        "--devices all: expected GPUs of one model, found {first} (cuda:0) and {other} (cuda:{ordinal})"
    )]
    MixedDevices {
        first: String,
        ordinal: usize,
        other: String,
    },
    /// An option that does not apply to the device in use.
    #[error("{option}: expected to compute on {expected}, found {found}")]
    Misplaced {
        option: &'static str,
        expected: &'static str,
        found: String,
    },
    /// An option that does not apply to the operator.
    #[error("{option}: expected a problem of {}, found {found}, which is none", .expected.in_words())]
    WrongOperator {
        option: &'static str,
        expected: &'static dyn Operator,
        found: String,
        hint: Option<&'static str>,
    },
    /// A parameter with a value it cannot have.
    #[error("--set {setting}: expected {expected}")]
    Setting { setting: String, expected: String },
    /// Nothing to tune has this name.
    #[error("{name}: expected a workload or a kernel that can be tuned, found neither")]
    UnknownTarget { name: String, near: Option<String> },
    /// The defaults cannot be the reference for other choices.
    #[error("{subject}: expected the defaults to compute it correctly, found that {found}")]
    Defaults { subject: String, found: String },
    /// The fastest could not be timed again.
    #[error("{subject}: expected alternating times of the fastest choices, found that {found}")]
    Finals { subject: String, found: String },
    /// There is no file to store choices in.
    #[error("tune: expected a tuning table to store choices in, found none")]
    NoTuningFile,
    /// A probe, which has one right answer, computed another.
    #[error("expected {expected}, found {found}")]
    Probe { expected: String, found: String },
    /// There is no profiler.
    #[error("profile: expected Nsight Compute's ncu, found none at {looked}")]
    NoProfiler { looked: String },
    /// There is no device to profile.
    #[error("profile: expected a CUDA device, found none to use: {source}")]
    NothingToProfile {
        source: Box<fourtap::cuda::CudaError>,
    },
    /// What an extension of this program ran into.
    #[error("{message}")]
    Extension {
        /// As told.
        message: String,
        /// What to do about it.
        hint: Option<String>,
        /// What the process ends with.
        exit_code: ExitCode,
    },
    /// The profiler may not read counters.
    #[error(
        "profile: expected to read hardware counters, found no permission to (ERR_NVGPUCTRPERM)"
    )]
    CounterPermission,
    /// The profiler ended without counters.
    #[error("{}: expected counters of the kernels, found {found}", .ncu.display())]
    Profiler { ncu: PathBuf, found: String },
    /// A counter has a name that no profiler knows.
    #[error("--metrics {name}: expected the name of a counter, found {found}")]
    Metric { name: String, found: String },
    /// A file of counters does not hold what it must.
    #[error("{}{}: expected what `ncu --csv` prints, found {found}", .file.display(), .line.map_or(String::new(), |line| format!(", line {line}")))]
    CounterFile {
        file: PathBuf,
        line: Option<usize>,
        found: String,
    },
    /// No probe has this name.
    #[error("{name}: expected the name of a probe, found none of that name")]
    UnknownProbe { name: String, near: Option<String> },
    /// Nothing is left to probe.
    #[error("--filter {filter}: expected part of a probe's name, found it in none of {count}")]
    NothingProbed { filter: String, count: usize },
    /// The program to compare with is none that can be timed in turns.
    #[error("--against {}: expected a fourtap that can be timed in turns, found {found}", .program.display())]
    Against { program: PathBuf, found: String },
    /// Whoever says whose turn it is cannot be understood.
    #[error("standard input: expected to be told when to compute, found {0}")]
    Turns(io::Error),
    /// This program cannot be started a second time.
    #[error("subprocess: cannot be started: {0}")]
    Start(io::Error),
    /// The seeds asked for run past the last one.
    #[error(
        "--seed {seed}: expected room for {cases} seeds, found the last possible seed before their end"
    )]
    Seeds { seed: u64, cases: u64 },
    /// A result is outside the error tolerance.
    #[error("{benchmark}: verification failed, so it is not timed: {found}")]
    Verification { benchmark: String, found: String },
    /// `doctor`, `cache` or `bake` failed.
    #[error(transparent)]
    Admin(#[from] fourtap_admin::Error),
    /// A call was refused that should not have been.
    #[error(transparent)]
    Library(Box<fourtap::Error>),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// Standard output cannot be written.
    #[error("standard output: cannot be written: {0}")]
    Stdout(io::Error),
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// What the user may try.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Error::Admin(source) => return source.hint(),
            Error::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "check the path"
            }
            Error::Write { file, source } => return write_hint(file, source),
            Error::OutputExists { .. } => "choose another name, or replace it with --force",
            Error::TensorsToStdout { .. } => {
                "name a file, or redirect the output; -o ./- writes a file called -"
            }
            Error::OutputIsInput { .. } => {
                "choose another name: the input is never replaced, not even with --force"
            }
            Error::Header { .. } => {
                "the file may be cut short or of another format; write it again with safetensors' save_file"
            }
            Error::MissingTensor {
                near: Some(near),
                tensor,
                ..
            } => {
                return Some(format!(
                    "is it the one called {near}? Rename it to {tensor}"
                ));
            }
            Error::MissingTensor {
                tensor: "grad_out", ..
            } => "--grad starts from the gradient of out; add it to the file, or leave --grad out",
            Error::MixedTensors { .. } => {
                "keep the tensors of one way: given locations, or projections with or without value_mask"
            }
            Error::MissingTensor { .. } => "`fourtap run --help` lists the tensors",
            Error::TensorType { .. } => "convert the tensor before saving it",
            Error::Tensors { source, .. } | Error::Library(source) => return library_hint(source),
            Error::UnknownWorkload {
                near: Some(near), ..
            } => return Some(format!("did you mean {near}?")),
            Error::UnknownWorkload { .. } => "`fourtap bench --list` shows the built-in workloads",
            Error::Workload { .. } => {
                "`fourtap bench --list` shows the built-in workloads; a file of the same form needs name, \
                 description, images, queries, heads, channels, levels, points and reference; of dense attention \
                 operator, name, description, batch, heads, queries and channels"
            }
            Error::TunedMask { .. } => {
                "tuning tables know no masks; `fourtap bench` times it with the defaults"
            }
            Error::NothingSelected { .. } => {
                "names look like detr-encoder/local/f32/forward; see --list, --dtype and --distribution"
            }
            Error::TornRecords { .. } => {
                "an interruption left it; `fourtap bench --resume` removes it and continues, or choose another file"
            }
            Error::NothingInCommon { .. } => {
                "benchmarks are matched by name and sizes: measure the same workloads with the same options"
            }
            Error::Setting { .. } => {
                "`fourtap tune --space` shows the kernels with their parameters"
            }
            Error::UnknownTarget {
                near: Some(near), ..
            } => return Some(format!("did you mean {near}?")),
            Error::UnknownTarget { .. } | Error::Incomplete { option: "tune", .. } => {
                "`fourtap bench --list` shows the built-in workloads, `fourtap tune --space` the kernels"
            }
            Error::Extension { hint, .. } => return hint.clone(),
            Error::Against { .. } => {
                "both programs must know `bench --against`; what they said about it stands above"
            }
            Error::NoTuningFile => {
                "FOURTAP_TUNE is off, or names nothing, and there is no home: name a file with it, or use --dry-run"
            }
            Error::UnknownProbe {
                near: Some(near), ..
            } => return Some(format!("did you mean {near}?")),
            Error::UnknownProbe { .. } | Error::NothingProbed { .. } => {
                "`fourtap probe --list` shows the probes of the device; --device cuda those of a GPU"
            }
            Error::Records { .. } => {
                "records are written by `fourtap bench --json FILE`, `probe --json FILE` and `profile --json FILE`"
            }
            Error::PageFormat { .. } => "as in -o report.html",
            Error::HtmlFormat { .. } => "as in --report report.html",
            Error::Report { .. } => "please report it, with the records if you can share them",
            Error::WrongOperator { hint, .. } => return hint.map(str::to_string),
            Error::Metadata { .. } => "`fourtap run --help` says what metadata an operator knows",
            Error::Memory { .. } => "try fewer images (bench: --images 1) or a smaller type",
            Error::NoCuda { .. } => {
                "use --device cpu, or leave --device out; `fourtap doctor` says what is missing"
            }
            Error::NoDevices(_) => "leave --devices out; `fourtap doctor` says what is missing",
            Error::MixedDevices { .. } => {
                "use --device cuda:N, or show this program fewer GPUs by CUDA_VISIBLE_DEVICES"
            }
            Error::Misplaced {
                option: "--simd", ..
            } => "leave --simd out, or use --device cpu",
            Error::Misplaced {
                option: "profile", ..
            } => "leave --device out, or use --device cuda:N",
            Error::Misplaced {
                option: "--kernel", ..
            } => "leave --kernel out, or use --device cuda",
            Error::Misplaced { .. } => {
                "leave --device out on a machine with a GPU; `fourtap doctor` says what is missing"
            }
            Error::Probe { .. } => "the device or its driver computes wrongly: please report it",
            Error::NoProfiler { .. } => {
                "Nsight Compute comes with the CUDA toolkit; name it with --ncu PATH, or read what it wrote elsewhere \
                 with --import FILE"
            }
            Error::NothingToProfile { .. } => {
                "--import FILE reads counters taken on another machine; `fourtap doctor` says what is missing"
            }
            Error::CounterPermission => {
                "run as root, or have the administrator set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia \
                 module and reload it; in a container also --cap-add=SYS_ADMIN"
            }
            Error::Profiler { .. } => {
                "`fourtap bench` must work first; a virtual machine or another profiler that runs may keep counters \
                 from being read"
            }
            Error::Metric { .. } => "`ncu --query-metrics` lists them",
            Error::CounterFile { .. } => {
                "write it with `ncu --csv --page raw --print-units base`, or --page details"
            }
            Error::Verification { .. } => {
                "if the inputs hold NaN or infinity this is expected; else please report it with this command"
            }
            _ => return None,
        };
        Some(hint.to_string())
    }

    /// The code the process ends with.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Error::Admin(source) => source.exit_code(),
            Error::Verification { .. } => ExitCode::MISMATCH,
            Error::Interrupted => ExitCode::INTERRUPTED,
            Error::Extension { exit_code, .. } => *exit_code,
            Error::Seeds { .. }
            | Error::Misplaced { .. }
            | Error::WrongOperator { .. }
            | Error::Incomplete { .. }
            | Error::TensorsToStdout { .. }
            | Error::Metric { .. }
            | Error::PageFormat { .. } => ExitCode::USAGE,
            _ => ExitCode::FAILURE,
        }
    }

    /// Whether the reader of standard output has gone.
    pub fn is_closed_pipe(&self) -> bool {
        match self {
            Error::Admin(source) => source.is_closed_pipe(),
            Error::Stdout(source) => source.kind() == io::ErrorKind::BrokenPipe,
            _ => false,
        }
    }

    /// Says it on standard error.
    pub fn report(&self) {
        console::report(self, self.hint());
    }
}

impl From<fourtap::Error> for Error {
    fn from(source: fourtap::Error) -> Self {
        Error::Library(Box::new(source))
    }
}

impl From<fourtap::cuda::driver::DriverError> for Error {
    fn from(source: fourtap::cuda::driver::DriverError) -> Self {
        fourtap::Error::from(source).into()
    }
}

impl From<fourtap::cuda::jit::JitError> for Error {
    fn from(source: fourtap::cuda::jit::JitError) -> Self {
        fourtap::Error::from(source).into()
    }
}

fn library_hint(error: &fourtap::Error) -> Option<String> {
    use fourtap::Error as E;
    use fourtap::cuda::CudaError;
    use fourtap::cuda::driver::DriverError;
    let hint = match error {
        E::LevelSum { .. } => {
            "axis S of value holds the pixels of all levels, one level after another"
        }
        E::LevelSize { .. } => "spatial_shapes holds (height, width) of each level, in pixels",
        E::LevelStart { .. } | E::LevelOverlap { .. } | E::LevelStartCount { .. } => {
            "leave level_start_index out if the levels follow one another"
        }
        E::DType {
            tensor: "key" | "value",
            ..
        } => "query, key and value are of one type",
        E::DType { .. } => "keep locations and weights in f32, and grad_out in the type of value",
        E::Unsupported {
            backend: "cuda", ..
        } => "leave --kernel out to use the best there is; --device cpu computes everything",
        E::Cuda(CudaError::Driver(DriverError::OutOfMemory { .. })) => {
            "try fewer images (bench: --images 1) or a smaller type"
        }
        E::SimdUnavailable { .. } => "leave --simd out to use the best there is",
        E::Rank { .. } | E::Shape { .. } | E::NoChannels { .. } | E::Heads { .. } => {
            "`fourtap run --help` lists the shapes"
        }
        _ => return None,
    };
    Some(hint.to_string())
}

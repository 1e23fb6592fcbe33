//! A command that is part of a task, and how long it took.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A command run at the root of the repository, whose failure fails the task.
pub struct Chore(Command);

/// Cargo, the one that runs this program.
pub fn cargo<const N: usize>(arguments: [&str; N]) -> Chore {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    chore(cargo, &arguments)
}

/// Any program.
pub fn chore(program: impl AsRef<OsStr>, arguments: &[&str]) -> Chore {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    Chore(command)
}

/// The repository.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// What the steps so far took: name, elapsed time, processor time where the system tells.
static STEPS: Mutex<Vec<(String, Duration, Option<Duration>)>> = Mutex::new(Vec::new());

/// Runs a step of a longer task, and says how long it took.
pub fn step<T>(name: &str, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    eprintln!("\n== {name}");
    let (begin, processors) = (Instant::now(), processor_time());
    let result = work()?;
    let processors = processor_time().and_then(|now| now.checked_sub(processors?));
    let took = begin.elapsed();
    eprintln!("== {name}: {}", in_words(took, processors));
    if let Ok(mut steps) = STEPS.lock() {
        steps.push((name.to_string(), took, processors));
    }
    Ok(result)
}

/// Prints what each step took, and all together.
pub fn print_steps() {
    let Ok(steps) = STEPS.lock() else { return };
    eprintln!();
    for (name, took, processors) in steps.iter() {
        eprintln!("{:>40}  {}", name, in_words(*took, *processors));
    }
    let took = steps.iter().map(|(_, took, _)| *took).sum();
    let processors = steps.iter().map(|(_, _, processors)| *processors).sum();
    eprintln!("{:>40}  {}", "all steps", in_words(took, processors));
}

fn in_words(took: Duration, processors: Option<Duration>) -> String {
    let seconds = took.as_secs_f64();
    match processors {
        Some(processors) => format!(
            "{seconds:6.1} s, processors {:6.1} s",
            processors.as_secs_f64()
        ),
        None => format!("{seconds:6.1} s"),
    }
}

/// What commands that have ended took of processors, as Linux counts it: on a busy machine elapsed time says little.
fn processor_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // After the program's name, which may contain anything, fields are numbered from 3; 16 and 17 are of children.
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(16 - 3);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    // A tick is a hundredth of a second for programs, on every Linux.
    Some(Duration::from_millis((ticks()? + ticks()?) * 10))
}

impl Chore {
    /// With more arguments.
    pub fn arguments(mut self, more: &[impl AsRef<OsStr>]) -> Self {
        self.0.args(more);
        self
    }

    /// With an environment variable.
    pub fn variable(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    /// In another folder.
    pub fn within(mut self, folder: &Path) -> Self {
        self.0.current_dir(folder);
        self
    }

    /// Runs it, showing what it prints.
    pub fn run(mut self) -> Result<(), String> {
        let status = self.0.status();
        self.judge(status)
    }

    /// Runs it as a step.
    pub fn step(self, name: &str) -> Result<(), String> {
        step(name, || self.run())
    }

    /// Runs it, and returns what it wrote to its standard output.
    pub fn output(mut self) -> Result<String, String> {
        let output = self.0.stderr(Stdio::inherit()).output();
        let text = output
            .as_ref()
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let text = text.unwrap_or_default();
        self.judge(output.map(|output| output.status))?;
        Ok(text)
    }

    /// Runs it with its standard output line by line to `each`.
    pub fn lines(mut self, mut each: impl FnMut(&str)) -> Result<(), String> {
        let status = self.0.stdout(Stdio::piped()).spawn().and_then(|mut child| {
            if let Some(stdout) = child.stdout.take() {
                for line in BufReader::new(stdout).split(b'\n') {
                    each(&String::from_utf8_lossy(&line?));
                }
            }
            child.wait()
        });
        self.judge(status)
    }

    fn judge(&self, status: std::io::Result<ExitStatus>) -> Result<(), String> {
        let words: Vec<_> = std::iter::once(self.0.get_program())
            .chain(self.0.get_args())
            .collect();
        let line = words.join(OsStr::new(" ")).to_string_lossy().into_owned();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("`{line}` ended with {status}")),
            Err(error) => Err(format!("`{line}` could not be started: {error}")),
        }
    }
}

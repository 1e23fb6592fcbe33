//! Work in a subprocess: hangs and crashes are reported, and no process is left behind.

mod worker;

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::record::{Outcome, Run};

pub use worker::{Worker, questions};

/// How often a process is asked whether it ended.
const POLL: Duration = Duration::from_millis(5);

/// A killed process that waits for its device may take a while to go; not to go at all is the driver's fault.
const GOING: Duration = Duration::from_secs(20);

/// How a process ended and what it printed.
#[derive(Debug)]
pub struct ProcessResult {
    by: ExitReason,
    /// What it printed.
    pub stdout: String,
    /// What it printed to standard error.
    pub stderr: String,
}

#[derive(Debug)]
enum ExitReason {
    Itself(ExitStatus),
    Killed,
    /// It was killed and is still there, as one that waits for a broken device may be.
    Never,
}

impl ProcessResult {
    /// How it ended, if not as it should.
    pub fn trouble(&self, limit: Duration) -> Option<(Outcome, String)> {
        let seconds = limit.as_secs_f64();
        let hung = format!("it did not end within {seconds} s and was killed");
        let status = match self.by {
            ExitReason::Itself(status) => status,
            ExitReason::Killed => return Some((Outcome::Hung, hung)),
            ExitReason::Never => {
                let words = format!("{hung}, but its process is still there");
                return Some((Outcome::Hung, words));
            }
        };
        if let Some(signal) = signal(status) {
            let words = format!("its process was ended by {}", in_words(signal));
            return Some((Outcome::Crashed, words));
        }
        if status.success() {
            return None;
        }
        let said = self.stderr.lines().find(|line| !line.trim().is_empty());
        let words = match said {
            Some(line) => line.strip_prefix("error: ").unwrap_or(line).to_string(),
            None => format!("its process ended with {status}"),
        };
        Some((Outcome::Failed, words))
    }
}

/// Runs a program for at most so long.
pub fn run(command: &mut Command, limit: Duration) -> Result<ProcessResult> {
    let mut child = ChildGuard::start(command)?;
    let stdout = child.0.stdout.take().map(reader);
    let stderr = child.0.stderr.take().map(reader);
    let by = child.end(limit)?;
    // Whoever reads from one that never ends would wait as long.
    let [stdout, stderr] = match by {
        ExitReason::Never => Default::default(),
        _ => [text(stdout), text(stderr)],
    };
    Ok(ProcessResult { by, stdout, stderr })
}

/// Runs a program that prints records for at most so long: what it printed, and how it ended, if not as it should.
pub fn recorded(
    command: &mut Command,
    limit: Duration,
) -> Result<(Run, Option<(Outcome, String)>)> {
    let ended = run(command, limit)?;
    let (run, unreadable) = match Run::parse(Path::new("its output"), &ended.stdout) {
        Ok(run) => (run, None),
        Err(error) => (Run::default(), Some((Outcome::Failed, error.to_string()))),
    };
    Ok((run, ended.trouble(limit).or(unreadable)))
}

/// A process that does not outlive this.
struct ChildGuard(Child);

impl ChildGuard {
    /// Its input stays open as long as this process lives; its end tells the other to end too.
    fn start(command: &mut Command) -> Result<Self> {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        child.map(ChildGuard).map_err(Error::Start)
    }

    /// How it ended, or ends by being killed after so long.
    fn end(&mut self, limit: Duration) -> Result<ExitReason> {
        if let Some(status) = self.wait(limit)? {
            return Ok(ExitReason::Itself(status));
        }
        // It may have ended just now: then there is nobody to kill.
        let _ = self.0.kill();
        Ok(match self.wait(GOING)? {
            Some(_) => ExitReason::Killed,
            None => ExitReason::Never,
        })
    }

    /// How it ended; none if it has not after so long.
    fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().map_err(Error::Start)? {
                return Ok(Some(status));
            }
            if started.elapsed() >= limit {
                return Ok(None);
            }
            thread::sleep(POLL);
        }
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            // Seen to its end, or it would stay listed where nobody else does that.
            let _ = self.wait(GOING);
        }
    }
}

/// Reads to the end on a thread of its own: a process that nobody reads from stops when the pipe is full.
fn reader(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before a failure counts.
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

fn text(reader: Option<JoinHandle<Vec<u8>>>) -> String {
    let bytes = reader.and_then(|reader| reader.join().ok());
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

#[cfg(unix)]
fn signal(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

#[cfg(not(unix))]
fn signal(_: ExitStatus) -> Option<i32> {
    None
}

/// "signal 11 (SIGSEGV)".
fn in_words(signal: i32) -> String {
    // Those whose numbers are the same on every system.
    let names = [
        (2, "SIGINT"),
        (4, "SIGILL"),
        (6, "SIGABRT"),
        (8, "SIGFPE"),
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (15, "SIGTERM"),
    ];
    match names.iter().find(|(number, _)| *number == signal) {
        Some((_, name)) => format!("signal {signal} ({name})"),
        None => format!("signal {signal}"),
    }
}

/// Ends this process as soon as the one that watches it is gone, by whatever: its end of our input closes then.
pub fn end_with_parent() {
    thread::spawn(|| {
        let mut rest = Vec::new();
        // An error is an end as well.
        let _ = std::io::stdin().read_to_end(&mut rest);
        // Nobody is there to be told, and an orderly end would wait for a device that may hang.
        std::process::abort();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    #[cfg(unix)]
    fn each_way_to_end_has_its_words() {
        let limit = Duration::from_secs(30);
        let trouble = |script| run(&mut shell(script), limit).unwrap().trouble(limit);
        assert_eq!(trouble("echo fine"), None);
        let (outcome, words) = trouble("kill -SEGV $$").unwrap();
        assert_eq!(outcome, Outcome::Crashed);
        assert_eq!(words, "its process was ended by signal 11 (SIGSEGV)");
        let (outcome, words) = trouble("echo 'error: no luck' >&2; exit 1").unwrap();
        assert_eq!((outcome, words.as_str()), (Outcome::Failed, "no luck"));
        let (outcome, words) = trouble("exit 7").unwrap();
        assert_eq!(outcome, Outcome::Failed);
        assert!(words.contains('7'), "{words}");
    }

    #[test]
    #[cfg(unix)]
    fn one_that_hangs_is_killed_and_what_it_said_is_kept() {
        let limit = Duration::from_secs(1);
        let ended = run(&mut shell("echo before; exec sleep 600"), limit).unwrap();
        assert_eq!(ended.stdout, "before\n");
        let (outcome, words) = ended.trouble(limit).unwrap();
        assert_eq!(outcome, Outcome::Hung);
        assert_eq!(words, "it did not end within 1 s and was killed");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn one_that_is_dropped_is_gone() {
        let child = ChildGuard::start(&mut shell("exec sleep 600")).unwrap();
        let listed = std::path::PathBuf::from(format!("/proc/{}", child.0.id()));
        assert!(listed.exists());
        drop(child);
        assert!(!listed.exists());
    }

    #[test]
    #[cfg(unix)]
    fn one_that_says_more_than_a_pipe_holds_ends() {
        let limit = Duration::from_secs(30);
        let ended = run(&mut shell("head -c 1000000 /dev/zero"), limit).unwrap();
        assert_eq!(ended.stdout.len(), 1_000_000);
    }
}

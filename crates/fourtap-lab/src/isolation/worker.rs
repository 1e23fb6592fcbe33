//! A process that is asked one thing after another: what is costly to set up is set up once.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, Command};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{ChildGuard, ExitReason, GOING, ProcessResult, reader, text};
use crate::error::{Error, Result};
use crate::record::Outcome;

/// Asks a process questions of a line each, and gets a line for an answer. One that ends badly is replaced for the next.
pub struct Worker {
    start: Box<dyn Fn() -> Result<Command> + Send>,
    running: Option<WorkerProcess>,
}

struct WorkerProcess {
    child: ChildGuard,
    questions: ChildStdin,
    answers: Receiver<String>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl Worker {
    /// Of the process that this command starts. It is not started before the first question.
    pub fn new(start: impl Fn() -> Result<Command> + Send + 'static) -> Self {
        Worker {
            start: Box::new(start),
            running: None,
        }
    }

    /// The answer to a question, or how the process ended instead; it has `limit` to answer, or to start and answer.
    pub fn ask(
        &mut self,
        question: &str,
        limit: Duration,
    ) -> Result<std::result::Result<String, (Outcome, String)>> {
        let running = match self.running.take() {
            Some(running) => running,
            None => WorkerProcess::start(&mut (self.start)()?)?,
        };
        let running = self.running.insert(running);
        // One that is gone already is heard of below.
        let _ = writeln!(running.questions, "{question}").and_then(|()| running.questions.flush());
        match running.answers.recv_timeout(limit) {
            Ok(answer) => Ok(Ok(answer)),
            Err(silence) => {
                let is_hung = silence == RecvTimeoutError::Timeout;
                let ended = self.running.take().map(|running| running.end(is_hung));
                let trouble = ended.transpose()?.and_then(|ended| ended.trouble(limit));
                let words = "its process ended without an answer".to_string();
                Ok(Err(trouble.unwrap_or((Outcome::Failed, words))))
            }
        }
    }
}

impl WorkerProcess {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = ChildGuard::start(command)?;
        let missing = || Error::Start(std::io::Error::other("it has no pipes"));
        let stdout = child.0.stdout.take().ok_or_else(missing)?;
        Ok(WorkerProcess {
            questions: child.0.stdin.take().ok_or_else(missing)?,
            answers: lines(stdout),
            stderr: child.0.stderr.take().map(reader),
            child,
        })
    }

    /// How it ended, or ends by being killed: at once if it is known to hang.
    fn end(mut self, is_hung: bool) -> Result<ProcessResult> {
        let limit = if is_hung { Duration::ZERO } else { GOING };
        let by = self.child.end(limit)?;
        let stderr = match by {
            // Whoever reads from it would wait as long.
            ExitReason::Never => String::new(),
            _ => text(self.stderr.take()),
        };
        Ok(ProcessResult {
            by,
            stdout: String::new(),
            stderr,
        })
    }
}

/// The whole lines that somebody prints, as they come; what is not ended by a line break is none.
fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = String::new();
        while from.read_line(&mut line).is_ok_and(|bytes| bytes > 0) && line.ends_with('\n') {
            if send.send(std::mem::take(&mut line)).is_err() {
                return;
            }
        }
    });
    receive
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("is_running", &self.running.is_some())
            .finish()
    }
}

/// The questions put to this process, which ends as soon as nobody can ask any more: even one that hangs does.
pub fn questions() -> Receiver<String> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(std::io::Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
        // Nobody is there to be told, and an orderly end would wait for a device that may hang.
        std::process::abort();
    });
    receive
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn worker(script: &'static str) -> Worker {
        Worker::new(move || {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Ok(command)
        })
    }

    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn one_process_answers_until_it_ends() {
        let mut echo = worker("while read line; do echo $$ $line; done");
        let answer = |echo: &mut Worker, question| echo.ask(question, LIMIT).unwrap().unwrap();
        let first = answer(&mut echo, "one");
        let second = answer(&mut echo, "two");
        let process = first.split(' ').next().unwrap();
        assert_eq!(second, format!("{process} two\n"));
    }

    #[test]
    fn one_that_ends_badly_is_told_and_replaced() {
        let mut moody = worker("read line; test $line = good || kill -SEGV $$; echo fine");
        let (outcome, words) = moody.ask("bad", LIMIT).unwrap().unwrap_err();
        assert_eq!(outcome, Outcome::Crashed, "{words}");
        assert_eq!(moody.ask("good", LIMIT).unwrap(), Ok("fine\n".to_string()));
        let mut broken = worker("read line; echo 'error: no luck' >&2; exit 1");
        let found = broken.ask("anything", LIMIT).unwrap();
        assert_eq!(found, Err((Outcome::Failed, "no luck".to_string())));
        let mut half = worker("read line; printf half");
        assert!(half.ask("anything", LIMIT).unwrap().is_err());
    }

    #[test]
    fn one_that_hangs_is_killed() {
        let mut slow = worker("read line; test $line = quick || exec sleep 600; echo here");
        let (outcome, words) = slow
            .ask("slow", Duration::from_secs(1))
            .unwrap()
            .unwrap_err();
        assert_eq!(outcome, Outcome::Hung, "{words}");
        assert_eq!(slow.ask("quick", LIMIT).unwrap(), Ok("here\n".to_string()));
    }
}

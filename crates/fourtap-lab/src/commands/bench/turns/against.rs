//! The side that says whose turn it is.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::{Reply, Request};
use crate::cli::BenchArgs;
use crate::commands::compare::{Shown, conclude};
use crate::commands::progress;
use crate::comparison::{Comparison, LEAST_NOISE, Row, turns};
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::program;
use crate::record::{Line, Origin, Round, TurnsRecord};
use crate::selection::Benchmark;
use crate::sink::{PartialRecord, Sink};
use crate::target::Device;

/// Turns of each side in a round, at most.
const TURNS: usize = 6;

/// Shorter turns would be spent on waking up.
const SHORTEST_TURN_MS: f64 = 2.0;

/// Times both programs in turns, for about `budget` each a benchmark, and says what changed.
pub fn execute(
    arguments: &BenchArgs,
    other: &Path,
    plan: &[Benchmark],
    budget: Duration,
) -> Result<ExitCode> {
    let mut sink = Sink::open(arguments.json.as_deref(), PartialRecord::Refuse)?;
    let count = turns::rounds(plan.len());
    let bar = progress((count * plan.len()) as u64);
    let words = words(arguments);
    let here = program::again().map_err(Error::Start)?;
    let here = PathBuf::from(here.get_program());
    let mut lot = Xoshiro256PlusPlus::seed_from_u64(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64),
    );
    let mut rounds = vec![Vec::new(); plan.len()];
    let mut wrong: [Vec<(String, String)>; 2] = Default::default();
    let mut seen = None;
    for round in 0..count {
        // Who is started first is no advantage then.
        let first = lot.random_range(0..2);
        // What both have to say about this machine is the same in every round.
        let heard = round == 0;
        let start = |side: usize| Program::start([other, &here][side], &words, heard);
        let (a, b) = match first {
            0 => (start(0)?, start(1)?),
            _ => {
                let b = start(1)?;
                (start(0)?, b)
            }
        };
        let ((a, of_a, _), (b, of_b, device)) = (a, b);
        let mut pair = [a, b];
        seen = Some((of_a, of_b, device));
        for (benchmark, rounds) in plan.iter().zip(&mut rounds) {
            let name = benchmark.name();
            bar.set_message(format!("{name}: round {} of {count}", round + 1));
            let found = pair.each_mut().map(|program| program.ready(&name));
            let [before, after] = found;
            let found = [before?, after?];
            if found.iter().all(Option::is_none) {
                rounds.push(timed(&mut pair, budget / count as u32, &mut lot)?);
            }
            for side in 0..2 {
                let after = match &found[side] {
                    None => pair[side].next()?,
                    found => found.clone(),
                };
                let known = wrong[side].iter().any(|(known, _)| *known == name);
                wrong[side].extend(after.filter(|_| !known).map(|it| (name.clone(), it)));
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let [wrong_before, wrong_after] = wrong;
    let is_wrong = |name: &str| {
        let mut all = wrong_before.iter().chain(&wrong_after);
        all.any(|(known, _)| known == name)
    };
    let confidence = turns::confidence(plan.len());
    let mut rows: Vec<Row> = vec![];
    for (benchmark, rounds) in plan.iter().zip(rounds) {
        let name = benchmark.name();
        if is_wrong(&name) || rounds.is_empty() {
            continue;
        }
        let row = turns::judged(&name, &rounds, confidence);
        if let Some((other, origin, device)) = &seen {
            sink.put(&Line::Turns(Box::new(TurnsRecord {
                origin: origin.clone(),
                other: other.clone(),
                name,
                device: device.clone(),
                verdict: row.verdict,
                ratio: row.ratio,
                ratio_low: row.ratio_low,
                ratio_high: row.ratio_high,
                confidence,
                rounds,
            })))?;
        }
        rows.push(row);
    }
    let mut notes = notes(&wrong_before, &wrong_after);
    if let Some((other, origin, _)) = &seen
        && origin.is_same_code(other)
    {
        notes.push("A and B are of the same code".to_string());
    }
    let comparison = Comparison::in_turns(rows, notes, LEAST_NOISE);
    let shown = match (&sink, arguments.all) {
        // The records are the output.
        (Sink::Stdout, _) => Shown::Nothing,
        (_, all) => Shown::Table { all },
    };
    conclude(
        [other, &here],
        &comparison,
        &wrong_after,
        shown,
        &arguments.fail_on,
    )
}

fn notes(before: &[(String, String)], after: &[(String, String)]) -> Vec<String> {
    let note = |side: &'static str| {
        move |(name, found): &(String, String)| {
            format!("{name}: the result in {side} is wrong, so it has no time: {found}")
        }
    };
    let after = after.iter().map(note("B"));
    after.chain(before.iter().map(note("A"))).collect()
}

/// One round of a benchmark that both wait to compute.
fn timed(pair: &mut [Program; 2], budget: Duration, lot: &mut Xoshiro256PlusPlus) -> Result<Round> {
    let turn_ms = 1e3 * budget.as_secs_f64() / TURNS as f64;
    let turn_ms = turn_ms.max(SHORTEST_TURN_MS);
    let begun = Instant::now();
    let mut samples: [Vec<f64>; 2] = Default::default();
    // One after the other, then the other way round: what changes steadily favours neither. Computations longer than
    // a turn get as few turns as that takes.
    for turns in (0..TURNS).step_by(2) {
        if turns > 0 && begun.elapsed() > 2 * budget {
            break;
        }
        let first = lot.random_range(0..2);
        for side in [first, 1 - first, 1 - first, first] {
            samples[side].append(&mut pair[side].take(turn_ms)?);
        }
    }
    Ok(turns::round(&samples[0], &samples[1]))
}

/// The same choice of benchmarks, for a process that is told when to compute.
fn words(arguments: &BenchArgs) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["bench".into(), "--in-turns".into()];
    let mut add = |option: &str, value: String| words.push(format!("{option}={value}").into());
    fn named<T: ValueEnum>(value: &T) -> String {
        let value = value.to_possible_value();
        value.map_or(String::new(), |value| value.get_name().to_string())
    }
    for dtype in &arguments.dtype {
        add("--dtype", named(dtype));
    }
    add("--coordinates", named(&arguments.coordinates));
    for inputs in &arguments.inputs {
        add("--inputs", named(inputs));
    }
    for direction in &arguments.direction {
        add("--direction", named(direction));
    }
    for distribution in &arguments.distribution {
        add("--distribution", distribution.name().to_string());
    }
    if let Some(images) = arguments.images {
        add("--images", images.to_string());
    }
    add("--seed", arguments.seed.to_string());
    if let Some(filter) = &arguments.filter {
        add("--filter", filter.clone());
    }
    let target = &arguments.target;
    add("--device", target.device.to_string());
    if let Some(kernel) = &target.kernel {
        add("--kernel", named(kernel));
    }
    if let Some(simd) = &target.simd {
        add("--simd", named(simd));
    }
    add("--threads", rayon::current_num_threads().to_string());
    for (option, is_set) in [
        ("--deterministic", target.deterministic),
        ("--quick", arguments.quick),
    ] {
        words.extend(is_set.then(|| option.into()));
    }
    words.push("--".into());
    words.extend(arguments.workloads.iter().map(|it| it.clone().into()));
    words
}

/// A program that computes when told to. It does not outlive this.
struct Program {
    path: PathBuf,
    child: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Program {
    /// Starts one, of which errors and notes are heard or not, and asks who it is.
    fn start(path: &Path, words: &[OsString], heard: bool) -> Result<(Self, Origin, Device)> {
        let mut command = Command::new(path);
        command.args(words);
        if !heard {
            command.stderr(Stdio::null());
        }
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started
            .map_err(|error| against(path, format!("one that cannot be started: {error}")))?;
        let (Some(requests), Some(replies)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(against(path, "one that cannot be talked to".to_string()));
        };
        let mut program = Program {
            path: path.to_path_buf(),
            child,
            requests,
            replies: BufReader::new(replies),
        };
        match program.reply()? {
            Reply::Hello { origin, device } => Ok((program, *origin, *device)),
            other => Err(program.astray(&other)),
        }
    }

    /// Waits until it has verified this benchmark: none, or what is wrong with its result.
    fn ready(&mut self, name: &str) -> Result<Option<String>> {
        match self.reply()? {
            Reply::Ready { benchmark, wrong } if benchmark == name => Ok(wrong),
            other => Err(self.astray(&other)),
        }
    }

    /// Its turn, for about so long.
    fn take(&mut self, milliseconds: f64) -> Result<Vec<f64>> {
        self.ask(Request::Take { milliseconds })?;
        match self.reply()? {
            Reply::Taken { samples_ms } if !samples_ms.is_empty() => Ok(samples_ms),
            other => Err(self.astray(&other)),
        }
    }

    /// The end of a benchmark: none, or what has become wrong with its result.
    fn next(&mut self) -> Result<Option<String>> {
        self.ask(Request::Next)?;
        match self.reply()? {
            Reply::Done { wrong } => Ok(wrong),
            other => Err(self.astray(&other)),
        }
    }

    fn ask(&mut self, request: Request) -> Result<()> {
        let json = serde_json::to_string(&request).map_err(|error| Error::Turns(error.into()))?;
        let written = self.requests.write_all((json + "\n").as_bytes());
        written.map_err(|error| self.gone(&error.to_string()))
    }

    fn reply(&mut self) -> Result<Reply> {
        let mut line = String::new();
        let read = self.replies.read_line(&mut line);
        read.map_err(|error| self.gone(&error.to_string()))?;
        if line.is_empty() {
            return Err(self.gone("no more output"));
        }
        serde_json::from_str(&line).map_err(|_| {
            let line: String = line.trim_end().chars().take(60).collect();
            against(&self.path, format!("one that says {line:?}"))
        })
    }

    fn gone(&mut self, how: &str) -> Error {
        let ended = match self.child.wait() {
            Ok(status) => format!("one that ended with {status}"),
            Err(_) => format!("one with {how}"),
        };
        against(&self.path, ended)
    }

    fn astray(&self, reply: &Reply) -> Error {
        against(&self.path, format!("one that replies {reply:?}"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself, and then there is nobody to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn against(program: &Path, found: String) -> Error {
    let program = program.to_path_buf();
    Error::Against { program, found }
}

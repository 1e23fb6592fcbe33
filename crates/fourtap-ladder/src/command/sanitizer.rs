//! The tools of compute-sanitizer over the small problems.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use fourtap_lab::extension::isolation::run;
use fourtap_lab::extension::{Result, progress};

use crate::cli::WorkerTask;
use crate::rung::{Contender, blind_spot};

const PROGRAM: &str = "compute-sanitizer";

/// Where CUDA installs it, if it is not on the PATH.
const INSTALLED: &str = "/usr/local/cuda/bin";

const TOOLS: [&str; 4] = ["memcheck", "racecheck", "initcheck", "synccheck"];

/// What a tool that found nothing is recorded as.
const CLEAN: &str = "clean";

/// What begins the words of a tool that did not run.
const NOT_RUN: &str = "not run";

/// What begins the words of a tool whose report is known to be no fault.
const BLIND: &str = "blind spot";

/// Lines of a tool that say nothing about what it found.
const BESIDE_THE_POINT: [&str; 4] = [
    "COMPUTE-SANITIZER",
    "Target application",
    "ERROR SUMMARY",
    "RACECHECK SUMMARY",
];

/// Tools need a processor more than the device: this many at once.
const TOGETHER: usize = 8;

/// They slow a program down.
const SLOWER: u32 = 3;

/// What the tools said, by rung and tool.
#[derive(Debug, Default)]
pub struct Findings {
    found: BTreeMap<&'static str, BTreeMap<String, String>>,
    /// Why they did not run.
    absent: Option<String>,
    /// Worth telling.
    pub notes: Vec<String>,
}

impl Findings {
    /// That no tool ran, and why.
    pub fn none(why: &str) -> Self {
        Findings {
            absent: Some(format!("{NOT_RUN}: {why}")),
            ..Findings::default()
        }
    }

    /// By tool.
    pub fn of(&self, rung: &str) -> BTreeMap<String, String> {
        match (&self.absent, self.found.get(rung)) {
            (Some(words), _) => TOOLS
                .iter()
                .map(|tool| (tool.to_string(), words.clone()))
                .collect(),
            (None, Some(found)) => found.clone(),
            (None, None) => BTreeMap::new(),
        }
    }
}

/// Whether nothing was found that is a fault, or nothing looked.
pub fn is_clean(words: &str) -> bool {
    words == CLEAN || words.starts_with(NOT_RUN) || words.starts_with(BLIND)
}

/// A rung, a tool, and what it said.
type ToolOutput<'a> = (&'static str, &'a str, String);

/// Runs every tool over every rung.
pub fn sanitized(chosen: &[Contender], again: &Command, limit: Duration) -> Result<Findings> {
    let folders = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&folders).chain([PathBuf::from(INSTALLED)]);
    let mut candidates = folders.map(|folder| folder.join(PROGRAM));
    let Some(sanitizer) = candidates.find(|path| path.is_file()) else {
        let mut findings = Findings::none("compute-sanitizer is not installed");
        findings
            .notes
            .push("compute-sanitizer is not installed: rungs were not run under it".to_string());
        return Ok(findings);
    };
    // Other libraries are not checked.
    let ours = chosen
        .iter()
        .filter(|contender| !matches!(contender, Contender::Library(_)));
    let tasks: Vec<(&Contender, &str)> = ours
        .flat_map(|contender| TOOLS.map(|tool| (contender, tool)))
        .collect();
    let next = AtomicUsize::new(0);
    let found: Mutex<Vec<Result<ToolOutput<'_>>>> = Mutex::new(Vec::new());
    let bar = progress(tasks.len() as u64);
    bar.set_message("compute-sanitizer");
    thread::scope(|scope| {
        for _ in 0..TOGETHER.min(tasks.len()) {
            scope.spawn(|| {
                while let Some(&(contender, tool)) = tasks.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let mut command = Command::new(&sanitizer);
                    command
                        .args([
                            "--tool",
                            tool,
                            "--error-exitcode",
                            "9",
                            "--print-limit",
                            "3",
                        ])
                        .args(more_room(tool))
                        .arg(again.get_program())
                        .args(again.get_args())
                        .args([
                            "ladder",
                            contender.name(),
                            "--in-this-process",
                            WorkerTask::Check.name(),
                        ])
                        .env("RAYON_NUM_THREADS", "1");
                    let words = said(&mut command, limit * SLOWER);
                    let result = words.map(|words| (contender.name(), tool, words));
                    // A thread that panicked with the lock held has left a whole list.
                    found
                        .lock()
                        .unwrap_or_else(|list| list.into_inner())
                        .push(result);
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut findings = Findings::default();
    for result in found.into_inner().unwrap_or_else(|list| list.into_inner()) {
        let (rung, tool, words) = result?;
        let words = match blind_spot(rung, tool) {
            Some(why) if !is_clean(&words) => format!("{BLIND}: {why}; it said: {words}"),
            _ => words,
        };
        let of_rung = findings.found.entry(rung).or_default();
        of_rung.insert(tool.to_string(), words);
    }
    Ok(findings)
}

/// Barriers of a rung with rings of stages overflow what these tools keep track of by themselves.
fn more_room(tool: &str) -> &'static [&'static str] {
    match tool {
        "racecheck" | "synccheck" => &["--num-cuda-barriers", "65536"],
        _ => &[],
    }
}

/// What a tool said of a program, in words.
fn said(command: &mut Command, limit: Duration) -> Result<String> {
    let ended = run(command, limit)?;
    let Some((_, trouble)) = ended.trouble(limit) else {
        return Ok(CLEAN.to_string());
    };
    // Tools begin their lines with many equal signs; what they found comes first, how often last. That the program
    // itself failed is better told in its own words.
    let lines = ended
        .stdout
        .lines()
        .filter_map(|line| line.strip_prefix("========= "));
    let mut lines =
        lines.filter(|line| !BESIDE_THE_POINT.iter().any(|words| line.starts_with(words)));
    Ok(lines.next().map_or(trouble, str::to_string))
}

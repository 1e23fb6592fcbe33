//! `fourtap cache`: managing the kernel cache.

use std::time::{SystemTime, UNIX_EPOCH};

use fourtap::cuda::jit::{Cache, Entry, PruneLimits, State};
use serde::Serialize;

use crate::cli::{CacheAction, CacheArgs};
use crate::console::{print, print_json};
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::table;
use crate::units::{bytes, kernels};
use crate::{SCHEMA, VERSION};

/// The JSON record of the command.
#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    version: &'static str,
    command: &'static str,
    directory: String,
    /// The kernels shown, found damaged or removed; `size` and `clear` only count them.
    #[serde(skip_serializing_if = "Option::is_none")]
    kernels: Option<Vec<Kernel>>,
    count: usize,
    bytes: u64,
    /// Kernels that a process was building meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    busy: Option<usize>,
}

/// A kernel in the cache.
#[derive(Debug, Serialize)]
struct Kernel {
    name: String,
    architecture: Option<String>,
    nvrtc: Option<String>,
    bytes: u64,
    created: Option<u64>,
    last_used: Option<u64>,
    file: String,
    /// Why it is damaged, if it is.
    damage: Option<String>,
}

impl From<&Entry> for Kernel {
    fn from(entry: &Entry) -> Self {
        let seconds = |time: SystemTime| Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs());
        Kernel {
            name: entry.name.clone(),
            architecture: entry.architecture.map(|it| it.to_string()),
            nvrtc: entry.nvrtc.map(|it| it.to_string()),
            bytes: entry.size,
            created: entry.created.and_then(seconds),
            last_used: seconds(entry.last_used),
            file: entry.path.display().to_string(),
            damage: match &entry.state {
                State::Sound => None,
                State::Damaged(reason) => Some(reason.clone()),
            },
        }
    }
}

pub fn execute(arguments: &CacheArgs) -> Result<ExitCode> {
    let cache = Cache::standard()?.ok_or(Error::NoCache)?;
    let directory = cache.directory().display().to_string();
    let report = |command, entries: &[Entry]| Report {
        schema: SCHEMA,
        version: VERSION,
        command,
        directory: directory.clone(),
        kernels: Some(entries.iter().map(Kernel::from).collect()),
        count: entries.len(),
        bytes: entries.iter().map(|entry| entry.size).sum(),
        busy: None,
    };
    let counted = |report: &Report| format!("{}, {}", kernels(report.count), bytes(report.bytes));
    let (report, words) = match arguments.action {
        CacheAction::List => {
            let entries = cache.entries()?;
            let report = report("cache list", &entries);
            let table = match entries.is_empty() {
                true => String::new(),
                false => table::cached(&entries),
            };
            let words = format!("{table}{} in {directory}\n", counted(&report));
            (report, words)
        }
        CacheAction::Size => {
            let report = Report {
                kernels: None,
                bytes: cache.size()?,
                ..report("cache size", &cache.entries()?)
            };
            let words = format!("{} in {directory}\n", counted(&report));
            (report, words)
        }
        CacheAction::Prune { max_size, max_age } => {
            let report = report(
                "cache prune",
                &cache.prune(PruneLimits {
                    max_bytes: max_size,
                    max_age,
                })?,
            );
            let words = format!("removed {} from {directory}\n", counted(&report));
            (report, words)
        }
        CacheAction::Verify { remove } => {
            let checked = cache.entries()?.len();
            let damaged = cache.verify(remove)?;
            let report = report("cache verify", &damaged);
            let mut words = format!(
                "{} of {} damaged{}\n",
                report.count,
                kernels(checked),
                if remove && !damaged.is_empty() {
                    ", and removed"
                } else {
                    ""
                },
            );
            for kernel in report.kernels.iter().flatten() {
                let damage = kernel.damage.as_deref().unwrap_or_default();
                words += &format!("{}: {damage}\n", kernel.file);
            }
            (report, words)
        }
        CacheAction::Clear => {
            let cleared = cache.clear()?;
            let report = Report {
                kernels: None,
                count: cleared.entries,
                bytes: cleared.bytes,
                busy: Some(cleared.busy),
                ..report("cache clear", &[])
            };
            let mut words = format!("removed {} from {directory}\n", counted(&report));
            if cleared.busy > 0 {
                words += &format!("{} left: being built right now\n", kernels(cleared.busy));
            }
            (report, words)
        }
    };
    let printed = match arguments.json {
        true => print_json(&report),
        false => print(words),
    };
    printed.map_err(Error::Stdout)?;
    match arguments.action {
        CacheAction::Verify { remove: false } if report.count > 0 => Err(Error::DamagedKernels {
            directory: cache.directory().to_path_buf(),
            damaged: report.count,
        }),
        _ => Ok(ExitCode::SUCCESS),
    }
}

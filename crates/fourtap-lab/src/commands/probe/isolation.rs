//! A probe in a process of its own: whatever becomes of it, there are records of it.

use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::isolation::run;
use crate::probe::Probe;
use crate::program;
use crate::record::{Outcome, ProbeRecord, Run};
use crate::target::Device;

/// Runs a probe in a process of its own, for at most so long; `arguments` tell it the device.
pub fn isolated(
    probe: &Probe,
    device: &Device,
    arguments: &[String],
    limit: Duration,
) -> Result<Vec<ProbeRecord>> {
    let mut command = program::again().map_err(Error::Start)?;
    command
        .args(["probe", "--in-this-process", &probe.name])
        .args(arguments);
    let ended = run(&mut command, limit)?;
    let mut records = Vec::new();
    let mut unreadable = None;
    match Run::parse(Path::new("its output"), &ended.stdout) {
        Ok(run) => records = run.probes,
        Err(error) => unreadable = Some(error.to_string()),
    }
    let trouble = ended
        .trouble(limit)
        .or(unreadable.map(|words| (Outcome::Failed, words)))
        .or(records
            .is_empty()
            .then(|| (Outcome::Failed, "it gave no result".to_string())));
    if let Some((outcome, words)) = trouble {
        records.push(probe.ended(device, outcome, &words));
    }
    Ok(records)
}

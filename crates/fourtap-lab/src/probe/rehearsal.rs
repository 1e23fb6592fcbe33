//! Probes that end badly on purpose, so that it can be tried whether that is reported. No list shows them.

use std::time::Duration;

use super::{Probe, Setting};
use crate::error::{Error, Result};
use crate::record::{Outcome, ProbeRecord};

const GROUP: &str = "rehearsal";

/// All of them.
pub fn probes() -> Vec<Probe> {
    vec![
        Probe::new("rehearse-works", GROUP, "works", works),
        Probe::new("rehearse-hang", GROUP, "never ends", hang),
        Probe::new("rehearse-crash", GROUP, "ends its process", |_| {
            std::process::abort()
        }),
        Probe::new("rehearse-error", GROUP, "ends with an error", |_| {
            Err(fourtap_admin::Error::NoCache.into())
        }),
        Probe::new("rehearse-wrong", GROUP, "computes wrongly", |_| {
            Err(Error::Probe {
                probe: "rehearse-wrong".to_string(),
                expected: "4 as sum of 2 and 2".to_string(),
                found: "5".to_string(),
            })
        }),
        Probe::new(
            "rehearse-silence",
            GROUP,
            "says nothing",
            |_| Ok(Vec::new()),
        ),
    ]
}

fn works(setting: &Setting<'_>) -> Result<Vec<ProbeRecord>> {
    let record = ProbeRecord::new(
        "rehearse-works",
        GROUP,
        "works",
        setting.device,
        Outcome::Works,
    );
    Ok(vec![record.verified("nothing was computed")])
}

fn hang(_: &Setting<'_>) -> Result<Vec<ProbeRecord>> {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

//! Probes that end badly on purpose: whether that is reported can be tested so. In test builds only, and no list shows them.

use std::time::Duration;

use super::{Probe, Setting};
use crate::error::{Error, Result};
use crate::record::{Outcome, ProbeRecord};

const GROUP: &str = "fault";

/// All of them.
pub fn probes() -> Vec<Probe> {
    vec![
        Probe::new("fault-works", GROUP, "works", works),
        Probe::new("fault-hang", GROUP, "never ends", hang),
        Probe::new("fault-crash", GROUP, "ends its process", |_| {
            std::process::abort()
        }),
        Probe::new("fault-error", GROUP, "ends with an error", |_| {
            Err(Error::NoCache)
        }),
        Probe::new("fault-wrong", GROUP, "computes wrongly", |_| {
            Err(Error::Probe {
                probe: "fault-wrong".to_string(),
                expected: "4 as sum of 2 and 2".to_string(),
                found: "5".to_string(),
            })
        }),
        Probe::new("fault-silence", GROUP, "says nothing", |_| Ok(Vec::new())),
    ]
}

fn works(setting: &Setting<'_>) -> Result<Vec<ProbeRecord>> {
    let record = ProbeRecord::new(
        "fault-works",
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

//! Probes that end badly on purpose: whether that is reported can be tested so. In test builds only, and no list shows them.

use std::time::Duration;

use super::{Probe, wrong};
use crate::record::{Timing, Unit};

/// All of them.
pub fn probes() -> Vec<Probe> {
    vec![
        Probe::new("fault-works", "works", |_, record| {
            let timing = Timing::of(vec![1.0]);
            let measured = record.measured(Unit::GigabytesASecond, 1_000_000, timing);
            Ok(measured.verified("nothing was computed"))
        }),
        Probe::new("fault-hang", "never ends", |_, _| {
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }),
        Probe::new("fault-crash", "ends its process", |_, _| {
            std::process::abort()
        }),
        Probe::new("fault-error", "ends with an error", |_, _| {
            Err(fourtap_admin::Error::NoCache.into())
        }),
        Probe::new("fault-wrong", "computes wrongly", |_, _| {
            Err(wrong("4 as sum of 2 and 2", 5))
        }),
        Probe::new("fault-silence", "says nothing", |_, _| {
            std::process::exit(0)
        }),
    ]
}

//! The side that is told when to compute.

use std::io::{self, BufRead};
use std::time::Instant;

use super::{Reply, Request};
use crate::commands::print_json;
use crate::error::{Error, Result};
use crate::record::Origin;
use crate::target::Device;

/// Turns of one benchmark after another, as standard input says.
#[derive(Debug)]
pub struct Turns {
    wanted_ms: f64,
    begun: Instant,
    samples_ms: Vec<f64>,
    /// Milliseconds that the first timing of the turn took, which counts only if no other fits.
    first_ms: Option<f64>,
    /// What every computation takes longer, as a share, so that tests can see whether it is noticed.
    #[cfg(feature = "fault-injection")]
    slowdown: f64,
}

impl Turns {
    /// Says who this is.
    pub fn begin(device: &Device) -> Result<Self> {
        let (origin, device) = (Box::new(Origin::here()), Box::new(device.clone()));
        print_json(&Reply::Hello { origin, device })?;
        Ok(Turns {
            wanted_ms: 0.0,
            begun: Instant::now(),
            samples_ms: Vec::new(),
            first_ms: None,
            #[cfg(feature = "fault-injection")]
            slowdown: std::env::var("FOURTAP_SLOWDOWN")
                .ok()
                .and_then(|text| text.parse().ok())
                .unwrap_or(0.0),
        })
    }

    /// Says that a benchmark awaits its turns, or that it is wrong and has none.
    pub fn ready(&self, benchmark: &str, wrong: Option<String>) -> Result<()> {
        let benchmark = benchmark.to_string();
        print_json(&Reply::Ready { benchmark, wrong })
    }

    /// Says that it is over.
    pub fn done(&self, wrong: Option<String>) -> Result<()> {
        print_json(&Reply::Done { wrong })
    }

    /// Whether to compute once more; `last` is how long that took the last time, in milliseconds, if this is not the
    /// first.
    pub fn goes_on(&mut self, last: Option<f64>) -> Result<bool> {
        if let Some(time) = last {
            // The other program has just used the caches: the first timing is of that.
            match self.first_ms {
                None => self.first_ms = Some(time),
                Some(_) => self.samples_ms.push(time),
            }
            if self.begun.elapsed().as_secs_f64() * 1e3 < self.wanted_ms {
                return Ok(true);
            }
            if self.samples_ms.is_empty() {
                self.samples_ms.extend(self.first_ms);
            }
            let samples_ms = std::mem::take(&mut self.samples_ms);
            print_json(&Reply::Taken { samples_ms })?;
        }
        let Some(Request::Take { milliseconds }) = asked()? else {
            return Ok(false);
        };
        self.wanted_ms = milliseconds;
        self.first_ms = None;
        self.begun = Instant::now();
        Ok(true)
    }

    /// Takes as much longer as tests ask for, after a computation that began then.
    #[cfg(feature = "fault-injection")]
    pub fn linger(&self, begun: Instant) {
        let until = begun.elapsed().mul_f64(1.0 + self.slowdown);
        while begun.elapsed() < until {
            std::hint::spin_loop();
        }
    }
}

/// The next request; none at the end of the input, when whoever asks has gone.
fn asked() -> Result<Option<Request>> {
    let mut line = String::new();
    let stdin = io::stdin().lock().read_line(&mut line);
    stdin.map_err(Error::Turns)?;
    if line.is_empty() {
        return Ok(None);
    }
    let request = serde_json::from_str(&line).map_err(|error| Error::Turns(error.into()))?;
    Ok(Some(request))
}

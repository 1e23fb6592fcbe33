//! The least time each part of a machine allows: an amount over a measured ceiling.

use serde::Serialize;

use super::ceilings::{Ceiling, Ceilings};

/// When a limit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitCondition {
    /// For every computation.
    Always,
    /// Only if no cache holds any input before.
    Cold,
    /// Only if what it says happened; for comparison.
    If,
}

/// The least time one part of the machine allows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limit {
    /// "dram", "l2", "l1", "fma", "tensor", "exp", "issue", "launch" or "atomic".
    pub name: &'static str,
    /// What is counted.
    pub what: String,
    /// How much of it.
    pub amount: f64,
    /// Of what: "bytes", "operations", "instructions", "launches".
    pub unit: &'static str,
    /// The probe that measures the ceiling.
    pub probe: String,
    /// The ceiling, if it was measured.
    pub ceiling: Option<Ceiling>,
    /// Milliseconds, if the ceiling is known.
    pub milliseconds: Option<f64>,
    /// When it holds.
    pub when: LimitCondition,
}

impl Limit {
    /// By the fastest of the ceilings named, and the time that leaves.
    pub fn new(
        ceilings: &Ceilings,
        name: &'static str,
        what: &str,
        (amount, unit): (f64, &'static str),
        probes: &[&str],
        when: LimitCondition,
    ) -> Self {
        let ceiling = ceilings.fastest(probes).cloned();
        Limit {
            name,
            what: what.to_string(),
            amount,
            unit,
            probe: ceiling
                .as_ref()
                .map_or(probes.join(" or "), |ceiling| ceiling.name.clone()),
            milliseconds: ceiling
                .as_ref()
                .map(|ceiling| ceiling.milliseconds(amount, amount)),
            ceiling,
            when,
        }
    }
}

/// The largest of the limits that hold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Floor {
    /// The limit's name.
    pub limit: &'static str,
    /// What it counts.
    pub what: String,
    /// Milliseconds.
    pub milliseconds: f64,
}

impl Floor {
    /// Of computations on inputs used just before, or on others each time.
    pub fn of(limits: &[Limit], cold: bool) -> Option<Self> {
        let holds = |limit: &&Limit| {
            limit.when == LimitCondition::Always || cold && limit.when == LimitCondition::Cold
        };
        let timed = limits.iter().filter(holds);
        let timed = timed.filter_map(|limit| Some((limit, limit.milliseconds?)));
        let (limit, milliseconds) = timed.max_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(Floor {
            limit: limit.name,
            what: limit.what.clone(),
            milliseconds,
        })
    }
}

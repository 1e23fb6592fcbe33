//! Limits and floors for people, whatever the operator.

use std::fmt::Write;

use super::limits::{Limit, LimitCondition};
use super::words::{bytes, time};
use super::{Efficiency, Floor};
use crate::table::{align_right, or_dash, with_header, wrapped};

/// The least time each part of a machine allows, and the largest of them.
#[derive(Clone, Copy, Debug)]
pub struct Floors<'a> {
    /// All of them.
    pub limits: &'a [Limit],
    /// The largest, for inputs used just before.
    pub hot: Option<&'a Floor>,
    /// The same for inputs that no cache holds.
    pub cold: Option<&'a Floor>,
}

impl Floors<'_> {
    /// One row per limit, and the bottleneck.
    pub fn in_words(&self) -> String {
        let mut table = with_header(&[
            "limit",
            "amount",
            "ceiling",
            "by probe",
            "least time",
            "holds",
        ]);
        for limit in self.limits {
            table.add_row([
                limit.what.clone(),
                amount(limit),
                or_dash(limit.ceiling.as_ref().map(|ceiling| ceiling.in_words())),
                limit.probe.clone(),
                or_dash(limit.milliseconds.map(time)),
                match limit.when {
                    LimitCondition::Always => "always".to_string(),
                    LimitCondition::Cold => "cold".to_string(),
                    LimitCondition::If => "if".to_string(),
                },
            ]);
        }
        for column in [1, 2, 4] {
            align_right(&mut table, column..column + 1);
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 1));
        }
        let mut text = format!("Least time by each limit: amount over ceiling\n{table}\n");
        text += &wrapped(
            "cold: only if no cache holds the inputs beforehand. if: for comparison. A dash: not measured.",
            0,
        );
        if self.limits.iter().any(|limit| limit.name == "issue") {
            text += &wrapped(
                "Instructions: a multiply-add for each neighbour and channel, in 16 bits one to convert it, and loads \
                 of 16 bytes per lane; issued at the rate measured for multiply-adds.",
                0,
            );
        }
        text + &wrapped(&self.floor_in_words(), 0)
    }

    fn floor_in_words(&self) -> String {
        let floor = |floor: &Floor| format!("{} ({})", time(floor.milliseconds), floor.what);
        let mut words = match (self.hot, self.cold) {
            (Some(hot), Some(cold)) if hot == cold => {
                format!("Lower bound, and bottleneck: {}, hot and cold.", floor(hot))
            }
            (Some(hot), Some(cold)) => format!(
                "Lower bound, and bottleneck: hot {}, cold {}.",
                floor(hot),
                floor(cold)
            ),
            (None, Some(cold)) => format!("Lower bound, and bottleneck: cold {}.", floor(cold)),
            (_, None) => "No ceiling is known, so no lower bound.".to_string(),
        };
        let unmeasured =
            |limit: &&Limit| limit.when == LimitCondition::Always && limit.ceiling.is_none();
        if self.cold.is_some() && self.limits.iter().any(|limit| unmeasured(&limit)) {
            words += " A limit that was not measured may be higher.";
        }
        words
    }

    /// A measured time beside them.
    pub fn against(&self, achieved: &Efficiency) -> String {
        let mut words = String::new();
        if let Some(hot) = achieved.hot_ms {
            let _ = write!(words, "Hot {}", time(hot));
            if let (Some(share), Some(floor)) = (achieved.hot_share, self.hot) {
                let left = (hot - floor.milliseconds).max(0.0);
                let _ = write!(
                    words,
                    ", {:.0} % of the speed the lower bound allows; {} are left",
                    100.0 * share,
                    time(left)
                );
                if share > 1.0 {
                    words += ": faster than the lower bound, so the ceiling, the amount or the result is wrong";
                }
            }
        }
        if let Some(cold) = achieved.cold_ms {
            let _ = write!(words, "; cold {}", time(cold));
            if let Some(share) = achieved.cold_share {
                let _ = write!(words, ", {:.0} %", 100.0 * share);
            }
        }
        if let Some(rate) = achieved.gathered_gb_s {
            let _ = write!(words, ". Neighbours at {:.2} TB/s", rate / 1e3);
        }
        let device = achieved.device.as_deref().unwrap_or("unknown device");
        let _ = write!(words, ", on {device}.");
        words
    }
}

fn amount(limit: &Limit) -> String {
    match limit.unit {
        "bytes" => bytes(limit.amount),
        _ => match limit.amount {
            n if n >= 1e9 => format!("{:.2} G", n / 1e9),
            n if n >= 1e6 => format!("{:.1} M", n / 1e6),
            n => format!("{n:.0}"),
        },
    }
}

//! All that is known of the rungs of a case.

use std::collections::BTreeMap;

use super::Case;
use crate::record::{RungOperator, RungRecord, billions_a_second};
use crate::report::counters::limit;
use crate::report::number::{self, counted, grouped, milliseconds, percent, times};
use crate::report::page::{Cell, Holds, Table};
use crate::report::probes::outcome;
use crate::{table, units};

/// A row for each rung, the fastest first.
pub fn table(case: &Case<'_>) -> Table {
    let operator = case.operator();
    let is_dense = operator == RungOperator::Dense;
    let fastest = case.ranked[0].median_ms();
    let places: BTreeMap<&str, usize> = case
        .ranked
        .iter()
        .map(|it| it.rung.as_str())
        .zip(1..)
        .collect();
    let without = case.ranked.iter().filter(|it| it.hot.is_none()).count();
    let mut summary = format!(
        "{}: details of {}",
        case.name,
        counted(case.ranked.len(), "rung")
    );
    if without > 0 {
        summary += &format!(", {without} without a time");
    }
    let whole = |number: f64| grouped(number);
    let bytes = |bytes: f64| units::bytes(bytes as u64);
    Table::of(format!("{}, every rung", case.name), &case.ranked)
        .words("rung", |it| name(it))
        .numbers("place", whole, |it| {
            it.median_ms().map(|_| places[it.rung.as_str()] as f64)
        })
        .column("hot ms", Holds::Numbers, |it| hot(it))
        .numbers("kept ms", milliseconds, |it| {
            Some(it.prepared.as_ref()?.median_ms)
        })
        .column(
            &format!("× {}", operator.plainest()),
            Holds::Numbers,
            |it| {
                let share = fastest
                    .zip(it.median_ms())
                    .map(|(fastest, time)| fastest / time);
                Cell::number(case.times_plainest(it), times).with_share(share)
            },
        )
        .sentences("against its base rung", |it| match it.hot {
            Some(_) => table::standing(it, &case.ranked),
            None => table::verdict(it, &case.ranked),
        })
        .numbers("operations", number::operations, |it| {
            is_dense.then(|| speed(it)).flatten()
        })
        .numbers("tensor", percent, |it| it.of_tensor)
        .numbers("gather", percent, |it| it.of_gather)
        .numbers("DRAM", percent, |it| it.of_dram)
        .numbers("registers", whole, |it| Some(f64::from(it.resources()?.0)))
        .numbers("shared", kibibytes, |it| some(it.resources()?.1))
        .numbers("spilled", bytes, |it| {
            some(it.launches.iter().map(|it| it.local_bytes).max()?)
        })
        .numbers("scratch", bytes, |it| {
            Some(it.scratch_bytes as f64).filter(|bytes| *bytes > 0.0)
        })
        .column("error", Holds::Numbers, |it| approximation(it))
        .words("bottleneck", |it| bottleneck(it))
        .sentences("checked", |it| checked(it))
        .sentences("chosen", |it| {
            let chosen = it.parameters.iter();
            let chosen = chosen.map(|(name, value)| format!("{name}={value}"));
            chosen.collect::<Vec<_>>().join(" ")
        })
        .table()
        .folded(summary)
        .searched_as(if is_dense { "faster d06" } else { "faster a03" })
}

/// Bottlenecks by counters, and what others published, in sentences too long for the other table.
pub fn sentences(case: &Case<'_>) -> Option<Table> {
    let has_any = |it: &&RungRecord| it.binding.is_some() || it.claim.is_some();
    let rungs = case.ranked.iter().copied();
    let rungs: Vec<_> = rungs.filter(has_any).collect();
    let binding = |it: &RungRecord| it.binding.clone();
    let claim = |it: &RungRecord| it.claim.clone();
    let name_of_table = format!("{}: bottlenecks, and what was published", case.name);
    let table = Table::of(&name_of_table, &rungs)
        .words("rung", |it| name(it))
        .column("hot ms", Holds::Numbers, |it| hot(it))
        .words("bottleneck", |it| {
            bottleneck(it).with_share(binding(it).map(|binding| binding.busy))
        })
        .sentences("by its counters", |it| {
            binding(it).map_or(String::new(), |binding| binding.words)
        })
        .words("published", |it| {
            claim(it).map_or(String::new(), |claim| claim.words)
        })
        .sentences("why we differ", |it| {
            claim(it).map_or(String::new(), |claim| claim.why)
        });
    (!rungs.is_empty()).then(|| table.table().folded(name_of_table))
}

fn bottleneck(record: &RungRecord) -> Cell {
    match &record.binding {
        Some(binding) => {
            let busy = percent(binding.busy);
            Cell::from(format!("{} {busy}", limit(&binding.limit)))
        }
        None => Cell::default(),
    }
}

/// What a rung is called.
fn name(record: &RungRecord) -> Cell {
    Cell::from(&record.rung).with_detail(&record.title).strong()
}

/// The time, or in a word why there is none.
fn hot(record: &RungRecord) -> Cell {
    match &record.hot {
        Some(hot) => Cell::number(Some(hot.median_ms), milliseconds)
            .with_detail(format!("± {}", percent(hot.uncertainty()))),
        None => Cell::from(outcome(record.outcome)),
    }
    .strong()
}

/// Billions of operations a second.
fn speed(record: &RungRecord) -> Option<f64> {
    Some(billions_a_second(record.traffic.flop, record.median_ms()?))
}

/// Shared memory is dealt out in these.
fn kibibytes(bytes: f64) -> String {
    format!("{:.0} KiB", (bytes / 1024.0).ceil())
}

fn some(bytes: u32) -> Option<f64> {
    (bytes > 0).then(|| f64::from(bytes))
}

/// How far an approximation is from the oracle, and how far it says it may be.
fn approximation(record: &RungRecord) -> Cell {
    let Some(stated) = record.approximate else {
        return Cell::default();
    };
    let verification = record.verification.as_ref();
    let error = verification.map(|it| it.relative_error());
    Cell::number(error, number::error).with_detail(format!("≤\u{a0}{}", number::error(stated)))
}

fn checked(record: &RungRecord) -> Cell {
    if let Some(library) = &record.library {
        return Cell::from(format!("other library: {library}; sampled rows"));
    }
    let Some(small) = &record.small else {
        return Cell::from(sanitizer(record));
    };
    let elements = counted(small.elements, "element");
    let mut details = vec![elements, sanitizer(record)];
    if !small.refused.is_empty() {
        details.push(format!("refused: {}", small.refused.join("; ")));
    }
    Cell::from(counted(small.right, "small problem")).with_detail(details.join(", "))
}

/// What the sanitizer's tools said; mostly the same, which need not be read four times.
fn sanitizer(record: &RungRecord) -> String {
    let mut said: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tool, words) in &record.sanitizer {
        said.entry(words).or_default().push(tool);
    }
    let said = said.iter().map(
        |(words, tools)| match tools.len() == record.sanitizer.len() {
            true => format!("sanitizer {words}"),
            false => format!("{} {words}", tools.join(" and ")),
        },
    );
    match said.len() {
        0 => "sanitizer not run".to_string(),
        _ => said.collect::<Vec<_>>().join(", "),
    }
}

//! Every way to the same result, the fastest first.

use super::number::{counted, milliseconds, or_dash, times};
use super::page::{Block, Cell, Section, Table};
use super::part::Part;
use crate::cuda::Mode;
use crate::record::{BenchRecord, KernelUsed, Timing};
use crate::verification::Verification;

/// One way to a result.
struct Alternative<'a> {
    name: String,
    kernel: &'a KernelUsed,
    verification: &'a Verification,
    hot: Option<&'a Timing>,
}

/// The section; none where there is but one way to everything.
pub fn section(parts: &[Part<'_>]) -> Option<Section> {
    let mut blocks = vec![];
    for part in parts {
        let mut folded = vec![];
        for workload in workloads(part) {
            let problems = problems(part, workload);
            if problems.is_empty() {
                continue;
            }
            let results = counted(problems.len(), "result");
            folded.push(Block::Folded {
                summary: format!("{workload}: {results}"),
                open: false,
                blocks: vec![Block::Table {
                    table: table(workload, &problems),
                }],
            });
        }
        if let Some(Block::Folded { open, .. }) = folded.first_mut() {
            *open = blocks.is_empty();
        }
        if !folded.is_empty() {
            blocks.extend(part.title.as_ref().map(Block::heading));
            blocks.append(&mut folded);
        }
    }
    if blocks.is_empty() {
        return None;
    }
    let lead = "What this run knows of ways to the same result: the kernel that ships, the baseline and whatever else \
                was timed beside it, each verified on its own. Hot medians; bars show speed against the fastest.";
    blocks.insert(0, Block::words(lead));
    Some(Section {
        id: "ladder",
        title: "Every way",
        blocks,
    })
}

/// Results of operators whose kernels have names, so that there can be several ways.
fn timed<'a>(part: &Part<'a>) -> impl Iterator<Item = &'a BenchRecord> {
    let benches = part.benches.iter().copied();
    benches.filter(|it| it.operator().has_named_kernels())
}

fn workloads<'a>(part: &Part<'a>) -> Vec<&'a str> {
    let mut workloads = vec![];
    for record in timed(part) {
        if !workloads.contains(&record.workload.as_str()) {
            workloads.push(record.workload.as_str());
        }
    }
    workloads
}

/// What was computed in several ways, and the ways, the fastest first.
fn problems<'a>(part: &Part<'a>, workload: &str) -> Vec<(Cell, Vec<Alternative<'a>>)> {
    let mut problems: Vec<(&BenchRecord, Vec<Alternative<'a>>)> = vec![];
    for record in timed(part) {
        if record.workload != workload {
            continue;
        }
        let ways = ways(record);
        match problems
            .iter_mut()
            .find(|(first, _)| is_same(first, record))
        {
            Some((_, known)) => known.extend(ways),
            None => problems.push((record, ways)),
        }
    }
    problems.retain(|(_, ways)| ways.len() > 1);
    for (_, ways) in &mut problems {
        let time = |way: &Alternative<'_>| way.hot.map_or(f64::INFINITY, |hot| hot.median_ms);
        ways.sort_by(|a, b| time(a).total_cmp(&time(b)));
    }
    let named = problems.into_iter().map(|(record, ways)| {
        let what = Cell::words(variant(record)).with_detail(record.direction.name());
        (what, ways)
    });
    named.collect()
}

fn is_same(a: &BenchRecord, b: &BenchRecord) -> bool {
    a.distribution == b.distribution
        && a.problem == b.problem
        && a.dtypes == b.dtypes
        && a.direction == b.direction
}

fn ways(record: &BenchRecord) -> Vec<Alternative<'_>> {
    let shipped = Alternative {
        name: match (&record.kernel.asked, record.kernel.mode) {
            (Some(asked), _) => format!("{asked}, as asked for"),
            (None, Some(Mode::Deterministic)) => "deterministic mode".to_string(),
            (None, _) => "shipped".to_string(),
        },
        kernel: &record.kernel,
        verification: &record.verification,
        hot: record.hot.as_ref(),
    };
    let beside = record.beside.iter().map(|beside| Alternative {
        name: match beside.role.as_str() {
            "baseline" => "baseline: one thread a channel".to_string(),
            "deterministic" => "deterministic mode".to_string(),
            role => role.to_string(),
        },
        kernel: &beside.kernel,
        verification: &beside.verification,
        hot: beside.hot.as_ref(),
    });
    std::iter::once(shipped).chain(beside).collect()
}

fn table(workload: &str, problems: &[(Cell, Vec<Alternative<'_>>)]) -> Table {
    let heads = ["what", "#", "way", "#hot ms", "#× baseline", "~kernels"];
    let mut table = Table::new(&format!("{workload}, every way"), &heads);
    for (what, ways) in problems {
        let median = |way: &Alternative<'_>| way.hot.map(|hot| hot.median_ms);
        let fastest = ways.first().and_then(median);
        let baseline = ways.iter().find(|way| way.name.starts_with("baseline"));
        let baseline = baseline.and_then(median);
        for (place, way) in ways.iter().enumerate() {
            let time = median(way);
            let against = baseline.zip(time).map(|(baseline, time)| baseline / time);
            let mut against_baseline = Cell::number(or_dash(against, times), against);
            if let Some((fastest, time)) = fastest.zip(time) {
                against_baseline = against_baseline.with_share(fastest / time);
            }
            let hot = match way.verification.passed {
                true => Cell::number(or_dash(time, milliseconds), time).strong(),
                false => Cell::words("wrong").strong(),
            };
            let words = match &way.verification.found {
                Some(found) if !way.verification.passed => format!("{found}; {}", way.kernel.words),
                _ => way.kernel.words.clone(),
            };
            let first = if place == 0 {
                what.clone().strong()
            } else {
                Cell::default()
            };
            table.rows.push(vec![
                first,
                Cell::words((place + 1).to_string()),
                Cell::words(&way.name),
                hot,
                against_baseline,
                Cell::default().with_detail(words),
            ]);
        }
    }
    table
}

/// What tells benchmarks of a workload and a pass apart: "uniform f16", and whatever is unusual.
pub fn variant(record: &BenchRecord) -> String {
    let name = record.name();
    let prefix = format!(
        "{}/{}/{}/{}",
        record.workload,
        record.distribution,
        record.dtypes.value,
        record.direction.name()
    );
    let unusual = name.strip_prefix(&prefix).unwrap_or("");
    let unusual = unusual.replace("/coordinates-", ", coordinates ");
    let unusual = unusual.replace("/kernel-", ", kernel ");
    format!(
        "{} {}{}",
        record.distribution,
        record.dtypes.value,
        unusual.replace('/', ", ")
    )
}

//! Every kernel variant for the same result, the fastest first.

use super::number::{counted, milliseconds, or_dash, times};
use super::page::{Block, Cell, Section, Table};
use super::part::Part;
use crate::cuda::Mode;
use crate::record::{BenchRecord, KernelUsed, Timing};
use crate::verification::Verification;

/// One kernel variant.
struct KernelVariant<'a> {
    name: String,
    kernel: &'a KernelUsed,
    verification: &'a Verification,
    hot: Option<&'a Timing>,
}

/// The section; none where there is only one variant of everything.
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
    let lead = "Kernel variants that compute the same result: the kernel that ships, the baseline and whatever else \
                was timed, each verified separately. Hot medians; bars show speed relative to the fastest.";
    blocks.insert(0, Block::words(lead));
    Some(Section {
        id: "ladder",
        title: "Kernel variants",
        blocks,
    })
}

/// Results of operators whose kernels have names, so that there can be several variants.
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

/// What was computed in several variants, and the variants, the fastest first.
fn problems<'a>(part: &Part<'a>, workload: &str) -> Vec<(Cell, Vec<KernelVariant<'a>>)> {
    let mut problems: Vec<(&BenchRecord, Vec<KernelVariant<'a>>)> = vec![];
    for record in timed(part) {
        if record.workload != workload {
            continue;
        }
        let variants = variants(record);
        match problems
            .iter_mut()
            .find(|(first, _)| is_same(first, record))
        {
            Some((_, known)) => known.extend(variants),
            None => problems.push((record, variants)),
        }
    }
    problems.retain(|(_, variants)| variants.len() > 1);
    for (_, variants) in &mut problems {
        let time =
            |variant: &KernelVariant<'_>| variant.hot.map_or(f64::INFINITY, |hot| hot.median_ms);
        variants.sort_by(|a, b| time(a).total_cmp(&time(b)));
    }
    let named = problems.into_iter().map(|(record, variants)| {
        let what = Cell::words(data_label(record)).with_detail(record.direction.name());
        (what, variants)
    });
    named.collect()
}

fn is_same(a: &BenchRecord, b: &BenchRecord) -> bool {
    a.distribution == b.distribution
        && a.problem == b.problem
        && a.dtypes == b.dtypes
        && a.direction == b.direction
}

fn variants(record: &BenchRecord) -> Vec<KernelVariant<'_>> {
    let shipped = KernelVariant {
        name: match (&record.kernel.asked, record.kernel.mode) {
            (Some(asked), _) => format!("{asked}, as requested"),
            (None, Some(Mode::Deterministic)) => "deterministic mode".to_string(),
            (None, _) => "shipped".to_string(),
        },
        kernel: &record.kernel,
        verification: &record.verification,
        hot: record.hot.as_ref(),
    };
    let beside = record.beside.iter().map(|beside| KernelVariant {
        name: match beside.role.as_str() {
            "baseline" => "baseline: one thread per channel".to_string(),
            "deterministic" => "deterministic mode".to_string(),
            role => role.to_string(),
        },
        kernel: &beside.kernel,
        verification: &beside.verification,
        hot: beside.hot.as_ref(),
    });
    std::iter::once(shipped).chain(beside).collect()
}

fn table(workload: &str, problems: &[(Cell, Vec<KernelVariant<'_>>)]) -> Table {
    let heads = ["what", "#", "variant", "#hot ms", "#× baseline", "~kernels"];
    let mut table = Table::new(&format!("{workload}, every variant"), &heads);
    for (what, variants) in problems {
        let median = |variant: &KernelVariant<'_>| variant.hot.map(|hot| hot.median_ms);
        let fastest = variants.first().and_then(median);
        let baseline = variants
            .iter()
            .find(|variant| variant.name.starts_with("baseline"));
        let baseline = baseline.and_then(median);
        for (place, variant) in variants.iter().enumerate() {
            let time = median(variant);
            let against = baseline.zip(time).map(|(baseline, time)| baseline / time);
            let mut against_baseline = Cell::number(or_dash(against, times), against);
            if let Some((fastest, time)) = fastest.zip(time) {
                against_baseline = against_baseline.with_share(fastest / time);
            }
            let hot = match variant.verification.passed {
                true => Cell::number(or_dash(time, milliseconds), time).strong(),
                false => Cell::words("wrong").strong(),
            };
            let words = match &variant.verification.found {
                Some(found) if !variant.verification.passed => {
                    format!("{found}; {}", variant.kernel.words)
                }
                _ => variant.kernel.words.clone(),
            };
            let first = if place == 0 {
                what.clone().strong()
            } else {
                Cell::default()
            };
            table.rows.push(vec![
                first,
                Cell::words((place + 1).to_string()),
                Cell::words(&variant.name),
                hot,
                against_baseline,
                Cell::default().with_detail(words),
            ]);
        }
    }
    table
}

/// What tells benchmarks of a workload and a pass apart: "uniform f16", and whatever is unusual.
pub fn data_label(record: &BenchRecord) -> String {
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

//! The ladder of kernel ideas: every rung by time, what was published of it, and what single changes gain.

mod table;
#[cfg(test)]
mod tests;

use super::chart::{Chart, Row, Shape};
use super::number::{counted, grouped, listed, milliseconds};
use super::page::{Block, Section};
use super::part::Part;
use super::probes::outcome;
use super::{hot_mark, implementations};
use crate::record::{RungOperator, RungProblem, RungRecord};
use crate::table::{cases, times};

/// Problems with fewer results than this give a large GPU a wave of threads or two: their times are those of launches.
const LARGE: usize = 1_000_000;

/// Names in a caption before the rest is counted.
const MOST_NAMES: usize = 6;

const LEAD: &str = "Every idea for a fast forward kernel is a rung, and all rungs of an operator compute the same. A \
    rung has a time only if it was verified: small problems in every element, then rows of the very result that was \
    timed. An approximation is checked against the error it states. What hung, crashed or was wrong is last in its \
    table, with the reason. Single changes to a rung were timed alternately with it, so that clock drift does not \
    pass for a gain. Scratch is the memory a rung works in; DRAM is what must move at least once, as a share of DRAM's \
    peak, measured in the same run. Bottlenecks are from hardware counters.";

const MSDA_LEAD: &str = "Value is in f16, locations and weights in f32. × a01 is speed against the baseline, one \
    thread per channel; shipped is the library's own forward as a user calls it. Kept is the time without the steps \
    that depend on value alone, for whoever calls again with the same value. Gather is the bandwidth the samples \
    read, as a share of L1's peak, measured in the same run.";

const DENSE_LEAD: &str = "Dense attention, softmax(Q K^T / sqrt(D)) V, all tensors in one 16-bit type: from one \
    query per block to tiles that never leave registers. × d01 is speed against one query per block; shipped-dense \
    is the library's own forward as a user calls it, and PyTorch runs in a process of its own, verified alike. \
    Tensor is performance, at 4 per channel and pair of query and key, as a share of the peak of tensor cores by \
    mma.sync in the same run.";

const SMALL: &str = "These do not fill the device, so that what is ranked is how long a launch takes rather than what \
    a kernel does.";

const LEGEND: [(Shape, &str); 3] = [
    (Shape::Ours, "all steps, hot"),
    (Shape::Approximate, "an approximation, hot"),
    (Shape::Second, "kept: without what depends on value alone"),
];

/// A problem and what every rung did with it, the fastest first, those without a time last.
#[derive(Debug)]
struct Case<'a> {
    name: String,
    ranked: Vec<&'a RungRecord>,
}

impl<'a> Case<'a> {
    fn of(&self, rung: &str) -> Option<&'a RungRecord> {
        self.ranked.iter().copied().find(|it| it.rung == rung)
    }

    fn operator(&self) -> RungOperator {
        self.ranked[0].operator()
    }

    fn times_plainest(&self, record: &RungRecord) -> Option<f64> {
        times(record, &self.ranked, self.operator().plainest())
    }
}

/// The section; none without rungs.
pub fn section(parts: &[Part<'_>]) -> Option<Section> {
    let mut blocks = vec![];
    for part in parts.iter().filter(|part| !part.rungs.is_empty()) {
        blocks.extend(part.title.clone().map(Block::Heading));
        for operator in RungOperator::ALL {
            let records = part.rungs.iter().copied();
            let records: Vec<_> = records.filter(|it| it.operator() == operator).collect();
            if records.is_empty() {
                continue;
            }
            let (heading, lead) = match operator {
                RungOperator::Msda => ("Deformable attention", MSDA_LEAD),
                RungOperator::Dense => ("Dense attention", DENSE_LEAD),
            };
            blocks.push(Block::Heading(heading.to_string()));
            blocks.push(Block::Words(lead.to_string()));
            add_rungs(&mut blocks, &records);
        }
    }
    Section::of("rungs", "Kernel ideas", LEAD, blocks)
}

fn add_rungs(blocks: &mut Vec<Block>, records: &[&RungRecord]) {
    let cases = cases(records.iter().copied()).into_iter();
    let cases = cases.map(|(name, ranked)| Case { name, ranked });
    let (large, small): (Vec<_>, Vec<_>) = cases.partition(|case| is_large(case.ranked[0]));
    for case in &large {
        blocks.push(Block::Table(table::table(case).drawn(chart(case))));
        blocks.extend(table::sentences(case).map(Block::Table));
    }
    if !small.is_empty() {
        blocks.push(Block::Heading("Small problems".to_string()));
        blocks.push(Block::Words(SMALL.to_string()));
        let tables = small.iter().map(|case| Block::Table(table::table(case)));
        blocks.extend(tables);
    }
}

/// Every rung that has a time, the fastest first.
fn chart(case: &Case<'_>) -> Option<Chart> {
    let operator = case.operator();
    let shipped = case.of(operator.shipped());
    let shipped = shipped.and_then(RungRecord::median_ms);
    let row = |(of, record): (usize, &&RungRecord)| {
        let shape = match record.approximate {
            Some(_) => Shape::Approximate,
            None => Shape::Ours,
        };
        let hot = hot_mark(shape, record.hot.as_ref()?);
        let kept = record.prepared.as_ref();
        let kept = kept.map(|it| hot_mark(Shape::Second, it));
        Some(Row::of(of, kept.into_iter().chain([hot]).collect()))
    };
    let rows: Vec<Row> = case.ranked.iter().enumerate().filter_map(row).collect();
    let chart = Chart {
        title: format!("{}: every rung by time", case.name),
        caption: caption(case, shipped.is_some()),
        axis: "milliseconds".to_string(),
        reference: shipped.map(|time| {
            let words = format!("{}, {} ms", operator.shipped(), milliseconds(time));
            (time, words)
        }),
        labels: &["rung"],
        values: vec![
            ("hot ms".to_string(), " ms"),
            (format!("× {}", operator.plainest()), " ×"),
        ],
        rows,
        ..Chart::default()
    };
    chart.with_legend(&LEGEND).if_any()
}

fn caption(case: &Case<'_>, has_shipped: bool) -> String {
    let problem = in_words(&case.ranked[0].problem);
    let mut caption = format!(
        "{problem}. Hot medians with their 95 % confidence intervals on a logarithmic axis; to the left is faster."
    );
    if has_shipped {
        caption += " Lines lead to the time of what the library ships.";
    }
    let untimed = case.ranked.iter().copied().filter(|it| it.hot.is_none());
    let reasons = implementations::grouped(untimed, |it| it.outcome);
    let reasons = reasons.into_iter().map(|records| {
        let names: Vec<&str> = records.iter().map(|it| it.rung.as_str()).collect();
        let reason = outcome(records[0].outcome);
        format!("{reason}: {}", listed(&names, MOST_NAMES))
    });
    let reasons: Vec<String> = reasons.collect();
    if !reasons.is_empty() {
        caption += &format!(" Without a time, {}.", reasons.join("; "));
    }
    caption
}

fn in_words(problem: &RungProblem) -> String {
    let queries = |count: usize| match count {
        1 => "1 query".to_string(),
        count => format!("{} queries", grouped(count as f64)),
    };
    match problem {
        RungProblem::Msda(problem) => format!(
            "{}, {} each, {}, {}, {}, {} per level",
            counted(problem.images, "image"),
            queries(problem.queries),
            counted(problem.heads, "head"),
            counted(problem.channels, "channel"),
            counted(problem.levels.len(), "level"),
            counted(problem.points, "point"),
        ),
        RungProblem::Dense(problem) => format!(
            "{}, {} and {} each, {}, {}, {}",
            counted(problem.batch, "sequence"),
            queries(problem.queries),
            counted(problem.keys, "key"),
            counted(problem.heads, "head"),
            counted(problem.channels, "channel"),
            problem.dtype,
        ),
    }
}

/// Whether a problem fills a GPU.
fn is_large(record: &RungRecord) -> bool {
    let sizes = match &record.problem {
        RungProblem::Msda(it) => [it.images, it.queries, it.heads, it.channels],
        RungProblem::Dense(it) => [it.batch, it.queries, it.heads, it.channels],
    };
    sizes.into_iter().fold(1, usize::saturating_mul) >= LARGE
}

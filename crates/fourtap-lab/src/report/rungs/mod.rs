//! The ladder of kernel ideas: every rung by time, what was published of it, and what single changes gain.

mod chart;
mod claims;
mod tables;
#[cfg(test)]
mod tests;

use super::page::{Block, Section};
use super::part::Part;
use crate::record::RungOperator;
use crate::record::{RungProblem, RungRecord};
use crate::table;

/// The case that published figures stand beside.
fn published_beside(operator: RungOperator) -> &'static str {
    match operator {
        RungOperator::Msda => "seed-full, uniform",
        RungOperator::Dense => "dense-s512, full",
    }
}

/// Problems with fewer results than this give a large GPU a wave of threads or two: their times are those of launches.
const LARGE: usize = 1_000_000;

const LEAD: &str = "Every idea for a fast forward kernel is a rung, and all rungs of an operator compute the same. A \
    rung has a time only if it was verified: small problems in every element, then rows of the very result that was \
    timed. An approximation is checked against the error it states. What hung, crashed or was wrong is last in its \
    table, with the reason. Scratch is the memory a rung works in; DRAM is what must move at least once, as a share of \
    DRAM's peak, measured in the same run. Bottlenecks are from hardware counters.";

const MSDA_LEAD: &str = "Value is in f16, locations and weights in f32. × a01 is speed against the baseline, one \
    thread per channel; shipped is the library's own forward as a user calls it. Kept is the time without the steps \
    that depend on value alone, for whoever calls again with the same value. Gather is the bandwidth the samples \
    read, as a share of L1's peak, measured in the same run.";

const DENSE_LEAD: &str = "Dense attention, softmax(Q K^T / sqrt(D)) V, all tensors in one 16-bit type: from one \
    query per block to tiles that never leave registers. × d01 is speed against one query per block; shipped-dense \
    is the library's own forward as a user calls it, and PyTorch runs in a process of its own, verified alike. \
    Tensor is performance, at 4 per channel and pair of query and key, as a share of the peak of tensor cores by \
    mma.sync in the same run.";

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
        table::times(record, &self.ranked, self.operator().plainest())
    }

    fn timed(&self) -> usize {
        self.ranked.iter().filter(|it| it.hot.is_some()).count()
    }
}

/// The section; none without rungs.
pub fn section(parts: &[Part<'_>]) -> Option<Section> {
    let mut blocks = vec![];
    for part in parts.iter().filter(|part| !part.rungs.is_empty()) {
        blocks.extend(part.title.as_ref().map(Block::heading));
        for operator in [RungOperator::Msda, RungOperator::Dense] {
            let records = part.rungs.iter().copied();
            let records: Vec<_> = records.filter(|it| it.operator() == operator).collect();
            if records.is_empty() {
                continue;
            }
            let (heading, lead) = match operator {
                RungOperator::Msda => ("Deformable attention", MSDA_LEAD),
                RungOperator::Dense => ("Dense attention", DENSE_LEAD),
            };
            blocks.extend([Block::heading(heading), Block::words(lead)]);
            add_rungs(&mut blocks, &part.prefix, &records, operator);
        }
    }
    if blocks.is_empty() {
        return None;
    }
    blocks.insert(0, Block::words(LEAD));
    Some(Section {
        id: "rungs",
        title: "Kernel ideas",
        blocks,
    })
}

fn add_rungs(
    blocks: &mut Vec<Block>,
    prefix: &str,
    records: &[&RungRecord],
    operator: RungOperator,
) {
    let cases = table::cases(records.iter().copied()).into_iter();
    let cases = cases.map(|(name, ranked)| Case { name, ranked });
    let (large, small): (Vec<_>, Vec<_>) = cases.partition(|case| is_large(case.ranked[0]));
    for (index, case) in large.iter().enumerate() {
        if case.timed() > 0 {
            let slug = format!("{prefix}rungs-{}", slug(&case.name, index + 1));
            blocks.push(Block::Chart {
                chart: chart::chart(case, &slug),
            });
        }
        blocks.push(tables::all_about(case));
        blocks.extend(tables::bottlenecks(case));
    }
    let beside = large.iter().chain(&small);
    let beside = beside
        .clone()
        .find(|case| case.name == published_beside(operator))
        .or(beside.clone().next());
    if let Some(case) = beside {
        claims::add_published(blocks, records, case);
    }
    let cases = if large.is_empty() { &small } else { &large };
    claims::add_single_changes(blocks, records, cases);
    if !small.is_empty() {
        blocks.push(Block::heading("Small problems"));
        blocks.push(Block::words(
            "These do not fill the device, so that what is ranked is how long a launch takes rather than what a \
             kernel does.",
        ));
        blocks.extend(small.iter().map(tables::all_about));
    }
}

/// How far an approximation was from the oracle.
fn error(record: &RungRecord) -> Option<f64> {
    record.approximate?;
    record.verification.as_ref().map(|it| it.relative_error())
}

/// The parameters, as they would be asked for.
fn chosen(record: &RungRecord) -> String {
    let each = record.parameters.iter();
    let each: Vec<_> = each
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    each.join(" ")
}

/// Whether a problem fills a GPU.
pub fn is_large(record: &RungRecord) -> bool {
    let sizes = match &record.problem {
        RungProblem::Msda(it) => [it.images, it.queries, it.heads, it.channels],
        RungProblem::Dense(it) => [it.batch, it.queries, it.heads, it.channels],
    };
    sizes.into_iter().fold(1, usize::saturating_mul) >= LARGE
}

/// A case's name as part of a file's; its number where it has other letters than such names should.
fn slug(name: &str, number: usize) -> String {
    let slug = name.replace(", ", "-");
    let is_plain = |it: char| it.is_ascii_alphanumeric() || it == '-';
    match slug.chars().all(is_plain) && slug.len() < 64 {
        true => slug,
        false => number.to_string(),
    }
}

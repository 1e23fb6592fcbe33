//! How it was measured, for those who want to know before they believe.

use super::page::{Block, Section};
use super::part::Part;
use crate::operators::OPERATORS;
use crate::record::BenchRecord;

/// The section; it says only what concerns the records at hand.
pub fn section(parts: &[Part<'_>]) -> Section {
    let benches = || parts.iter().flat_map(|part| part.benches.iter().copied());
    let any_bench = |test: &dyn Fn(&BenchRecord) -> bool| benches().any(test);
    let has_probes = parts.iter().any(|part| !part.probes.is_empty());
    let mut peers: Vec<&str> = vec![];
    for peer in benches().flat_map(|record| record.operator().peers(record)) {
        if !peers.contains(&peer.measured) {
            peers.push(peer.measured);
        }
    }
    let has_benches = any_bench(&|_| true);
    let has_rungs = parts.iter().any(|part| !part.rungs.is_empty());
    let mut paragraphs: Vec<String> = vec![];
    if has_benches {
        paragraphs.push(
            "Verified first. Before anything was timed, random rows of its result were compared, every element, with \
             an oracle that computes in f64 and shares no code with the kernels. A result outside the error \
             tolerance has no time. The error shown is the relative error in the 2-norm, of the worst tensor."
                .to_string(),
        );
    }
    if has_rungs {
        paragraphs.push(
            "A rung of the ladder runs in a subprocess under a time limit, so that one that hangs or crashes leaves \
             the others alone. Before it was timed it computed small problems of many shapes, every element compared \
             with the oracle, also under compute-sanitizer where that was installed; then random rows of each \
             problem, into poisoned memory."
                .to_string(),
        );
    }
    if parts.iter().any(|part| !part.tuned.is_empty()) {
        paragraphs.push(
            "Tuning tries one choice after another, each in a subprocess under a time limit. A choice is \
             disqualified if random rows are outside the error tolerance, or if it is not bitwise equal to the \
             defaults where it should be. The fastest are then timed alternately with the defaults, round by round, \
             so that what disturbs the machine disturbs all of them; speeds against the defaults are medians over \
             the rounds, with 99.9 % confidence intervals. A choice is kept only if its whole interval lies above 1 \
             and it gains 1 % or more."
                .to_string(),
        );
    }
    if has_benches || has_rungs {
        paragraphs.push(
            "Times are medians. ± is half the 95 % confidence interval of the median, from order statistics, so it \
             assumes nothing about the distribution of timings. Hot means the same inputs repeatedly, with warm caches."
                .to_string(),
        );
    }
    if has_benches {
        if any_bench(&|record| record.cold.is_some()) {
            paragraphs.push(
                "Cold means rotating through copies of the inputs, larger than the largest cache."
                    .to_string(),
            );
        }
        let mut counts =
            "Bytes and FLOP are counted by a model, not by the hardware, unless said otherwise."
                .to_string();
        for operator in OPERATORS {
            if any_bench(&|record| record.operator() == operator) {
                counts += &format!(" {}", operator.counting());
            }
        }
        paragraphs.push(counts);
    }
    if any_bench(&|record| record.beside("baseline").is_some()) {
        paragraphs.push(
            "The baseline is a kernel of this project: one thread per channel. It was timed alongside each result, so \
             that ratios to it hold even where clocks differ between runs."
                .to_string(),
        );
    }
    if !peers.is_empty() {
        paragraphs.push(format!(
            "Peers were measured separately, not in this run: {}. Their figures are shown only for the same device, \
             problem and element type; they say how fast they are, not how accurate.",
            peers.join("; ")
        ));
    }
    if has_probes {
        paragraphs.push(
            "Ceilings were measured on the same device by microbenchmarks. A result above a ceiling \
             is not hidden: it means that the ceiling, the model or the result is wrong."
                .to_string(),
        );
    }
    paragraphs.push(format!(
        "{} was taken from records of the measurements, or computed from them by the program that made this page.",
        if !peers.is_empty() {
            "Every other figure"
        } else {
            "Every figure"
        }
    ));
    Section {
        id: "method",
        title: "How it was measured",
        blocks: paragraphs.into_iter().map(Block::words).collect(),
    }
}

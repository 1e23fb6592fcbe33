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
            "Right first. Before anything was timed, rows of its result drawn at random were compared, every \
             element, with an oracle that computes in f64 and shares no code with the kernels. A result that is not \
             near enough has no time. The error shown is the distance to the oracle over the oracle's length, in the \
             2-norm, of the worst tensor."
                .to_string(),
        );
    }
    if has_rungs {
        paragraphs.push(
            "A rung of the ladder runs in a process of its own under a time limit, so that one that hangs or crashes \
             leaves the others alone. Before it was timed it computed small problems of many shapes, every element \
             compared with the oracle, where it was there also under the tools of compute-sanitizer; then rows drawn \
             at random of each problem, into memory that held no numbers before."
                .to_string(),
        );
    }
    if parts.iter().any(|part| !part.tuned.is_empty()) {
        paragraphs.push(
            "Tuning tries one choice after another, each in a process of its own under a time limit. A choice is \
             disqualified if rows drawn at random are not near enough to the oracle, or if it gives other bits than \
             the defaults where it should not. The fastest are then timed in turns with the defaults, round by round, \
             so that what disturbs the machine disturbs all of them; speeds against the defaults are medians over \
             the rounds, with intervals that hold them with 99.9 %. A choice is kept only if its whole interval lies \
             above 1 and it gains a hundredth or more."
                .to_string(),
        );
    }
    if has_benches || has_rungs {
        paragraphs.push(
            "Times are medians. ± is half the 95 % confidence interval of the median, made of order statistics, so \
             it assumes nothing about how timings are distributed. Hot means the same inputs again and again, so \
             that what caches can hold stays there."
                .to_string(),
        );
    }
    if has_benches {
        if any_bench(&|record| record.cold.is_some()) {
            paragraphs.push(
                "Cold means copies of the inputs in turn, more of them than the largest cache holds."
                    .to_string(),
            );
        }
        let mut counts =
            "Bytes and operations are counted by a model, not by the hardware, unless it is said otherwise."
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
            "The baseline is a kernel of this project, as plain as can be: one thread a channel. It was timed beside \
             each result, so that ratios to it hold even where clocks differ between runs."
                .to_string(),
        );
    }
    if !peers.is_empty() {
        paragraphs.push(format!(
            "Peers were measured separately, not in this run: {}. Their figures are shown only beside results of \
             such a device, for the same problem and element type; they say how fast, not how right they are.",
            peers.join("; ")
        ));
    }
    if has_probes {
        paragraphs.push(
            "Ceilings were measured on the same device by programs that do nothing else. A result above a ceiling \
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

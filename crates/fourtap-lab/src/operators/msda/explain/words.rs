//! An explanation for people, at most 100 columns wide.

use std::fmt::Write;

use super::{Explanation, Machine};
use crate::cli::InputsChoice;
use crate::explain::{Floors, bytes, count, kernel_in_words, plural};
use crate::operators::msda::ProblemSizes;
use crate::table::{align_right, or_dash, with_header, wrapped};

impl Explanation {
    /// All of it.
    pub fn in_words(&self) -> String {
        let parts = [
            self.problem_in_words(),
            self.memory_in_words(),
            self.floors().in_words(),
            self.measured_in_words(),
            self.kernels_in_words(),
            format!("Choices\n{}", wrapped(&self.choices.in_words(), 0)),
            self.verdicts_in_words(),
        ];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join("\n")
    }

    fn floors(&self) -> Floors<'_> {
        Floors {
            limits: &self.limits,
            hot: self.floor_hot.as_ref(),
            cold: self.floor_cold.as_ref(),
        }
    }

    fn problem_in_words(&self) -> String {
        let ProblemSizes {
            images,
            queries,
            heads,
            channels,
            points,
            levels,
            ..
        } = &self.problem;
        let levels: Vec<_> = levels
            .iter()
            .map(|[height, width]| format!("{height}x{width}"))
            .collect();
        let amounts = &self.amounts;
        let text = format!(
            "{}: {}, {}, {} of {}, levels {}, {} per level; {} in {}.",
            self.name,
            plural(*images, "image", "images"),
            plural(*queries, "query", "queries"),
            plural(*heads, "head", "heads"),
            plural(*channels, "channel", "channels"),
            levels.join(" "),
            plural(*points, "point", "points"),
            match self.problem.inputs {
                InputsChoice::Given => "locations and weights",
                InputsChoice::Projections => "offsets and logits",
            },
            self.dtypes.locations.as_deref().unwrap_or("f32")
        );
        let counts = format!(
            "{} samples; {} FLOP at 10 per channel and sample{}, {} with the least arithmetic: {} multiply-adds. \
             {:.1} % of the neighbours lie inside their level, and {:.1} % of value is read by some sample.",
            count(amounts.samples as f64),
            count(amounts.flop as f64),
            if self.is_backward() { ", twice" } else { "" },
            count(amounts.least_flop as f64),
            if self.is_backward() { 8 } else { 4 },
            100.0 * self.touched.in_bounds,
            100.0 * self.touched.value
        );
        let ceilings = match &self.machine {
            Machine::Cpu => format!("Ceilings: {}.", self.ceilings_in_words()),
            Machine::Cuda { name, .. } => {
                format!("For an {name}; ceilings: {}.", self.ceilings_in_words())
            }
        };
        [text, counts, ceilings]
            .map(|text| wrapped(&text, 0))
            .concat()
    }

    fn is_backward(&self) -> bool {
        let name = self.name.trim_end_matches("/projections");
        name.ends_with("/backward")
    }

    fn ceilings_in_words(&self) -> String {
        let model = self.ceilings_of.model.as_deref().unwrap_or("unknown");
        match self.limits.iter().any(|limit| limit.ceiling.is_some()) {
            true => format!("measured on {model} ({})", self.ceilings_from),
            false => "none measured".to_string(),
        }
    }

    fn memory_in_words(&self) -> String {
        let mut table = with_header(&["between", "at least", "at most", "counted", "FLOP/byte"]);
        for level in &self.memory {
            table.add_row([
                level.what.to_string(),
                bytes(level.least_bytes),
                bytes(level.most_bytes),
                or_dash(level.counted_bytes.map(bytes)),
                format!("{:.2}", level.intensity),
            ]);
        }
        align_right(&mut table, 1..5);
        let [gathered, _, dram] = &self.memory;
        let mut note = "FLOP/byte is of the bytes counted, else of the least.".to_string();
        if !self.is_backward() {
            let _ = write!(
                note,
                " The level matters: others published 0.86, 1.22 and 2 for this operator, near what registers \
                 see, {:.2} here; at DRAM it is {:.1}.",
                gathered.intensity, dram.intensity
            );
        }
        format!("Bytes\n{table}\n{}", wrapped(&note, 0))
    }

    fn measured_in_words(&self) -> String {
        let mut text = String::new();
        if let Some(achieved) = &self.achieved {
            text += &wrapped(&self.floors().against(achieved), 0);
        }
        for counted in &self.counted {
            text += &wrapped(&format!("- {}: {}", counted.kernel, counted.binding), 2);
        }
        match text.is_empty() {
            true => text,
            false => format!("Measured\n{text}"),
        }
    }

    fn kernels_in_words(&self) -> String {
        let Machine::Cuda {
            reason,
            workspace_bytes,
            ..
        } = &self.machine
        else {
            return String::new();
        };
        let mut text = "Kernels\n".to_string();
        for kernel in self.machine.kernels() {
            text += &wrapped(&format!("- {}", kernel_in_words(kernel)), 2);
        }
        if let Some(reason) = reason {
            text += &wrapped(&format!("- Not the gather kernel: {reason}."), 2);
        }
        if *workspace_bytes > 0 {
            text += &wrapped(
                &format!("- Workspace: {}.", bytes(*workspace_bytes as f64)),
                2,
            );
        }
        text
    }

    fn verdicts_in_words(&self) -> String {
        if self.verdicts.is_empty() {
            return String::new();
        }
        let mut text = "Would it help?\n".to_string();
        for verdict in &self.verdicts {
            let mut words = format!("- {}: {}. {}", verdict.idea, verdict.answer, verdict.words);
            if verdict.answer != "unknown" {
                let _ = write!(words, " Assumed: {}", verdict.assumes);
            }
            text += &wrapped(&words, 2);
        }
        text
    }
}

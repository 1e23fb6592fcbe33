//! What can be chosen about the kernels of deformable attention.

use crate::tuning::{Choice, Parameter, Space};

/// What is chosen about forward. Where a number is 0, the plan chooses as it does untuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardTuning {
    /// Threads of a block.
    pub threads: u32,
    /// Blocks that a multiprocessor is dealt rows for.
    pub blocks: u32,
    /// Samples a lane works out at a time.
    pub per_lane: u32,
    /// Heads walked side by side.
    pub heads_together: u32,
    /// How rows are dealt to blocks.
    pub dealing: u32,
    /// How much of L2 the images in work may fill, in percent, where neighbouring rows go to one block.
    pub l2_percent: u32,
    /// Whether small levels are kept in shared memory.
    pub keep: u32,
    /// Groups of lanes that share the samples of a row.
    pub split: u32,
    /// Parts of the levels that warps begin at.
    pub phases: u32,
    /// Whether pixel pairs are read in an order that depends on their place.
    pub alternate: u32,
}

/// What is chosen about backward. Where a number is 0, the plan chooses as it does untuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardTuning {
    /// Threads of a block that computes the gradients of samples.
    pub threads: u32,
    /// Blocks of it that a multiprocessor is dealt rows for.
    pub blocks: u32,
    /// Samples a lane of it works out at a time.
    pub per_lane: u32,
    /// Heads it walks side by side.
    pub heads_together: u32,
    /// Warps of a block that sorts samples.
    pub sort_warps: u32,
    /// Chunks of samples a multiprocessor has to sort, if there are enough samples: a chunk costs its tables, so no more than
    /// pays.
    pub chunks_each: u32,
    /// Samples of a chunk, at least.
    pub least_chunk: u32,
    /// Blocks that sum, of a multiprocessor: usually as many as it holds.
    pub sum_blocks: u32,
    /// Whether `grad_value` is added up by atomic instructions.
    pub scatter: u32,
}

/// What `dealing` can be.
pub(super) mod dealing {
    /// All blocks side by side in one image, so that L2 serves them.
    pub const SIDE_BY_SIDE: u32 = 1;
    /// Neighbouring rows to one block, so that L1 serves them.
    pub const NEIGHBOURS: u32 = 2;
}

/// What `keep`, `alternate` and `scatter` can be besides 0.
pub(super) const NEVER: u32 = 1;
pub(super) const ALWAYS: u32 = 2;

const BLOCKS: Parameter = Parameter::new(
    "blocks",
    "blocks that a multiprocessor is dealt rows for",
    &[1, 2],
    1,
);
const PER_LANE: Parameter = Parameter::new(
    "per_lane",
    "samples a lane works out at a time; 0 as usual",
    &[0, 1, 2],
    0,
);
const HEADS_TOGETHER: Parameter = Parameter::new(
    "heads_together",
    "heads walked side by side; 0 as usual",
    &[0, 1, 2, 4, 8],
    0,
);

pub(in crate::cuda) static FORWARD: Space = Space {
    kernel: "cuda-msda-forward",
    what: "deformable attention on CUDA, forward",
    parameters: &[
        // Which warp has a row says at which level the sum of its samples begins, where there are phases.
        Parameter::new(
            "threads",
            "threads of a block; 0 as usual",
            &[0, 128, 256, 512, 640, 768, 1024],
            0,
        )
        .changing_bits(),
        BLOCKS.changing_bits(),
        PER_LANE,
        HEADS_TOGETHER.changing_bits(),
        Parameter::new(
            "dealing",
            "how rows are dealt to blocks: 1 side by side, 2 neighbours together; 0 as usual",
            &[0, dealing::SIDE_BY_SIDE, dealing::NEIGHBOURS],
            0,
        )
        .changing_bits(),
        Parameter::new(
            "l2_percent",
            "how much of L2 the images in work may fill, where neighbours are together",
            &[25, 50, 100],
            50,
        )
        .changing_bits(),
        Parameter::new(
            "keep",
            "whether small levels are kept in shared memory: 1 never, 2 always; 0 as usual",
            &[0, NEVER, ALWAYS],
            0,
        ),
        Parameter::new(
            "split",
            "groups of lanes that share the samples of a row; 0 as usual",
            &[0, 1, 2, 4],
            0,
        )
        .changing_bits(),
        Parameter::new(
            "phases",
            "parts of the levels that warps begin at; 0 as usual",
            &[0, 1, 2],
            0,
        )
        .changing_bits(),
        Parameter::new(
            "alternate",
            "whether the order of a pair of pixels depends on its place: 1 never, 2 always; 0 as usual",
            &[0, NEVER, ALWAYS],
            0,
        )
        .changing_bits(),
    ],
};

pub(in crate::cuda) static BACKWARD: Space = Space {
    kernel: "cuda-msda-backward",
    what: "deformable attention on CUDA, backward",
    parameters: &[
        Parameter::new(
            "threads",
            "threads of a block that computes the gradients of samples; 0 as usual",
            &[0, 256, 384, 512, 640],
            0,
        ),
        BLOCKS,
        PER_LANE,
        HEADS_TOGETHER,
        Parameter::new(
            "sort_warps",
            "warps of a block that sorts samples; 0 as many as fit",
            &[0, 8],
            0,
        ),
        Parameter::new(
            "chunks_each",
            "chunks of samples a multiprocessor has to sort, if there are enough samples",
            &[1, 2, 4, 8],
            1,
        )
        .changing_bits(),
        Parameter::new(
            "least_chunk",
            "samples of a chunk, at least; 0 as usual",
            &[0, 256, 1024],
            0,
        )
        .changing_bits(),
        Parameter::new(
            "sum_blocks",
            "blocks that sum, of a multiprocessor",
            &[5, 7, 14],
            7,
        ),
        Parameter::new(
            "scatter",
            "whether grad_value is added up by atomic instructions: 1 never, 2 always; 0 as usual",
            &[0, NEVER, ALWAYS],
            0,
        )
        .changing_bits(),
    ],
};

impl ForwardTuning {
    /// As a choice about this kernel says, whose values come in the order in which its space declares them.
    pub fn of(choice: &Choice) -> Self {
        let mut values = choice.values().iter();
        let mut next = || values.next().map_or(0, |(_, value)| *value);
        ForwardTuning {
            threads: next(),
            blocks: next(),
            per_lane: next(),
            heads_together: next(),
            dealing: next(),
            l2_percent: next(),
            keep: next(),
            split: next(),
            phases: next(),
            alternate: next(),
        }
    }
}

impl BackwardTuning {
    /// As a choice about this kernel says, whose values come in the order in which its space declares them.
    pub fn of(choice: &Choice) -> Self {
        let mut values = choice.values().iter();
        let mut next = || values.next().map_or(0, |(_, value)| *value);
        BackwardTuning {
            threads: next(),
            blocks: next(),
            per_lane: next(),
            heads_together: next(),
            sort_warps: next(),
            chunks_each: next(),
            least_chunk: next(),
            sum_blocks: next(),
            scatter: next(),
        }
    }
}

/// Untuned.
impl Default for ForwardTuning {
    fn default() -> Self {
        ForwardTuning {
            threads: 0,
            blocks: 1,
            per_lane: 0,
            heads_together: 0,
            dealing: 0,
            l2_percent: 50,
            keep: 0,
            split: 0,
            phases: 0,
            alternate: 0,
        }
    }
}

/// Untuned.
impl Default for BackwardTuning {
    fn default() -> Self {
        BackwardTuning {
            threads: 0,
            blocks: 1,
            per_lane: 0,
            heads_together: 0,
            sort_warps: 0,
            chunks_each: 1,
            least_chunk: 0,
            sum_blocks: 7,
            scatter: 0,
        }
    }
}

/// `chosen`, unless that is 0.
pub(super) fn or_usual(chosen: u32, usual: u32) -> u32 {
    match chosen {
        0 => usual,
        chosen => chosen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A choice of another value for one parameter, as its tuning is printed.
    fn changed(space: &Space, name: &str, of: impl Fn(&Choice) -> String) {
        let parameter = space.parameters.iter().find(|it| it.name == name).unwrap();
        let other = parameter.values.iter().find(|it| **it != parameter.default);
        let other = *other.unwrap();
        let words = of(&space.defaults().with(name, other));
        assert!(words.contains(&format!(" {name}: {other}")), "{words}");
    }

    #[test]
    fn every_value_finds_its_place() {
        assert_eq!(
            ForwardTuning::of(&FORWARD.defaults()),
            ForwardTuning::default()
        );
        assert_eq!(
            BackwardTuning::of(&BACKWARD.defaults()),
            BackwardTuning::default()
        );
        for parameter in FORWARD.parameters {
            changed(&FORWARD, parameter.name, |choice| {
                format!("{:?}", ForwardTuning::of(choice))
            });
        }
        for parameter in BACKWARD.parameters {
            changed(&BACKWARD, parameter.name, |choice| {
                format!("{:?}", BackwardTuning::of(choice))
            });
        }
    }
}

//! Tuning parameters of the kernels of deformable attention.

use crate::tuning::Choice;

/// Tuning parameters of forward. 0 means the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardTuning {
    /// Threads per block.
    pub threads: u32,
    /// Resident blocks per multiprocessor that rows are distributed over.
    pub blocks: u32,
    /// Samples per lane at a time.
    pub per_lane: u32,
    /// Heads processed side by side.
    pub heads_together: u32,
    /// How rows are distributed over blocks.
    pub dealing: u32,
    /// Percentage of L2 that the images being worked on may fill, where neighbouring rows go to one block.
    pub l2_percent: u32,
    /// Whether small levels are kept in shared memory.
    pub keep: u32,
    /// Whether sums are taken on tensor cores.
    pub matrix: u32,
    /// Groups of lanes that share the samples of a row.
    pub split: u32,
    /// Number of points in the sequence of levels at which warps start.
    pub phases: u32,
    /// Whether the read order of a pixel pair depends on its position.
    pub alternate: u32,
}

/// Tuning parameters of backward. 0 means the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardTuning {
    /// Threads per block of the kernel for the gradients of locations and weights.
    pub threads: u32,
    /// Resident blocks of it per multiprocessor that rows are distributed over.
    pub blocks: u32,
    /// Samples per lane of it at a time.
    pub per_lane: u32,
    /// Heads it processes side by side.
    pub heads_together: u32,
    /// Warps per block of the sorting kernel.
    pub sort_warps: u32,
    /// Chunks of samples to sort per multiprocessor, if there are enough samples: each chunk costs its tables, so more do
    /// not always pay off.
    pub chunks_each: u32,
    /// Minimum samples per chunk.
    pub least_chunk: u32,
    /// Blocks of the summing kernel per multiprocessor: by default as many as it holds.
    pub sum_blocks: u32,
    /// Whether `grad_value` is accumulated by atomic additions.
    pub scatter: u32,
    /// Whether it is summed band by band instead of sorting samples.
    pub bands: u32,
}

impl ForwardTuning {
    /// From a tuning choice for this kernel.
    pub fn of(choice: &Choice) -> Self {
        ForwardTuning {
            threads: choice.get("threads"),
            blocks: choice.get("blocks"),
            per_lane: choice.get("per_lane"),
            heads_together: choice.get("heads_together"),
            dealing: choice.get("dealing"),
            l2_percent: choice.get("l2_percent"),
            keep: choice.get("keep"),
            matrix: choice.get("matrix"),
            split: choice.get("split"),
            phases: choice.get("phases"),
            alternate: choice.get("alternate"),
        }
    }
}

impl BackwardTuning {
    /// From a tuning choice for this kernel.
    pub fn of(choice: &Choice) -> Self {
        BackwardTuning {
            threads: choice.get("threads"),
            blocks: choice.get("blocks"),
            per_lane: choice.get("per_lane"),
            heads_together: choice.get("heads_together"),
            sort_warps: choice.get("sort_warps"),
            chunks_each: choice.get("chunks_each"),
            least_chunk: choice.get("least_chunk"),
            sum_blocks: choice.get("sum_blocks"),
            scatter: choice.get("scatter"),
            bands: choice.get("bands"),
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
            matrix: 0,
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
            sum_blocks: 6,
            scatter: 0,
            bands: 0,
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
    use crate::tuning::Space;
    use crate::tuning::spaces::cuda::{MSDA_BACKWARD, MSDA_FORWARD};

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
            ForwardTuning::of(&MSDA_FORWARD.defaults()),
            ForwardTuning::default()
        );
        assert_eq!(
            BackwardTuning::of(&MSDA_BACKWARD.defaults()),
            BackwardTuning::default()
        );
        for parameter in MSDA_FORWARD.parameters {
            changed(&MSDA_FORWARD, parameter.name, |choice| {
                format!("{:?}", ForwardTuning::of(choice))
            });
        }
        for parameter in MSDA_BACKWARD.parameters {
            changed(&MSDA_BACKWARD, parameter.name, |choice| {
                format!("{:?}", BackwardTuning::of(choice))
            });
        }
    }
}

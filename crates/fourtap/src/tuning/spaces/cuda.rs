//! What can be chosen about the kernels of `crate::cuda`.

use crate::tuning::space::{Parameter, Space};

/// What `dealing` can be.
pub mod dealing {
    /// All blocks side by side in one image, so that L2 serves them.
    pub const SIDE_BY_SIDE: u32 = 1;
    /// Neighbouring rows to one block, so that L1 serves them.
    pub const NEIGHBOURS: u32 = 2;
}

/// What `keep`, `alternate` and `scatter` can be besides 0.
pub const NEVER: u32 = 1;
pub const ALWAYS: u32 = 2;

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

pub static MSDA_FORWARD: Space = Space {
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

pub static MSDA_BACKWARD: Space = Space {
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

pub static DENSE_FORWARD: Space = Space {
    kernel: "cuda-dense-forward",
    what: "dense attention on CUDA",
    parameters: &[
        Parameter::new(
            "rows",
            "queries of a block; 0 as usual",
            &[0, 16, 32, 64, 128],
            0,
        )
        .changing_bits(),
        Parameter::new(
            "keys",
            "keys a block looks at at a time; 0 as usual",
            &[0, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256],
            0,
        )
        .changing_bits(),
        Parameter::new(
            "columns",
            "warps, of four, among which these keys are divided; 0 as usual",
            &[0, 1, 2, 4],
            0,
        )
        .changing_bits(),
        Parameter::new(
            "blocks",
            "blocks of a multiprocessor that the registers shall suffice for; 0 as usual",
            &[0, 1, 2, 3, 4],
            0,
        ),
        Parameter::new(
            "splits",
            "parts that keys are divided into, each a block's; 0 as usual",
            &[0, 1, 2, 3, 4, 6, 8, 12, 16, 32],
            0,
        )
        .changing_bits(),
        Parameter::new(
            "bounds",
            "1: look at bounds even where every query sees all keys",
            &[0, 1],
            0,
        ),
    ],
};

//! Tuning parameters of the kernels of `crate::cuda`.

use crate::tuning::space::{Parameter, Space};

/// The values of `dealing`.
pub mod dealing {
    /// All blocks side by side in one image, so that L2 serves them.
    pub const SIDE_BY_SIDE: u32 = 1;
    /// Neighbouring rows to one block, so that L1 serves them.
    pub const NEIGHBOURS: u32 = 2;
}

/// The values of `keep`, `matrix`, `alternate`, `scatter` and `bands` besides 0.
pub const NEVER: u32 = 1;
pub const ALWAYS: u32 = 2;

const BLOCKS: Parameter = Parameter::new(
    "blocks",
    "resident blocks per multiprocessor that rows are distributed over",
    &[1, 2],
    1,
);
const PER_LANE: Parameter = Parameter::new(
    "per_lane",
    "samples per lane at a time; 0 default",
    &[0, 1, 2],
    0,
);
const HEADS_TOGETHER: Parameter = Parameter::new(
    "heads_together",
    "heads processed side by side; 0 default",
    &[0, 1, 2, 4, 8],
    0,
);

pub static MSDA_FORWARD: Space = Space {
    kernel: "cuda-msda-forward",
    what: "deformable attention on CUDA, forward",
    parameters: &[
        // With phases, the warp of a row decides at which level the sum of its samples starts.
        Parameter::new(
            "threads",
            "threads per block; 0 default",
            &[0, 128, 256, 512, 640, 768, 1024],
            0,
        )
        .changing_bits(),
        BLOCKS.changing_bits(),
        PER_LANE,
        HEADS_TOGETHER.changing_bits(),
        Parameter::new(
            "dealing",
            "how rows are distributed over blocks: 1 side by side, 2 neighbours together; 0 default",
            &[0, dealing::SIDE_BY_SIDE, dealing::NEIGHBOURS],
            0,
        )
        .changing_bits(),
        Parameter::new(
            "l2_percent",
            "percentage of L2 that the images being worked on may fill, where neighbours are together",
            &[25, 50, 100],
            50,
        )
        .changing_bits(),
        Parameter::new(
            "keep",
            "whether small levels are kept in shared memory: 1 never, 2 always; 0 default",
            &[0, NEVER, ALWAYS],
            0,
        ),
        Parameter::new(
            "matrix",
            "whether sums are taken on tensor cores: 1 never, 2 always; 0 default",
            &[0, NEVER, ALWAYS],
            0,
        )
        .changing_bits(),
        Parameter::new(
            "split",
            "groups of lanes that share the samples of a row; 0 default",
            &[0, 1, 2, 4],
            0,
        )
        .changing_bits(),
        Parameter::new(
            "phases",
            "points in the sequence of levels at which warps start; 0 default",
            &[0, 1, 2],
            0,
        )
        .changing_bits(),
        Parameter::new(
            "alternate",
            "whether the read order of a pixel pair depends on its position: 1 never, 2 always; 0 default",
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
            "threads per block of the kernel for the gradients of locations and weights; 0 default",
            &[0, 256, 384, 512, 640],
            0,
        ),
        BLOCKS,
        PER_LANE,
        HEADS_TOGETHER,
        Parameter::new(
            "sort_warps",
            "warps per block of the sorting kernel; 0 as many as fit",
            &[0, 8],
            0,
        ),
        Parameter::new(
            "chunks_each",
            "chunks of samples to sort per multiprocessor, if there are enough samples",
            &[1, 2, 4, 8],
            1,
        )
        .changing_bits(),
        Parameter::new(
            "least_chunk",
            "minimum samples per chunk; 0 default",
            &[0, 256, 1024],
            0,
        )
        .changing_bits(),
        Parameter::new(
            "sum_blocks",
            "blocks of the summing kernel per multiprocessor",
            &[4, 6, 12],
            6,
        ),
        Parameter::new(
            "scatter",
            "whether grad_value is accumulated by atomic additions: 1 never, 2 always; 0 default",
            &[0, NEVER, ALWAYS],
            0,
        )
        .changing_bits(),
        Parameter::new(
            "bands",
            "whether every block of pixels searches all samples, instead of sorting them: 1 never, 2 always; 0 default",
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
            "queries per block; 0 default",
            &[0, 16, 32, 64, 128],
            0,
        )
        .changing_bits(),
        Parameter::new(
            "keys",
            "keys that a block processes at a time; 0 default",
            &[0, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256],
            0,
        )
        .changing_bits(),
        Parameter::new(
            "columns",
            "warps, of four, that split these keys; 0 default",
            &[0, 1, 2, 4],
            0,
        )
        .changing_bits(),
        Parameter::new(
            "blocks",
            "resident blocks per multiprocessor that the register count must allow; 0 default",
            &[0, 1, 2, 3, 4],
            0,
        )
        .changing_bits(), // it chooses mma.sync, see `kernel`
        Parameter::new(
            "splits",
            "splits of the keys, one block each; 0 default",
            &[0, 1, 2, 3, 4, 6, 8, 12, 16, 32],
            0,
        )
        .changing_bits(),
        Parameter::new(
            "bounds",
            "1: apply a mask even where every query sees all keys",
            &[0, 1],
            0,
        )
        .changing_bits(), // likewise
        Parameter::new(
            "kernel",
            "1: by mma.sync, which all other parameters are for; 2: the one for Hopper; 0: the first if others are not 0, or else the faster",
            &[0, 1, 2],
            0,
        )
        .changing_bits(),
    ],
};

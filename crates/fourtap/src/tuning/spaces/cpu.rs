//! Tuning parameters of the kernels of `crate::cpu`.

use crate::tuning::space::{Parameter, Space};

const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;

pub const SERIAL_WORK: Parameter = Parameter::new(
    "serial_work",
    "samples times channels below which a call stays on its thread",
    &[1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20],
    1 << 16,
);
pub const NEAR_BYTES: Parameter = Parameter::new(
    "near_bytes",
    "bytes of a level of one image up to which it is read together with others",
    &[
        256 * KIB,
        512 * KIB,
        MIB,
        2 * MIB,
        4 * MIB,
        8 * MIB,
        1024 * MIB,
    ],
    2 * MIB,
)
.changing_bits();
pub const TASK_BYTES: Parameter = Parameter::new(
    "task_bytes",
    "bytes of results that a task keeps between two passes over its rows",
    &[
        16 * KIB,
        32 * KIB,
        64 * KIB,
        128 * KIB,
        256 * KIB,
        512 * KIB,
        MIB,
        2 * MIB,
        8 * MIB,
    ],
    512 * KIB,
);
pub const TASKS_EACH: Parameter = Parameter::new(
    "tasks_each",
    "minimum tasks per thread",
    &[1, 2, 4, 8, 16, 32],
    4,
);
pub const BAND_BYTES: Parameter = Parameter::new(
    "band_bytes",
    "bytes of sums per task, while most_bands allows",
    &[
        128 * KIB,
        256 * KIB,
        512 * KIB,
        MIB,
        2 * MIB,
        4 * MIB,
        16 * MIB,
    ],
    MIB,
);
pub const MOST_BANDS: Parameter = Parameter::new(
    "most_bands",
    "maximum bands per level",
    &[1, 2, 4, 8, 16],
    4,
);
pub const TASK_BLOCKS: Parameter = Parameter::new(
    "task_blocks",
    "maximum blocks of 64 queries per task; twice as many with amx",
    &[1, 2, 4, 8, 16],
    4,
);
pub const DENSE_TASKS_EACH: Parameter = Parameter::new(
    "dense_tasks_each",
    "minimum tasks per thread before tasks grow to more than one block",
    &[1, 2, 4, 8, 16, 32],
    8,
);
pub const VECTOR_BITS: Parameter = Parameter::new(
    "vector_bits",
    "vector width in bits: 512 is avx512 without amx, 256 avx2, 128 portable, 0 the best available",
    &[0, 128, 256, 512],
    0,
)
.changing_bits();

pub static MSDA_FORWARD: Space = Space {
    kernel: "cpu-msda-forward",
    what: "deformable attention on the CPU, forward",
    parameters: &[TASK_BYTES, TASKS_EACH, SERIAL_WORK, NEAR_BYTES, VECTOR_BITS],
};
pub static MSDA_BACKWARD: Space = Space {
    kernel: "cpu-msda-backward",
    what: "deformable attention on the CPU, backward",
    parameters: &[
        BAND_BYTES,
        MOST_BANDS,
        TASK_BYTES,
        TASKS_EACH,
        SERIAL_WORK,
        NEAR_BYTES,
        VECTOR_BITS,
    ],
};
pub static DENSE_FORWARD: Space = Space {
    kernel: "cpu-dense-forward",
    what: "dense attention on the CPU",
    parameters: &[TASK_BLOCKS, DENSE_TASKS_EACH, SERIAL_WORK, VECTOR_BITS],
};

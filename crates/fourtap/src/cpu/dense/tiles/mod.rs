//! Dense attention of 16-bit types in AMX tiles.
//!
//! A block is 32 rows, a step 256 keys. Queries lie in rows here, unlike in vectors without tiles: `Q K^T` comes out of tiles
//! as a row of f32 logits for each query, vectors make weights of bf16 of them, and these are again the left side of a
//! product. Keys and values are packed as tiles' right sides want them, once for all blocks of a task.
//!
//! A number of f16 is the sum of two of bf16, exactly, and so its products are four products; a weight is then a sum of two
//! also, nearer than f16 is. Weights of bf16 problems are rounded to bf16, as is usual, but for values of few channels.
//!
//! Numbers that tiles do not multiply as f32 would are left to `patch`.

mod backward;
mod block;
mod layout;
mod pack;
mod patch;
mod softmax;
mod split;
mod store;
mod task;

pub use self::backward::products;
pub use self::layout::Line;
pub use self::split::Split;

use std::ops::Range;

use self::layout::{Layout, ROWS};
use self::task::Task;
use super::plan::Plan;
use crate::cpu::Cpu;
use crate::cpu::amx::Tiles;
use crate::dense::Sizes;

/// How many times as long tasks may be as without tiles: products take less time, and packing keys and values, once for
/// each task, takes as much.
pub const LONGER_TASKS: usize = 2;

/// Factors with which tiles' rounding of the least numbers to 0 cannot show.
const FACTORS: Range<f32> = f32::MIN_POSITIVE..1e9;

const LEAST_WITH_BIASES: f32 = 1e-6;

/// Whether tiles are the way to compute such a call.
pub fn serves<E: Split>(plan: &Plan<'_, E>) -> bool {
    // Biases are divided by the factor.
    let has_biases = plan.mask.is_some_and(|mask| !mask.is_boolean());
    FACTORS.contains(&plan.factor.abs()) && !(has_biases && plan.factor.abs() < LEAST_WITH_BIASES)
}

/// How long a worker's memory is for tasks of so many rows.
pub fn workspace<E: Split>(sizes: &Sizes, rows: usize) -> usize {
    Layout::new::<E>(sizes).workspace(rows.div_ceil(ROWS))
}

/// Computes some rows of a head of keys, at most as many as `memory` was made for.
///
/// # Safety
/// They lie in the problem, and nobody else writes them. The processor has AMX.
pub unsafe fn run<E: Split>(
    cpu: Cpu,
    plan: &Plan<'_, E>,
    [sequence, head]: [usize; 2],
    rows: Range<usize>,
    memory: &mut [Line],
) {
    let layout = Layout::new::<E>(&plan.sizes);
    let task = Task {
        cpu,
        plan,
        sequence,
        head,
        layout,
        negated: plan.factor < 0.0,
        factor: plan.factor.abs(),
        logit_steps: layout.logit_steps(),
        value_steps: layout.value_steps(),
        tiles: Tiles::of_this_thread(),
    };
    // SAFETY: as the caller promises.
    unsafe { task.run(rows, memory) };
}

//! The cost model: bytes and FLOP of a problem, independent of the implementation.

use crate::dense::Problem;
use crate::dtype::DType;

/// Bytes and FLOP of a problem, as all reports count them. Masked-out work is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Pairs of a query and a key it sees, over all sequences and query heads.
    pub pairs: u64,
    /// Bytes that must move at least once: queries, outputs, and the keys and values that some query sees, without
    /// `lse`.
    pub compulsory_bytes: u64,
    /// Floating-point operations: 2 per pair and channel for `Q K^T`, and 2 for the sum of values. The softmax, whose cost
    /// does not grow with D, is left out, as is usual.
    pub flop: u64,
}

impl Traffic {
    /// Traffic of the forward pass.
    ///
    /// ```
    /// use fourtap::View;
    /// use fourtap::dense::{Alignment, Inputs, Mask, Options, Problem, Traffic};
    /// let (q, kv) = ([0f32; 3 * 8], [0f32; 5 * 8]);
    /// let keys = View::new(&kv, &[1, 1, 5, 8]);
    /// let inputs = Inputs::new(View::new(&q, &[1, 1, 3, 8]), keys, keys);
    /// let all = Traffic::of_forward(&Problem::new(&inputs, Options::default())?);
    /// assert_eq!(all.flop, 4 * 3 * 5 * 8);
    /// assert_eq!(all.compulsory_bytes, 4 * 8 * (3 + 5 + 5 + 3));
    ///
    /// // Three queries see one, two and three keys; the last two keys are seen by none.
    /// let causal = Options { mask: Mask::causal(Alignment::TopLeft), ..Options::default() };
    /// let causal = Traffic::of_forward(&Problem::new(&inputs, causal)?);
    /// assert_eq!(causal.flop, 4 * (1 + 2 + 3) * 8);
    /// assert_eq!(causal.compulsory_bytes, 4 * 8 * (3 + 3 + 3 + 3));
    /// # Ok::<(), fourtap::Error>(())
    /// ```
    pub fn of_forward(problem: &Problem) -> Self {
        let sizes = problem.sizes();
        let (mut pairs, mut seen, mut end) = (0u64, 0u64, 0usize);
        for query in 0..sizes.queries {
            let visible = problem.visible(query);
            pairs = pairs.saturating_add(visible.len() as u64);
            // Ranges only move forward, so keys past the end so far are new.
            seen += visible.end.saturating_sub(visible.start.max(end)) as u64;
            end = end.max(visible.end);
        }
        let count = |number: usize| number as u64;
        pairs = pairs
            .saturating_mul(count(sizes.batch))
            .saturating_mul(count(sizes.query_heads));
        let channels = count(sizes.channels).saturating_add(count(sizes.value_channels));
        let keys = count(sizes.batch) * count(sizes.key_heads) * seen;
        Traffic {
            pairs,
            compulsory_bytes: bytes(&sizes.query(), problem.dtype())
                + bytes(&sizes.out(), problem.dtype())
                + keys * channels * problem.dtype().size() as u64,
            flop: pairs.saturating_mul(channels).saturating_mul(2),
        }
    }
}

fn bytes(shape: &[usize], dtype: DType) -> u64 {
    shape.iter().map(|&size| size as u64).product::<u64>() * dtype.size() as u64
}

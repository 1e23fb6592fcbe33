//! A call as the choice of kernels sees it, and what no kernel serves.

use super::maps;
use super::tile;
use crate::cuda::fit;
use crate::dense::{AttnMaskDesc, Forward, Mask, Sizes};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// Queries and keys of a head must be fewer: kernels count them, and their distances, in 32 bits.
const TOO_MANY: usize = 1 << 30;

/// A call described by what the choice of kernels depends on. Its plan is the one that [`crate::dense::forward`] would
/// follow; no driver is needed.
///
/// ```
/// use fourtap::DType;
/// use fourtap::cuda::{DeviceSize, dense::ProblemDesc};
/// use fourtap::dense::{Mask, Sizes};
///
/// let described = ProblemDesc {
///     sizes: Sizes {
///         batch: 1,
///         query_heads: 8,
///         key_heads: 8,
///         queries: 512,
///         keys: 512,
///         channels: 64,
///         value_channels: 64,
///     },
///     dtype: DType::F16,
///     mask: Mask::default(),
///     attn_mask: None,
///     align: 16,
///     boxes: true,
/// };
/// let device = DeviceSize {
///     multiprocessors: 132,
///     l2_bytes: 60 << 20,
///     shared_bytes: 227 << 10,
///     has_wgmma: true,
/// };
/// let plan = described.plan(device)?;
/// assert_eq!(plan.to_string(), "dense-forward-mma-f16-d64-32x256, 128 blocks of 128 threads");
/// # Ok::<(), fourtap::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProblemDesc {
    /// The sizes.
    pub sizes: Sizes,
    /// The element type.
    pub dtype: DType,
    /// Which keys a query sees.
    pub mask: Mask,
    /// The tensor that hides further keys, or is added to logits.
    pub attn_mask: Option<AttnMaskDesc>,
    /// Alignment of rows, in bytes: 16 where channels are contiguous and all other strides are multiples of eight elements,
    /// as is usual; otherwise 4 or 2. With 2, channels may have any stride.
    pub align: u32,
    /// Whether TMA can load boxes of query, key and value: there is more than one query, and no stride is negative, that of rows
    /// not 0.
    pub boxes: bool,
}

impl ProblemDesc {
    /// The description of a call.
    pub(super) fn of(call: &Forward<'_>) -> Self {
        let problem = &call.problem;
        let inputs = &call.inputs;
        let tensors = [
            ("query", &inputs.query),
            ("key", &inputs.key),
            ("value", &inputs.value),
            ("out", call.outputs.out.as_view()),
        ];
        let aligned = |align: &u32| {
            tensors.iter().all(|(name, view)| {
                let (first, layout) = (view.as_ptr(), view.layout());
                fit::aligned(name, first, layout, &[0, 1, 2], &[3], *align as usize).is_ok()
            })
        };
        ProblemDesc {
            sizes: *problem.sizes(),
            dtype: problem.dtype(),
            mask: problem.options().mask,
            attn_mask: problem.attn_mask().copied(),
            align: [16, 4].into_iter().find(aligned).unwrap_or(2),
            boxes: maps::is_loadable(call),
        }
    }
}

/// Refuses what no kernel serves.
pub(super) fn expect_served(sizes: &Sizes) -> Result<()> {
    for (what, channels) in [("D", sizes.channels), ("Dv", sizes.value_channels)] {
        if channels > tile::MOST_CHANNELS {
            return Err(unsupported(
                &format!("at most {} channels per head", tile::MOST_CHANNELS),
                format!("{what} = {channels}"),
            ));
        }
    }
    for (what, count) in [("Sq", sizes.queries), ("Sk", sizes.keys)] {
        if count >= TOO_MANY {
            return Err(unsupported(
                "fewer than 2^30 queries and keys",
                format!("{what} = {count}"),
            ));
        }
    }
    Ok(())
}

pub(super) fn block_count(blocks: usize) -> Result<u32> {
    let count = u32::try_from(blocks).ok().filter(|&count| count < 1 << 31);
    count.ok_or_else(|| unsupported("fewer than 2^31 blocks", blocks.to_string()))
}

pub(super) fn unsupported(expected: &str, found: String) -> Error {
    Error::Unsupported {
        backend: "cuda",
        expected: expected.to_string(),
        found,
    }
}

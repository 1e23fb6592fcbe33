//! Which kernels serve a call, and how its work is split.

use std::fmt;

use super::folded::FoldedProblem;
use super::specialised::{Combine, KernelVariant, Mma};
use super::tile::{self, Tile};
use super::tuning::Tuning;
use crate::cuda::device_size::DeviceSize;
use crate::cuda::fit;
use crate::cuda::handle::Cuda;
use crate::cuda::step::Step;
use crate::cuda::tuning::refused;
use crate::dense::{Forward, Mask, Sizes};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tuning::Class;
use crate::tuning::spaces::cuda::DENSE_FORWARD;

/// Queries and keys of a head must be fewer: kernels count them, and their distances, in 32 bits.
const TOO_MANY: usize = 1 << 30;

/// Threads per block of the combine kernel, and channels per thread.
const COMBINE_THREADS: u32 = 256;
const COMBINE_CHANNELS: usize = 4;

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
///     align: 16,
/// };
/// let device = DeviceSize { multiprocessors: 132, l2_bytes: 60 << 20, shared_bytes: 227 << 10 };
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
    /// Alignment of rows, in bytes: 16 where channels are contiguous and all other strides are multiples of eight elements,
    /// as is usual; otherwise 4 or 2. With 2, channels may have any stride.
    pub align: u32,
}

/// The plan of a call, for display and for the launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The attention itself.
    pub forward: Step<KernelVariant>,
    /// Where keys are split among blocks: the kernel that combines their results.
    pub combine: Option<Step<KernelVariant>>,
    /// Splits of the keys.
    pub splits: u32,
    pub(super) folded: FoldedProblem,
    pub(super) dtype: DType,
    head_v: u32,
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
            align: [16, 4].into_iter().find(aligned).unwrap_or(2),
        }
    }

    /// The plan of forward on such a device, untuned.
    pub fn plan(&self, device: DeviceSize) -> Result<Plan> {
        self.tuned(device, &Tuning::default())
    }

    /// The plan of forward with this tuning.
    pub fn tuned(&self, device: DeviceSize, tuning: &Tuning) -> Result<Plan> {
        self.expect_served()?;
        let Sizes {
            channels,
            value_channels,
            ..
        } = self.sizes;
        let folded = FoldedProblem::new(&self.sizes, &self.mask);
        let [head, head_v] = [channels, value_channels].map(|n| n.next_multiple_of(32) as u32);
        let fitting: Vec<Tile> = Tile::for_channels(head.max(head_v))
            .iter()
            .filter(|tile| tile.shared_bytes(head, head_v) <= device.shared_bytes)
            .copied()
            .collect();
        let (planes, rows) = (folded.planes() as u64, folded.rows as u64);
        let chosen = Tile::choose(&fitting, planes, rows, device.multiprocessors);
        let Some(tile) = chosen else {
            return Err(unsupported(
                "a device with 99 KiB of shared memory per block",
                format!("{} bytes", device.shared_bytes),
            ));
        };
        let tile = tuning.tile(tile, head, head_v).map_err(refused)?;
        let shared_bytes = tile.shared_bytes(head, head_v);
        if shared_bytes > device.shared_bytes {
            let found = format!(
                "too much shared memory per block: {shared_bytes} bytes of {}",
                device.shared_bytes
            );
            return Err(refused(found));
        }
        let blocks = planes * rows.div_ceil(tile.rows.into());
        let Some(blocks) = u32::try_from(blocks).ok().filter(|&n| n < 1 << 31) else {
            return Err(unsupported("fewer than 2^31 blocks", blocks.to_string()));
        };
        let key_tiles = folded.keys.div_ceil(tile.keys as usize);
        let splits = match tuning.splits {
            0 => splits(blocks, key_tiles, device),
            // More would leave blocks without keys.
            chosen if chosen as usize > key_tiles.max(1) => {
                let found =
                    format!("splits without a tile of keys: {chosen} splits of {key_tiles}");
                return Err(refused(found));
            }
            chosen => chosen,
        };
        let mut folded = folded;
        if tuning.bounds == 1 {
            folded.bounds = folded.bounds.or(Some(FoldedProblem::ALL));
        }
        let padded = head as usize != channels || head_v as usize != value_channels;
        let (dtype, align) = (self.dtype, self.align);
        let forward = Step {
            kernel: KernelVariant::Mma(Mma {
                dtype,
                head,
                head_v,
                tile,
                mask: folded.bounds.is_some(),
                split: splits > 1,
                padded,
                align,
            }),
            blocks: [blocks, splits],
            threads: tile::THREADS,
            shared_bytes,
        };
        let threads = folded.planes() * folded.rows * (head_v as usize / COMBINE_CHANNELS);
        let combine = (splits > 1).then_some(Step {
            kernel: KernelVariant::Combine(Combine {
                dtype,
                head_v,
                padded,
                align,
            }),
            blocks: [threads.div_ceil(COMBINE_THREADS as usize) as u32, 1],
            threads: COMBINE_THREADS,
            shared_bytes: 0,
        });
        Ok(Plan {
            forward,
            combine,
            splits,
            folded,
            dtype,
            head_v,
        })
    }

    /// Refuses what no kernel serves.
    fn expect_served(&self) -> Result<()> {
        let sizes = &self.sizes;
        if self.dtype.size() != 2 {
            return Err(unsupported(
                "query, key and value of f16 or bf16",
                self.dtype.to_string(),
            ));
        }
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
}

/// How many blocks share the keys of a tile of queries. More than one only where blocks are so few that half of the
/// device would be idle; then enough for two per multiprocessor, but none with less than two tiles of keys, for which
/// the combine kernel would not pay off.
fn splits(blocks: u32, key_tiles: usize, device: DeviceSize) -> u32 {
    if 2 * u64::from(blocks) > u64::from(device.multiprocessors) {
        return 1;
    }
    let wanted = 2 * device.multiprocessors / blocks.max(1);
    let most = u32::try_from(key_tiles / 2).unwrap_or(u32::MAX);
    // A grid has at most 65,535 blocks in y.
    wanted.min(most).clamp(1, 65_535)
}

fn unsupported(expected: &str, found: String) -> Error {
    Error::Unsupported {
        backend: "cuda",
        expected: expected.to_string(),
        found,
    }
}

impl Plan {
    /// The plan for `call` on this device: tuned by its handle or a table, or untuned.
    pub(super) fn on(cuda: &Cuda, call: &Forward<'_>) -> Result<Plan> {
        let described = ProblemDesc::of(call);
        let by_table = || {
            let class = Class::of_dense(&described.sizes, &described.mask);
            let entry = cuda.chosen(&DENSE_FORWARD, class, described.dtype)?;
            Some(Tuning::of(&entry.choice))
        };
        cuda.planned(cuda.settings().dense.forward, by_table, |tuning| {
            described.tuned(cuda.size(), tuning)
        })
    }

    /// The kernels, in launch order.
    pub fn steps(&self) -> impl Iterator<Item = &Step<KernelVariant>> {
        [Some(&self.forward), self.combine.as_ref()]
            .into_iter()
            .flatten()
    }

    /// Bytes of scratch memory: the partial results of blocks that share keys.
    pub fn workspace_bytes(&self) -> usize {
        match self.combine {
            None => 0,
            Some(_) => self.states_bytes() + 4 * self.head_v as usize * self.partial_rows(),
        }
    }

    /// Bytes of it for maximum and sum of each row; partial outputs follow.
    pub(super) fn states_bytes(&self) -> usize {
        // Results are read 16 bytes at a time.
        (8 * self.partial_rows()).next_multiple_of(16)
    }

    fn partial_rows(&self) -> usize {
        self.splits as usize * self.folded.planes() * self.folded.rows
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step {
            kernel,
            blocks: [blocks, parts],
            threads,
            ..
        } = self.forward;
        write!(f, "{kernel}, {blocks} blocks of {threads} threads")?;
        match &self.combine {
            Some(combine) => write!(
                f,
                " for each of {parts} splits of the keys, then {}",
                combine.kernel
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: DeviceSize = DeviceSize {
        multiprocessors: 132,
        l2_bytes: 62_914_560,
        shared_bytes: 232_448,
    };

    fn described(heads: [usize; 2], queries: usize, keys: usize, channels: usize) -> ProblemDesc {
        ProblemDesc {
            sizes: Sizes {
                batch: 1,
                query_heads: heads[0],
                key_heads: heads[1],
                queries,
                keys,
                channels,
                value_channels: channels,
            },
            dtype: DType::BF16,
            mask: Mask::default(),
            align: 16,
        }
    }

    #[test]
    fn keys_are_divided_only_where_queries_are_few() {
        assert_eq!(
            described([8, 8], 512, 512, 64).plan(H200).unwrap().splits,
            1
        );
        let decode = described([32, 32], 1, 8192, 128).plan(H200).unwrap();
        assert_eq!(decode.splits, 8);
        assert_eq!(decode.workspace_bytes(), 8 * 32 * (8 + 4 * 128));
        assert!(decode.combine.is_some());
        let shared = described([32, 8], 1, 8192, 128).plan(H200).unwrap();
        assert_eq!((shared.folded.rows, shared.splits), (4, 16));
        let short = described([32, 8], 1, 100, 128).plan(H200).unwrap();
        assert_eq!((short.splits, short.workspace_bytes()), (1, 0));
    }

    #[test]
    fn what_no_kernel_serves_is_refused_by_name() {
        let error = |described: ProblemDesc| described.plan(H200).unwrap_err().to_string();
        let mut wide = described([8, 8], 64, 64, 64);
        wide.dtype = DType::F32;
        assert_eq!(
            error(wide),
            "cuda: expected query, key and value of f16 or bf16, found f32"
        );
        assert_eq!(
            error(described([8, 8], 64, 64, 257)),
            "cuda: expected at most 256 channels per head, found D = 257"
        );
        assert_eq!(
            error(described([8, 8], 64, 1 << 30, 64)),
            "cuda: expected fewer than 2^30 queries and keys, found Sk = 1073741824"
        );
    }
}

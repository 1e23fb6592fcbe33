//! Which kernels serve a call, and how its work is split.

use std::fmt;

use super::auxiliary::Combine;
use super::conversion::ConversionPlan;
use super::described::{ProblemDesc, block_count, expect_served, unsupported};
use super::folded::FoldedProblem;
use super::mask::{self, MaskPlan};
use super::specialised::{AttnKind, KernelVariant, Mma, Plain};
use super::tile::{Head, Tile};
use super::tuning::Tuning;
use super::workspace::Workspace;
use crate::cuda::device_size::DeviceSize;
use crate::cuda::handle::Cuda;
use crate::cuda::step::Step;
use crate::cuda::tuning::refused;
use crate::dense::{AttnMaskDesc, Forward, Sizes};
use crate::dtype::DType;
use crate::error::Result;
use crate::tuning::Class;
use crate::tuning::spaces::cuda::DENSE_FORWARD;

/// Queries per block of the plain kernel, one for each warp.
const PLAIN_ROWS: usize = 4;

/// Threads per block of the combine kernel, and channels per thread.
const COMBINE_THREADS: u32 = 256;
const COMBINE_CHANNELS: usize = 4;

/// The plan of a call, for display and for the launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The attention itself.
    pub forward: Step<KernelVariant>,
    /// Where keys are split among blocks: the kernel that combines their results.
    pub combine: Option<Step<KernelVariant>>,
    /// Splits of the keys.
    pub splits: u32,
    /// Of the kernel for Hopper: whether each block has as many slabs of queries as any other.
    pub(super) is_even: bool,
    pub(super) mask: Option<MaskPlan>,
    pub(super) conversion: Option<ConversionPlan>,
    /// The mask's strides, for the kernel that reads it as it is.
    pub(super) mask_strides: [i64; 4],
    /// Bytes from its first element to that of the first key that is read.
    pub(super) mask_first_byte: i64,
    pub(super) folded: FoldedProblem,
    pub(super) dtype: DType,
    pub(super) workspace: Workspace,
}

/// What a kernel of a plan is given. A kernel and this are always in one list, so that none is left out, or given what is
/// another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    Mask,
    Conversion,
    /// The problem and, for Hopper, what TMA loads.
    Problem,
    /// The problem, whose parts are to be combined.
    Results,
}

impl ProblemDesc {
    /// The plan of forward on such a device, untuned.
    pub fn plan(&self, device: DeviceSize) -> Result<Plan> {
        self.tuned(device, &Tuning::default())
    }

    /// The plan of forward with this tuning.
    pub fn tuned(&self, device: DeviceSize, tuning: &Tuning) -> Result<Plan> {
        expect_served(&self.sizes)?;
        let folded = FoldedProblem::new(&self.sizes, &self.mask);
        match self.dtype {
            DType::F64 => self.plain(folded),
            _ => self.on_tensor_cores(folded, device, tuning),
        }
    }

    fn on_tensor_cores(
        &self,
        mut folded: FoldedProblem,
        device: DeviceSize,
        tuning: &Tuning,
    ) -> Result<Plan> {
        let Sizes {
            channels,
            value_channels,
            ..
        } = self.sizes;
        let [key, value] = [channels, value_channels].map(|n| n.next_multiple_of(32) as u32);
        let converts = self.dtype == DType::F32;
        let head = Head {
            key,
            value,
            parts: if converts { 2 } else { 1 },
        };
        let kind = AttnKind::of(self.attn_mask.as_ref());
        let fitting: Vec<Tile> = Tile::for_head(head, kind)
            .iter()
            .filter(|tile| tile.shared_bytes(head) <= device.shared_bytes)
            .copied()
            .collect();
        let of = [folded.planes(), folded.rows, folded.keys];
        if let Some(plan) = self.on_hopper(&folded, head, device, tuning)? {
            return Ok(plan);
        }
        let Some((tile, _)) = Tile::choose(&fitting, of, device.multiprocessors) else {
            return Err(unsupported(
                "a device with 99 KiB of shared memory per block",
                format!("{} bytes", device.shared_bytes),
            ));
        };
        let tile = tuning.tile(tile, head).map_err(refused)?;
        let shared_bytes = tile.shared_bytes(head);
        if shared_bytes > device.shared_bytes {
            let found = format!(
                "too much shared memory per block: {shared_bytes} bytes of {}",
                device.shared_bytes
            );
            return Err(refused(found));
        }
        let blocks = block_count(folded.planes() * folded.rows.div_ceil(tile.rows as usize))?;
        let key_tiles = folded.keys.div_ceil(tile.keys as usize);
        let splits = match tuning.splits {
            0 => tile.splits(of, device.multiprocessors),
            // More would leave blocks without keys.
            chosen if chosen as usize > key_tiles.max(1) => {
                let found =
                    format!("splits without a tile of keys: {chosen} splits of {key_tiles}");
                return Err(refused(found));
            }
            chosen => chosen,
        };
        if tuning.bounds == 1 {
            folded.bounds = folded.bounds.or(Some(FoldedProblem::ALL));
        }
        let too_many = || unsupported("fewer elements", format!("{:?}", self.sizes));
        let mask = match &self.attn_mask {
            Some(mask) => Some(
                MaskPlan::new(mask, &folded, self.sizes.group(), [tile.rows, tile.keys])
                    .ok_or_else(too_many)?,
            ),
            None => None,
        };
        let conversion = match converts {
            true => Some(ConversionPlan::new(&folded, &tile, head).ok_or_else(too_many)?),
            false => None,
        };
        let padded = key as usize != channels || value as usize != value_channels;
        let dtype = self.dtype;
        // Converted numbers are whole and aligned, whatever the tensors are.
        let (kernel_padded, align) = match converts {
            true => (false, 16),
            false => (padded, self.align),
        };
        let forward = Step {
            kernel: KernelVariant::Mma(Mma {
                dtype,
                head: key,
                head_v: value,
                tile,
                mask: folded.bounds.is_some(),
                attn: kind,
                split: splits > 1,
                padded: kernel_padded,
                align,
            }),
            blocks: [blocks, splits],
            threads: tile.threads(),
            shared_bytes,
        };
        let threads = folded.planes() * folded.rows * (value as usize / COMBINE_CHANNELS);
        let combine = match splits {
            1 => None,
            _ => Some(Step {
                kernel: KernelVariant::Combine(Combine {
                    dtype,
                    head_v: value,
                    padded,
                    align: self.align,
                }),
                blocks: [block_count(threads.div_ceil(COMBINE_THREADS as usize))?, 1],
                threads: COMBINE_THREADS,
                shared_bytes: 0,
            }),
        };
        let partial_rows = match splits {
            1 => 0,
            splits => splits as usize * folded.planes() * folded.rows,
        };
        Ok(Plan {
            forward,
            combine,
            splits,
            is_even: false,
            mask,
            conversion,
            mask_strides: mask.map_or([0; 4], |mask| mask.strides),
            mask_first_byte: self.mask_first_byte(&folded),
            workspace: Workspace::new(partial_rows, value, mask.as_ref(), conversion.as_ref()),
            folded,
            dtype,
        })
    }

    /// By the kernel that takes everything.
    fn plain(&self, folded: FoldedProblem) -> Result<Plan> {
        let bias = self.attn_mask.and_then(|mask| mask.bias);
        let strides = |mask: &AttnMaskDesc| mask::folded_strides(mask, &folded, self.sizes.group());
        let rows = folded.planes() * folded.rows;
        Ok(Plan {
            forward: Step {
                kernel: KernelVariant::Plain(Plain {
                    dtype: self.dtype,
                    head_v: self.sizes.value_channels.next_multiple_of(32) as u32,
                    mask: folded.bounds.is_some(),
                    attn: AttnKind::of(self.attn_mask.as_ref()),
                    bias,
                }),
                blocks: [block_count(rows.div_ceil(PLAIN_ROWS))?, 1],
                threads: 32 * PLAIN_ROWS as u32,
                shared_bytes: 0,
            },
            combine: None,
            splits: 1,
            is_even: false,
            mask: None,
            conversion: None,
            mask_strides: self.attn_mask.as_ref().map_or([0; 4], strides),
            mask_first_byte: self.mask_first_byte(&folded),
            workspace: Workspace::default(),
            folded,
            dtype: self.dtype,
        })
    }

    pub(super) fn mask_first_byte(&self, folded: &FoldedProblem) -> i64 {
        (self.attn_mask.as_ref()).map_or(0, |mask| mask::first_byte(mask, folded))
    }
}

impl Plan {
    /// The plan for `call` on this device: tuned by its handle or a table, or untuned.
    pub(super) fn on(cuda: &Cuda, call: &Forward<'_>) -> Result<Plan> {
        let described = ProblemDesc::of(call);
        let by_table = || {
            // Tables say nothing of tensors that mask.
            if described.attn_mask.is_some() {
                return None;
            }
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
        self.launches().map(|(step, _)| step)
    }

    /// The same, each with what it is given.
    pub(super) fn launches(&self) -> impl Iterator<Item = (&Step<KernelVariant>, Given)> {
        let mask = self.mask.iter().map(|mask| (&mask.step, Given::Mask));
        let conversion = self.conversion.iter();
        let conversion = conversion.map(|conversion| (&conversion.step, Given::Conversion));
        let combine = self.combine.iter().map(|step| (step, Given::Results));
        mask.chain(conversion)
            .chain([(&self.forward, Given::Problem)])
            .chain(combine)
    }

    /// Bytes of scratch memory: the partial results of blocks that share keys, and masks and numbers of f32 in the form
    /// that kernels read.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace.bytes
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
    use crate::cuda::device_size::H200;
    use crate::dense::Mask;

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
            attn_mask: None,
            align: 16,
            boxes: queries > 1,
        }
    }

    #[test]
    fn large_problems_of_16_bits_are_for_the_kernel_for_hopper() {
        let entry = |described: ProblemDesc| {
            let plan = described.plan(H200).unwrap();
            crate::cuda::SpecialisedKernel::entry(&plan.forward.kernel)
        };
        let large = described([64, 64], 2048, 2048, 64);
        let f32 = ProblemDesc {
            dtype: DType::F32,
            ..large
        };
        let backwards = ProblemDesc {
            boxes: false,
            ..large
        };
        assert_eq!(entry(large), "dense_forward_wgmma");
        // As many tiles of a group's queries as multiprocessors, and half as many.
        for (length, expected) in [(1024, "dense_forward_wgmma"), (512, "dense_forward_mma")] {
            assert_eq!(entry(described([8, 8], length, length, 64)), expected);
        }
        assert_eq!(entry(f32), "dense_forward_f32");
        assert_eq!(entry(backwards), "dense_forward_mma");
    }

    #[test]
    fn the_kernel_for_hopper_takes_no_parameters_of_the_other() {
        let large = described([64, 64], 2048, 2048, 64);
        let asked = Tuning {
            kernel: 2,
            ..Tuning::default()
        };
        assert!(large.tuned(H200, &asked).is_ok());
        let both = Tuning { rows: 64, ..asked };
        let reason = large.tuned(H200, &both).unwrap_err().to_string();
        assert!(reason.contains("kernel = 2"), "{reason}");
        let elsewhere = DeviceSize {
            has_wgmma: false,
            ..H200
        };
        assert!(large.tuned(elsewhere, &asked).is_err());
    }

    #[test]
    fn many_heads_with_few_queries_get_tiles_of_few() {
        let mut decode = described([32, 8], 1, 8192, 128);
        decode.sizes.batch = 64;
        let plan = decode.plan(H200).unwrap();
        assert_eq!(
            plan.to_string(),
            "dense-forward-mma-bf16-d128-16x256, 512 blocks of 128 threads"
        );
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

//! Gradients on Hopper: which problems its kernels serve, and how. See kernels/dense/backward/hopper.cuh.

use super::kernels::{Common, GradientFinish, GradientTile, GradientWgmma, Rows};
use super::plan::BackwardDesc;
use crate::cuda::dense::described::{block_count, unsupported};
use crate::cuda::dense::mask::MaskPlan;
use crate::cuda::dense::specialised::{AttnKind, KernelVariant};
use crate::cuda::device_size::DeviceSize;
use crate::cuda::step::Step;
use crate::error::Result;

/// Queries of a tile.
pub(super) const QUERIES: u32 = 64;
/// Groups of four warps that compute, and all threads of a block.
const GROUPS: u32 = 2;
const THREADS: u32 = 384;
/// Threads per block of the kernel that rounds grad_query.
const FINISH_THREADS: u32 = 256;
/// Tiles of queries in shared memory.
const STAGES: u32 = 2;
/// Bytes that stay in L2 beside everything else.
const IN_L2: usize = 32 << 20;
/// Barriers in shared memory.
const BARRIER_BYTES: u32 = 256;

/// Kernels that compute all gradients at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HopperPlan {
    pub step: Step<KernelVariant>,
    /// Brings grad_query into its type, if it is wanted.
    pub finish: Option<Step<KernelVariant>>,
    /// Keys of a block.
    pub keys: u32,
    /// Tiles of queries and of keys of a head.
    pub tiles: usize,
    pub key_tiles: usize,
    /// Heads whose blocks take turns.
    pub together: usize,
    /// Which gradients are wanted, of keys and values.
    pub sums: [bool; 2],
    /// Whether sums of grad_query need not be zero.
    pub stores_first: bool,
    /// Bytes of sums of grad_query, and of counters, which must be zero.
    pub grad_query_bytes: usize,
    pub counter_bytes: usize,
}

/// Keys of a block whose heads have that many channels.
const fn keys_of(head: u32) -> u32 {
    match head {
        64 => 256,
        128 => 128,
        _ => 64,
    }
}

impl BackwardDesc {
    /// Channels as the kernels see them; `None` for a problem that they do not serve.
    fn hopper_head(&self, device: DeviceSize) -> Option<u32> {
        let sizes = &self.sizes;
        let is_served = device.has_wgmma
            && self.is_loadable
            && self.rows.align == 16
            && self.scale > 0.0
            && sizes.batch * sizes.query_heads * sizes.queries * sizes.keys > 0
            && self.wanted != [false; 3];
        let channels = sizes.channels.max(sizes.value_channels) as u32;
        let head = [64, 128, 256].into_iter().find(|head| channels <= *head);
        head.filter(|_| is_served)
    }

    /// Whether these kernels should be faster than the others.
    fn pays(&self, head: u32, device: DeviceSize) -> bool {
        let sizes = &self.sizes;
        // Padding to 64 channels would be half of all work or more.
        let blocks = sizes.batch * sizes.key_heads * sizes.keys.div_ceil(keys_of(head) as usize);
        self.rows.head.max(self.rows.head_v) > 32
            && sizes.queries >= 2 * QUERIES as usize
            && 2 * blocks >= device.multiprocessors as usize
    }

    /// The plan, if these kernels serve the problem and it pays, or is `asked_for`.
    pub fn on_hopper(
        &self,
        device: DeviceSize,
        asked_for: Option<bool>,
    ) -> Result<Option<(HopperPlan, Option<MaskPlan>)>> {
        let Some(head) = self.hopper_head(device) else {
            return match asked_for {
                Some(true) => Err(unsupported(
                    "a problem that the kernel for Hopper serves",
                    format!("{:?}", self.sizes),
                )),
                _ => Ok(None),
            };
        };
        if !asked_for.unwrap_or_else(|| self.pays(head, device)) {
            return Ok(None);
        }
        let folded = self.folded.turned();
        let [query, key, value] = self.wanted;
        let keys = keys_of(head);
        let key_tiles = folded.rows.div_ceil(keys as usize);
        let tiles = folded.keys.div_ceil(QUERIES as usize);
        let key_planes = self.sizes.batch * self.sizes.key_heads;
        let attn = AttnKind::of(self.attn_mask.as_ref());
        let rows = Rows {
            head,
            head_v: head,
            padded: false,
            ..self.rows
        };
        let tile = GradientTile {
            rows: keys,
            columns: QUERIES,
            blocks: 1,
            stages: STAGES,
        };
        let common = Common {
            rows,
            tile,
            mask: folded.bounds.is_some(),
            attn,
            own_keys: true,
        };
        let kernel = GradientWgmma {
            common,
            sum_query: query,
            stores_first: self.stores_first(head),
        };
        let step = Step {
            kernel: KernelVariant::GradientWgmma(kernel),
            blocks: [block_count(key_planes * key_tiles)?, 1],
            threads: THREADS,
            shared_bytes: kernel.shared_bytes(),
        };
        let planes = self.folded.planes();
        let finish = Step {
            kernel: KernelVariant::GradientFinish(GradientFinish {
                common: Common {
                    own_keys: false,
                    ..common
                },
            }),
            blocks: [block_count(planes * tiles)?, 1],
            threads: FINISH_THREADS,
            shared_bytes: 0,
        };
        let mask = self.mask_in(true, true, [keys, QUERIES])?;
        let of_query = |bytes: usize| if query { bytes } else { 0 };
        let plan = HopperPlan {
            step,
            finish: query.then_some(finish),
            keys,
            tiles,
            key_tiles,
            together: self.together(key_planes, head),
            sums: [key, value],
            stores_first: kernel.stores_first,
            grad_query_bytes: of_query(
                planes * tiles * (QUERIES * head) as usize * size_of::<f32>(),
            ),
            counter_bytes: (1 + of_query(planes * tiles * GROUPS as usize)) * size_of::<u32>(),
        };
        Ok(Some((plan, mask)))
    }

    /// What all blocks of a head of keys read and write again and again: queries, grad_out and, in f32, grad_query.
    fn bytes_of_plane(&self, head: u32) -> usize {
        self.folded.rows * self.sizes.group() * head as usize * (2 + 2 + 4)
    }

    /// Heads whose blocks take turns: as many as stay in L2 together. With bounds blocks do not wait for each other, so that it
    /// pays only where all do.
    fn together(&self, key_planes: usize, head: u32) -> usize {
        let of_plane = self.bytes_of_plane(head).max(1);
        let together = match self.folded.bounds {
            Some(_) if of_plane * key_planes > 2 * IN_L2 => 1,
            Some(_) => key_planes,
            None => IN_L2 / of_plane,
        };
        together.clamp(1, key_planes)
    }

    /// Whether the first block that has a share of a tile stores it. Otherwise it adds it to zeros, which take time to write; but
    /// with bounds, sums of long heads are then found in L2.
    fn stores_first(&self, head: u32) -> bool {
        self.folded.bounds.is_none() || self.bytes_of_plane(head) < IN_L2 / 4
    }
}

impl GradientWgmma {
    /// A block's gradients of logits in shared memory; wide heads have their weights there, too.
    pub(super) fn logit_grad_bytes(&self) -> u32 {
        let bytes = self.common.tile.rows * 2 * QUERIES;
        if self.is_wide() { 2 * bytes } else { bytes }
    }

    /// Whether a group adds its share of grad_query itself: see kernels/dense/backward/shares.cuh.
    pub(super) fn adds_directly(&self) -> bool {
        self.common.rows.head != 128
    }

    pub(super) fn is_wide(&self) -> bool {
        self.common.rows.head > 128
    }

    fn shared_bytes(&self) -> u32 {
        let head = self.common.rows.head;
        let keys = 2 * self.common.tile.rows * 2 * head;
        let queries = 2 * STAGES * QUERIES * 2 * head;
        let shares = match self.sum_query && !self.adds_directly() {
            true => STAGES * QUERIES * head * 4,
            false => 0,
        };
        let statistics = STAGES * QUERIES * 8;
        keys + queries + STAGES * self.logit_grad_bytes() + shares + statistics + BARRIER_BYTES
    }
}

//! What kernels are specialised by: everything about a problem except the sizes that change from call to call.

use super::arguments::LEVEL_CAPACITIES;
use super::matrix;
use super::specialised::{
    Bands, Channel, Gather, KernelVariant, MOST_KEPT_BYTES, Mask, ProjectedPass, Projection,
    SamplesChannel, SamplesGather, Sampling, Search, Sort, Sum, Types,
};
use crate::dtype::DType;

/// A kind of problem that the same kernels serve, whatever its images, level sizes and queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Element types.
    pub types: Types,
    /// How a call says where and how much to sample.
    pub sampling: Sampling,
    /// Heads (M).
    pub heads: usize,
    /// Channels per head (D).
    pub channels: usize,
    /// Levels (L).
    pub levels: usize,
    /// Points per level (P); where levels differ, the largest number that divides all of theirs.
    pub points: usize,
}

/// Bytes per load of a lane.
const VECTOR: usize = 16;

/// Threads per multiprocessor needed to hide latency.
const SMALL_THREADS: usize = 256;

/// Threads per multiprocessor up to which four groups of lanes share a row.
const FEW_THREADS: usize = 640;

/// Threads per block of the kernel for the gradients of samples on tensor cores, where that many suffice: measured on an
/// H200, see docs/cuda-backward.md.
pub(super) const FEW_SAMPLE_THREADS: u32 = 128;

/// Maximum samples per row: more would not fit the kernel's counters.
const MOST_SAMPLES: usize = 1024;

impl Kind {
    /// Whether the gather kernel can serve such problems, or the reason why not.
    pub(super) fn expect_gather(&self) -> Result<(), String> {
        let Kind {
            types,
            channels,
            levels,
            points,
            ..
        } = *self;
        if types.value == DType::F64 {
            return Err("value is f64".to_string());
        }
        let bytes = channels.checked_mul(types.value.size());
        if bytes.is_none_or(|bytes| !bytes.is_multiple_of(VECTOR) || bytes > 32 * VECTOR) {
            return Err(format!(
                "{channels} channels of {} are not 1 to 32 times {VECTOR} bytes",
                types.value
            ));
        }
        let samples = self.samples();
        let countable = samples.is_some_and(|samples| (1..=MOST_SAMPLES).contains(&samples));
        if !countable || levels > LEVEL_CAPACITIES[0] {
            return Err(format!("{levels} levels of {points} points"));
        }
        Ok(())
    }

    /// Samples of a row.
    fn samples(&self) -> Option<usize> {
        match self.sampling {
            Sampling::Projected(Projection {
                uneven: Some(list), ..
            }) => list.get(self.levels).map(|&all| all.into()),
            _ => self.levels.checked_mul(self.points),
        }
    }

    /// Lanes whose vectors hold all channels, rounded up to a power of two.
    pub(super) fn lanes(&self) -> usize {
        (self.channels * self.types.value.size() / VECTOR).next_power_of_two()
    }

    /// How many groups of lanes share the samples of a row, given the number of (image, query, head) rows: more than
    /// one where the device would have too few warps to hide latency.
    pub(super) fn split(&self, rows: usize, multiprocessors: u32) -> usize {
        let (lanes, multiprocessors) = (self.lanes(), multiprocessors as usize);
        if self.can_split(4) && rows * lanes * 4 <= multiprocessors * FEW_THREADS {
            4
        } else if self.can_split(2) && rows * lanes < multiprocessors * SMALL_THREADS {
            2
        } else {
            1
        }
    }

    /// Whether that many groups of lanes may share a row.
    fn can_split(&self, split: usize) -> bool {
        let (lanes, samples) = (self.lanes(), self.samples().unwrap_or(0));
        match split {
            1 => true,
            2 => lanes <= 16 && samples > 1,
            // Measured on an H200 with 12 samples of 64 bytes per pixel: 20 to 600 queries of 8 heads gain, 900 lose; with
            // 128 bytes per pixel all lose (docs/tuning.md).
            _ => lanes == 4 && samples >= 4,
        }
    }

    /// The gather kernel for tensors without gaps, with a pixel stride of `pixel_units` vectors and `split` groups of
    /// lanes per row.
    pub(super) fn gather(&self, pixel_units: u32, split: usize) -> Gather {
        let (lanes, samples) = (self.lanes(), self.samples().unwrap_or(0));
        let group = lanes * split;
        // Two samples per lane halve the cost of exchanging them, where they belong to one level and fill chunks.
        let in_pairs =
            group <= 4 && self.points.is_multiple_of(2) && samples.is_multiple_of(2 * group);
        // Loads of 64 bytes per pixel and head are served two at a time if they hit different halves of 128-byte lines.
        let heads_together = [8, 4, 2]
            .into_iter()
            .find(|&heads| heads * lanes <= 8 && self.heads.is_multiple_of(heads))
            .unwrap_or(1);
        let per_lane = if in_pairs { 2 } else { 1 };
        let chunks = samples.div_ceil(group * per_lane);
        // Measured to pay off for 64 bytes per pixel and several heads; otherwise L1 misses cost more than it saves.
        let in_phases = lanes == 4 && heads_together > 1 && split == 1 && chunks.is_multiple_of(2);
        Gather {
            types: self.types,
            sampling: self.sampling,
            channels: self.channels as u32,
            levels: self.levels as u32,
            points: self.points as u32,
            pixel_units,
            threads: if split > 1 { 64 } else { 896 },
            per_lane: per_lane as u32,
            split: split as u32,
            heads_together: heads_together as u32,
            phases: if in_phases { 2 } else { 1 },
            dense: true,
            grads_dense: true,
            narrow: true,
            exact: self.types.value == DType::F32,
            alternate: lanes == 4 && heads_together == 1 && pixel_units % 8 == 4,
            keeps: false,
            kept_room: 0,
        }
    }

    /// The kernel that sums on tensor cores, one head at a time, for rows of 64 bytes and 16 or 32 samples.
    pub(super) fn forward_matrix(&self, pixel_units: u32) -> Option<Gather> {
        let samples = self.samples();
        let as_wide = match self.sampling {
            Sampling::Given => true,
            Sampling::Projected(projection) => !projection.nearest && projection.uneven.is_none(),
        };
        let can = as_wide
            && self.types.value.size() == 2
            && self.channels == 32
            && self.points.is_multiple_of(2)
            && matches!(samples, Some(16 | 32));
        can.then(|| Gather {
            threads: 512,
            per_lane: 2,
            heads_together: 1,
            phases: 1,
            alternate: false,
            ..self.gather(pixel_units, 1)
        })
    }

    /// The same for the gradients of samples.
    pub(super) fn samples_gather(&self, pixel_units: u32) -> Gather {
        Gather {
            phases: 1,
            alternate: false,
            // As many as the registers allow without spilling.
            threads: match (self.types.value, self.sampling) {
                (DType::F32, Sampling::Given) => 640,
                (DType::F32, Sampling::Projected(_)) => 512,
                _ => 512,
            },
            ..self.gather(pixel_units, 1)
        }
    }

    /// The same on tensor cores, for rows of one or two quads of lanes.
    pub(super) fn samples_matrix(&self, pixel_units: u32) -> Option<Gather> {
        let can = self.types.value.size() == 2 && matches!(self.lanes(), 4 | 8);
        can.then(|| Gather {
            phases: 1,
            threads: 512,
            ..self.gather(pixel_units, 1)
        })
    }

    /// The kernels that such problems use where tensors have no gaps, and the one that serves them with any strides.
    pub fn kernels(&self) -> Vec<KernelVariant> {
        let capacity = LEVEL_CAPACITIES
            .into_iter()
            .find(|&room| self.levels <= room);
        let channel = |strided| {
            Some(KernelVariant::Channel(Channel {
                types: self.types,
                sampling: self.sampling.general(),
                strided,
                level_capacity: capacity?,
            }))
        };
        let strides: &[bool] = match self.sampling {
            Sampling::Given => &[false, true],
            Sampling::Projected(_) => &[true],
        };
        let mut kernels: Vec<_> = strides.iter().copied().filter_map(channel).collect();
        if self.expect_gather().is_ok() {
            let units = self.heads * self.channels * self.types.value.size() / VECTOR;
            if let Ok(units) = u32::try_from(units) {
                let splits = [1, 2, 4].into_iter().filter(|&it| self.can_split(it));
                let gathers = splits.map(|split| self.gather(units, split));
                kernels.extend(gathers.map(KernelVariant::Gather));
                let gather = self.gather(units, 1);
                kernels.extend(gather.keeping().map(KernelVariant::Gather));
                if let Some(matrix) = self.forward_matrix(units) {
                    kernels.extend(matrix::keeping(&matrix).map(KernelVariant::Matrix));
                    if let Some(matrix) = matrix::by_levels(&matrix, MOST_KEPT_BYTES) {
                        let kept_room = matrix.kept_room;
                        let gather = Gather {
                            kept_room,
                            ..gather
                        };
                        kernels.push(KernelVariant::Matrix(matrix));
                        kernels.push(KernelVariant::Gather(gather));
                    }
                }
                let scatters: &[bool] = match self.types.value {
                    DType::F32 => &[false, true],
                    _ => &[false],
                };
                kernels.extend(scatters.iter().map(|&scatter| {
                    let gather = self.samples_gather(units);
                    KernelVariant::SamplesGather(SamplesGather { gather, scatter })
                }));
                if let Some(gather) = self.samples_matrix(units) {
                    let threads = [gather.threads, FEW_SAMPLE_THREADS];
                    let sized = threads.map(|threads| Gather { threads, ..gather });
                    kernels.extend(sized.map(KernelVariant::SamplesMatrix));
                }
            }
        }
        kernels.extend(self.backward_kernels(capacity));
        kernels.dedup();
        kernels
    }

    /// The backward kernels that do not depend on sizes.
    fn backward_kernels(&self, capacity: Option<usize>) -> Vec<KernelVariant> {
        let mut kernels = Vec::new();
        let types = self.types;
        let sampling = self.sampling.general();
        if let Some(level_capacity) = capacity {
            kernels.push(KernelVariant::SamplesChannel(SamplesChannel {
                types,
                sampling,
                level_capacity,
            }));
            kernels.push(KernelVariant::ValueSearch(Search {
                types,
                sampling,
                always: level_capacity > LEVEL_CAPACITIES[0],
                level_capacity,
            }));
        }
        if capacity == Some(LEVEL_CAPACITIES[0]) {
            if types.value != DType::F64 && (self.channels * types.value.size()).is_multiple_of(16)
            {
                kernels.push(KernelVariant::ValueBands(Bands {
                    types,
                    sampling,
                    paired: true,
                }));
            }
            for wide in [false, true] {
                let sorts = Sort::WARPS.map(|warps| Sort::new(types, sampling, true, wide, warps));
                let sum = Sum {
                    value: types.value,
                    nearest: sampling.is_nearest(),
                    wide,
                };
                let sorts = sorts
                    .into_iter()
                    .flat_map(|sort| [Some(sort), sort.of_few()]);
                kernels.extend(sorts.flatten().map(KernelVariant::Sort));
                kernels.push(KernelVariant::ValueChannel(sum));
                if types.value.size() == 2 && self.channels.is_multiple_of(32) {
                    kernels.push(KernelVariant::ValueMatrix(sum));
                }
            }
        }
        if sampling != Sampling::Given {
            let pass = ProjectedPass::new(types, sampling);
            let masks = [false, true].map(|copy| KernelVariant::Mask(Mask { copy, unit: 16 }));
            kernels.extend([
                KernelVariant::Statistics(pass),
                KernelVariant::References(pass),
            ]);
            kernels.extend(masks);
        }
        kernels
    }
}

//! `grad_value` by sorting samples: the kernels, how the work is split, and the scratch memory.

use crate::cuda::device_size::DeviceSize;
use crate::cuda::fit::{Fit, aligned_forward};
use crate::cuda::msda::arguments::{Divisor, LEVEL_CAPACITIES, Work};
use crate::cuda::msda::fit;
use crate::cuda::msda::operands::{GradientOperands, Operand, Operands};
use crate::cuda::msda::options::KernelChoice;
use crate::cuda::msda::specialised::{KernelVariant, Sampling, Sort, Sum};
use crate::cuda::msda::tuning::BackwardTuning;
use crate::cuda::step::Step;
use crate::dtype::DType;
use crate::msda::{Level, Sizes};

/// Scratch memory that is always acceptable.
const LITTLE: usize = 4096;

/// Upper bound of the shared memory that the sorting kernel declares.
const SORT_DECLARED: u32 = 3 << 10;
/// Threads of the kernels that sum: RUN_WARPS of kernels/msda/runs.cuh.
const SUM_THREADS: u32 = 128;
/// Their counters: QUEUE_COUNTERS of kernels/msda/bins.cuh.
const COUNTERS: usize = 6;
/// Long walks have more samples than this, whatever the problem: LATE of kernels/msda/runs.cuh.
const LATE: usize = 128;
/// Parts of a walk up to which it is not cut: LONG.
const LONG: usize = 4;
/// A long walk or a part of one, in bytes: Part of kernels/msda/runs.cuh.
const PART_BYTES: usize = 32;
/// Rows whose sums a part has, of RUN pixels and BLOCK channels each.
const PART_ROWS: usize = 2;
/// Samples of a part: as many as keep so many warps busy, within limits. Not those of this device: sums shall not depend on it.
const PART_WORKERS: usize = 4096;
const PART_SAMPLES: [usize; 2] = [256, 2048];
/// Channels they sum at a time: BLOCK of kernels/msda/runs.cuh.
const BLOCK: usize = 32;

/// Pixels of a run, RUN of kernels/msda/bins.cuh.
const RUN: usize = 8;
/// Minimum samples per chunk: smaller ones cost more in bins than they gain in parallelism. Measured for decoders of
/// 300 and 900 queries and for encoders.
fn least_chunk(samples: usize) -> usize {
    samples.div_ceil(8).clamp(256, 512)
}

/// How a call's samples are sorted and summed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sorting {
    sort: Sort,
    sum: KernelVariant,
    sort_blocks: u32,
    sum_blocks: u32,
    levels: usize,
    planes: usize,
    planes_a_pass: usize,
    levels_a_pass: usize,
    samples: usize,
    points: usize,
    heads: usize,
    channels: usize,
    chunk: usize,
    part: usize,
    capacity: usize,
}

impl Sorting {
    /// For a call that asks for `grad_value`, or the reason why its samples cannot be sorted.
    pub(super) fn new(
        operands: &Operands<'_>,
        gradients: &GradientOperands,
        device: DeviceSize,
        wanted: KernelChoice,
        tuning: &BackwardTuning,
    ) -> Fit<Self> {
        let sizes = &operands.sizes;
        let (planes, samples) = (sizes.images * sizes.heads, operands.samples_of_level());
        if sizes.levels == 0 || sizes.levels > LEVEL_CAPACITIES[0] {
            return Err(format!("{} levels", sizes.levels));
        }
        if samples == 0 || samples >= 1 << 31 || sizes.pixels >= 1 << 29 {
            return Err(format!(
                "{samples} samples per level, {} pixels",
                sizes.pixels
            ));
        }
        let (types, sampling) = (operands.kind.types, operands.kind.sampling);
        let wide = !narrow(operands, &gradients.grad_out);
        let sort = Sort::WARPS
            .map(|warps| Sort {
                fours: in_fours(operands),
                ..Sort::new(types, sampling, paired(operands), wide, warps)
            })
            .into_iter()
            .filter(|sort| tuning.sort_warps == 0 || sort.warps == tuning.sort_warps)
            .find(|sort| sort.shared_bytes() + SORT_DECLARED <= device.shared_bytes)
            .ok_or_else(|| format!("{} bytes of shared memory per block", device.shared_bytes))?;
        let sum = Sum {
            value: types.value,
            nearest: sampling.is_nearest(),
            wide,
        };
        let sum = match matrix(sizes, gradients) {
            Ok(()) if wanted != KernelChoice::Channel => KernelVariant::ValueMatrix(sum),
            _ => KernelVariant::ValueChannel(sum),
        };
        let mut sorting = Sorting {
            sort,
            sum,
            sort_blocks: 0,
            sum_blocks: device.multiprocessors.max(1) * tuning.sum_blocks,
            levels: sizes.levels,
            planes,
            planes_a_pass: planes,
            levels_a_pass: sizes.levels,
            samples,
            points: sizes.points,
            heads: sizes.heads,
            channels: sizes.channels,
            chunk: 0,
            part: 0,
            capacity: capacity(operands),
        };
        // Work items are counted in 32 bits: at most one for each pixel and block of channels, or sample.
        let pieces =
            (sizes.pixels.max(1) * sizes.channels.div_ceil(BLOCK)).max(samples * sizes.levels);
        let countable = (1usize << 31) / pieces.max(1);
        sorting.planes_a_pass = planes.clamp(1, countable.max(1));
        // At most twice the inputs, if necessary by processing some of the planes or levels at a time.
        let inputs = input_bytes(operands, &gradients.grad_out);
        let most = 2 * inputs + LITTLE;
        loop {
            sorting.cut(device, tuning);
            sorting.choose_part(inputs);
            if sorting.bytes() <= most {
                return Ok(sorting);
            }
            if sorting.planes_a_pass > 1 {
                sorting.planes_a_pass = sorting.planes_a_pass.div_ceil(2);
            } else if sorting.levels_a_pass > 1 {
                sorting.levels_a_pass = sorting.levels_a_pass.div_ceil(2);
            } else {
                break;
            }
        }
        // The rest is tables for many pixels and few samples, or samples of less than 16 bytes and few channels.
        let [starts, ..] = sorting.tables();
        match starts > most {
            true => Err(format!("{} bins for {samples} samples", sorting.capacity)),
            false => Ok(sorting),
        }
    }

    /// Splits the samples of each level of a plane into chunks: enough to keep the device busy.
    fn cut(&mut self, device: DeviceSize, tuning: &BackwardTuning) {
        let multiprocessors = device.multiprocessors.max(1);
        let wanted = multiprocessors as usize * tuning.chunks_each as usize;
        let least = match tuning.least_chunk {
            0 => least_chunk(self.samples),
            chosen => chosen as usize,
        };
        let chunks = wanted
            .div_ceil(self.planes_a_pass * self.levels_a_pass)
            .min(self.samples.div_ceil(least))
            .max(1);
        let chunk = self.samples.div_ceil(chunks).next_multiple_of(32);
        self.chunk = chunk.min(self.sort.most_chunk());
        // A number of warps that was asked for is that of the usual kernel.
        let few = self.sort.of_few().filter(|few| {
            tuning.sort_warps == 0
                && 2 * self.chunk <= few.most_chunk()
                && few.shared_bytes() + SORT_DECLARED <= device.shared_bytes
        });
        self.sort = few.unwrap_or(Sort {
            few: false,
            ..self.sort
        });
        let jobs = self.planes_a_pass * self.levels_a_pass * self.chunks();
        let each = device.shared_bytes / (self.sort.shared_bytes() + SORT_DECLARED);
        self.sort_blocks = jobs.clamp(1, (multiprocessors * each.clamp(1, 2)) as usize) as u32;
    }

    /// Chooses how many samples a part of a long walk has: as many as keep `PART_WORKERS` busy, or more where the sums of parts
    /// would take more memory than half of the inputs.
    fn choose_part(&mut self, inputs: usize) {
        let [least, most] = PART_SAMPLES;
        let all = self.planes * self.levels * self.samples;
        let each = all.div_ceil(PART_WORKERS).next_multiple_of(128);
        self.part = each.clamp(least, most);
        while self.most_parts() * self.part_bytes() > inputs / 2 {
            self.part *= 2;
        }
    }

    /// Bytes of the sums of a part.
    fn part_bytes(&self) -> usize {
        PART_ROWS * RUN * BLOCK * self.sort.types.value.size()
    }

    /// Parts that long walks of a pass have at most. A sample belongs to four walks, so that they are not more than as many
    /// as there are parts' samples, each longer than four parts; and each of a walk's nine rows may end with a part that is
    /// not full.
    fn most_parts(&self) -> usize {
        if self.samples <= LONG * self.part {
            return 0;
        }
        let samples = self.planes_a_pass * self.levels_a_pass * self.samples;
        let blocks = self.channels.div_ceil(BLOCK);
        (4 + 9) * blocks * samples.div_ceil(self.part)
    }

    fn chunks(&self) -> usize {
        self.samples.div_ceil(self.chunk)
    }

    /// The kernels of each pass, in launch order.
    pub(super) fn steps(&self) -> [Step<KernelVariant>; 2] {
        let (sort, threads) = (self.sort, self.sort.threads());
        [
            (
                KernelVariant::Sort(sort),
                self.sort_blocks,
                threads,
                sort.shared_bytes(),
            ),
            (self.sum, self.sum_blocks, SUM_THREADS, 0),
        ]
        .map(|(kernel, blocks, threads, shared_bytes)| Step {
            kernel,
            blocks: [blocks, 1],
            threads,
            shared_bytes,
        })
    }

    /// Bytes of the tables, each aligned as allocations are.
    fn tables(&self) -> [usize; 7] {
        let (planes, chunks) = (self.planes_a_pass, self.chunks());
        let samples = planes * self.levels_a_pass * self.samples;
        let number = self.sort.types.value.size();
        // A sample belongs to four walks at most, each with every block of channels.
        let long_walks = (4 * samples * self.channels.div_ceil(BLOCK)).div_ceil(LATE);
        let parts = self.most_parts();
        [
            planes * chunks * self.capacity * 2,
            samples * 4 * number,
            planes * self.levels * chunks * 4,
            COUNTERS * 4,
            (long_walks + parts) * PART_BYTES,
            parts * 4,
            parts * self.part_bytes(),
        ]
        .map(|bytes| bytes.next_multiple_of(256))
    }

    /// Bytes of scratch memory.
    pub(super) fn bytes(&self) -> usize {
        self.tables().iter().sum()
    }

    /// The kernel arguments of each pass, given the address of the scratch memory.
    pub(super) fn passes(&self, memory: u64) -> impl Iterator<Item = Work> {
        let mut tables = [0; 7];
        let mut next = memory;
        for (table, bytes) in tables.iter_mut().zip(self.tables()) {
            *table = next;
            next += bytes as u64;
        }
        let [starts, sorted, largest, counters, late, arrivals, sums] = tables;
        let Sorting {
            planes,
            planes_a_pass,
            levels,
            levels_a_pass,
            ..
        } = *self;
        let work = Work {
            starts,
            sorted,
            largest,
            counters,
            late,
            arrivals,
            sums,
            chunks: self.chunks() as u32,
            chunk: self.chunk as u32,
            samples: self.samples as u32,
            capacity: self.capacity as u32,
            part: self.part as u32,
            by_points: Divisor::new(self.points as u32),
            by_heads: Divisor::new(self.heads as u32),
            by_chunks: Divisor::new(self.chunks() as u32),
            ..Work::default()
        };
        (0..planes).step_by(planes_a_pass).flat_map(move |plane| {
            (0..levels).step_by(levels_a_pass).map(move |level| Work {
                first_plane: plane as u32,
                planes: planes_a_pass.min(planes - plane) as u32,
                first_level: level as u32,
                level_count: levels_a_pass.min(levels - level) as u32,
                ..work
            })
        })
    }
}

/// Bins of all levels, as `lay_out` of kernels/msda/bins.cuh counts them; for levels in device memory, the most there
/// can be if they tile the pixels.
fn capacity(operands: &Operands<'_>) -> usize {
    let padded = |bins: usize| (bins + 1).next_multiple_of(8);
    if operands.levels_in_device_memory {
        // A level of A pixels has at most 2A + 2 bins: as many if it is one pixel wide.
        let sizes = &operands.sizes;
        return (2 * sizes.pixels + 2 * sizes.levels).next_multiple_of(8) + 8 * sizes.levels;
    }
    let bins = |level: &Level| match level.pixels() {
        0 => 0,
        _ => {
            let columns = 2 * (level.width / RUN)
                + if level.width.is_multiple_of(RUN) {
                    1
                } else {
                    2
                };
            (level.height + 1) * columns
        }
    };
    operands
        .levels
        .iter()
        .map(|level| padded(bins(level)))
        .sum()
}

/// Bytes of everything backward reads.
fn input_bytes(operands: &Operands<'_>, grad_out: &Operand) -> usize {
    let Operands {
        value,
        locations,
        weights,
        ..
    } = operands;
    [value, locations, weights, grad_out]
        .iter()
        .map(|operand| operand.bytes())
        .sum()
}

/// Whether byte offsets inside a level of a plane fit 32 bits.
fn narrow(operands: &Operands<'_>, grad_out: &Operand) -> bool {
    let sizes = &operands.sizes;
    let span = |strides: &[isize], steps: &[(usize, usize)], bytes: usize| -> Option<usize> {
        steps.iter().try_fold(0usize, |sum, &(axis, size)| {
            let stride = usize::try_from(strides[axis]).ok()?;
            sum.checked_add(stride.checked_mul(size)?.checked_mul(bytes)?)
        })
    };
    let samples = |operand: &Operand| {
        let points = match operands.kind.sampling {
            Sampling::Given => sizes.points,
            Sampling::Projected(_) => sizes.points * sizes.levels,
        };
        span(
            operand.layout.strides(),
            &[(1, sizes.queries), (operands.point_axis(), points)],
            operand.layout.dtype().size(),
        )
    };
    let by_query = grad_out.layout.strides()[1];
    let step = usize::try_from(by_query).ok();
    let fits = |bytes: Option<usize>| bytes.is_some_and(|bytes| bytes < 1 << 32);
    fits(samples(&operands.locations))
        && fits(samples(&operands.weights))
        && fits(step.and_then(|step| step.checked_mul(grad_out.layout.dtype().size())))
}

pub(super) fn paired(operands: &Operands<'_>) -> bool {
    let locations = &operands.locations;
    let axis = operands.point_axis() + 1;
    let bytes = 2 * locations.layout.dtype().size();
    aligned_forward(
        "sampling_locations",
        locations.first,
        &locations.layout,
        &(0..axis).collect::<Vec<_>>(),
        &[axis],
        bytes,
    )
    .is_ok()
}

/// Whether points of projections come in fours that can be read at once, with one reference point for all.
fn in_fours(operands: &Operands<'_>) -> bool {
    let Some((references, first)) = &operands.references else {
        return false;
    };
    operands.kind.points.is_multiple_of(4)
        // Of f64 they would not fit the registers.
        && operands.kind.types.value != DType::F64
        && references.turns == 1
        && fit::expect_references(references, *first).is_ok()
        && fit::expect_samples(&operands.locations, &operands.weights, 4).is_ok()
}

/// Whether the tensor-core kernel can serve the call.
fn matrix(sizes: &Sizes, gradients: &GradientOperands) -> Fit<()> {
    let grad_value = gradients.value.as_ref().ok_or("no grad_value")?;
    let dtype = grad_value.layout.dtype();
    if dtype.size() != 2 {
        return Err(format!("value is {dtype}"));
    }
    if !sizes.channels.is_multiple_of(32) {
        return Err(format!(
            "{} channels are not a multiple of 32",
            sizes.channels
        ));
    }
    let grad_out = &gradients.grad_out;
    aligned_forward(
        "grad_out",
        grad_out.first,
        &grad_out.layout,
        &[0, 1],
        &[2],
        16,
    )?;
    aligned_forward(
        "grad_value",
        grad_value.first,
        &grad_value.layout,
        &[0, 1, 2],
        &[3],
        16,
    )?;
    Ok(())
}

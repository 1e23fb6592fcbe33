//! Levels in device memory that decide there which of two kernels computes a call: the one on tensor cores, if it can keep the
//! second half of them in shared memory, or gather.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{Buffer, CaptureMode, OwnedStream, Plain};
use fourtap::cuda::msda::{KernelChoice, KernelVariant};
use fourtap::msda::{self, CudaLevels, LevelTable, Levels, Sizes};
use fourtap::verify::{Case, Failure, LevelsIn, check_forward_on_cuda};
use fourtap::{Backend, Element, Error, bf16, f16};
use rayon::prelude::*;

use crate::gpu::{self, Tally};
use crate::large::distance;
use crate::oracle::cases;
use crate::tensors::{OnDevice, Problem};

/// Pixels that the kernel on tensor cores has room for, by the samples of a row. If the host knows them, there may be more.
const ROOM: [(usize, usize); 2] = [(16, 1536), (32, 1504)];
const ROOM_BY_HOST: [(usize, usize); 2] = [(16, 2048), (32, 2016)];

fn room(rooms: &[(usize, usize)], of_samples: usize) -> usize {
    let found = rooms.iter().find(|(samples, _)| *samples == of_samples);
    found.expect("16 or 32 samples").1
}

/// Levels as device memory claims them to be.
struct Claims {
    name: &'static str,
    /// Height, width and first pixel of each.
    levels: Vec<[i64; 3]>,
    /// Pixels of an image.
    pixels: usize,
    /// Whether the kernel on tensor cores computes the call.
    suit: bool,
}

impl Claims {
    /// One level after the other.
    fn packed(name: &'static str, suit: bool, shapes: &[[i64; 2]]) -> Self {
        let mut next = 0;
        let place = |&[height, width]: &[i64; 2]| {
            let start = next;
            next += height * width;
            [height, width, start]
        };
        Claims {
            name,
            levels: shapes.iter().map(place).collect(),
            pixels: next as usize,
            suit,
        }
    }

    /// Anything, in an image of 4,900 pixels.
    fn loose(name: &'static str, suit: bool, levels: &[[i64; 3]]) -> Self {
        Claims {
            name,
            levels: levels.to_vec(),
            pixels: 4_900,
            suit,
        }
    }

    fn shapes(&self) -> Vec<i64> {
        let pairs = self.levels.iter().flat_map(|level| &level[..2]);
        pairs.copied().collect()
    }

    fn starts(&self) -> Vec<i64> {
        self.levels.iter().map(|level| level[2]).collect()
    }

    /// The same in host memory, if it can hold them.
    fn on_host(&self) -> Option<Levels> {
        let levels = Levels::from_i64(&self.shapes(), Some(&self.starts())).ok()?;
        (levels.pixels() == self.pixels).then_some(levels)
    }

    /// Pixels to keep.
    fn kept_pixels(&self) -> i64 {
        let kept = &self.levels[self.levels.len() / 2..];
        kept.iter()
            .map(|[height, width, _]| height.saturating_mul(*width).max(0))
            .fold(0, i64::saturating_add)
    }

    /// One head.
    fn sizes(&self, queries: usize, samples: usize) -> Sizes {
        Sizes {
            images: 1,
            pixels: self.pixels,
            heads: 1,
            channels: 32,
            queries,
            levels: self.levels.len(),
            points: samples / self.levels.len(),
        }
    }
}

/// That suit the kernel on tensor cores, or miss it by little.
fn all_claims() -> Vec<Claims> {
    let small = [
        [8, 9],
        [5, 4],
        [3, 3],
        [2, 2],
        [1, 2],
        [7, 3],
        [4, 6],
        [6, 5],
    ];
    let more = |count: usize| small.iter().copied().cycle().take(count);
    let last = |shape| [[46, 80], [23, 40], [12, 20], shape];
    let first = |shape| [[3, 5], shape, [12, 20], [6, 10]];
    let usual = [[46, 80, 0], [23, 40, 3680], [12, 20, 4600], [6, 10, 4840]];
    let with = |number: usize, level| {
        let mut levels = usual;
        levels[number] = level;
        levels
    };
    vec![
        Claims::packed("a pyramid", true, &last([6, 10])),
        Claims::packed("rows", true, &[[40, 50], [1, 40], [1, 20], [1, 2]]),
        Claims::packed("a column that is not kept", true, &first([700, 1])),
        Claims::packed("no pixels that are not kept", true, &first([0, 7])),
        Claims::packed("two levels", true, &[[40, 50], [20, 25]]),
        Claims::packed("eight", true, &Vec::from_iter(more(8))),
        Claims::packed("sixteen", true, &Vec::from_iter(more(16))),
        Claims::packed(
            "as many as fit",
            true,
            &[[40, 50], [9, 7], [32, 40], [7, 32]],
        ),
        Claims::packed("too many", false, &[[40, 50], [9, 7], [32, 40], [1, 257]]),
        Claims::packed("none fits", false, &[[6, 10], [12, 20], [23, 40], [46, 80]]),
        Claims::packed("a column", false, &last([60, 1])),
        Claims::packed("one pixel", false, &last([1, 1])),
        Claims::packed("no pixels", false, &last([0, 10])),
        Claims::packed("65,535 pixels", true, &first([255, 257])),
        Claims::packed("a row of them", true, &first([1, 65_535])),
        Claims::packed("a column of them", true, &first([65_535, 1])),
        Claims::packed("65,536", false, &first([256, 256])),
        Claims::packed("a column of them", false, &first([65_536, 1])),
        // Only device memory can hold most of these.
        Claims::loose(
            "in another order",
            true,
            &[[46, 80, 920], [23, 40, 0], [12, 20, 4660], [6, 10, 4600]],
        ),
        Claims::loose(
            "overlapping, with gaps",
            true,
            &[[40, 80, 7], [46, 80, 1000], [12, 20, 11], [6, 10, 100]],
        ),
        Claims::loose("all the same", true, &[[12, 20, 500]; 4]),
        Claims::loose("the last pixels", true, &with(2, [12, 20, 4_660])),
        Claims::loose("nonsense", true, &with(0, [1 << 32, 1, 0])),
        Claims::loose("nonsense", true, &with(1, [-23, -40, 3680])),
        Claims::loose("outside", true, &with(1, [23, 40, 3_981])),
        Claims::loose("nonsense to keep", false, &with(3, [i64::MAX, i64::MAX, 0])),
        Claims::loose("a negative size", false, &with(3, [-6, -10, 4840])),
        Claims::loose("outside by one", false, &with(2, [12, 20, 4_661])),
        Claims::loose("before the first pixel", false, &with(3, [6, 10, -1])),
        Claims::loose("far outside", false, &with(2, [12, 20, i64::MIN])),
    ]
}

/// A result, and its bits.
fn forward<T: Element + Plain>(
    cuda: &Cuda,
    wanted: KernelChoice,
    problem: &Problem,
    levels: LevelTable<'_>,
) -> Result<(Vec<T>, Vec<u8>), Error> {
    let mut out = OnDevice::poisoned(cuda, T::DTYPE, &problem.sizes.out());
    let backend = Backend::Cuda(cuda.with_msda(wanted));
    msda::forward(&backend, problem.inputs(levels), out.view_mut())?;
    gpu::wait(cuda);
    let bits = out.buffer.to_vec::<u8>().unwrap();
    Ok((out.buffer.to_vec::<T>().unwrap(), bits))
}

/// Every element against the kernel of one thread per channel; which kernel it was its rounding tells.
fn check<T: Element + Plain>(cuda: &Cuda, claims: &Claims, sizes: Sizes, most_apart: f64) {
    let (queries, samples) = (sizes.queries, sizes.levels * sizes.points);
    let what = format!(
        "{}, {queries} queries, {samples} samples, {}",
        claims.name,
        T::DTYPE
    );
    let problem = Problem::new::<T>(cuda, sizes);
    let flat = |numbers: &[i64]| Buffer::from_slice(cuda.context(), numbers).unwrap();
    let (shapes, starts) = (flat(&claims.shapes()), flat(&claims.starts()));
    let count = claims.levels.len();
    // SAFETY: both hold that many levels and outlive the calls.
    let table = unsafe { CudaLevels::new(0, count, shapes.as_ptr(), Some(starts.as_ptr())) };
    let table = LevelTable::Cuda(table);
    let (decided, bits) = forward::<T>(cuda, KernelChoice::Matrix, &problem, table).unwrap();
    let (plain, _) = forward::<T>(cuda, KernelChoice::Channel, &problem, table).unwrap();
    let apart = distance(&decided, &plain);
    assert!(apart < most_apart, "{what}: {apart:e}");
    let (_, gathered) = forward::<T>(cuda, KernelChoice::Gather, &problem, table).unwrap();
    assert_eq!(bits != gathered, claims.suit, "{what}: on tensor cores");

    // The host decides as the device does, but can take more room.
    let Some(levels) = claims.on_host() else {
        return;
    };
    let mut out = OnDevice::poisoned(cuda, T::DTYPE, &problem.sizes.out());
    let on_matrix = cuda.with_msda(KernelChoice::Matrix);
    let plan = on_matrix.explain_forward(problem.inputs(&levels), out.view_mut());
    let keeps = |kernel| matches!(kernel, KernelVariant::Matrix(matrix) if matrix.keeps);
    let kept = plan.is_ok_and(|plan| keeps(plan.step.kernel));
    let most = |rooms: &[(usize, usize)]| room(rooms, samples) as i64;
    let more = most(&ROOM) + 1..=most(&ROOM_BY_HOST);
    let expected = claims.suit || more.contains(&claims.kept_pixels());
    assert_eq!(kept, expected, "{what}: on the host");
    if claims.suit {
        let on_host = LevelTable::Host(&levels);
        let (_, same) = forward::<T>(cuda, KernelChoice::Matrix, &problem, on_host).unwrap();
        assert!(bits == same, "{what}: levels on the host and on the device");
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn the_kernel_that_levels_suit_computes_every_element() {
    let cuda = gpu::device();
    let all = all_claims();
    for claims in &all {
        // As many queries as pixels are walked in strips of levels, unless they overlap. Few results might be rounded the same
        // by both kernels.
        let strips = (claims.pixels > 2_000).then_some(claims.pixels);
        for queries in [Some(7_001), strips].into_iter().flatten() {
            for samples in [16, 32] {
                let sizes = claims.sizes(queries, samples);
                if sizes.points < 2 {
                    continue;
                }
                check::<f16>(&cuda, claims, sizes, 1.5e-3);
                check::<bf16>(&cuda, claims, sizes, 1.2e-2);
            }
        }
    }
    let details = format!(
        "{} tables of levels in device memory, every element",
        all.len()
    );
    let kernels = ["msda_forward_matrix", "msda_forward_gather"];
    gpu::evidence(&cuda, "device-levels", &kernels, &details);
}

#[test]
#[ignore = "needs a CUDA device"]
fn large_problems_do_not_need_levels_on_the_host() {
    let cuda = gpu::device();
    let pyramid = [[92, 160], [46, 80], [23, 40], [12, 20]];
    let mut upside_down = pyramid;
    upside_down.reverse();
    for (shapes, images, heads, samples) in [
        (pyramid, 9, 1, 32),
        (pyramid, 4, 3, 32),
        (pyramid, 2, 8, 16),
        (upside_down, 9, 1, 32),
        (upside_down, 2, 8, 16),
    ] {
        let claims = Claims::packed("large", shapes == pyramid, &shapes);
        let sizes = Sizes {
            images,
            heads,
            ..claims.sizes(claims.pixels, samples)
        };
        let problem = Problem::new::<f16>(&cuda, sizes);
        let levels = claims.on_host().unwrap();
        let shapes = Buffer::from_slice(cuda.context(), &claims.shapes()).unwrap();
        // SAFETY: it holds that many levels and outlives the calls.
        let table = unsafe { CudaLevels::new(0, levels.len(), shapes.as_ptr(), None) };
        let mut out = OnDevice::poisoned(&cuda, f16::DTYPE, &sizes.out());
        let plan = cuda.explain_forward(problem.inputs(&levels), out.view_mut());
        let plan_of_table = cuda.explain_forward(problem.inputs(table), out.view_mut());
        let plan_of_table = plan_of_table.unwrap();
        if matches!(plan.unwrap().step.kernel, KernelVariant::Matrix(_)) {
            assert_eq!(plan_of_table.steps().len(), 2, "{plan_of_table}");
        }
        let best = KernelChoice::Best;
        let (found, bits) = forward::<f16>(&cuda, best, &problem, table.into()).unwrap();
        let (plain, _) =
            forward::<f16>(&cuda, KernelChoice::Channel, &problem, table.into()).unwrap();
        let apart = distance(&found, &plain);
        assert!(apart < 1.5e-3, "{heads} heads: {apart:e}");
        if claims.suit {
            let (_, same) = forward::<f16>(&cuda, best, &problem, (&levels).into()).unwrap();
            assert!(bits == same, "{heads} heads: {plan_of_table}");
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_captured_graph_decides_anew_each_time() {
    let cuda = gpu::device();
    let named = |name: &str| all_claims().into_iter().find(|it| it.name == name).unwrap();
    let [suiting, column] = ["a pyramid", "a column"].map(named);
    let upside_down = named("none fits");
    assert_eq!(suiting.pixels, column.pixels);
    assert_eq!(suiting.pixels, upside_down.pixels);
    let problem = Problem::new::<f16>(&cuda, suiting.sizes(7_001, 32));
    let table_of = |shapes: &Buffer| {
        // SAFETY: every buffer here holds that many levels and outlives the calls.
        LevelTable::Cuda(unsafe { CudaLevels::new(0, 4, shapes.as_ptr(), None) })
    };
    let expected = |claims: &Claims| {
        let shapes = Buffer::from_slice(cuda.context(), &claims.shapes()).unwrap();
        let wanted = match claims.suit {
            true => KernelChoice::Matrix,
            false => KernelChoice::Gather,
        };
        let (_, bits) = forward::<f16>(&cuda, wanted, &problem, table_of(&shapes)).unwrap();
        bits
    };
    let order = [
        &suiting,
        &upside_down,
        &suiting,
        &column,
        &upside_down,
        &suiting,
    ];
    let expected = order.map(expected);
    assert!(expected[0] != expected[1] && expected[1] != expected[3]);

    let mut shapes = Buffer::from_slice(cuda.context(), &suiting.shapes()).unwrap();
    let mut out = OnDevice::poisoned(&cuda, f16::DTYPE, &problem.sizes.out());
    let stream = OwnedStream::new(cuda.context(), true).unwrap();
    // SAFETY: the stream outlives its use.
    let captured = unsafe { cuda.on_stream(stream.stream().as_raw()) };
    let captured = Backend::Cuda(captured.with_msda(KernelChoice::Matrix));
    let inputs = problem.inputs(table_of(&shapes));
    // Once outside, so that the kernels are loaded.
    msda::forward(&captured, inputs, out.view_mut()).unwrap();
    stream.synchronize().unwrap();
    let entered = cuda.context().enter().unwrap();
    stream
        .stream()
        .begin_capture(CaptureMode::ThreadLocal)
        .unwrap();
    msda::forward(&captured, inputs, out.view_mut()).unwrap();
    let graph = stream.stream().end_capture().unwrap();
    assert_eq!(graph.node_count().unwrap(), 2, "kernels and nothing else");
    let graph = graph.instantiate().unwrap();
    drop(entered);
    for turn in 0..60 {
        let number = turn % order.len();
        shapes.copy_from_host(&order[number].shapes()).unwrap();
        let entered = cuda.context().enter().unwrap();
        out.buffer.fill(0xff, stream.stream()).unwrap();
        // SAFETY: everything the captured kernels use is alive.
        unsafe { graph.launch(stream.stream()) }.unwrap();
        drop(entered);
        stream.synchronize().unwrap();
        let found = out.buffer.to_vec::<u8>().unwrap();
        assert!(found == expected[number], "turn {turn}");
    }
    drop(graph);
    let kernels = ["msda_forward_matrix", "msda_forward_gather"];
    gpu::evidence(
        &cuda,
        "graph",
        &kernels,
        "60 replays of both, levels changed",
    );
}

/// Whether levels in device memory decide which kernel computes a random problem.
fn decides(case: &Case) -> bool {
    let shape = case.attention_weights.shape();
    let [n, q, m, l, p] = *shape.sizes() else {
        return false;
    };
    let channels = case.value.shape().sizes()[3];
    let has_rows = n * q * m > 0 && case.levels.pixels() >= 3;
    let halves = matches!(l * p, 16 | 32) && l % 2 == 0 && p % 2 == 0;
    case.value.dtype().size() == 2 && channels == 32 && halves && has_rows
}

/// Which one it then is.
fn kernel_of(case: &Case) -> &'static str {
    let levels: Vec<_> = case.levels.iter().collect();
    let kept = &levels[levels.len() / 2..];
    let pixels: usize = kept.iter().map(|level| level.pixels()).sum();
    let can = kept.iter().all(|level| level.width > 1 && level.height > 0);
    let [_, _, _, l, p] = *case.attention_weights.shape().sizes() else {
        unreachable!("five axes");
    };
    match can && pixels <= room(&ROOM, l * p) {
        true => "msda_forward_matrix",
        false => "msda_forward_gather",
    }
}

/// Such problems with seeds from `first` on.
fn decided(first: u64) -> impl Iterator<Item = Case> {
    (first..).map(Case::keepable).filter(decides)
}

/// That many of them against the oracle.
pub fn check_decided(cuda: &Cuda, first: u64, count: usize, tally: &Tally) {
    let cuda = cuda.with_msda(KernelChoice::Matrix);
    let cases: Vec<Case> = decided(first).take(count).collect();
    // In parallel, because nearly every problem needs kernels of its own compiled.
    cases.par_iter().for_each(|case| {
        match check_forward_on_cuda(case, &cuda, LevelsIn::Device) {
            Ok(()) => tally.add([kernel_of(case)]),
            // Rows that lie so that nobody can read 16 bytes of them.
            Err(Failure::Refused(Error::Unsupported { .. })) => {}
            Err(failure) => panic!("seed {}: {failure}", case.seed),
        }
    });
}

/// Problems for the sanitizer.
pub const WATCHED: usize = 12;

#[test]
fn some_problems_for_the_sanitizer_are_of_each_kernel() {
    let kernels: Vec<_> = decided(crate::sanitizer::FIRST)
        .take(WATCHED)
        .map(|case| kernel_of(&case))
        .collect();
    for kernel in ["msda_forward_matrix", "msda_forward_gather"] {
        let count = kernels.iter().filter(|name| **name == kernel).count();
        assert!(count > 1, "{count} of {kernel}");
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn random_problems_match_the_oracle_whichever_kernel_is_suited() {
    let cuda = gpu::device();
    let (tally, count) = (Tally::default(), cases(2000) as usize / 10);
    check_decided(&cuda, 0, count, &tally);
    for kernel in ["msda_forward_matrix", "msda_forward_gather"] {
        let right = tally.count(kernel);
        println!("{kernel}: {right} right");
        assert!(right > count as u64 / 20, "{kernel}: {right} of {count}");
    }
}

//! Whether boxes of a tensor are loaded as their tensor map says, in 1 to 5 dimensions.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{Buffer, Swizzle, TensorElement, TensorMap, TensorMapDesc};

use super::super::Probe;
use super::device::{ProbeDevice, Subject};
use super::pattern::mixed;
use crate::cuda::{Argument, Grid, Source};
use crate::error::Result;
use crate::record::{Outcome, ProbeRecord};

/// Of the tensor: odd but for the first, whose bytes must be a multiple of 16.
const DIMENSIONS: [u64; 5] = [40, 9, 7, 5, 3];
/// Of the box: 32 channels, and two of each other dimension, as the corners of a sample are.
const SIDES: [u32; 5] = [32, 2, 2, 2, 2];
const ELEMENT_BYTES: u64 = 2;
const THREADS: u32 = 128;
/// The barrier behind the box.
const BARRIER_BYTES: u32 = 8;

/// Elements of 16 bytes: boxes may begin at any multiple of these in the first dimension, and at any element in others.
const STEP: i32 = 16 / ELEMENT_BYTES as i32;

/// Boxes at random places, besides those at the tensor's corners.
const RANDOM_BOXES: u32 = 60;

/// The status of a kernel that the device ended because of one of its instructions.
const ILLEGAL_INSTRUCTION: &str = "CUDA_ERROR_ILLEGAL_INSTRUCTION";

/// Its kernel.
pub fn source(rank: u32) -> Source {
    let text = include_str!("../../../kernels/probe/tma.cu");
    Source::new("probe_tma", text, &[("RANK", rank)]).for_hopper()
}

/// All of them.
pub fn probes() -> Vec<Probe> {
    let one = |rank: u32| {
        let what = format!("load boxes of a {rank}-D tensor, some partly outside");
        let subject = Subject::new(format!("tma-{rank}d"), "tma", what);
        subject.probe(move |gpu, subject| run(gpu, subject, rank as usize))
    };
    let misaligned = Subject::new(
        "tma-refused-start-misaligned",
        "tma",
        "load a box that begins at an odd element of its first dimension",
    );
    let refused = misaligned.probe(refused_by_the_device);
    (1..=5).map(one).chain([refused]).collect()
}

/// Why a device has no tensor maps; none if it has.
pub fn missing(gpu: &ProbeDevice<'_>) -> Option<String> {
    let facts = gpu.facts();
    let (major, minor) = facts.compute_capability;
    (!facts.has_tensor_maps).then(|| {
        format!("tensor maps need compute capability 9.0; this device has {major}.{minor}")
    })
}

/// A tensor of f16 with nothing between its elements, and boxes of it.
pub fn packed(address: u64, dimensions: &[u64], sides: &[u32]) -> TensorMapDesc {
    let mut strides = Vec::new();
    let mut bytes = ELEMENT_BYTES;
    for dimension in dimensions {
        bytes *= dimension;
        strides.push(bytes);
    }
    // The last is the size of the whole.
    strides.pop();
    TensorMapDesc {
        element: TensorElement::F16,
        address,
        dimensions: dimensions.to_vec(),
        strides,
        box_sides: sides.to_vec(),
        element_strides: vec![1; sides.len()],
        swizzle: Swizzle::None,
    }
}

/// An f16 that is no infinity and no NaN.
fn element(index: u64) -> u16 {
    (mixed(index as u32) & 0xbfff) as u16
}

/// Where boxes begin: at the first element, just outside, over the end, and anywhere around.
fn corners(rank: usize) -> Vec<i32> {
    let mut corners = vec![0; rank];
    corners.extend(vec![-1; rank]);
    corners.extend(DIMENSIONS[..rank].iter().map(|&size| size as i32 - 1));
    for number in 0..RANDOM_BOXES * rank as u32 {
        let dimension = number as usize % rank;
        let (size, side) = (DIMENSIONS[dimension] as u32, SIDES[dimension]);
        // From one box before the tensor to one after.
        let place = mixed(number + 1000) % (size + 2 * side);
        corners.push(place as i32 - side as i32);
    }
    for corner in corners.chunks_exact_mut(rank) {
        corner[0] = corner[0].div_euclid(STEP) * STEP;
    }
    corners
}

/// What a box holds; zeros outside the tensor.
fn expected(corner: &[i32]) -> Vec<u16> {
    let rank = corner.len();
    let count: u32 = SIDES[..rank].iter().product();
    (0..count)
        .map(|mut at| {
            let (mut index, mut stride, mut inside) = (0, 1, true);
            for dimension in 0..rank {
                let place = corner[dimension] + (at % SIDES[dimension]) as i32;
                at /= SIDES[dimension];
                let size = DIMENSIONS[dimension];
                inside &= u64::try_from(place).is_ok_and(|place| place < size);
                index += place.max(0) as u64 * stride;
                stride *= size;
            }
            if inside { element(index) } else { 0 }
        })
        .collect()
}

/// Boxes of a tensor at these corners, as the device loads them.
fn loaded(gpu: &ProbeDevice<'_>, rank: usize, corners: &[i32]) -> Result<Vec<u8>> {
    let context = gpu.cuda().context();
    let (dimensions, sides) = (&DIMENSIONS[..rank], &SIDES[..rank]);
    let count: u64 = dimensions.iter().product();
    let elements = (0..count).map(element);
    let bytes: Vec<u8> = elements.flat_map(|bits| bits.to_le_bytes()).collect();
    let tensor = Buffer::from_slice(context, &bytes)?;
    let map = TensorMap::encode(context, &packed(tensor.as_ptr(), dimensions, sides))?;

    let kernel = source(rank as u32).load(gpu.cuda())?;
    let boxes = corners.len() / rank;
    let places = Buffer::from_slice(context, corners)?;
    let mut loaded = Buffer::alloc(context, boxes * box_bytes(rank))?;
    let grid = Grid {
        blocks: boxes as u32,
        threads: THREADS,
        shared_bytes: box_bytes(rank) as u32 + BARRIER_BYTES,
        ..Grid::default()
    };
    gpu.stopwatch.once(|cuda: &Cuda| {
        loaded.fill(u8::MAX, cuda.stream())?;
        let arguments = [
            Argument::Map(&map),
            Argument::Address(places.as_ptr()),
            Argument::Word(box_bytes(rank) as u32),
            Argument::Address(loaded.as_ptr()),
        ];
        // SAFETY: the kernel takes a tensor map, an address, a number and an address. The map is of a tensor that lives
        // on, there are coordinates of every block's box, and room for each box; all live until the work has been
        // waited for.
        unsafe { kernel.queue(cuda, grid, &arguments) }
    })?;
    Ok(loaded.to_vec::<u8>()?)
}

fn box_bytes(rank: usize) -> usize {
    let elements: u32 = SIDES[..rank].iter().product();
    elements as usize * ELEMENT_BYTES as usize
}

fn run(gpu: &ProbeDevice<'_>, subject: &Subject, rank: usize) -> Result<ProbeRecord> {
    if let Some(reason) = missing(gpu) {
        return Ok(subject.unavailable(gpu, &reason));
    }
    let corners = corners(rank);
    let loaded = loaded(gpu, rank, &corners)?;
    let boxes = loaded.chunks_exact(box_bytes(rank));
    for (corner, found) in corners.chunks_exact(rank).zip(boxes) {
        for (at, expected) in expected(corner).into_iter().enumerate() {
            let found = u16::from_le_bytes([found[2 * at], found[2 * at + 1]]);
            if expected != found {
                return Err(subject.wrong(
                    format!("{expected:#x} as element {at} of the box at {corner:?}"),
                    format!("{found:#x}"),
                ));
            }
        }
    }
    let boxes = corners.len() / rank;
    let compared = format!("every element of {boxes} boxes, zeros outside the tensor");
    let record = subject.record(gpu, Outcome::Works, &compared);
    Ok(record
        .with("dimensions", DIMENSIONS[..rank].to_vec())
        .with("box", SIDES[..rank].to_vec()))
}

/// No encoding can forbid where a box begins, so it is the device that refuses, and ends the kernel.
fn refused_by_the_device(gpu: &ProbeDevice<'_>, subject: &Subject) -> Result<ProbeRecord> {
    if let Some(reason) = missing(gpu) {
        return Ok(subject.unavailable(gpu, &reason));
    }
    match loaded(gpu, 2, &[1, 0]) {
        Err(error) if error.to_string().contains(ILLEGAL_INSTRUCTION) => {
            let rule = "in its first dimension a box begins at a multiple of 16 bytes; begun at 2, the device ends the \
                        kernel with an illegal instruction";
            Ok(subject.record(gpu, Outcome::Refused, rule))
        }
        Err(error) => Err(error),
        Ok(_) => Err(subject.wrong("an illegal instruction", "a box")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_lie_inside_across_and_outside_in_every_dimension() {
        for rank in 1..=5 {
            let corners = corners(rank);
            for dimension in 0..rank {
                let places = || corners[dimension..].iter().step_by(rank);
                let (size, side) = (DIMENSIONS[dimension] as i32, SIDES[dimension] as i32);
                assert!(places().any(|&at| at < 0 && at + side > 0), "{rank}");
                assert!(places().any(|&at| at >= 0 && at + side <= size), "{rank}");
                assert!(places().any(|&at| at < size && at + side > size), "{rank}");
            }
        }
    }

    #[test]
    fn a_box_is_cut_from_the_tensor() {
        let inside = expected(&[8, 1]);
        assert_eq!(inside[0], element(40 + 8));
        assert_eq!(inside[33], element(2 * 40 + 8 + 1));
        let across = expected(&[-1, 8]);
        assert_eq!(across[0], 0);
        assert_eq!(across[1], element(8 * 40));
        assert!(across[32..].iter().all(|&element| element == 0));
    }

    #[test]
    fn strides_are_those_of_packed_elements() {
        let tiled = packed(0, &DIMENSIONS, &SIDES);
        assert_eq!(tiled.strides, [80, 720, 5040, 25200]);
        assert!(tiled.strides.iter().all(|stride| stride % 16 == 0));
    }
}

//! A checked call laid out for the kernels: pointers, strides and tables made once a call.

use super::geometry::{BLOCK, Block, Cells, Grid};
use crate::cpu::simd::{prefetch, widen_f16};
use crate::dtype::{DType, Element, Real, bf16, f16};
use crate::msda::{Inputs, Problem, Sizes};
use crate::tensor::View;

/// A tensor's first element and strides. Kernels index it within the shape that was checked.
#[derive(Clone, Copy)]
pub(super) struct Raw<E, const RANK: usize> {
    pub first: *mut E,
    pub strides: [isize; RANK],
}

// SAFETY: kernels only write through it to elements no other thread touches.
unsafe impl<E: Send, const RANK: usize> Send for Raw<E, RANK> {}
// SAFETY: as above.
unsafe impl<E: Sync, const RANK: usize> Sync for Raw<E, RANK> {}

impl<E: Element, const RANK: usize> Raw<E, RANK> {
    /// # Panics
    /// If the view was not checked to have this element type and rank.
    pub fn new(first: *mut u8, layout: &crate::tensor::Layout) -> Self {
        assert_eq!(layout.dtype(), E::DTYPE, "checked with the call");
        let strides = layout.strides().try_into().expect("checked with the call");
        Raw { first: first.cast(), strides }
    }

    pub fn of(view: &View<'_>) -> Self {
        Raw::new(view.as_ptr().cast_mut(), view.layout())
    }

    /// Address of an element, of which the indices after the given ones are 0.
    #[inline(always)]
    pub fn at<const GIVEN: usize>(&self, index: [usize; GIVEN]) -> *mut E {
        let mut offset = 0isize;
        for axis in 0..GIVEN {
            // Wrapping, because the last row of an empty tensor is no address at all.
            offset = offset.wrapping_add((index[axis] as isize).wrapping_mul(self.strides[axis]));
        }
        self.first.wrapping_offset(offset)
    }
}

/// Locations or weights: f32, or whatever `value` is.
#[derive(Clone, Copy)]
pub(super) struct Coordinates<const RANK: usize> {
    dtype: DType,
    raw: Raw<u8, RANK>,
}

impl<const RANK: usize> Coordinates<RANK> {
    pub fn new(first: *mut u8, layout: &crate::tensor::Layout) -> Self {
        let strides = layout.strides().try_into().expect("checked with the call");
        Coordinates { dtype: layout.dtype(), raw: Raw { first, strides } }
    }

    pub fn strides(&self) -> [isize; RANK] {
        self.raw.strides
    }

    /// Offset, in elements, of the entries of one (image, query, head).
    #[inline(always)]
    pub fn row(&self, row: [usize; 3]) -> isize {
        let mut offset = 0isize;
        for axis in 0..3 {
            // Wrapping, because a row may be asked for that lies outside.
            offset = offset.wrapping_add((row[axis] as isize).wrapping_mul(self.raw.strides[axis]));
        }
        offset
    }

    #[inline(always)]
    fn prefetch(&self, row: [usize; 3], place: isize, count: usize) {
        let offset = self.row(row).wrapping_add(place).wrapping_mul(self.dtype.size() as isize);
        prefetch(self.raw.first.wrapping_offset(offset), count * self.dtype.size());
    }

    /// The `width` numbers of each of `count` samples that follow each other from `row` on, one block a number.
    ///
    /// # Safety
    /// They lie in the tensor, without gaps.
    #[inline(always)]
    unsafe fn read_packed<R: Real, const WIDTH: usize>(&self, row: isize, count: usize) -> [Block<R>; WIDTH] {
        // SAFETY: as the caller promises.
        unsafe {
            match self.dtype {
                DType::F32 => packed(self.raw.first.cast::<f32>().offset(row), count, |x| x as f64),
                DType::F16 => packed(self.raw.first.cast::<f16>().offset(row), count, |x| widen_f16(x) as f64),
                DType::BF16 => packed(self.raw.first.cast::<bf16>().offset(row), count, |x| x.to_f32() as f64),
                DType::F64 => packed(self.raw.first.cast::<f64>().offset(row), count, |x| x),
            }
        }
    }

    /// The numbers at `row + places[..count]`.
    ///
    /// # Safety
    /// They lie in the tensor.
    unsafe fn read_scattered<R: Real>(&self, row: isize, places: &Block<isize>, count: usize) -> Block<R> {
        // SAFETY: as the caller promises.
        unsafe {
            match self.dtype {
                DType::F32 => gather(self.raw.first.cast::<f32>().offset(row), places, count, |x| x as f64),
                DType::F16 => gather(self.raw.first.cast::<f16>().offset(row), places, count, |x| widen_f16(x) as f64),
                DType::BF16 => gather(self.raw.first.cast::<bf16>().offset(row), places, count, |x| x.to_f32() as f64),
                DType::F64 => gather(self.raw.first.cast::<f64>().offset(row), places, count, |x| x),
            }
        }
    }

    /// Writes the first `count` of `numbers` to `row + places`, rounded to the tensor's type.
    ///
    /// # Safety
    /// The places lie in the tensor and nobody else uses them.
    #[inline(always)]
    pub unsafe fn write<R: Real>(&self, row: isize, places: &Block<isize>, count: usize, numbers: &Block<R>) {
        // SAFETY: as the caller promises.
        unsafe {
            match self.dtype {
                DType::F32 => scatter(self.raw.first.cast::<f32>().offset(row), places, count, numbers),
                DType::F16 => scatter(self.raw.first.cast::<f16>().offset(row), places, count, numbers),
                DType::BF16 => scatter(self.raw.first.cast::<bf16>().offset(row), places, count, numbers),
                DType::F64 => scatter(self.raw.first.cast::<f64>().offset(row), places, count, numbers),
            }
        }
    }
}

// Every type goes through f64, which is exact; f32 there and back compiles to nothing.

#[inline(always)]
unsafe fn packed<E: Element, R: Real, const WIDTH: usize>(
    row: *const E,
    count: usize,
    widen: impl Fn(E) -> f64,
) -> [Block<R>; WIDTH] {
    let mut elements = [[E::default(); WIDTH]; BLOCK];
    // SAFETY: `count` samples are readable, as the caller promises.
    unsafe {
        // A copy of fixed size becomes a few loads.
        match count {
            BLOCK => elements = row.cast::<[[E; WIDTH]; BLOCK]>().read(),
            _ => row.copy_to_nonoverlapping(elements.as_mut_ptr().cast(), count * WIDTH),
        }
    }
    let mut numbers = [[R::ZERO; BLOCK]; WIDTH];
    for (i, element) in elements.iter().enumerate() {
        for (number, &element) in numbers.iter_mut().zip(element) {
            number[i] = R::from_f64(widen(element));
        }
    }
    numbers
}

#[inline(always)]
unsafe fn gather<E: Element, R: Real>(
    row: *const E,
    places: &Block<isize>,
    count: usize,
    widen: impl Fn(E) -> f64,
) -> Block<R> {
    let mut numbers = [R::ZERO; BLOCK];
    for (number, &place) in numbers.iter_mut().zip(places).take(count) {
        // SAFETY: the place lies in the tensor, as the caller promises.
        *number = R::from_f64(widen(unsafe { *row.offset(place) }));
    }
    numbers
}

#[inline(always)]
unsafe fn scatter<E: Element, R: Real>(row: *mut E, places: &Block<isize>, count: usize, numbers: &Block<R>) {
    for (number, &place) in numbers.iter().zip(places).take(count) {
        // SAFETY: the place lies in the tensor, as the caller promises.
        unsafe { *row.offset(place) = E::from_f64(number.to_f64()) };
    }
}

/// Up to [`BLOCK`] samples of one (image, head): of one query, or of a few queries that follow each other.
#[derive(Clone)]
pub(super) struct Slots<R> {
    /// How many.
    pub count: usize,
    pub grid: Grid<R>,
    /// Bytes from a pixel of `value` to the one below it.
    pub row_bytes: Block<i64>,
    /// Where the x of each sample lies, from the row of the first query.
    locations: Block<isize>,
    /// Where the weight of each sample lies, likewise.
    weights: Block<isize>,
    /// Whether locations and weights follow each other without gaps.
    packed: bool,
    /// (query past the first, level, point) of each sample.
    pub samples: Block<[usize; 3]>,
}

impl<R: Real> Slots<R> {
    /// Where the samples lie in a tensor of these strides, from the row of the first query.
    pub fn places(&self, strides: &[isize]) -> Block<isize> {
        self.samples.map(|[query, level, point]| {
            query as isize * strides[1] + level as isize * strides[3] + point as isize * strides[4]
        })
    }
}

/// A call laid out for the kernels.
pub(super) struct Plan<E: Element> {
    pub sizes: Sizes,
    pub value: Raw<E, 4>,
    pub locations: Coordinates<6>,
    pub weights: Coordinates<5>,
    problem: Problem,
    zeros: Vec<E>,
}

impl<E: Element> Plan<E> {
    pub fn new(problem: &Problem, inputs: &Inputs<'_>) -> Self {
        let coordinates = |view: &View<'_>| (view.as_ptr().cast_mut(), *view.layout());
        let (locations, locations_layout) = coordinates(&inputs.sampling_locations);
        let (weights, weights_layout) = coordinates(&inputs.attention_weights);
        Plan {
            sizes: *problem.sizes(),
            value: Raw::of(&inputs.value),
            locations: Coordinates::new(locations, &locations_layout),
            weights: Coordinates::new(weights, &weights_layout),
            problem: problem.clone(),
            zeros: vec![E::default(); problem.sizes().channels],
        }
    }

    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The samples of one query, all levels.
    pub fn query_slots(&self) -> Vec<Slots<E::Accumulator>> {
        let Sizes { levels, points, .. } = self.sizes;
        let samples = (0..levels).flat_map(|level| (0..points).map(move |point| (0, level, point)));
        self.slots(samples)
    }

    /// The samples of one level of as many queries as fill a block, and how many queries that is.
    pub fn level_slots(&self, level: usize) -> (usize, Vec<Slots<E::Accumulator>>) {
        let points = self.sizes.points;
        let queries = (BLOCK / points.max(1)).max(1);
        (queries, self.slots((0..queries).flat_map(|q| (0..points).map(move |point| (q, level, point)))))
    }

    fn slots(&self, samples: impl Iterator<Item = (usize, usize, usize)>) -> Vec<Slots<E::Accumulator>> {
        let mut blocks: Vec<Slots<E::Accumulator>> = Vec::new();
        for (query, level, point) in samples {
            if blocks.last().is_none_or(|block| block.count == BLOCK) {
                blocks.push(Slots {
                    count: 0,
                    grid: Grid::empty(),
                    row_bytes: [0; BLOCK],
                    locations: [0; BLOCK],
                    weights: [0; BLOCK],
                    packed: false,
                    samples: [[0; 3]; BLOCK],
                });
            }
            let block = blocks.last_mut().expect("just pushed");
            let shape = self.problem.levels()[level];
            let i = block.count;
            block.count += 1;
            // `Levels` has shown that both fit.
            (block.grid.width[i], block.grid.height[i]) = (shape.width as i32, shape.height as i32);
            block.grid.start[i] = shape.start as i64;
            block.grid.scale[0][i] = Real::from_i32(shape.width as i32);
            block.grid.scale[1][i] = Real::from_i32(shape.height as i32);
            block.row_bytes[i] = (shape.width as i64).wrapping_mul(self.pixel_bytes());
            block.samples[i] = [query, level, point];
        }
        for block in &mut blocks {
            block.locations = block.places(&self.locations.strides());
            block.weights = block.places(&self.weights.strides());
            let follow = |places: &Block<isize>, width: isize| {
                places[..block.count].windows(2).all(|pair| pair[1] == pair[0] + width)
            };
            let pairs = self.locations.strides()[5] == 1;
            block.packed = pairs && follow(&block.locations, 2) && follow(&block.weights, 1);
        }
        blocks
    }

    /// Bytes from a pixel of `value` to the next.
    #[inline(always)]
    fn pixel_bytes(&self) -> i64 {
        self.value.strides[1] as i64 * size_of::<E>() as i64
    }

    /// Where the four neighbours of each sample lie in one (image, head) of `value`. One outside its level is
    /// [`Plan::zeros`] instead.
    #[inline(always)]
    pub fn neighbours(
        &self,
        [n, m]: [usize; 2],
        slots: &Slots<E::Accumulator>,
        cells: &Cells<E::Accumulator>,
    ) -> [Block<*const E>; 4] {
        let value = self.value.at([n, 0, m]).cast_const().cast::<u8>();
        let pixel_bytes = self.pixel_bytes();
        let pixels = cells.pixels(&slots.grid);
        let mut neighbours = [[self.zeros(); BLOCK]; 4];
        for i in 0..BLOCK {
            let upper = pixels[i].wrapping_mul(pixel_bytes);
            let lower = upper.wrapping_add(slots.row_bytes[i]);
            let all = [upper, upper.wrapping_add(pixel_bytes), lower, lower.wrapping_add(pixel_bytes)];
            for corner in 0..4 {
                // Wrapping, because one outside the level may be no address at all.
                let address = value.wrapping_offset(all[corner] as isize).cast();
                let inside = cells.inside[i] >> corner & 1 != 0;
                neighbours[corner][i] = if inside { address } else { self.zeros() };
            }
        }
        neighbours
    }

    /// A pixel of zeros. Its channels follow each other whatever the strides of `value`.
    #[inline(always)]
    pub fn zeros(&self) -> *const E {
        self.zeros.as_ptr()
    }

    /// Asks for the locations and weights of `samples` samples of a row, which may lie outside the problem.
    #[inline(always)]
    pub fn prefetch(&self, row: [usize; 3], slots: &Slots<E::Accumulator>, samples: usize) {
        self.locations.prefetch(row, slots.locations[0], 2 * samples);
        self.weights.prefetch(row, slots.weights[0], samples);
    }

    /// x, y and attention weight of the first `count` samples of `slots`.
    ///
    /// # Safety
    /// `row` is inside the problem, and so are the queries of those samples.
    #[inline(always)]
    pub unsafe fn read(
        &self,
        row: [usize; 3],
        slots: &Slots<E::Accumulator>,
        count: usize,
    ) -> [Block<E::Accumulator>; 3] {
        let (locations, weights) = (self.locations.row(row), self.weights.row(row));
        // SAFETY: as the caller promises.
        unsafe {
            if slots.packed {
                let [x, y] = self.locations.read_packed(locations + slots.locations[0], count);
                let [weight] = self.weights.read_packed(weights + slots.weights[0], count);
                [x, y, weight]
            } else {
                let to_y = self.locations.strides()[5];
                [
                    self.locations.read_scattered(locations, &slots.locations, count),
                    self.locations.read_scattered(locations + to_y, &slots.locations, count),
                    self.weights.read_scattered(weights, &slots.weights, count),
                ]
            }
        }
    }
}

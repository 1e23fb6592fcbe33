//! A validated call, so that a backend need not check again.

use crate::checks::{
    AddressRanges, claim, expect_countable, expect_dtype, expect_place, expect_rank, expect_shape,
};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::msda::{CudaLevels, Gradients, Inputs, LevelTable, Levels};
use crate::place::Place;
use crate::shape::Shape;
use crate::tensor::{View, ViewMut};

/// The sizes of a problem, under the letters the field uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Images (N).
    pub images: usize,
    /// Pixels of all levels (S).
    pub pixels: usize,
    /// Heads (M).
    pub heads: usize,
    /// Channels per head (D).
    pub channels: usize,
    /// Queries per image (Q).
    pub queries: usize,
    /// Levels (L).
    pub levels: usize,
    /// Points per level (P).
    pub points: usize,
}

impl Sizes {
    /// Samples of the whole problem: N * Q * M * L * P.
    pub fn samples(&self) -> usize {
        self.images * self.queries * self.heads * self.levels * self.points
    }

    /// Shape of `value`.
    pub fn value(&self) -> [usize; 4] {
        [self.images, self.pixels, self.heads, self.channels]
    }

    /// Shape of `sampling_locations`.
    pub fn sampling_locations(&self) -> [usize; 6] {
        [
            self.images,
            self.queries,
            self.heads,
            self.levels,
            self.points,
            2,
        ]
    }

    /// Shape of `attention_weights`.
    pub fn attention_weights(&self) -> [usize; 5] {
        [
            self.images,
            self.queries,
            self.heads,
            self.levels,
            self.points,
        ]
    }

    /// Shape of `out` and `grad_out`.
    pub fn out(&self) -> [usize; 3] {
        [self.images, self.queries, self.heads * self.channels]
    }
}

/// Everything about a problem but its data: sizes, levels, element types and strides, checked against each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    sizes: Sizes,
    place: Place,
    levels: Levels,
    cuda_levels: Option<CudaLevels>,
    value: Layout,
    sampling_locations: Layout,
    attention_weights: Layout,
}

impl Problem {
    /// Checks `inputs` without any outputs.
    pub fn new(inputs: &Inputs<'_>) -> Result<Self> {
        Problem::checked(inputs).map(|(problem, _)| problem)
    }

    /// As `new`; also returns the address ranges of the inputs.
    fn checked(inputs: &Inputs<'_>) -> Result<(Self, AddressRanges<3>)> {
        let Inputs {
            value,
            levels,
            sampling_locations,
            attention_weights,
        } = *inputs;
        expect_rank("value", value.shape(), 4, "[N, S, M, D]")?;
        expect_rank(
            "sampling_locations",
            sampling_locations.shape(),
            6,
            "[N, Q, M, L, P, 2]",
        )?;
        expect_rank(
            "attention_weights",
            attention_weights.shape(),
            5,
            "[N, Q, M, L, P]",
        )?;

        let (value_shape, location_shape) = (value.shape(), sampling_locations.shape());
        let (of_value, of_locations) = (value_shape.sizes(), location_shape.sizes());
        let sizes = Sizes {
            images: of_value[0],
            pixels: of_value[1],
            heads: of_value[2],
            channels: of_value[3],
            queries: of_locations[1],
            levels: levels.len(),
            points: of_locations[4],
        };
        if sizes.channels == 0 {
            return Err(Error::NoChannels {
                tensor: "value",
                found: value.shape(),
            });
        }
        let (host_levels, cuda_levels) = match levels {
            LevelTable::Host(levels) if sizes.pixels != levels.pixels() => {
                return Err(Error::LevelSum {
                    expected: levels.pixels(),
                    found: sizes.pixels,
                });
            }
            LevelTable::Host(levels) => (levels.clone(), None),
            LevelTable::Cuda(levels) => (Levels::default(), Some(levels)),
        };
        let Sizes {
            images: n,
            pixels: s,
            heads: m,
            channels: d,
            queries: q,
            levels: l,
            points: p,
        } = sizes;
        if location_shape != Shape::new(&sizes.sampling_locations()) {
            return Err(Error::Shape {
                tensor: "sampling_locations",
                expected: format!("[{n}, Q, {m}, {l}, P, 2]"),
                found: location_shape,
            });
        }
        expect_shape(
            "attention_weights",
            attention_weights.shape(),
            &sizes.attention_weights(),
        )?;
        expect_countable("value", &[n, s, m, d])?;
        expect_countable("sampling_locations", &[n, q, m, l, p, 2])?;
        expect_countable("out", &[n, q, m, d])?;

        for (tensor, dtype) in [
            ("sampling_locations", sampling_locations.dtype()),
            ("attention_weights", attention_weights.dtype()),
        ] {
            if dtype != DType::F32 && dtype != value.dtype() {
                let expected = match value.dtype() {
                    DType::F32 => "f32".to_string(),
                    other => format!("f32 or {other} (that of value)"),
                };
                return Err(Error::DType {
                    tensor,
                    expected,
                    found: dtype,
                });
            }
        }
        let occupied = [
            ("value", value.check("value")?),
            (
                "sampling_locations",
                sampling_locations.check("sampling_locations")?,
            ),
            (
                "attention_weights",
                attention_weights.check("attention_weights")?,
            ),
        ];
        let place = value.place();
        expect_place(
            "sampling_locations",
            sampling_locations.place(),
            "value",
            place,
        )?;
        expect_place(
            "attention_weights",
            attention_weights.place(),
            "value",
            place,
        )?;
        if let Some(CudaLevels { ordinal, .. }) = cuda_levels {
            expect_place("spatial_shapes", Place::Cuda { ordinal }, "value", place)?;
        }
        let problem = Problem {
            sizes,
            place,
            levels: host_levels,
            cuda_levels,
            value: *value.layout(),
            sampling_locations: *sampling_locations.layout(),
            attention_weights: *attention_weights.layout(),
        };
        Ok((problem, occupied))
    }

    /// The sizes.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// The memory its tensors are in.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Refuses tensors that are not in `expected`, the memory that a backend works in.
    pub(crate) fn expect_in(&self, expected: Place) -> Result<()> {
        if self.place == expected {
            return Ok(());
        }
        Err(Error::Place {
            tensor: "value",
            expected: expected.to_string(),
            found: self.place,
        })
    }

    /// The levels; none if they are in device memory.
    pub fn levels(&self) -> &Levels {
        &self.levels
    }

    /// The levels, if they are in device memory.
    pub fn cuda_levels(&self) -> Option<&CudaLevels> {
        self.cuda_levels.as_ref()
    }

    /// Layout of `value`.
    pub fn value(&self) -> &Layout {
        &self.value
    }

    /// Layout of `sampling_locations`.
    pub fn sampling_locations(&self) -> &Layout {
        &self.sampling_locations
    }

    /// Layout of `attention_weights`.
    pub fn attention_weights(&self) -> &Layout {
        &self.attention_weights
    }
}

/// A validated forward call.
#[derive(Debug)]
pub struct Forward<'a> {
    pub(crate) problem: Problem,
    pub(crate) inputs: Inputs<'a>,
    pub(crate) out: ViewMut<'a>,
}

impl<'a> Forward<'a> {
    /// Checks `inputs` and `out` against each other.
    pub fn new(inputs: Inputs<'a>, out: ViewMut<'a>) -> Result<Self> {
        let (problem, occupied) = Problem::checked(&inputs)?;
        expect_rank("out", out.shape(), 3, "[N, Q, M*D]")?;
        expect_shape("out", out.shape(), &problem.sizes.out())?;
        expect_dtype("out", out.dtype(), "value", problem.value.dtype())?;
        expect_place("out", out.place(), "value", problem.place)?;
        claim("out", &out, &occupied)?;
        Ok(Forward {
            problem,
            inputs,
            out,
        })
    }
}

/// A validated backward call.
#[derive(Debug)]
pub struct Backward<'a> {
    pub(crate) problem: Problem,
    pub(crate) inputs: Inputs<'a>,
    pub(crate) grad_out: View<'a>,
    pub(crate) gradients: Gradients<'a>,
}

impl<'a> Backward<'a> {
    /// Checks `inputs`, `grad_out` and the requested gradients against each other.
    pub fn new(inputs: Inputs<'a>, grad_out: View<'a>, gradients: Gradients<'a>) -> Result<Self> {
        let (problem, occupied) = Problem::checked(&inputs)?;
        expect_rank("grad_out", grad_out.shape(), 3, "[N, Q, M*D]")?;
        expect_shape("grad_out", grad_out.shape(), &problem.sizes.out())?;
        expect_dtype("grad_out", grad_out.dtype(), "value", problem.value.dtype())?;
        expect_place("grad_out", grad_out.place(), "value", problem.place)?;
        let mut occupied = occupied.to_vec();
        occupied.push(("grad_out", grad_out.check("grad_out")?));
        let wanted = [
            ("grad_value", &gradients.value, "value", &problem.value),
            (
                "grad_locations",
                &gradients.sampling_locations,
                "sampling_locations",
                &problem.sampling_locations,
            ),
            (
                "grad_weights",
                &gradients.attention_weights,
                "attention_weights",
                &problem.attention_weights,
            ),
        ];
        for (tensor, gradient, source, layout) in wanted {
            let Some(gradient) = gradient else { continue };
            let shape = layout.shape();
            expect_shape(tensor, gradient.shape(), shape.sizes())?;
            expect_dtype(tensor, gradient.dtype(), source, layout.dtype())?;
            expect_place(tensor, gradient.place(), "value", problem.place)?;
            let range = claim(tensor, gradient, &occupied)?;
            occupied.push((tensor, range));
        }
        Ok(Backward {
            problem,
            inputs,
            grad_out,
            gradients,
        })
    }
}

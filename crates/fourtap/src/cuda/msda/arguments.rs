//! Kernel arguments, laid out as kernels/msda declares them.

use std::ffi::c_void;

use super::operands::{GradientOperands, Operand, Operands};
use super::specialised::Sampling;
use crate::cuda::step::parameter;
use crate::layout::Layout;
use crate::msda::{Gradients, Inputs, LevelTable};
use crate::tensor::{View, ViewMut};

/// Capacities for levels in a kernel's arguments: each is a kernel of its own. The second fits the 4 KiB of arguments
/// that all drivers pass, the last the 32764 bytes that drivers from CUDA 12.1 on do.
pub(super) const LEVEL_CAPACITIES: [usize; 3] = [16, 240, 2000];

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct HostLevel {
    width: i32,
    height: i32,
    start: i64,
}

/// What differs between calls that share a plan: the first members of the kernels' `Arguments`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Addresses {
    pub value: u64,
    pub locations: u64,
    pub weights: u64,
    pub out: u64,
    pub shapes: u64,
    pub starts: u64,
}

impl Addresses {
    /// The addresses of a call; 0 for a tensor it does not have.
    pub fn new(inputs: &Inputs<'_>, out: Option<&ViewMut<'_>>) -> Self {
        Addresses {
            value: inputs.value.as_ptr() as u64,
            locations: inputs.sampling_locations.as_ptr() as u64,
            weights: inputs.attention_weights.as_ptr() as u64,
            out: out.map_or(0, |out| out.as_mut_ptr() as u64),
            ..Addresses::of_levels(&inputs.levels)
        }
    }

    /// Only those of levels in device memory.
    pub fn of_levels(levels: &LevelTable<'_>) -> Self {
        let (shapes, starts) = match levels {
            LevelTable::Host(_) => (0, 0),
            LevelTable::Cuda(levels) => (levels.shapes, levels.starts.unwrap_or(0)),
        };
        Addresses {
            shapes,
            starts,
            ..Addresses::default()
        }
    }
}

/// `Arguments` of kernels/msda/problem.cuh.
#[repr(C)]
#[derive(Clone, Debug)]
pub(super) struct Arguments<const CAPACITY: usize> {
    addresses: Addresses,
    value_strides: [i64; 4],
    location_strides: [i64; 6],
    weight_strides: [i64; 5],
    out_strides: [i64; 3],
    images: i64,
    pixels: i64,
    queries: i64,
    heads: i32,
    channels: i32,
    levels: i32,
    points: i32,
    host_levels: [HostLevel; CAPACITY],
}

impl<const CAPACITY: usize> Arguments<CAPACITY> {
    /// The arguments of a problem but for its addresses. Its levels must fit, and sizes, except the 64-bit ones, an i32.
    fn new(operands: &Operands<'_>, out: Option<&Operand>) -> Self {
        let sizes = &operands.sizes;
        let mut host_levels = [HostLevel::default(); CAPACITY];
        for (room, level) in host_levels.iter_mut().zip(operands.levels.iter()) {
            *room = HostLevel {
                width: level.width as i32,
                height: level.height as i32,
                start: level.start as i64,
            };
        }
        Arguments {
            addresses: Addresses::default(),
            value_strides: strides(operands.value.layout.strides()),
            location_strides: location_strides(operands.kind.sampling, &operands.locations.layout),
            weight_strides: padded(operands.weights.layout.strides()),
            out_strides: out.map_or([0; 3], |out| strides(out.layout.strides())),
            images: sizes.images as i64,
            pixels: sizes.pixels as i64,
            queries: sizes.queries as i64,
            heads: sizes.heads as i32,
            channels: sizes.channels as i32,
            levels: sizes.levels as i32,
            points: sizes.points as i32,
            host_levels,
        }
    }
}

/// Arguments with the level capacity that a kernel was compiled for.
#[derive(Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "the common variant should not be boxed"
)]
pub(super) enum SizedArguments {
    Small(Arguments<{ LEVEL_CAPACITIES[0] }>),
    Medium(Box<Arguments<{ LEVEL_CAPACITIES[1] }>>),
    Large(Box<Arguments<{ LEVEL_CAPACITIES[2] }>>),
}

impl SizedArguments {
    /// With a capacity of [`LEVEL_CAPACITIES`]; the first if `None`.
    pub fn new(operands: &Operands<'_>, out: Option<&Operand>, capacity: Option<usize>) -> Self {
        match capacity.unwrap_or(LEVEL_CAPACITIES[0]) {
            room if room == LEVEL_CAPACITIES[0] => {
                SizedArguments::Small(Arguments::new(operands, out))
            }
            room if room == LEVEL_CAPACITIES[1] => {
                SizedArguments::Medium(Box::new(Arguments::new(operands, out)))
            }
            _ => SizedArguments::Large(Box::new(Arguments::new(operands, out))),
        }
    }

    /// The same for another call that shares the plan.
    pub fn at(&self, addresses: Addresses) -> Self {
        let mut held = self.clone();
        *match &mut held {
            SizedArguments::Small(arguments) => &mut arguments.addresses,
            SizedArguments::Medium(arguments) => &mut arguments.addresses,
            SizedArguments::Large(arguments) => &mut arguments.addresses,
        } = addresses;
        held
    }

    /// A pointer to the arguments, for a launch.
    pub fn pointer(&self) -> *mut c_void {
        match self {
            SizedArguments::Small(arguments) => parameter(arguments),
            SizedArguments::Medium(arguments) => parameter(&**arguments),
            SizedArguments::Large(arguments) => parameter(&**arguments),
        }
    }
}

/// What differs between backward calls that share a plan, besides [`Addresses`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct GradientAddresses {
    pub grad_out: u64,
    pub value: u64,
    pub locations: u64,
    pub weights: u64,
}

impl GradientAddresses {
    /// The addresses of a call; 0 for gradients it does not ask for.
    pub fn new(grad_out: &View<'_>, gradients: &Gradients<'_>) -> Self {
        let address = |gradient: &Option<ViewMut<'_>>| {
            gradient
                .as_ref()
                .map_or(0, |gradient| gradient.as_mut_ptr() as u64)
        };
        GradientAddresses {
            grad_out: grad_out.as_ptr() as u64,
            value: address(&gradients.value),
            locations: address(&gradients.sampling_locations),
            weights: address(&gradients.attention_weights),
        }
    }
}

/// `Gradients` of kernels/msda/gradients.cuh.
#[repr(C)]
#[derive(Clone, Debug)]
pub(super) struct GradientArguments {
    addresses: GradientAddresses,
    grad_out_strides: [i64; 3],
    value_strides: [i64; 4],
    location_strides: [i64; 6],
    weight_strides: [i64; 5],
}

impl GradientArguments {
    /// The arguments of a call but for its addresses.
    pub fn new(sampling: Sampling, gradients: &GradientOperands) -> Self {
        GradientArguments {
            addresses: GradientAddresses {
                grad_out: 0,
                value: 0,
                locations: 0,
                weights: 0,
            },
            grad_out_strides: strides(gradients.grad_out.layout.strides()),
            value_strides: match gradients.value {
                Some(gradient) => strides(gradient.layout.strides()),
                None => [0; 4],
            },
            location_strides: match gradients.locations {
                Some(gradient) => location_strides(sampling, &gradient.layout),
                None => [0; 6],
            },
            weight_strides: match gradients.weights {
                Some(gradient) => padded(gradient.layout.strides()),
                None => [0; 5],
            },
        }
    }

    /// The same for another call that shares the plan.
    pub fn at(&self, addresses: GradientAddresses) -> Self {
        GradientArguments {
            addresses,
            ..self.clone()
        }
    }
}

/// Offsets have one axis for all points: its stride counts as that of points.
fn location_strides(sampling: Sampling, layout: &Layout) -> [i64; 6] {
    match sampling {
        Sampling::Given => strides(layout.strides()),
        Sampling::Projected(_) => {
            let [n, q, m, point, axis] = strides(layout.strides());
            [n, q, m, 0, point, axis]
        }
    }
}

/// Of a tensor that may have fewer axes.
fn padded<const RANK: usize>(strides: &[isize]) -> [i64; RANK] {
    std::array::from_fn(|axis| strides.get(axis).map_or(0, |&stride| stride as i64))
}

/// `Work` of kernels/msda/bins.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    pub starts: u64,
    pub sorted: u64,
    pub largest: u64,
    pub counters: u64,
    pub late: u64,
    pub arrivals: u64,
    pub sums: u64,
    pub first_plane: u32,
    pub planes: u32,
    pub first_level: u32,
    pub level_count: u32,
    pub chunks: u32,
    pub chunk: u32,
    pub samples: u32,
    pub capacity: u32,
    pub part: u32,
    pub by_points: Divisor,
    pub by_heads: Divisor,
    pub by_chunks: Divisor,
}

/// `Bands` of kernels/msda/backward_value_bands.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BandArguments {
    pub slices: u32,
    pub row_bytes: u32,
    pub capacity: u32,
    pub by_points: Divisor,
}

fn strides<const RANK: usize>(strides: &[isize]) -> [i64; RANK] {
    std::array::from_fn(|axis| strides[axis] as i64)
}

/// Division of numbers below 2^31 by one known beforehand: `Divisor` of kernels/common/divisor.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Divisor {
    multiplier: u32,
    shift: u32,
}

impl Divisor {
    /// By `divisor`, from 1 to 2^31.
    pub fn new(divisor: u32) -> Self {
        // With 2^s the power of two not below the divisor, ceil(2^(31+s) / divisor) has a relative error below
        // 2^-31, too small to change the quotient of a number below 2^31, and fits 32 bits.
        let shift = 31 + divisor.next_power_of_two().trailing_zeros();
        Divisor {
            multiplier: (1u64 << shift).div_ceil(divisor.into()) as u32,
            shift,
        }
    }
}

/// `Schedule` of kernels/msda/gather.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    pub rows: u32,
    pub turn: u32,
    pub share: u32,
    pub plane: u32,
    pub planes_an_image: u32,
    pub order: u32,
    pub by_plane: Divisor,
    pub by_planes_an_image: Divisor,
    pub kept: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lies_as_the_kernels_declare_it() {
        assert_eq!(size_of::<HostLevel>(), 16);
        assert_eq!(size_of::<Addresses>(), 48);
        assert_eq!(std::mem::offset_of!(Arguments<16>, value_strides), 48);
        assert_eq!(std::mem::offset_of!(Arguments<16>, host_levels), 232);
        assert_eq!(size_of::<Arguments<16>>(), 232 + 16 * 16);
        assert!(size_of::<Arguments<240>>() <= 4096);
        assert!(size_of::<Arguments<2000>>() <= 32764);
        assert_eq!(size_of::<Schedule>(), 44);
        assert_eq!(size_of::<GradientArguments>(), 32 + 8 * (3 + 4 + 6 + 5));
        assert_eq!(size_of::<Work>(), 120);
        assert_eq!(size_of::<BandArguments>(), 20);
    }

    #[test]
    fn divides_like_division() {
        let divide = |number: u32, by: u32| {
            let divisor = Divisor::new(by);
            ((number as u64 * divisor.multiplier as u64) >> divisor.shift) as u32
        };
        let top = (1u32 << 31) - 1;
        let interesting = [
            1,
            2,
            3,
            5,
            7,
            8,
            9,
            15422,
            44446,
            65535,
            65536,
            65537,
            1000003,
            1 << 30,
            top,
            1 << 31,
        ];
        for by in interesting {
            for number in interesting
                .into_iter()
                .filter(|&n| n <= top)
                .flat_map(|n| [n - 1, n])
                .chain((0..31).map(|bit| (1 << bit) - 1))
                .chain((1..2000).map(|multiple: u64| ((multiple * by as u64) % top as u64) as u32))
                .chain((1..2000).map(|multiple: u64| {
                    ((multiple * by as u64).saturating_sub(1) % top as u64) as u32
                }))
            {
                assert_eq!(divide(number, by), number / by, "{number} / {by}");
            }
        }
    }
}

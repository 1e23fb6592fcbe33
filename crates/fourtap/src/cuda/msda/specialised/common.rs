//! What kernels of both passes share.

use std::fmt;

use crate::cuda::msda::arguments::LEVEL_CAPACITIES;
use crate::cuda::recipe::{Defines, flag, name, number};
use crate::dtype::DType;

/// Sources that several kernels share.
pub(super) mod sources {
    pub use crate::cuda::recipe::sources::{COPY, DIVISOR, MATRIX, MEMORY, OVERLAP, TYPES};
    pub const PROBLEM: &str = include_str!("../../../../kernels/msda/problem.cuh");
    pub const PROJECTION: &str = include_str!("../../../../kernels/msda/projection.cuh");
    pub const FORWARD_ROWS: &str = include_str!("../../../../kernels/msda/forward_rows.cuh");
    pub const FORWARD_LEVELS: &str = include_str!("../../../../kernels/msda/forward_levels.cuh");
    pub const FORWARD_MATRIX: &str = include_str!("../../../../kernels/msda/forward_matrix.cuh");
    pub const GATHER: &str = include_str!("../../../../kernels/msda/gather.cuh");
    pub const GRADIENTS: &str = include_str!("../../../../kernels/msda/gradients.cuh");
    pub const BINS: &str = include_str!("../../../../kernels/msda/bins.cuh");
    pub const SAMPLES: &str = include_str!("../../../../kernels/msda/samples.cuh");
    pub const RUNS: &str = include_str!("../../../../kernels/msda/runs.cuh");
}

/// Element types of the tensors read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Types {
    /// Of `value` and `out`.
    pub value: DType,
    /// Of `sampling_locations`.
    pub locations: DType,
    /// Of `attention_weights`.
    pub weights: DType,
}

impl Types {
    /// With the type that coordinates and weights are computed in, f32 or f64, in place of that of `value`.
    pub(super) fn computed(self) -> Self {
        let value = match self.value {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        Types { value, ..self }
    }

    pub(super) fn defines(&self) -> Defines {
        vec![
            ("VALUE", name(self.value)),
            ("LOCATION", name(self.locations)),
            ("WEIGHT", name(self.weights)),
        ]
    }
}

impl fmt::Display for Types {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value)?;
        if (self.locations, self.weights) != (DType::F32, DType::F32) {
            write!(f, "-{}-{}", self.locations, self.weights)?;
        }
        Ok(())
    }
}

/// Levels that a problem may have which is given by projections, PROJECTED_LEVELS of kernels/msda/projection.cuh.
pub(in crate::cuda::msda) const PROJECTED_LEVELS: usize = 16;

/// How a kernel is told where and how much to sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sampling {
    /// By locations and weights.
    #[default]
    Given,
    /// By a model's projections: reference points, offsets and logits.
    Projected(Projection),
}

/// What kernels for projections are specialised by besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Projection {
    /// Element type of reference points.
    pub references: DType,
    /// Whether they are boxes.
    pub boxes: bool,
    /// Whether a point reads the nearest pixel only.
    pub nearest: bool,
    /// Reference points of a level, which its points take in turns.
    pub turns: u32,
    /// The first sample of each level and the number of all, if levels have different numbers of points.
    pub uneven: Option<[u16; PROJECTED_LEVELS + 1]>,
}

impl Projection {
    /// The list of `uneven` for these first samples, if they need one. More than it has room for are refused elsewhere.
    pub(in crate::cuda::msda) fn uneven(
        first_samples: &[usize],
    ) -> Option<[u16; PROJECTED_LEVELS + 1]> {
        let mut steps = first_samples.windows(2).map(|pair| pair[1] - pair[0]);
        let first = steps.next()?;
        if steps.all(|step| step == first) {
            return None;
        }
        let mut list = [u16::MAX; PROJECTED_LEVELS + 1];
        for (entry, &sample) in list.iter_mut().zip(first_samples) {
            *entry = u16::try_from(sample).unwrap_or(u16::MAX);
        }
        Some(list)
    }
}

impl Sampling {
    /// For kernels that take the rest as arguments.
    pub(in crate::cuda::msda) fn general(self) -> Self {
        match self {
            Sampling::Given => Sampling::Given,
            Sampling::Projected(projection) => Sampling::Projected(Projection {
                turns: 1,
                uneven: None,
                ..projection
            }),
        }
    }

    /// Whether a point reads the nearest pixel only.
    pub(in crate::cuda::msda) fn is_nearest(self) -> bool {
        matches!(self, Sampling::Projected(Projection { nearest: true, .. }))
    }

    pub(super) fn general_defines(&self) -> Defines {
        match self {
            Sampling::Given => Vec::new(),
            Sampling::Projected(projection) => vec![
                ("PROJECTED", flag(true)),
                ("REFERENCE", name(projection.references)),
                ("BOXES", flag(projection.boxes)),
                ("NEAREST", flag(projection.nearest)),
            ],
        }
    }

    /// For kernels that are specialised by all of it; `levels` is their number.
    pub(super) fn defines(&self, levels: u32) -> Defines {
        let mut defines = self.general_defines();
        if let Sampling::Projected(projection) = self {
            defines.push(("TURNS", number(projection.turns)));
            if let Some(list) = projection.uneven {
                let first = list[..levels as usize].iter().map(u16::to_string);
                defines.push(("FIRST_SAMPLES", first.collect::<Vec<_>>().join(",")));
                defines.push(("SAMPLE_COUNT", list[levels as usize].to_string()));
            }
        }
        defines
    }

    /// Adds to a kernel's name.
    pub(super) fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sampling::Projected(projection) = self else {
            return Ok(());
        };
        let references = match projection.boxes {
            true => "boxes",
            false => "references",
        };
        write!(f, "-{references}-{}", projection.references)?;
        if projection.turns > 1 {
            write!(f, "-turns{}", projection.turns)?;
        }
        if projection.nearest {
            f.write_str("-nearest")?;
        }
        if let Some(list) = projection.uneven {
            f.write_str("-points")?;
            let known = list.iter().take_while(|entry| **entry != u16::MAX);
            let known: Vec<u16> = known.copied().collect();
            for pair in known.windows(2) {
                write!(f, ".{}", pair[1] - pair[0])?;
            }
        }
        Ok(())
    }
}

pub(super) fn smallest_capacity() -> (&'static str, String) {
    ("LEVEL_CAPACITY", LEVEL_CAPACITIES[0].to_string())
}

/// One of several kernels that are compiled for the same things: the type of these has `common_defines` and `describe`.
macro_rules! step {
    ($step:ident($of:ty), $entry:ident, $parts:ident, $name:literal) => {
        pub(super) struct $step(pub $of);

        impl Recipe for $step {
            fn entry(&self) -> &'static str {
                $entry
            }

            fn parts(&self) -> &'static [&'static str] {
                $parts
            }

            fn defines(&self) -> Defines {
                self.0.common_defines()
            }
        }

        impl fmt::Display for $step {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.describe(f, $name)
            }
        }
    };
}
pub(super) use step;

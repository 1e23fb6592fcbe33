//! The kernels of backward.

use std::fmt;

use super::common::sources::{
    BINS, COPY, DIVISOR, GATHER, GRADIENTS, MATRIX, MEMORY, OVERLAP, PROBLEM, PROJECTION, RUNS,
    SAMPLES, TYPES,
};
use super::common::{Sampling, Types, smallest_capacity, step};
use super::forward::Gather;
use crate::cuda::msda::arguments::LEVEL_CAPACITIES;
use crate::cuda::recipe::{Defines, DynamicShared, Recipe, flag, name, number};
use crate::dtype::DType;

macro_rules! kernel {
    ($entry:ident, $parts:ident, $name:literal, [$($part:ident),*]) => {
        const $entry: &str = concat!("msda_backward_", $name);
        const $parts: &[&str] = &[
            $($part,)*
            include_str!(concat!("../../../../kernels/msda/backward_", $name, ".cu")),
        ];
    };
}

kernel!(
    SORT_ENTRY,
    SORT_PARTS,
    "sort",
    [
        TYPES, DIVISOR, MEMORY, OVERLAP, PROBLEM, PROJECTION, GRADIENTS, BINS
    ]
);
kernel!(
    CHANNEL_ENTRY,
    CHANNEL_PARTS,
    "value_channel",
    [
        TYPES, DIVISOR, MEMORY, OVERLAP, PROBLEM, GRADIENTS, BINS, RUNS
    ]
);
kernel!(
    MATRIX_ENTRY,
    MATRIX_PARTS,
    "value_matrix",
    [
        TYPES, DIVISOR, MEMORY, COPY, MATRIX, OVERLAP, PROBLEM, GRADIENTS, BINS, RUNS
    ]
);
kernel!(
    SEARCH_ENTRY,
    SEARCH_PARTS,
    "value_search",
    [TYPES, DIVISOR, PROBLEM, PROJECTION, GRADIENTS, BINS]
);
kernel!(
    BANDS_ENTRY,
    BANDS_PARTS,
    "value_bands",
    [
        TYPES, DIVISOR, MEMORY, OVERLAP, PROBLEM, PROJECTION, GRADIENTS
    ]
);
kernel!(
    SAMPLES_CHANNEL_ENTRY,
    SAMPLES_CHANNEL_PARTS,
    "samples_channel",
    [TYPES, DIVISOR, PROBLEM, PROJECTION, GRADIENTS]
);
kernel!(
    SAMPLES_GATHER_ENTRY,
    SAMPLES_GATHER_PARTS,
    "samples_gather",
    [
        TYPES, DIVISOR, MEMORY, OVERLAP, PROBLEM, PROJECTION, GRADIENTS, GATHER, SAMPLES
    ]
);
kernel!(
    SAMPLES_MATRIX_ENTRY,
    SAMPLES_MATRIX_PARTS,
    "samples_matrix",
    [
        TYPES, DIVISOR, MEMORY, OVERLAP, MATRIX, PROBLEM, PROJECTION, GRADIENTS, GATHER, SAMPLES
    ]
);

pub(super) const SHIPPED: &[(&str, &[&str])] = &[
    (SORT_ENTRY, SORT_PARTS),
    (CHANNEL_ENTRY, CHANNEL_PARTS),
    (MATRIX_ENTRY, MATRIX_PARTS),
    (SEARCH_ENTRY, SEARCH_PARTS),
    (BANDS_ENTRY, BANDS_PARTS),
    (SAMPLES_CHANNEL_ENTRY, SAMPLES_CHANNEL_PARTS),
    (SAMPLES_GATHER_ENTRY, SAMPLES_GATHER_PARTS),
    (SAMPLES_MATRIX_ENTRY, SAMPLES_MATRIX_PARTS),
];

/// Sorting samples; see kernels/msda/backward_sort.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sort {
    /// Element types; `value` stands for the type that coordinates are computed in, f32 or f64.
    pub types: Types,
    /// How it is told where to sample.
    pub sampling: Sampling,
    /// Whether x and y of a location are adjacent and aligned as a pair.
    pub paired: bool,
    /// Whether points of projections come in fours that can be read at once.
    pub fours: bool,
    /// Whether strides in bytes may be negative or need more than 32 bits.
    pub wide: bool,
    /// Warps of a block.
    pub warps: u32,
    /// Whether chunks have at most half as many samples as they might: then there is room for twice as many bins.
    pub few: bool,
}

impl Sort {
    /// Possible numbers of warps per block, the largest first.
    pub(in crate::cuda::msda) const WARPS: [u32; 2] = [16, 8];

    /// For the types of a problem and blocks of that many warps.
    pub(in crate::cuda::msda) fn new(
        types: Types,
        sampling: Sampling,
        paired: bool,
        wide: bool,
        warps: u32,
    ) -> Self {
        Sort {
            types: types.computed(),
            sampling: sampling.general(),
            paired,
            fours: false,
            wide,
            warps,
            few: false,
        }
    }

    /// Threads of a block.
    pub(in crate::cuda::msda) fn threads(&self) -> u32 {
        32 * self.warps
    }

    /// Dynamic shared memory per block: `Memory` of the kernel.
    pub(in crate::cuda::msda) fn shared_bytes(&self) -> u32 {
        let sample = 3 * self.types.value.size() as u32 + 2;
        let (tables, bins) = (4 + 1, 8 * self.eights() * self.threads());
        self.each() * self.threads() * sample + tables * bins * 2
    }

    /// Maximum samples per chunk.
    pub(in crate::cuda::msda) fn most_chunk(&self) -> usize {
        16_384 / self.types.value.size()
    }

    /// The kernel for chunks of at most half as many samples, if there is one.
    pub(in crate::cuda::msda) fn of_few(self) -> Option<Self> {
        (self.types.value == DType::F32).then_some(Sort { few: true, ..self })
    }

    /// Samples a lane has.
    fn each(&self) -> u32 {
        self.most_chunk() as u32 / self.threads() / if self.few { 2 } else { 1 }
    }

    /// How many times eight bins a thread has.
    fn eights(&self) -> u32 {
        if self.few { 2 } else { 1 }
    }
}

impl Recipe for Sort {
    fn entry(&self) -> &'static str {
        SORT_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        SORT_PARTS
    }

    fn defines(&self) -> Defines {
        let mut defines = self.types.defines();
        defines.extend(self.sampling.general_defines());
        defines.extend([
            ("PAIRED", flag(self.paired)),
            ("FOURS", flag(self.fours)),
            ("WIDE", flag(self.wide)),
            ("SORT_WARPS", number(self.warps)),
            ("EACH", number(self.each())),
            ("EIGHTS", number(self.eights())),
            smallest_capacity(),
        ]);
        defines
    }

    fn dynamic_shared(&self) -> DynamicShared {
        DynamicShared::Some
    }
}

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "msda-backward-sort-{}", self.types)?;
        self.sampling.describe(f)?;
        if self.fours {
            f.write_str("-fours")?;
        } else if self.paired {
            f.write_str("-paired")?;
        }
        if self.wide {
            f.write_str("-wide")?;
        }
        if self.few {
            f.write_str("-few")?;
        }
        write!(f, "-w{}", self.warps)
    }
}

/// Summing sorted samples; see kernels/msda/runs.cuh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sum {
    /// Type of `value`.
    pub value: DType,
    /// Whether a sample touches one pixel only.
    pub nearest: bool,
    /// Whether the stride of queries in `grad_out` may be negative or need more than 32 bits.
    pub wide: bool,
}

impl Sum {
    fn common_defines(&self) -> Defines {
        vec![
            ("VALUE", name(self.value)),
            ("NEAREST", flag(self.nearest)),
            ("WIDE", flag(self.wide)),
            smallest_capacity(),
        ]
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>, what: &str) -> fmt::Result {
        write!(f, "msda-backward-{what}-{}", self.value)?;
        if self.nearest {
            f.write_str("-nearest")?;
        }
        if self.wide {
            f.write_str("-wide")?;
        }
        Ok(())
    }
}

step!(
    ValueChannel(Sum),
    CHANNEL_ENTRY,
    CHANNEL_PARTS,
    "value-channel"
);
step!(ValueMatrix(Sum), MATRIX_ENTRY, MATRIX_PARTS, "value-matrix");

/// Searching all samples for each pixel; see kernels/msda/backward_value_search.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Search {
    /// Element types.
    pub types: Types,
    /// How it is told where to sample.
    pub sampling: Sampling,
    /// Whether it runs even where samples can be sorted.
    pub always: bool,
    /// Maximum number of levels.
    pub level_capacity: usize,
}

impl Recipe for Search {
    fn entry(&self) -> &'static str {
        SEARCH_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        SEARCH_PARTS
    }

    fn defines(&self) -> Defines {
        let mut defines = self.types.defines();
        defines.extend(self.sampling.general_defines());
        defines.extend([
            ("ALWAYS", flag(self.always)),
            ("WIDE", flag(true)),
            ("LEVEL_CAPACITY", self.level_capacity.to_string()),
        ]);
        defines
    }
}

impl fmt::Display for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "msda-backward-value-search-{}", self.types)?;
        self.sampling.describe(f)?;
        if self.always {
            f.write_str("-always")?;
        }
        if self.level_capacity != LEVEL_CAPACITIES[0] {
            write!(f, "-levels{}", self.level_capacity)?;
        }
        Ok(())
    }
}

/// Searching all samples for each band of pixels; see kernels/msda/backward_value_bands.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bands {
    /// Element types.
    pub types: Types,
    /// How it is told where to sample.
    pub sampling: Sampling,
    /// Whether x and y of a location are adjacent and aligned as a pair.
    pub paired: bool,
}

impl Bands {
    /// Warps of a block, and its threads.
    pub(in crate::cuda::msda) const WARPS: u32 = 16;
    pub(in crate::cuda::msda) const THREADS: u32 = 32 * Self::WARPS;
    /// Samples of a level it looks at, at most: four a lane.
    pub(in crate::cuda::msda) const MOST_SAMPLES: usize = 4 * Self::THREADS as usize;

    /// Dynamic shared memory per block, for levels of so many samples: `OfWarp` of each warp, then notes and cells.
    pub(in crate::cuda::msda) fn shared_bytes(&self, samples: usize) -> u32 {
        let sums = 18 * 32 * 4;
        let rows = 16 * 32 * self.types.value.size() as u32;
        let additions = 16 * 2 * 16;
        let picked = 64 * 2;
        Self::WARPS * (sums + rows + additions + picked) + samples as u32 * (16 + 4)
    }
}

impl Recipe for Bands {
    fn entry(&self) -> &'static str {
        BANDS_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        BANDS_PARTS
    }

    fn defines(&self) -> Defines {
        let mut defines = self.types.defines();
        defines.extend(self.sampling.general_defines());
        defines.extend([("PAIRED", flag(self.paired)), smallest_capacity()]);
        defines
    }

    fn dynamic_shared(&self) -> DynamicShared {
        DynamicShared::Some
    }
}

impl fmt::Display for Bands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "msda-backward-value-bands-{}", self.types)?;
        self.sampling.describe(f)?;
        if self.paired {
            f.write_str("-paired")?;
        }
        Ok(())
    }
}

/// One lane per channel; see kernels/msda/backward_samples_channel.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SamplesChannel {
    /// Element types.
    pub types: Types,
    /// How it is told where to sample.
    pub sampling: Sampling,
    /// Maximum number of levels.
    pub level_capacity: usize,
}

impl Recipe for SamplesChannel {
    fn entry(&self) -> &'static str {
        SAMPLES_CHANNEL_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        SAMPLES_CHANNEL_PARTS
    }

    fn defines(&self) -> Defines {
        let mut defines = self.types.defines();
        defines.extend(self.sampling.general_defines());
        defines.push(("LEVEL_CAPACITY", self.level_capacity.to_string()));
        defines
    }
}

impl fmt::Display for SamplesChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "msda-backward-samples-channel-{}", self.types)?;
        self.sampling.describe(f)?;
        if self.level_capacity != LEVEL_CAPACITIES[0] {
            write!(f, "-levels{}", self.level_capacity)?;
        }
        Ok(())
    }
}

/// Sixteen bytes of channels per lane; see kernels/msda/backward_samples_gather.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SamplesGather {
    /// As in forward.
    pub gather: Gather,
    /// Whether `grad_value` is accumulated too, by atomic additions.
    pub scatter: bool,
}

impl Recipe for SamplesGather {
    fn entry(&self) -> &'static str {
        SAMPLES_GATHER_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        SAMPLES_GATHER_PARTS
    }

    fn defines(&self) -> Defines {
        let mut defines = self.gather.common_defines();
        defines.push(("SCATTER", flag(self.scatter)));
        defines.push(("GRADS_DENSE", flag(self.gather.grads_dense)));
        defines
    }
}

impl fmt::Display for SamplesGather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("msda-backward-samples-gather-")?;
        self.gather.describe(f)?;
        if self.scatter {
            f.write_str("-scatter")?;
        }
        Ok(())
    }
}

/// 16-bit channels on tensor cores; see kernels/msda/backward_samples_matrix.cu.
pub(super) struct SamplesMatrix(pub Gather);

impl Recipe for SamplesMatrix {
    fn entry(&self) -> &'static str {
        SAMPLES_MATRIX_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        SAMPLES_MATRIX_PARTS
    }

    fn defines(&self) -> Defines {
        let mut defines = self.0.common_defines();
        defines.push(("ALTERNATE", flag(self.0.alternate)));
        defines.push(("GRADS_DENSE", flag(self.0.grads_dense)));
        defines
    }
}

impl fmt::Display for SamplesMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("msda-backward-samples-matrix-")?;
        self.0.describe(f)
    }
}

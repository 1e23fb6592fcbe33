//! The kernels there are, and what each is compiled for.

use std::fmt;

use super::super::jit::{Architecture, Program};
use super::super::kernels::program;
use crate::dtype::DType;

const TYPES: &str = include_str!("../../../kernels/common/types.cuh");
const MEMORY: &str = include_str!("../../../kernels/common/memory.cuh");
const PROBLEM: &str = include_str!("../../../kernels/msda/problem.cuh");
const CHANNEL: &str = include_str!("../../../kernels/msda/forward_channel.cu");
const GATHER: &str = include_str!("../../../kernels/msda/forward_gather.cu");

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

/// One thread a channel; see kernels/msda/forward_channel.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Channel {
    /// Element types.
    pub types: Types,
    /// Whether strides count. Without them tensors are row-major and offsets fit 32 bits.
    pub strided: bool,
    /// Room for levels.
    pub level_capacity: usize,
}

/// Sixteen bytes of channels a lane; see kernels/msda/forward_gather.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gather {
    /// Element types.
    pub types: Types,
    /// Channels a head (D).
    pub channels: u32,
    /// Levels (L).
    pub levels: u32,
    /// Points a level (P).
    pub points: u32,
    /// From a pixel to the next, in units of 16 bytes.
    pub pixel_units: u32,
    /// Threads a block.
    pub threads: u32,
    /// Samples a lane works out at a time.
    pub per_lane: u32,
    /// Groups of lanes that share the samples of a row.
    pub split: u32,
    /// Heads walked side by side.
    pub heads_together: u32,
    /// Whether pixel pairs are read in an order that depends on their place.
    pub alternate: bool,
}

/// Lanes of a warp.
const WARP: u32 = 32;

impl Gather {
    /// Lanes that work on a row.
    pub fn group(&self) -> u32 {
        lanes(self.channels, self.types.value) * self.split
    }

    /// Rows a warp works on at a time.
    pub fn rows_a_warp(&self) -> u32 {
        WARP / self.group()
    }

    /// Rows a block works on at a time.
    pub fn rows_a_block(&self) -> u32 {
        self.threads / self.group()
    }
}

/// Lanes whose 16 bytes hold all channels, rounded up to a power of two.
pub(super) fn lanes(channels: u32, value: DType) -> u32 {
    (channels * value.size() as u32 / 16).next_power_of_two()
}

/// A kernel compiled for a kind of problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Specialised {
    /// Serves every problem.
    Channel(Channel),
    /// Fast, for channels that fill 16-byte vectors.
    Gather(Gather),
}

impl Specialised {
    /// Its function's name.
    pub fn entry(&self) -> &'static str {
        match self {
            Specialised::Channel(_) => "msda_forward_channel",
            Specialised::Gather(_) => "msda_forward_gather",
        }
    }

    /// The source, without what it is specialised by.
    pub fn source(&self) -> String {
        self.parts().concat()
    }

    fn parts(&self) -> Vec<&'static str> {
        match self {
            Specialised::Channel(_) => vec![TYPES, PROBLEM, CHANNEL],
            Specialised::Gather(_) => vec![TYPES, MEMORY, PROBLEM, GATHER],
        }
    }

    /// To compile for `architecture`.
    pub fn program(&self, architecture: Architecture) -> Program {
        let number = |number: u32| number.to_string();
        let flag = |flag: bool| (flag as u32).to_string();
        let types = |types: &Types| {
            [
                ("VALUE", name(types.value)),
                ("LOCATION", name(types.locations)),
                ("WEIGHT", name(types.weights)),
            ]
        };
        let mut defines = Vec::new();
        match self {
            Specialised::Channel(channel) => {
                defines.extend(types(&channel.types));
                defines.extend([
                    ("STRIDED", flag(channel.strided)),
                    (
                        "INDEX",
                        if channel.strided { "i64" } else { "u32" }.to_string(),
                    ),
                    ("LEVEL_CAPACITY", channel.level_capacity.to_string()),
                ]);
            }
            Specialised::Gather(gather) => {
                defines.extend(types(&gather.types));
                defines.extend([
                    ("CHANNELS", number(gather.channels)),
                    ("LEVELS", number(gather.levels)),
                    ("POINTS", number(gather.points)),
                    ("PIXEL_UNITS", number(gather.pixel_units)),
                    ("THREADS", number(gather.threads)),
                    ("PER_LANE", number(gather.per_lane)),
                    ("SPLIT", number(gather.split)),
                    ("HEADS_TOGETHER", number(gather.heads_together)),
                    ("ALTERNATE", flag(gather.alternate)),
                    (
                        "LEVEL_CAPACITY",
                        super::arguments::LEVEL_CAPACITIES[0].to_string(),
                    ),
                ]);
            }
        }
        program(self.to_string(), &self.parts(), &defines, architecture)
    }
}

fn name(dtype: DType) -> String {
    dtype.to_string().to_uppercase()
}

/// Short and speaking: it names cache entries too.
impl fmt::Display for Specialised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types = |f: &mut fmt::Formatter<'_>, types: &Types| {
            write!(f, "-{}", types.value)?;
            if (types.locations, types.weights) != (DType::F32, DType::F32) {
                write!(f, "-{}-{}", types.locations, types.weights)?;
            }
            Ok(())
        };
        match self {
            Specialised::Channel(channel) => {
                f.write_str("msda-forward-channel")?;
                types(f, &channel.types)?;
                if channel.strided {
                    f.write_str("-strided")?;
                }
                if channel.level_capacity != super::arguments::LEVEL_CAPACITIES[0] {
                    write!(f, "-levels{}", channel.level_capacity)?;
                }
                Ok(())
            }
            Specialised::Gather(gather) => {
                f.write_str("msda-forward-gather")?;
                types(f, &gather.types)?;
                write!(
                    f,
                    "-d{}-l{}-p{}-u{}-t{}",
                    gather.channels,
                    gather.levels,
                    gather.points,
                    gather.pixel_units,
                    gather.threads
                )?;
                if gather.split > 1 {
                    write!(f, "-split{}", gather.split)?;
                }
                Ok(())
            }
        }
    }
}

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

const CHANNEL_PARTS: &[&str] = &[TYPES, PROBLEM, CHANNEL];
const GATHER_PARTS: &[&str] = &[TYPES, MEMORY, PROBLEM, GATHER];

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
    /// Parts of the levels that warps begin at.
    pub phases: u32,
    /// Whether locations, weights and out are row-major without gaps.
    pub dense: bool,
    /// Whether pixel pairs are read in an order that depends on their place.
    pub alternate: bool,
}

/// Lanes of a warp.
const WARP: u32 = 32;

impl Gather {
    /// Lanes that work on a row.
    pub fn group(&self) -> u32 {
        (self.channels * self.types.value.size() as u32 / 16).next_power_of_two() * self.split
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

    /// Hash of its source, as [`shipped`] has it.
    pub fn source_hash(&self) -> String {
        hash(self.parts())
    }

    fn parts(&self) -> &'static [&'static str] {
        match self {
            Specialised::Channel(_) => CHANNEL_PARTS,
            Specialised::Gather(_) => GATHER_PARTS,
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
                    ("PHASES", number(gather.phases)),
                    ("DENSE", flag(gather.dense)),
                    ("ALTERNATE", flag(gather.alternate)),
                    (
                        "LEVEL_CAPACITY",
                        super::arguments::LEVEL_CAPACITIES[0].to_string(),
                    ),
                ]);
            }
        }
        program(self.to_string(), self.parts(), &defines, architecture)
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
                if !gather.dense {
                    f.write_str("-strided")?;
                }
                Ok(())
            }
        }
    }
}

/// A kernel this library ships, whatever it is specialised for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shipped {
    /// Its function's name.
    pub entry: &'static str,
    /// Hash of its source, in hexadecimal digits. Evidence that it works is kept under it.
    pub source_hash: String,
}

/// All kernels this library ships.
pub fn shipped() -> Vec<Shipped> {
    [
        ("msda_forward_channel", CHANNEL_PARTS),
        ("msda_forward_gather", GATHER_PARTS),
    ]
    .map(|(entry, parts)| Shipped {
        entry,
        source_hash: blake3::hash(parts.concat().as_bytes()).to_hex().to_string(),
    })
    .to_vec()
}

fn hash(parts: &[&str]) -> String {
    blake3::hash(parts.concat().as_bytes()).to_hex().to_string()
}

//! How many blocks a multiprocessor holds at a time, and what keeps it from holding more.

use serde::Serialize;

/// What a multiprocessor has to give, by compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiprocessor {
    /// Warps it holds.
    pub warps: u32,
    /// Blocks it holds.
    pub blocks: u32,
    /// 32-bit registers.
    pub registers: u32,
    /// Bytes of shared memory for all blocks.
    pub shared_bytes: u32,
    /// Lanes that multiply and add in f32.
    pub f32_lanes: u32,
}

/// What a block takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Block {
    /// Threads.
    pub threads: u32,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of shared memory, declared and asked for.
    pub shared_bytes: u32,
}

/// How full a multiprocessor gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Occupancy {
    /// Blocks at a time.
    pub blocks: u32,
    /// Warps at a time.
    pub warps: u32,
    /// Warps it could hold.
    pub most_warps: u32,
    /// What allows no more blocks: "registers", "shared memory", "warps", "blocks".
    pub limited_by: Vec<&'static str>,
}

const LANES: u32 = 32;
/// Registers are given to warps in pieces of this many.
const REGISTER_PIECE: u32 = 256;
/// Warps share a multiprocessor's registers by quarters.
const QUARTERS: u32 = 4;
/// Shared memory is given to blocks in pieces of this many bytes.
const SHARED_PIECE: u32 = 128;
/// Bytes of shared memory the system takes from each block.
const SHARED_RESERVED: u32 = 1024;
const MOST_THREADS: u32 = 1024;
const MOST_REGISTERS: u32 = 255;

impl Multiprocessor {
    /// Of a device of this compute capability, if it is one that the kernels are built for.
    pub fn of(capability: (u32, u32)) -> Option<Self> {
        let (warps, blocks, shared_kib, f32_lanes) = match capability {
            (8, 0) => (64, 32, 164, 64),
            (8, 6) => (48, 16, 100, 128),
            (8, 9) => (48, 24, 100, 128),
            (9, 0) | (10, 0 | 3) => (64, 32, 228, 128),
            (12, 0 | 1) => (48, 24, 100, 128),
            _ => return None,
        };
        Some(Multiprocessor {
            warps,
            blocks,
            registers: 1 << 16,
            shared_bytes: shared_kib << 10,
            f32_lanes,
        })
    }

    /// Most shared memory of a block.
    pub fn shared_bytes_a_block(&self) -> u32 {
        self.shared_bytes - SHARED_RESERVED
    }

    /// How many such blocks it holds; none if not even one.
    pub fn holds(&self, block: Block) -> Option<Occupancy> {
        let Block {
            threads,
            registers,
            shared_bytes,
        } = block;
        if !(1..=MOST_THREADS).contains(&threads) || registers > MOST_REGISTERS {
            return None;
        }
        let warps = threads.div_ceil(LANES);
        let registers_a_warp = (registers.max(1) * LANES).next_multiple_of(REGISTER_PIECE);
        let warps_by_registers = self.registers / QUARTERS / registers_a_warp * QUARTERS;
        let shared = shared_bytes
            .checked_add(SHARED_RESERVED)?
            .checked_next_multiple_of(SHARED_PIECE)?;
        let limits = [
            ("warps", self.warps / warps),
            ("registers", warps_by_registers / warps),
            ("shared memory", self.shared_bytes / shared),
            ("blocks", self.blocks),
        ];
        let blocks = limits.iter().map(|&(_, blocks)| blocks).min()?;
        let limiting = limits.iter().filter(|&&(_, allowed)| allowed == blocks);
        let limited_by = limiting.map(|&(name, _)| name).collect();
        (blocks > 0).then_some(Occupancy {
            blocks,
            warps: blocks * warps,
            most_warps: self.warps,
            limited_by,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(
        capability: (u32, u32),
        threads: u32,
        registers: u32,
        shared_bytes: u32,
    ) -> Option<(u32, String)> {
        let block = Block {
            threads,
            registers,
            shared_bytes,
        };
        let occupancy = Multiprocessor::of(capability).unwrap().holds(block)?;
        assert_eq!(occupancy.warps, occupancy.blocks * threads.div_ceil(32));
        assert!(occupancy.warps <= occupancy.most_warps);
        Some((occupancy.blocks, occupancy.limited_by.join(" and ")))
    }

    #[test]
    fn known_cases_come_out_as_the_driver_says() {
        let cases = [
            ((9, 0), 256, 64, 0, (4, "registers")),
            ((9, 0), 896, 72, 28_736, (1, "registers")),
            ((9, 0), 256, 32, 0, (8, "warps and registers")),
            ((9, 0), 32, 16, 0, (32, "blocks")),
            ((9, 0), 128, 32, 100 << 10, (2, "shared memory")),
            ((9, 0), 128, 32, 227 << 10, (1, "shared memory")),
            ((9, 0), 1024, 64, 0, (1, "registers")),
            ((8, 0), 256, 32, 0, (8, "warps and registers")),
            ((8, 0), 128, 32, 48 << 10, (3, "shared memory")),
            ((8, 6), 256, 32, 0, (6, "warps")),
            ((8, 6), 64, 32, 0, (16, "blocks")),
            ((8, 9), 64, 32, 0, (24, "warps and blocks")),
            ((10, 0), 896, 72, 28_736, (1, "registers")),
            ((12, 0), 896, 72, 28_736, (1, "warps and registers")),
            ((12, 0), 128, 40, 48 << 10, (2, "shared memory")),
        ];
        for (capability, threads, registers, shared, expected) in cases {
            assert_eq!(
                held(capability, threads, registers, shared),
                Some((expected.0, expected.1.to_string())),
                "{threads} threads, {registers} registers, {shared} bytes on {capability:?}"
            );
        }
    }

    #[test]
    fn a_block_that_does_not_fit_is_held_nowhere() {
        for (threads, registers, shared) in [
            (1024, 72, 0),
            (128, 32, 228 << 10),
            (1025, 16, 0),
            (0, 16, 0),
            (32, 256, 0),
            (32, 16, u32::MAX),
        ] {
            assert_eq!(held((9, 0), threads, registers, shared), None);
        }
    }

    #[test]
    fn other_devices_are_not_guessed() {
        assert_eq!(Multiprocessor::of((7, 5)), None);
        assert_eq!(Multiprocessor::of((13, 0)), None);
    }
}

//! AMX: products of bf16 matrices in tile registers. By inline assembly, because the compiler has no stable functions for
//! them, and each product in one block of it, because the compiler does not know that tiles keep their contents.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::marker::PhantomData;

use crate::lock_free::List;

/// Rows of a tile, and the sums of f32 or pairs of bf16 in one of its rows.
pub const SIDE: usize = 16;

/// Rows and columns of a product: two tiles by two, which with two on either side fill the eight registers.
pub const PRODUCT: usize = 2 * SIDE;

/// Bytes of a row of a tile.
pub const ROW_BYTES: usize = 64;

/// Whether this processor multiplies tiles of bf16 and this system lets the process do so. It is asked once.
pub fn is_available() -> bool {
    static AVAILABLE: List<bool> = List::new();
    *AVAILABLE.get_or_init(|| has_instructions() && saves_tiles() && is_permitted())
}

// To compilers newer than `rust-version` the functions are safe.
#[allow(unused_unsafe)]
fn has_instructions() -> bool {
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    // SAFETY: every processor of this architecture has the instruction.
    unsafe { __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & (BF16 | TILE) == BF16 | TILE }
}

/// Whether the system keeps tiles and their configuration for each thread.
fn saves_tiles() -> bool {
    const XSAVE: u32 = 1 << 27;
    const TILES: u64 = 0b11 << 17;
    // SAFETY: every processor of this architecture has the first instruction, and the second one where the system has
    // switched XSAVE on.
    unsafe { __cpuid(1).ecx & XSAVE != 0 && extended_state() & TILES == TILES }
}

/// What the system saves for each thread.
///
/// # Safety
/// The system has switched XSAVE on.
#[target_feature(enable = "xsave")]
unsafe fn extended_state() -> u64 {
    // SAFETY: register 0 exists wherever the instruction does.
    unsafe { _xgetbv(0) }
}

/// Asks Linux for tiles: a thread's state grows by 8 KiB, so a process has to. The answer holds for all its threads.
fn is_permitted() -> bool {
    const ARCH_PRCTL: isize = 158;
    const REQUEST_PERMISSION: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: a system call that reads and writes no memory of the process; `syscall` overwrites rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") result,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// This thread's tile registers, ready for [`Product::compute`] and as costly to save as they are large; given back when
/// dropped.
pub struct Tiles {
    /// They are those of a thread.
    of_this_thread: PhantomData<*const ()>,
}

#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// All eight registers with 16 rows of 64 bytes.
static WHOLE_TILES: Configuration = {
    let mut configuration = Configuration {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    let mut tile = 0;
    while tile < 8 {
        configuration.row_bytes[tile] = ROW_BYTES as u16;
        configuration.rows[tile] = SIDE as u8;
        tile += 1;
    }
    configuration
};

impl Tiles {
    /// # Panics
    /// Where AMX is not available.
    pub fn of_this_thread() -> Self {
        assert!(is_available(), "AMX where there is none");
        // SAFETY: the instruction exists, is permitted, and reads the 64 bytes of a valid configuration.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &WHOLE_TILES, options(nostack, readonly, preserves_flags));
        }
        Tiles {
            of_this_thread: PhantomData,
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        let PhantomData = self.of_this_thread;
        // SAFETY: the instruction exists, or there would be no `Tiles`.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// Where the operands of a step of a product are, in bytes after the first of either side.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Step {
    pub left: usize,
    pub right: usize,
}

/// `left`, 32 rows of bf16, times `right`, 32 columns: a sum over steps of 32 numbers each. The right side's tiles have a
/// row for two of these numbers, both of a column beside each other. Products are exact, sums are f32 rounded to nearest;
/// what would not be a normal number counts as 0.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    pub left: *const u8,
    /// Bytes from a row to the next.
    pub left_row: usize,
    /// Bytes from the first row to the seventeenth.
    pub left_tile: usize,
    /// The tile of the first 16 columns of a step; that of the others follows it.
    pub right: *const u8,
    /// The sums, row by row.
    pub out: *mut f32,
    /// Bytes from a row to the next.
    pub out_row: usize,
    pub steps: &'a [Step],
}

impl Product<'_> {
    /// Stores the product, or adds it to the sums that are there.
    ///
    /// # Safety
    /// All operands are readable, the sums readable and writable.
    #[inline(always)]
    pub unsafe fn compute<const ADDED: bool>(&self, _: &Tiles) {
        if self.steps.is_empty() && ADDED {
            return;
        }
        let steps = self.steps.as_ptr_range();
        // SAFETY: the tiles are configured, as there are `Tiles`; addresses are as the caller promises.
        unsafe {
            asm!(
                "mov {at}, {out_row}",
                "shl {at}, 4",
                "add {at}, {out}",
                "test {other}, {other}",
                "jnz 2f",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "jmp 3f",
                "2:",
                "tileloadd tmm0, [{out} + {out_row}]",
                "tileloadd tmm1, [{out} + {out_row} + 64]",
                "tileloadd tmm2, [{at} + {out_row}]",
                "tileloadd tmm3, [{at} + {out_row} + 64]",
                "3:",
                "cmp {step}, {end}",
                "je 5f",
                "4:",
                "mov {at}, qword ptr [{step}]",
                "add {at}, {left}",
                "tileloadd tmm4, [{at} + {left_row}]",
                "mov {other}, qword ptr [{step} + 8]",
                "add {other}, {right}",
                "tileloadd tmm6, [{other} + {right_row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{other} + {right_row} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "add {at}, {left_tile}",
                "tileloadd tmm5, [{at} + {left_row}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {step}, 16",
                "cmp {step}, {end}",
                "jne 4b",
                "5:",
                "mov {at}, {out_row}",
                "shl {at}, 4",
                "add {at}, {out}",
                "tilestored [{out} + {out_row}], tmm0",
                "tilestored [{out} + {out_row} + 64], tmm1",
                "tilestored [{at} + {out_row}], tmm2",
                "tilestored [{at} + {out_row} + 64], tmm3",
                out = in(reg) self.out,
                out_row = in(reg) self.out_row,
                step = inout(reg) steps.start => _,
                end = in(reg) steps.end,
                left = in(reg) self.left,
                left_row = in(reg) self.left_row,
                left_tile = in(reg) self.left_tile,
                right = in(reg) self.right,
                right_row = in(reg) ROW_BYTES,
                at = out(reg) _,
                other = inout(reg) u64::from(ADDED) => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::bf16;

    #[test]
    fn products_of_whole_numbers_are_exact() {
        if !is_available() {
            return;
        }
        const STEPS: usize = 3;
        const DEPTH: usize = 2 * SIDE * STEPS;
        let left = |row: usize, k: usize| ((row * 7 + k * 3) % 17) as f32 - 8.0;
        let right = |k: usize, column: usize| ((k * 5 + column * 11) % 13) as f32 - 6.0;
        let mut lefts = vec![bf16::ZERO; PRODUCT * DEPTH];
        let mut rights = vec![bf16::ZERO; DEPTH * PRODUCT];
        for k in 0..DEPTH {
            for i in 0..PRODUCT {
                lefts[i * DEPTH + k] = bf16::from_f32(left(i, k));
                let tile = k / 32 * 2 + i / SIDE;
                let place = tile * 2 * SIDE * SIDE + (k % 32 / 2 * SIDE + i % SIDE) * 2 + k % 2;
                rights[place] = bf16::from_f32(right(k, i));
            }
        }
        let steps: Vec<_> = (0..STEPS)
            .map(|step| Step {
                left: step * ROW_BYTES,
                right: step * 2 * SIDE * ROW_BYTES,
            })
            .collect();
        let mut sums = vec![f32::NAN; PRODUCT * PRODUCT];
        let mut product = Product {
            left: lefts.as_ptr().cast(),
            left_row: DEPTH * size_of::<bf16>(),
            left_tile: SIDE * DEPTH * size_of::<bf16>(),
            right: rights.as_ptr().cast(),
            out: sums.as_mut_ptr(),
            out_row: PRODUCT * size_of::<f32>(),
            steps: &steps,
        };
        let tiles = Tiles::of_this_thread();
        // SAFETY: both sides and the sums have room for all steps.
        unsafe { product.compute::<false>(&tiles) };
        product.steps = &steps[1..2];
        // SAFETY: as above.
        unsafe { product.compute::<true>(&tiles) };
        for row in 0..PRODUCT {
            for column in 0..PRODUCT {
                let terms = (0..DEPTH).chain(32..64);
                let expected: f32 = terms.map(|k| left(row, k) * right(k, column)).sum();
                assert_eq!(sums[row * PRODUCT + column], expected, "{row}, {column}");
            }
        }
    }
}

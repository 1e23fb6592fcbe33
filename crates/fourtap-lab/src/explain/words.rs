//! Kernels and numbers for people.

use std::fmt::Write;

use super::KernelUse;

/// A kernel, its launch and what it takes.
pub fn kernel_in_words(kernel: &KernelUse) -> String {
    let KernelUse {
        name,
        blocks,
        threads,
        taken,
        occupancy,
        ..
    } = kernel;
    let mut text = format!("{name}: {blocks} blocks of {threads} threads");
    match taken {
        None => {
            text += "; registers and shared memory unknown: no compiler (NVRTC), and not in kernels/table.txt";
        }
        Some(taken) => {
            let _ = write!(
                text,
                "; {} registers, {} bytes of shared memory",
                taken.registers, taken.shared_bytes
            );
            if taken.stack_bytes > 0 {
                let _ = write!(text, ", {} bytes of stack", taken.stack_bytes);
            }
            let _ = write!(text, " ({})", taken.source);
        }
    }
    if let Some(occupancy) = occupancy {
        let share = 100.0 * f64::from(occupancy.warps) / f64::from(occupancy.most_warps);
        let _ = write!(
            text,
            ": {} per multiprocessor, {} of {} warps ({share:.0} %), limited by {}",
            match occupancy.blocks {
                1 => "1 block".to_string(),
                blocks => format!("{blocks} blocks"),
            },
            occupancy.warps,
            occupancy.most_warps,
            occupancy.limited_by.join(" and ")
        );
    }
    text + "."
}

/// "1 head", "2 heads".
pub fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// A count in millions or billions.
pub fn count(number: f64) -> String {
    match number {
        n if n >= 1e9 => format!("{:.2} billion", n / 1e9),
        n if n >= 1e6 => format!("{:.1} million", n / 1e6),
        n => format!("{n:.0}"),
    }
}

/// Milliseconds in the unit that suits them.
pub fn time(milliseconds: f64) -> String {
    match milliseconds {
        long if long >= 1.0 => format!("{long:.2} ms"),
        short if short >= 0.01 => format!("{:.0} us", short * 1e3),
        tiny => format!("{:.2} us", tiny * 1e3),
    }
}

/// Bytes in the unit that suits them.
pub fn bytes(count: f64) -> String {
    crate::units::bytes(count.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_short() {
        assert_eq!(count(23_688_192.0), "23.7 million");
        assert_eq!(count(7.58e9), "7.58 billion");
        assert_eq!(count(12.0), "12");
    }
}

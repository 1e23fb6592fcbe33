//! Human-readable sizes and times.

use std::time::Duration;

/// Units and their factors; sorted so that no unit hides a longer one.
const BYTES: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
    ("", 1),
];

const SECONDS: [(&str, u64); 5] = [
    ("s", 1),
    ("m", 60),
    ("h", 60 * 60),
    ("d", 24 * 60 * 60),
    ("w", 7 * 24 * 60 * 60),
];

/// Bytes from "100MB", "1.5GiB" or "4096".
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    parse(text, &BYTES).ok_or_else(|| "expected a size such as 100MB, 1.5GiB or 4096".to_string())
}

/// A time from "30d", "12h", "90m" or "45s".
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    parse(text, &SECONDS)
        .map(Duration::from_secs)
        .ok_or_else(|| "expected a time such as 30d, 12h, 90m or 45s".to_string())
}

/// The number times its unit, if that can be counted.
fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = |c: char| c.is_ascii_digit() || c == '.';
    let unit = text.trim_start_matches(digits);
    let number: f64 = text[..text.len() - unit.len()].parse().ok()?;
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim())?;
    let product = number * *factor as f64;
    // Beyond 2^53 a float is no longer exact, and no such size or time makes sense.
    (product <= (1u64 << 53) as f64).then_some(product as u64)
}

/// A human-readable number of bytes.
pub fn bytes(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} B"),
        1_000..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.1} GB", count as f64 / 1e9),
    }
}

/// A human-readable amount of memory.
pub fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}

/// A version such as "13.0".
pub fn dotted((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}

/// "1 kernel", "2 kernels".
pub fn kernels(count: usize) -> String {
    format!("{count} kernel{}", if count == 1 { "" } else { "s" })
}

/// How long ago, in the largest unit that fits.
pub fn age(since: Duration) -> String {
    let seconds = since.as_secs();
    let unit = SECONDS[..4].iter().rev().find(|(_, unit)| seconds >= *unit);
    match unit {
        Some((name, unit)) => format!("{} {name}", seconds / unit),
        None => "0 s".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_sizes() {
        let right = [
            ("4096", 4096),
            ("0", 0),
            ("12B", 12),
            ("100MB", 100_000_000),
            ("1.5 GiB", 3 << 29),
            ("2kB", 2000),
        ];
        for (text, expected) in right {
            assert_eq!(parse_bytes(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "MB",
            "-1",
            "1TB",
            "1e3",
            "1..2",
            "99999999999999999999",
            "NaN",
            "inf",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn reads_times() {
        let hours = |hours: u64| Ok(Duration::from_secs(3600 * hours));
        assert_eq!(parse_duration("30d"), hours(30 * 24));
        assert_eq!(parse_duration("1.5h"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("2w"), hours(14 * 24));
        for text in ["", "30", "d", "-1d", "1y"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn says_sizes_and_ages() {
        let said = [999, 1500, 2_500_000, 3_000_000_000].map(bytes);
        assert_eq!(said, ["999 B", "1.5 kB", "2.5 MB", "3.0 GB"]);
        let said = [0, 59, 61, 7200, 1_000_000].map(|s| age(Duration::from_secs(s)));
        assert_eq!(said, ["0 s", "59 s", "1 m", "2 h", "11 d"]);
    }
}

//! Numbers as the report writes them. What is not a number, or cannot be one, is a dash.

use crate::table;

/// What stands where there is no number.
pub const DASH: &str = "–";

/// Between groups of three digits: narrow, and never at the end of a line.
const GROUP: char = '\u{202f}';

/// Milliseconds, as in the tables of `fourtap bench`.
pub fn milliseconds(time: f64) -> String {
    match time {
        time if !time.is_finite() => DASH.to_string(),
        time if (1e-5..1e6).contains(&time) => table::milliseconds(time),
        time => format!("{time:.2e}"),
    }
}

/// How many times as fast.
pub fn times(ratio: f64) -> String {
    match ratio {
        ratio if !ratio.is_finite() => DASH.to_string(),
        ratio if (0.0..1.0).contains(&ratio) => format!("{ratio:.2}"),
        ratio if (1.0..100.0).contains(&ratio) => format!("{ratio:.1}"),
        ratio => grouped(ratio),
    }
}

/// A ratio near one.
pub fn ratio(ratio: f64) -> String {
    match ratio.is_finite() && ratio.abs() < 1e4 {
        true => format!("{ratio:.3}"),
        false => times(ratio),
    }
}

/// A share in percent, with a digit behind the point where it is small.
pub fn percent(share: f64) -> String {
    match 100.0 * share {
        percent if !percent.is_finite() => DASH.to_string(),
        percent if percent.abs() < 10.0 => format!("{percent:.1} %"),
        percent => format!("{} %", grouped(percent)),
    }
}

/// A rate: three digits that matter or all before the point.
pub fn rate(rate: f64) -> String {
    match rate {
        rate if !rate.is_finite() => DASH.to_string(),
        rate if rate.abs() >= 100.0 => grouped(rate),
        rate if rate.abs() >= 10.0 => format!("{rate:.1}"),
        rate if rate.abs() >= 0.01 || rate == 0.0 => format!("{rate:.2}"),
        rate => format!("{rate:.1e}"),
    }
}

/// Gigabytes a second, in TB/s where there are thousands.
pub fn bandwidth(gigabytes: f64) -> String {
    match gigabytes >= 1e3 {
        true => format!("{} TB/s", rate(gigabytes / 1e3)),
        false => format!("{} GB/s", rate(gigabytes)),
    }
}

/// Billions of operations per second, in TFLOP/s where there are thousands.
pub fn operations(giga: f64) -> String {
    match giga >= 1e3 {
        true => format!("{} TFLOP/s", rate(giga / 1e3)),
        false => format!("{} GFLOP/s", rate(giga)),
    }
}

/// A distance to the oracle.
pub fn error(error: f64) -> String {
    match error.is_finite() {
        true => format!("{error:.1e}"),
        false => DASH.to_string(),
    }
}

/// "1 result", "2 results".
pub fn counted(count: usize, noun: &str) -> String {
    counted_as(count, noun, &format!("{noun}s"))
}

/// Likewise, of what has a plural of its own.
pub fn counted_as(count: usize, one: &str, several: &str) -> String {
    let noun = if count == 1 { one } else { several };
    format!("{} {noun}", grouped(count as f64))
}

/// Several names, of which only the first so many are said.
pub fn listed(names: &[impl AsRef<str>], most: usize) -> String {
    let shown: Vec<&str> = names.iter().take(most).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(most) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The middle of some numbers; none of none.
pub fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.retain(|number| number.is_finite());
    numbers.sort_by(f64::total_cmp);
    let count = numbers.len();
    (count > 0).then(|| (numbers[(count - 1) / 2] + numbers[count / 2]) / 2.0)
}

/// Without a fraction, in groups of three digits.
pub fn grouped(number: f64) -> String {
    if number.abs() >= 1e9 {
        return format!("{number:.2e}");
    }
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    if number < 0.0 {
        text.push('-');
    }
    for (place, digit) in digits.chars().enumerate() {
        // Four digits are read at a glance.
        if place > 0 && (digits.len() - place).is_multiple_of(3) && digits.len() > 4 {
            text.push(GROUP);
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_a_dash_and_extremes_stay_short() {
        for write in [milliseconds, times, ratio, percent, rate, error] {
            for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                assert_eq!(write(number), DASH);
            }
            for number in [0.0, 5e-324, 1e-300, 1e-3, 1.0, 1e9, 1e300, f64::MAX, -1e12] {
                let text = write(number);
                assert!(text.chars().count() <= 13, "{number:e}: {text}");
            }
        }
    }

    #[test]
    fn digits_come_in_groups() {
        assert_eq!(grouped(1234.0), "1234");
        assert_eq!(grouped(12813.4), "12\u{202f}813");
        assert_eq!(rate(22063.6), "22\u{202f}064");
        assert_eq!(times(5.81), "5.8");
        assert_eq!(percent(0.0123), "1.2 %");
    }

    #[test]
    fn the_middle_of_nothing_is_nothing() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![f64::NAN]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0, 10.0]), Some(2.5));
    }
}

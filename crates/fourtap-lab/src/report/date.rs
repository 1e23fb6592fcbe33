//! When something was measured, for people.

/// A moment as "2026-11-15 10:30 UTC".
pub fn date(unix_time: u64) -> String {
    let (days, seconds) = (unix_time / 86_400, unix_time % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute) = (seconds / 3600, seconds / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// From the first moment to the last; the day is said once if it is the same.
pub fn period(first: u64, last: u64) -> String {
    let (begin, end) = (date(first), date(last));
    match (begin.split_once(' '), end.split_once(' ')) {
        _ if begin == end => begin,
        (Some((day, from)), Some((same, to))) if day == same => {
            format!("{day} {} to {to}", from.trim_end_matches(" UTC"))
        }
        _ => format!("{} to {end}", begin.trim_end_matches(" UTC")),
    }
}

/// The Gregorian date so many days after 1970-01-01. Years begin in March here, so that a leap day is the last of its
/// year and months need no table.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_794_738_517), "2026-11-15 10:28 UTC");
        assert_eq!(date(4_107_542_399), "2100-02-28 23:59 UTC");
        assert_eq!(date(4_107_542_400), "2100-03-01 00:00 UTC");
        assert!(date(u64::MAX).ends_with("UTC"));
    }

    #[test]
    fn a_day_is_said_once() {
        assert_eq!(period(0, 30), "1970-01-01 00:00 UTC");
        assert_eq!(period(0, 3660), "1970-01-01 00:00 to 01:01 UTC");
        assert_eq!(
            period(0, 90_000),
            "1970-01-01 00:00 to 1970-01-02 01:00 UTC"
        );
    }
}

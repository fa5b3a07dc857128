use std::time::{SystemTime, UNIX_EPOCH};

const DAY: u64 = 24 * 60 * 60;

/// A moment as RFC 3339 text in UTC, to the second: `2026-11-30T15:04:05Z`.
/// Moments before 1970 give 1970.
pub fn utc(moment: SystemTime) -> String {
    let seconds = moment.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (year, month, day) = civil(seconds / DAY);
    let of_day = seconds % DAY;
    let (h, m, s) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}Z")
}

/// Gregorian date of a day, counted from 1970-01-01.
fn civil(mut day: u64) -> (u64, usize, u64) {
    let mut year = 1970;
    while day >= days_of(year) {
        day -= days_of(year);
        year += 1;
    }
    let months = months_of(year);
    let mut month = 0;
    while day >= months[month] {
        day -= months[month];
        month += 1;
    }
    (year, month + 1, day + 1)
}

/// Whether the text is a day of the Gregorian calendar, as `YYYY-MM-DD`.
pub(crate) fn is_day(text: &str) -> bool {
    let number = |from: usize, to: usize| {
        let digits = text.get(from..to)?;
        let all_digits = digits.bytes().all(|b| b.is_ascii_digit());
        all_digits.then(|| digits.parse::<u64>().ok()).flatten()
    };
    let separated = text.len() == 10 && text.get(4..5) == Some("-") && text.get(7..8) == Some("-");
    match (number(0, 4), number(5, 7), number(8, 10)) {
        (Some(year), Some(month @ 1..=12), Some(day)) => {
            let longest = months_of(year)[month as usize - 1];
            separated && (1..=longest).contains(&day)
        }
        _ => false,
    }
}

fn months_of(year: u64) -> [u64; 12] {
    let february = days_of(year) - 337;
    [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
}

fn days_of(year: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    if leap { 366 } else { 365 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn days_are_days_of_the_calendar() {
        for day in ["2026-11-30", "2000-02-29", "2024-02-29"] {
            assert!(is_day(day), "{day}");
        }
        for none in [
            "",
            "2026-11-31",
            "2100-02-29",
            "2026-13-01",
            "2026-00-10",
            "2026-01-00",
            "2026-1-010",
            "26-11-30",
            "2026/11/30",
            "2026-11-30T",
            "+026-11-30",
            "yesterday!",
            "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}",
        ] {
            assert!(!is_day(none), "{none}");
        }
    }

    #[test]
    fn known_moments() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_798_675_199, "2026-12-30T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}

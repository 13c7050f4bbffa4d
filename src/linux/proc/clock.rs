//! Current time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the time since 1970; zero on a node whose clock is before that.
pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the same in whole seconds, as in records.
pub fn seconds() -> u64 {
    since_1970().as_secs()
}

/// Returns the time since boot in nanoseconds, including sleep of the node: the same for all
/// processes of the node, and never set back.
pub fn since_boot() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map(Duration::from);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

/// Returns the current time as in every log line: RFC 3339, in UTC, with milliseconds.
pub fn now() -> String {
    timestamp(since_1970())
}

/// Formats a time since 1970 in the same way.
///
/// ```
/// # use flexvol_linux::proc::clock::timestamp;
/// # use std::time::Duration;
/// assert_eq!(timestamp(Duration::from_millis(951_782_400_007)), "2000-02-29T00:00:00.007Z");
/// ```
pub fn timestamp(since_1970: Duration) -> String {
    let (seconds, millis) = (since_1970.as_secs(), since_1970.subsec_millis());
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Returns the date in the Gregorian calendar, `days` after 1970-01-01.
/// Years begin in March here, so that February, whose length varies, comes last.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970: u64 = 719_468;
    const IN_400_YEARS: u64 = 146_097;
    let days = days + DAYS_TO_1970;
    let (era, day_of_era) = (days / IN_400_YEARS, days % IN_400_YEARS);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    (year, month, day_of_year - (153 * from_march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calendar_is_gregorian() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_868_799, "2000-02-29T23:59:59.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_795_243_218, "2026-11-21T06:40:18.000Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(timestamp(Duration::from_secs(seconds)), expected);
        }
    }
}

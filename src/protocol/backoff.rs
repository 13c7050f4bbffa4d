//! Pauses between attempts.

use std::time::Duration;

/// Returns the pause after this number of failed attempts that came before the last one: the first
/// pause, doubled each time, up to the longest.
pub fn backoff(first: Duration, longest: Duration, failures: u32) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(failures)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pause_is_twice_as_long_as_the_one_before() {
        let pauses = [0, 1, 2, 3, u32::MAX].map(|failures| {
            backoff(Duration::from_millis(500), Duration::from_secs(3), failures).as_millis()
        });
        assert_eq!(pauses, [500, 1000, 2000, 3000, 3000]);
    }
}

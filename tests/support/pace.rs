//! Deadlines of tests, which end what hangs and judge nothing: no test depends on how fast the
//! machine is. `tests/run` measures once how slow the machine is and exports the factor as
//! `FLEXVOL_SLOWDOWN`; the shell tests multiply by the same variable.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::sync::LazyLock;
use std::time::Duration;

/// How many times slower this machine is than an idle one of two cores: at least 1, and 1 where
/// `tests/run` has not measured it.
static SLOWDOWN: LazyLock<u64> = LazyLock::new(|| {
    let measured = std::env::var("FLEXVOL_SLOWDOWN").ok().and_then(|text| text.parse().ok());
    measured.unwrap_or(1).max(1)
});

/// Deadline of `seconds` on an idle machine, longer on a slow one. Give at least four times what
/// the thing takes.
pub(crate) fn deadline(seconds: u64) -> Duration {
    Duration::from_secs(slow_seconds(seconds))
}

/// The same as a number, for a deadline that a test writes into a side file or an option.
pub(crate) fn slow_seconds(seconds: u64) -> u64 {
    seconds * *SLOWDOWN
}

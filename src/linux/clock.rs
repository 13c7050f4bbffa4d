//! What time it is.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time since 1970; zero on a node whose clock is before that.
pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The same in whole seconds, as records keep it.
pub fn seconds() -> u64 {
    since_1970().as_secs()
}

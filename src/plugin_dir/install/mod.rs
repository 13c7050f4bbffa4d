//! Putting a driver into the plugin directory.

pub mod plan;
pub mod wishes;

//! What a FlexVolume driver and its volumes are called in CSI, where `flexvold csi` serves them.

pub mod handle;
pub mod name;

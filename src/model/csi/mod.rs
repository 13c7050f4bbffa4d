//! What a FlexVolume driver and its volumes are called in CSI, where `flexvold csi` serves them;
//! and a CSI driver's volume behind FlexVolume.

pub mod handle;
pub mod name;
pub mod volume;

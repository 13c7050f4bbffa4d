//! CSI names of FlexVolume drivers and their volumes, which `flexvold csi` serves; and volumes of
//! CSI drivers behind FlexVolume.

pub mod handle;
pub mod name;
pub mod volume;

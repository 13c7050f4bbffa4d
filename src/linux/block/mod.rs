//! Block devices and their content.

pub mod blank;
pub mod block_device;
pub mod block_status;
pub mod device_mapper;
pub mod disk_image;
mod ext_superblock;
pub mod format;
pub mod image_file;
pub mod iscsi;
pub mod loop_device;
pub mod nbd;
pub mod other_devices;
pub mod partition;
pub mod qmp;
pub mod rbd;
pub mod signature;
pub mod window;

//! The only place that touches the operating system.
//!
//! Everything here is told what to do and knows nothing of drivers, verbs or pods. Errors are
//! [`anyhow::Error`] with the action as context; where a caller has to branch, there is a
//! [`flexvol_protocol::failure::Failure`] in the chain.

pub mod append;
pub mod bare_root;
pub mod blank;
pub mod block_device;
pub mod block_status;
pub mod bytes;
pub mod clock;
pub mod daemon;
pub mod deadline;
pub mod device_mapper;
pub mod directory;
pub mod disk_image;
pub mod errno;
pub mod exec_dir;
pub mod exec_watch;
pub mod ext_superblock;
pub mod files;
pub mod fingerprint;
pub mod format;
mod generic_netlink;
pub mod helper;
pub mod host;
pub mod image_file;
pub mod inotify;
pub mod iscsi;
pub mod kernel_module;
pub mod lease;
pub mod limits;
pub mod listing;
pub mod lock;
pub mod loop_device;
pub mod memory;
pub mod mount;
pub mod mount_health;
pub mod mount_table;
pub mod namespace;
pub mod nbd;
pub mod network;
pub mod openat_beneath;
mod orphans;
pub mod partition;
pub mod place;
pub mod private;
mod proc_mem;
pub mod process;
pub mod process_table;
pub mod progress;
pub mod qmp;
pub mod raw;
pub mod rbd;
pub mod reaper;
pub mod reply_pipe;
pub mod root;
pub mod sandbox;
pub mod scope;
pub mod signal;
pub mod signature;
mod supervise;

pub mod users;
pub mod watch_tree;
pub mod window;

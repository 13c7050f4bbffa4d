//! Files and directories.

pub mod append;
pub mod bytes;
pub mod directory;
pub mod exec_dir;
pub mod files;
pub mod fingerprint;
pub mod inotify;
pub mod lease;
pub mod listing;
pub mod lock;
pub mod of_root;
pub mod openat_beneath;
pub mod opened;
pub mod private;
pub mod root;
pub mod watch_tree;

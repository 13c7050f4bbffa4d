//! Every FlexVolume driver a Kubernetes node needs, in one static binary.
pub mod cli;
pub mod driver;
pub mod drivers;
pub mod executor;
pub mod failure;
pub mod file_system;
pub mod mkfs_options;
pub mod mount_options;
pub mod multicall;
pub mod plan;
pub mod policy;
pub mod protocol;
pub mod quantity;
pub mod schema;
pub mod secret;
pub mod settings;
pub mod skeleton;
pub mod sys;
pub mod volume_dir;

/// What `bin/flexvol.rs` calls.
pub fn main() -> std::process::ExitCode {
    multicall::main(std::env::args_os().collect())
}

//! The daemon for clusters: FlexVolume drivers served as CSI drivers.

/// What a request has freed holds no secret any more.
#[global_allocator]
static MEMORY: flexvol_linux::proc::memory::Wiping = flexvol_linux::proc::memory::Wiping;

fn main() -> std::process::ExitCode {
    flexvol_cluster::main(&std::env::args_os().collect::<Vec<_>>())
}

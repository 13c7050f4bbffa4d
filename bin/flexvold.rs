//! The daemon for clusters: FlexVolume drivers served as CSI drivers.

/// Allocator that wipes freed memory: no secret of a request stays in it.
#[global_allocator]
static MEMORY: flexvol_linux::proc::memory::Wiping = flexvol_linux::proc::memory::Wiping;

fn main() -> std::process::ExitCode {
    flexvol_cluster::main(&std::env::args_os().collect::<Vec<_>>())
}

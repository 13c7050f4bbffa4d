//! The one executable: kubelet's drivers and the admin's command line.

/// Allocator that wipes freed memory: no secret of a call stays in it.
#[global_allocator]
static MEMORY: flexvol_linux::proc::memory::Wiping = flexvol_linux::proc::memory::Wiping;

fn main() -> std::process::ExitCode {
    flexvol::main()
}

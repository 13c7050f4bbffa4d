//! The one executable: kubelet's drivers and the admin's command line.

/// What a verb has freed holds no secret any more.
#[global_allocator]
static MEMORY: flexvol_linux::proc::memory::Wiping = flexvol_linux::proc::memory::Wiping;

fn main() -> std::process::ExitCode {
    flexvol::main()
}

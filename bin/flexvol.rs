//! The one executable: kubelet's drivers and the admin's command line.

fn main() -> std::process::ExitCode {
    flexvol::main()
}

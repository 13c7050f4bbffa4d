//! The kit for authors and reviewers of drivers: does to a driver what kubelet does.

fn main() -> std::process::ExitCode {
    flexvol_kit::cli::main(&std::env::args_os().collect::<Vec<_>>())
}

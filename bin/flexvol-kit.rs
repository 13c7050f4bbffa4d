//! Kit for authors and reviewers of drivers: it exercises a driver as kubelet would.

fn main() -> std::process::ExitCode {
    flexvol_kit::cli::main(&std::env::args_os().collect::<Vec<_>>())
}

//! Links release programs without the unwind tables, which only a program that unwinds needs
//! (bin/no-unwind.ld): part of the build script of each package that has a program.

use std::env;

/// Passes the linker's arguments to cargo, for all programs of this package; `root` is the
/// workspace's directory. Reports whether they apply: without musl, the distribution's own linker
/// is used, whichever it is.
pub(crate) fn without_unwinding(root: &str) -> bool {
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    println!("cargo::rerun-if-changed={root}/bin/no-unwind.ld");
    let applies = is("PROFILE", "release") && is("CARGO_CFG_TARGET_ENV", "musl");
    if applies {
        println!("cargo::rustc-link-arg-bins=-T{root}/bin/no-unwind.ld");
        println!("cargo::rustc-link-arg-bins=-Wl,--no-eh-frame-hdr");
    }
    applies
}

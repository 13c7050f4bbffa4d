//! How the release programs are linked: without the tables that only a program that unwinds needs
//! (bin/no-unwind.ld), and of what kubelet executes the functions of a call beside each other
//! (bin/order.ld).

use std::env;

fn main() {
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    println!("cargo::rerun-if-changed=bin/order.ld");
    println!("cargo::rerun-if-changed=bin/no-unwind.ld");
    // Where musl is missing the programs are linked by whatever the distribution has.
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_ENV", "musl") {
        let root = env!("CARGO_MANIFEST_DIR");
        println!("cargo::rustc-link-arg-bin=flexvol=-T{root}/bin/order.ld");
        println!("cargo::rustc-link-arg-bins=-T{root}/bin/no-unwind.ld");
        println!("cargo::rustc-link-arg-bins=-Wl,--no-eh-frame-hdr");
    }
}

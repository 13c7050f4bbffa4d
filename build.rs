//! How the release program is linked: the functions of a call beside each other (bin/order.ld), and
//! without the tables that only a program that unwinds needs (bin/no-unwind.ld).

use std::env;

fn main() {
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    println!("cargo::rerun-if-changed=bin/order.ld");
    println!("cargo::rerun-if-changed=bin/no-unwind.ld");
    // Where musl is missing the program is linked by whatever the distribution has.
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_ENV", "musl") {
        for script in ["order.ld", "no-unwind.ld"] {
            println!("cargo::rustc-link-arg-bin=flexvol=-T{}/bin/{script}", env!("CARGO_MANIFEST_DIR"));
        }
        println!("cargo::rustc-link-arg-bin=flexvol=-Wl,--no-eh-frame-hdr");
    }
}

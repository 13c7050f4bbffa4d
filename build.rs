//! The functions of a call lie beside each other in the release binary: see bin/order.ld.

use std::env;

fn main() {
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    println!("cargo::rerun-if-changed=bin/order.ld");
    // Where musl is missing the program is linked by whatever the distribution has.
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_ENV", "musl") {
        println!("cargo::rustc-link-arg-bin=flexvol=-T{}/bin/order.ld", env!("CARGO_MANIFEST_DIR"));
    }
}

//! How the release programs are linked: without the tables that only a program that unwinds needs,
//! and of what kubelet executes the functions of a call beside each other (bin/order.ld).

#[path = "bin/link.rs"]
mod link;

fn main() {
    let root = env!("CARGO_MANIFEST_DIR");
    println!("cargo::rerun-if-changed=bin/order.ld");
    if link::without_unwinding(root) {
        println!("cargo::rustc-link-arg-bin=flexvol=-T{root}/bin/order.ld");
    }
}

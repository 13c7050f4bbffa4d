//! Generates the wire types of CSI and of kubelet's plugin registration from their .proto files,
//! without protoc. Not checked in: it would be three times as long as the crate.
//!
//! And links the release program like the others: without the tables that only a program that
//! unwinds needs.

use std::env;
use std::error::Error;

const FILES: [&str; 2] = ["proto/csi.proto", "proto/registration.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    link();
    tonic_prost_build::configure()
        .codec_path("crate::wire::StrictCodec")
        .generate_default_stubs(true)
        // The specification is the documentation; its comments are no rustdoc.
        .disable_comments(["."])
        .compile_fds(protox::compile(FILES, ["proto"])?)?;
    Ok(())
}

fn link() {
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bin/no-unwind.ld");
    println!("cargo::rerun-if-changed={script}");
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_ENV", "musl") {
        println!("cargo::rustc-link-arg-bins=-T{script}");
        println!("cargo::rustc-link-arg-bins=-Wl,--no-eh-frame-hdr");
    }
}

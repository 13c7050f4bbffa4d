//! Generates the wire types of CSI and of kubelet's plugin registration from their .proto files,
//! without protoc. Not checked in: it would be three times as long as the crate.
//!
//! And links the release program like the others: without the tables that only a program that
//! unwinds needs.

#[path = "../../bin/link.rs"]
mod link;

use std::error::Error;

const FILES: [&str; 2] = ["proto/csi.proto", "proto/registration.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    link::without_unwinding(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    tonic_prost_build::configure()
        .codec_path("crate::wire::StrictCodec")
        .generate_default_stubs(true)
        // The specification is the documentation; its comments are no rustdoc.
        .disable_comments(["."])
        .compile_fds(protox::compile(FILES, ["proto"])?)?;
    Ok(())
}

//! Generates the wire types of CSI, of kubelet's plugin registration and of container runtimes from
//! their .proto files, without protoc. The result is not checked in: it would be three times as
//! long as the crate.
//!
//! Also links the release program like the others: without the tables that only a program that
//! unwinds needs.

#[path = "../../bin/link.rs"]
mod link;

use std::error::Error;
use std::path::PathBuf;

const FILES: [&str; 3] = ["proto/csi.proto", "proto/registration.proto", "proto/runtime.proto"];

/// File with the same package as csi.proto.
const BEFORE: &str = "proto/condition.proto";

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES.into_iter().chain([BEFORE]) {
        println!("cargo::rerun-if-changed={file}");
    }
    link::without_unwinding(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    configured().compile_fds(protox::compile(FILES, ["proto"])?)?;
    let directory = PathBuf::from(std::env::var("OUT_DIR")?).join("before");
    std::fs::create_dir_all(&directory)?;
    configured().out_dir(directory).compile_fds(protox::compile([BEFORE], ["proto"])?)?;
    Ok(())
}

fn configured() -> tonic_prost_build::Builder {
    tonic_prost_build::configure()
        .codec_path("crate::wire::StrictCodec")
        .generate_default_stubs(true)
        // The specification is the documentation; its comments are not rustdoc.
        .disable_comments(["."])
}

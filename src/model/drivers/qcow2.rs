//! `qcow2`: the file system inside a disk image of the node, through qemu-storage-daemon, its FUSE
//! export and a loop device.
//!
//! The kernel needs FUSE and loop devices only; if it has nbd, driver `nbd` is faster. An image
//! with a backing file is refused, because the backing file could be any file of the node. For
//! images of raw format there is driver `image`.

use super::block::{self, Block, BlockKind, Volume, block_options};
use crate::driver::{Needs, Request};
use crate::plan::{DiskImage, Store};
use crate::schema::{OptionSpec, SecretSpec};
use flexvol_protocol::failure::Result;
use flexvol_protocol::quantity::Quantity;
use std::path::Path;

/// The driver.
pub type Qcow2 = Block<Qcow2Kind>;

/// Kind of block device: a disk image in qcow2 format.
pub struct Qcow2Kind;

block_options! {
    /// Options of a PV.
    pub struct Qcow2Options {
        /// The image. A relative path is taken below the node's first image root
        /// (/var/lib/flexvol/images by default).
        file: String = "file" { example: "web.qcow2" },
        /// Make the image with this size if it is missing. An existing image keeps its own size.
        size: Option<Quantity> = "size" { example: "1Gi" },
    }
}

impl BlockKind for Qcow2Kind {
    const NAME: &'static str = "qcow2";
    const SUMMARY: &'static str = "a file system inside a disk image of the node";
    const OPTIONS: &'static [OptionSpec] = Qcow2Options::SPECS;
    const SECRETS: &'static [SecretSpec] = &[block::PASSPHRASE];
    const PROGRAMS: &'static [&'static str] = &["qemu-storage-daemon", "qemu-img"];
    const NEEDS: Needs = Needs { module: Some("loop"), programs: &["qemu-storage-daemon"], ..Needs::NOTHING };

    fn volume(request: &Request<'_>) -> Result<Volume> {
        let options = Qcow2Options::parse(&request.options.own)?;
        let file = Path::new(&options.file);
        let file =
            request.settings.policy.image_roots.first().map_or(file.to_owned(), |root| root.join(file));
        let store = Store::Qcow2(DiskImage { file, size: options.size.map(|size| size.0) });
        Volume::new(store, &options.said(), request.options)
    }
}

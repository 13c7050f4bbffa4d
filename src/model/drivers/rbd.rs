//! `rbd`: a file system on a block device image of a Ceph cluster, through the kernel's own client.
//! With option `mounter` Ceph's daemon rbd-nbd is used instead: it supports features that the
//! kernel lacks, such as journaling.
//!
//! For the kernel's client the node needs no program of Ceph. flexvol looks up the monitors' names
//! and checks that a monitor answers before it calls the kernel. The user's key goes through the
//! kernel's key ring, and is in no file of /sys afterwards.
//!
//! An image that is mapped for writing is claimed, so that no other node maps it: by its exclusive
//! lock if it has that feature (`rbd create` enables it; otherwise `rbd feature enable POOL/IMAGE
//! exclusive-lock`). Without the feature, or without option `exclusive`, other users of the image
//! are detected only if the node has the program `rbd`.
//!
//! A program that reads or writes while the cluster is away waits until it is back; with
//! `requestTimeout` it gets an error instead.

use super::block::{self, Block, BlockKind, Volume, block_options};
use super::ceph::{self, KEY, Mode, Monitors, NO_KEY, Name};
use super::share::Address;
use crate::driver::{Needs, Request};
use crate::plan::{RbdImage, RbdMounter, Store};
use crate::schema::{OptionSpec, OptionValue, SecretSpec};
use flexvol_protocol::failure::{Failure, Result};
use std::path::PathBuf;

/// The driver.
pub type Rbd = Block<RbdKind>;

/// Kind of block device: an image of a Ceph cluster.
pub struct RbdKind;

block_options! {
    /// Options of a PV.
    pub struct RbdOptions {
        /// The monitors, separated by commas, each with its port if that is not the default.
        monitors: Monitors = "monitors" { aliases: ["servers", "server"], example: "10.0.0.1:6789,10.0.0.2:6789" },
        /// The pool that has the image.
        pool: Name = "pool" { aliases: ["blockPool"], default: "rbd" },
        /// The namespace of the image in that pool.
        namespace: Option<Name> = "namespace" {},
        /// The image, which is not made if it is missing.
        image: Name = "image" { example: "web" },
        /// A snapshot of it, which can only be read.
        snapshot: Option<Name> = "snapshot" {},
        /// User name for the cluster.
        user: Name = "user" { aliases: ["mountUser"], default: "admin" },
        /// A file of the node with the user's key, below a directory that the node's
        /// `policy.keyringRoots` names: then the volume needs no Secret.
        keyring: Option<String> = "keyring" {},
        /// Client for the image: kernel, or rbd-nbd of the node (Ceph 16.2.5 or newer), which has
        /// features that the kernel lacks.
        mounter: RbdMounter = "mounter" { default: "kernel" },
        /// Version of the protocol, as the kernel has it: legacy, crc, secure, prefer-crc or
        /// prefer-secure. The default is legacy, and prefer-crc if all monitors have port 3300;
        /// rbd-nbd detects it.
        ms_mode: Option<Mode> = "msMode" {},
        /// Nameserver that is asked for the monitors' addresses: the cluster's DNS if they are
        /// Services. The default is the node's own resolver.
        nameserver: Option<Address> = "nameserver" {},
        /// Seconds to wait for each monitor to accept a connection; 0 leaves that to the kernel.
        connect_timeout: u32 = "connectTimeout" { default: "5" },
        /// Stop other nodes from mapping the image for writing while this one has it. `rbd resize`
        /// then also has to wait until the kernel's client has released it.
        exclusive: bool = "exclusive" { default: "true" },
        /// Seconds without an answer of the cluster after which reads and writes fail, with rbd-nbd
        /// until the volume is mounted again. With 0 they wait for the answer, and nothing is lost.
        request_timeout: u32 = "requestTimeout" { default: "0" },
    }
}

impl OptionValue for RbdMounter {
    const KIND: &'static str = "kernel or rbd-nbd";

    fn parse(text: &str) -> std::result::Result<Self, String> {
        match text {
            "kernel" => Ok(Self::Kernel),
            "rbd-nbd" => Ok(Self::RbdNbd),
            _ => Err(format!("{text:?} is not {}", Self::KIND)),
        }
    }
}

impl BlockKind for RbdKind {
    const NAME: &'static str = "rbd";
    const SUMMARY: &'static str = "a file system on a block device image of a Ceph cluster";
    const OPTIONS: &'static [OptionSpec] = RbdOptions::SPECS;
    const SECRETS: &'static [SecretSpec] = &[KEY, block::PASSPHRASE];
    const PROGRAMS: &'static [&'static str] = &["rbd-nbd"];
    const NEEDS: Needs = Needs { module: Some("rbd"), ..Needs::NOTHING };

    fn volume(request: &Request<'_>) -> Result<Volume> {
        let options = RbdOptions::parse(&request.options.own)?;
        let (cluster, mode) =
            ceph::cluster(&options.monitors, options.ms_mode, options.nameserver, options.connect_timeout);
        let text = |name: &Option<Name>| name.as_ref().map(|name| name.0.clone());
        let image = RbdImage {
            cluster,
            mode: mode.map(str::to_owned),
            user: options.user.0.clone(),
            keyring: options.keyring.as_ref().map(PathBuf::from),
            pool: options.pool.0.clone(),
            namespace: text(&options.namespace),
            image: options.image.0.clone(),
            snapshot: text(&options.snapshot),
            exclusive: options.exclusive,
            mounter: options.mounter,
            patience: options.request_timeout,
        };
        let volume = Volume::new(Store::Rbd(Box::new(image)), &options.said(), request.options)?;
        if options.snapshot.is_some() && !volume.is_read_only() {
            return Err(Failure::options(
                "option \"snapshot\": it cannot be written: set readOnly: true on the pod's flexVolume or persistentVolumeClaim",
            ));
        }
        match options.keyring {
            Some(_) => Ok(volume),
            None => volume.with_secret(("key", &KEY), NO_KEY, request.options),
        }
    }
}

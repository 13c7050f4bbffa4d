//! `nbd`: the file system on a network block device of the kernel, from a server in the network or
//! from a disk image of the node.
//!
//! The node needs the kernel's module and, for images, qemu-storage-daemon; it needs no nbd-client.
//! For an image, `nbd` does the same as `qcow2`, but faster.

use super::block::{self, Block, BlockKind, Volume, block_options};
use super::share::{Address, Port, Servers};
use crate::driver::{Needs, Request};
use crate::plan::{DiskImage, ImageFormat, Nbd, NbdServer, Store};
use crate::schema::{OptionSpec, OptionValue, SecretSpec};
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::quantity::Quantity;
use std::path::Path;

/// The driver.
pub type NbdDriver = Block<NbdKind>;

/// Kind of block device: a network block device.
pub struct NbdKind;

block_options! {
    /// Options of a PV.
    pub struct NbdOptions {
        /// Name or address of the server. Either this or `file`.
        server: Option<Servers> = "server" { aliases: ["host"], example: "nbd.example.com" },
        /// Its TCP port. The default is 10809.
        port: Option<Port> = "port" {},
        /// Name of the export. The default is the server's own.
        export: Option<Export> = "export" { aliases: ["name"], example: "web" },
        /// Nameserver that is asked for the server's address: the cluster's DNS if it is a Service.
        /// The default is the node's own resolver.
        nameserver: Option<Address> = "nameserver" {},
        /// Seconds to wait for the server to accept a connection.
        connect_timeout: Seconds = "connectTimeout" { default: "5" },
        /// Seconds that a read or write may take. After that the server counts as gone, and all
        /// access to the volume fails until it is unmounted everywhere and mounted again.
        timeout: Seconds = "timeout" { default: "30" },
        /// A disk image of the node instead of a server. A relative path is taken below the node's
        /// first image root (/var/lib/flexvol/images by default).
        file: Option<String> = "file" {},
        /// Format of the file: qcow2, or raw.
        image_format: ImageFormat = "imageFormat" { default: "qcow2" },
        /// Make the image with this size if it is missing. An existing image keeps its own size.
        size: Option<Quantity> = "size" {},
    }
}

impl OptionValue for ImageFormat {
    const KIND: &'static str = "qcow2 or raw";

    fn parse(text: &str) -> Result<Self, String> {
        [Self::Qcow2, Self::Raw]
            .into_iter()
            .find(|format| format.name() == text)
            .ok_or_else(|| format!("{text:?} is not {}", Self::KIND))
    }
}

/// Name of a disk on a server.
#[derive(Clone, Debug)]
pub struct Export(String);

impl OptionValue for Export {
    const KIND: &'static str = "name";

    /// Accepts names up to the length that the protocol allows, without characters that would split
    /// a message into two lines.
    fn parse(text: &str) -> Result<Self, String> {
        if text.len() <= 4096 && !text.contains(char::is_control) {
            Ok(Self(text.to_owned()))
        } else {
            Err("it has more than 4096 bytes, or a control character in it".to_owned())
        }
    }
}

/// Finite timeout, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(pub u32);

impl OptionValue for Seconds {
    const KIND: &'static str = "seconds";

    fn parse(text: &str) -> Result<Self, String> {
        match u32::parse(text) {
            Ok(seconds @ 1..=3600) => Ok(Self(seconds)),
            _ => Err(format!("{text:?} is not a number of seconds between 1 and 3600")),
        }
    }
}

impl BlockKind for NbdKind {
    const NAME: &'static str = "nbd";
    const SUMMARY: &'static str = "a file system on a network block device";
    const OPTIONS: &'static [OptionSpec] = NbdOptions::SPECS;
    const SECRETS: &'static [SecretSpec] = &[block::PASSPHRASE];
    const PROGRAMS: &'static [&'static str] = &["qemu-storage-daemon", "qemu-img"];
    const NEEDS: Needs = Needs { module: Some("nbd"), ..Needs::NOTHING };

    fn volume(request: &Request<'_>) -> Result<Volume> {
        let options = NbdOptions::parse(&request.options.own)?;
        let from = match (&options.file, &options.server) {
            (Some(file), None) => options.image(file, request)?,
            (None, Some(server)) => options.remote(server)?,
            _ => return Err(Failure::options("give either option \"server\" or option \"file\"")),
        };
        Volume::new(Store::Nbd(Nbd { from, timeout: options.timeout.0 }), &options.said(), request.options)
    }
}

impl NbdOptions {
    fn image(&self, file: &str, request: &Request<'_>) -> Result<NbdServer> {
        let remote = [("port", self.port.is_some()), ("export", self.export.is_some())];
        refuse(remote, "file")?;
        let file = Path::new(file);
        let file =
            request.settings.policy.image_roots.first().map_or(file.to_owned(), |root| root.join(file));
        let image = DiskImage { file, size: self.size.map(|size| size.0) };
        Ok(NbdServer::Image { image, format: self.image_format })
    }

    fn remote(&self, servers: &Servers) -> Result<NbdServer> {
        let raw = self.image_format != ImageFormat::Qcow2;
        refuse([("size", self.size.is_some()), ("imageFormat", raw)], "server")?;
        let [server] = servers.0.as_slice() else {
            return Err(Failure::options("option \"server\": name one: two servers are two disks"));
        };
        Ok(NbdServer::Remote {
            server: server.clone(),
            port: self.port.map_or(10809, |port| port.0),
            export: self.export.as_ref().map_or(String::new(), |export| export.0.clone()),
            nameserver: self.nameserver.map(|address| address.0),
            patience: self.connect_timeout.0,
        })
    }
}

/// Refuses options that have no meaning beside another option.
fn refuse(options: [(&str, bool); 2], beside: &str) -> Result<()> {
    match options.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => {
            Err(Failure::options(format!("option {option:?} means nothing beside {beside:?}: leave it out")))
        }
        None => Ok(()),
    }
}

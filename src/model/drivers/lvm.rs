//! `lvm`: the file system on a logical volume of LVM, linear or thin, created on demand.
//!
//! An inactive volume is activated, and deactivated again by the last unmount; a volume that was
//! active stays active. In a volume group that several nodes see, a tag on the volume names the
//! node that uses it, and the other nodes refuse the volume until the tag is gone.

use super::block::{self, Block, BlockKind, Volume, block_options};
use crate::driver::{Needs, Request};
use crate::plan::{LogicalVolume, Store};
use crate::schema::{OptionSpec, OptionValue, SecretSpec};
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::quantity::Quantity;

/// The driver.
pub type Lvm = Block<LvmKind>;

/// Kind of block device: a logical volume of LVM.
pub struct LvmKind;

block_options! {
    /// Options of a PV.
    pub struct LvmOptions {
        /// The volume group.
        volume_group: Name = "volumeGroup" { aliases: ["volumegroup", "vg"], example: "data" },
        /// The logical volume in it.
        volume: Name = "volume" { aliases: ["volumeID", "volumeId", "lv"], example: "web" },
        /// Make the logical volume with this size if it is missing. An existing one keeps its own
        /// size.
        size: Option<Quantity> = "size" { example: "1Gi" },
        /// Make a new volume in this thin pool. The default is a linear one.
        thin_pool: Option<Name> = "thinPool" { aliases: ["thinpool", "pool"] },
    }
}

impl BlockKind for LvmKind {
    const NAME: &'static str = "lvm";
    const SUMMARY: &'static str = "a file system on a logical volume of LVM";
    const OPTIONS: &'static [OptionSpec] = LvmOptions::SPECS;
    const SECRETS: &'static [SecretSpec] = &[block::PASSPHRASE];
    const PROGRAMS: &'static [&'static str] = &["lvm"];
    const NEEDS: Needs = Needs { module: Some("dm_mod"), programs: &["lvm"], ..Needs::NOTHING };
    const HINT: Option<&'static str> = Some(
        "A volume may be any logical volume of the node that nobody uses, unless the admin names the groups that are for \
        pods in the side file .flexvol.json beside the executable: {\"policy\": {\"volumeGroups\": [\"data\"]}}. \
        Where several nodes see a group, the node that uses a volume says so by a tag on it \
        (flexvol.in-use.NODE); that of a node that is gone for good has to be removed by hand (lvchange --deltag)",
    );

    fn volume(request: &Request<'_>) -> Result<Volume> {
        let options = LvmOptions::parse(&request.options.own)?;
        if options.size == Some(Quantity(0)) {
            return Err(Failure::options("option \"size\": 0 is no size: write one such as 1Gi"));
        }
        let store = Store::Lvm(LogicalVolume {
            group: options.volume_group.0.clone(),
            volume: options.volume.0.clone(),
            size: options.size.map(|size| size.0),
            thin_pool: options.thin_pool.clone().map(|pool| pool.0),
        });
        Volume::new(store, &options.said(), request.options)
    }
}

/// Name that LVM accepts: no path, no option of a program, no comma or slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(pub String);

impl OptionValue for Name {
    const KIND: &'static str = "name";

    fn parse(text: &str) -> Result<Self, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "+_.-".contains(c);
        let named = text.len() <= 120
            && !text.starts_with('-')
            && text.chars().all(plain)
            && ![".", ".."].contains(&text);
        if named {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!(
                "{text:?} is no name of LVM: at most 120 letters, digits and + _ . -, no - at its start"
            ))
        }
    }
}

//! Option dialects of existing drivers from other projects, as data.
//!
//! A volume says `networkPath`, because the driver it was written for does; flexvol's driver says
//! `source`. A [`Profile`] describes all differences: keys, defaults, precedence, capabilities
//! where the state of a cluster depends on them, and oddities as small pure functions ([`Quirk`]).
//! The driver's directory (`fstab~cifs`) or the side file selects it ([`chosen`]). It is applied in
//! one place, [`Installed::plan`](crate::installed::Installed::plan), so that no driver knows of
//! it.
//!
//! Each intended difference from the other driver is a line of [`Profile::deviations`], which
//! `flexvol explain --profile` prints.

mod cifs;
mod clusters;
mod iscsi;
mod local;
mod lvm;
mod nfs;
mod quirk;
mod rbd;
mod repositories;
pub mod stages;
mod stores;
mod translate;
mod words;

pub use quirk::Quirk;
pub use stages::Device;
pub use translate::Translated;
pub use words::{To, Word};

use crate::driver::Driver;
use crate::drivers;
use crate::schema::did_you_mean;
use crate::settings::Settings;
use flexvol_protocol::DriverName;
use std::fmt;

/// Value of `profile` in a side file that selects flexvol's own dialect in the directory of another
/// driver.
pub const NONE: &str = "none";

/// Dialect of one driver.
pub struct Profile {
    /// Name of the driver in its PVs, as `flexVolume.driver`.
    pub name: &'static str,
    /// Driver of flexvol that serves its volumes.
    pub driver: &'static dyn Driver,
    /// Short description, half a line.
    pub summary: &'static str,
    /// Options of the dialect. The options of flexvol's driver are accepted as well.
    pub keys: &'static [Key],
    /// Keys of the Secret in this dialect, if flexvol's driver has other names for them.
    pub secrets: &'static [Key],
    /// True if its keys are accepted in any case, as by programs in Go.
    pub any_case: bool,
    /// Options of flexvol that a volume has unless it, or the side file, says otherwise.
    pub defaults: &'static [(&'static str, &'static str)],
    /// Sources of mount options, the weakest first.
    pub order: &'static [Layer],
    /// Use of the pod's fsGroup.
    pub fs_group: FsGroupUse,
    /// True if kubelet should chown the volume; `None` leaves it to flexvol's driver.
    pub chown: Option<bool>,
    /// Device that `waitforattach` names, if its volumes are attached. This must not change while a
    /// volume is in use.
    pub attach: Option<Device>,
    /// Further changes to the options, in this order.
    pub quirks: &'static [Quirk],
    /// Intended differences from the other driver with their reasons, a line each.
    pub deviations: &'static [&'static str],
    /// Options of the example, in its own spelling.
    pub example: &'static [(&'static str, &'static str)],
    /// Keys of the Secret in the example; empty if it needs no Secret.
    pub example_secret: &'static [&'static str],
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Key of the other driver.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Name in a PV.
    pub theirs: &'static str,
    /// Option of flexvol; `None` if a quirk handles the key, or if it has no effect.
    pub ours: Option<&'static str>,
    /// Meaning of the key, in half a line.
    pub doc: &'static str,
}

/// Source of mount options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The pod's fsGroup.
    FsGroup,
    /// Read-only or not. Its position is only shown to people: read-only wins in any case.
    Access,
    /// The keys of the Secret.
    Secrets,
    /// The options of the volume.
    Options,
}

impl Layer {
    /// Returns the word for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::FsGroup => "fsGroup",
            Self::Access => "ro or rw",
            Self::Secrets => "secret",
            Self::Options => "options",
        }
    }
}

/// Use of the pod's fsGroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsGroupUse {
    /// Handled by flexvol's driver.
    Ours,
    /// No effect: files look as they always did.
    Ignored,
    /// Owner and group of every file.
    Owner,
    /// Group of every file.
    Group,
}

/// Defaults of every profile.
const PLAIN: Profile = Profile {
    name: "",
    driver: &drivers::tmpfs::Tmpfs,
    summary: "",
    keys: &[],
    secrets: &[],
    any_case: false,
    defaults: &[],
    order: &[Layer::Options],
    fs_group: FsGroupUse::Ours,
    chown: None,
    attach: None,
    quirks: &[],
    deviations: &[],
    example: &[],
    example_secret: &[],
};

/// Returns a key that stands for an option of flexvol.
const fn key(theirs: &'static str, ours: &'static str, doc: &'static str) -> Key {
    Key { theirs, ours: Some(ours), doc }
}

/// Returns a key that a quirk handles, or that has no effect.
const fn other(theirs: &'static str, doc: &'static str) -> Key {
    Key { theirs, ours: None, doc }
}

/// Every profile, in the order `flexvol drivers --profiles` prints them.
pub const ALL: &[&Profile] = &[
    &cifs::FSTAB,
    &cifs::JULIOHM,
    &cifs::MICROSOFT,
    &cifs::BERTERA,
    &cifs::OPENSHIFT,
    &cifs::HODIQUE,
    &nfs::K8S,
    &nfs::BESTGOPHER,
    &nfs::ALICLOUD,
    &nfs::CDS,
    &local::LOOP,
    &local::QEMU_NBD,
    &local::NBD,
    &lvm::LVM,
    &lvm::CREATED,
    &lvm::SHARED,
    &rbd::RBD,
    &rbd::ROOK,
    &iscsi::ISCSI,
    &local::LOCAL_STORAGE,
    &local::DUMMY,
    &local::RANCHER_SECRETS,
    &stores::BLOBFUSE,
    &stores::OSS,
    &stores::IBM,
    &stores::GCS,
    &clusters::LIZARDFS,
    &clusters::GLFS_SUBVOL,
    &clusters::SSHFLEX,
    &clusters::ROOK,
    &clusters::CEPHFS,
    &clusters::GLUSTERFS,
    &repositories::GIT_LIVE,
    &repositories::GITREPO,
];

/// Intended differences from every other driver.
pub const DEVIATIONS: &[&str] = &[
    "mount and unmount are idempotent, and a mount that fails leaves nothing behind",
    "read-only wins, wherever it is set",
    "set-user-id bits and devices work only where policy.allowSuid and policy.allowDev say so",
    "a mount option that is not on our driver's list is refused",
    "no secret is in arguments or environments of programs, in messages, logs or the mount table",
];

/// Returns the profile of exactly that name.
pub fn find(name: &str) -> Option<&'static Profile> {
    ALL.iter().copied().find(|profile| profile.name == name)
}

/// Returns the name of the profile nearest to the input, if any is near.
pub fn nearest(typed: &str) -> Option<&'static str> {
    did_you_mean(typed, ALL.iter().map(|profile| profile.name))
}

/// Returns the dialect of an installed driver: the side file's, if it names one; else that of the
/// directory, unless the side file selects another driver for it. Volumes that a CSI driver serves
/// have no dialect here.
pub fn chosen(directory: Option<&str>, settings: &Settings) -> Option<&'static Profile> {
    if settings.through_csi.is_some() {
        return None;
    }
    match settings.profile.as_deref() {
        Some(NONE) => None,
        Some(name) => find(name),
        None => {
            let name = DriverName::from_directory(directory?).ok()?;
            let driver = settings.driver.as_deref();
            let fits = |profile: &&Profile| driver.is_none_or(|driver| driver == profile.driver.name());
            let of_rook = || rook(&name).iter().copied().filter(|_| driver.is_some()).find(fits);
            find(&name.to_string()).filter(fits).or_else(of_rook)
        }
    }
}

/// Returns the possible profiles of a driver with this name, if it is one of Rook's. Rook named its
/// driver `ceph.rook.io/` (`rook.io/` before) plus the namespace in which it ran, and served block
/// volumes and file systems under the same name. The admin selects one of the two by the driver.
pub fn rook(name: &DriverName) -> &'static [&'static Profile] {
    match name.vendor() {
        Some("ceph.rook.io" | "rook.io") => &[&rbd::ROOK, &clusters::ROOK],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::OptionSpec;
    use crate::side_file;

    fn chosen_name(directory: &str, side_file: &str) -> Option<&'static str> {
        chosen(Some(directory), &side_file::parse(side_file).unwrap()).map(|profile| profile.name)
    }

    #[test]
    fn the_directory_chooses_unless_the_side_file_does() {
        assert_eq!(chosen_name("kvaps~loop", "{}"), Some("kvaps/loop"));
        assert_eq!(chosen_name("kvaps~loop", r#"{"driver":"image"}"#), Some("kvaps/loop"));
        assert_eq!(chosen_name("kvaps~loop", r#"{"driver":"exec","exec":{}}"#), None);
        assert_eq!(chosen_name("kvaps~loop", r#"{"profile":"none"}"#), None);
        assert_eq!(chosen_name("acme~disk", r#"{"profile":"kvaps/loop"}"#), Some("kvaps/loop"));
        for directory in ["acme~loop", "loop", "kvaps~loop~x", "kvaps~", "", "kvaps~LOOP", "kvaps.loop"] {
            assert_eq!(chosen_name(directory, "{}"), None, "{directory}");
        }
        assert!(chosen(None, &Settings::default()).is_none());
    }

    #[test]
    fn rook_s_names_are_told_by_their_vendor_and_the_driver() {
        for directory in ["ceph.rook.io~rook-ceph", "ceph.rook.io~rook-ceph-system", "rook.io~rook"] {
            for (side_file, profile) in [
                (r#"{"driver":"rbd"}"#, Some("ceph.rook.io/block")),
                (r#"{"driver":"cephfs"}"#, Some("ceph.rook.io/rook")),
                (r#"{"driver":"rbd","profile":"none"}"#, None),
                (r#"{"driver":"tmpfs"}"#, None),
                ("{}", None),
            ] {
                assert_eq!(chosen_name(directory, side_file), profile, "{directory} {side_file}");
            }
        }
        assert_eq!(chosen_name("ceph.rook.io~rook", "{}"), Some("ceph.rook.io/rook"));
        assert_eq!(chosen_name("rook.example~rook-ceph", r#"{"driver":"rbd"}"#), None);
    }

    #[test]
    fn names_are_those_of_drivers_and_no_two_are_equal() {
        for profile in ALL {
            let name = DriverName::parse(profile.name).unwrap();
            assert!(name.vendor().is_some() && profile.name != NONE);
            assert_eq!(ALL.iter().filter(|other| other.name == profile.name).count(), 1, "{}", profile.name);
            assert!(drivers::find(profile.driver.name()).is_some(), "{}", profile.name);
        }
    }

    #[test]
    fn tables_name_options_that_there_are() {
        for profile in ALL {
            let spec = |name: &str| {
                let is_it = |spec: &&OptionSpec| {
                    spec.name == name || spec.name.ends_with('*') && spec.is_called(name)
                };
                profile.driver.options().iter().find(is_it)
            };
            let is_ours = |name: &str| spec(name).is_some();
            for key in profile.keys {
                assert!(key.ours.is_none_or(is_ours), "{}: {:?}", profile.name, key.ours);
                let again = profile.keys.iter().filter(|other| other.theirs == key.theirs).count();
                assert!(again == 1 && key.doc.len() > 5, "{}: {}", profile.name, key.theirs);
            }
            for (name, value) in profile.defaults {
                (spec(name).unwrap().check)(value)
                    .unwrap_or_else(|why| panic!("{}: {name}: {why}", profile.name));
            }
        }
    }

    #[test]
    fn what_differs_is_said_in_whole_lines() {
        for line in ALL.iter().flat_map(|profile| profile.deviations) {
            assert!(!line.contains('\n') && !line.ends_with('.') && line.len() > 20, "{line}");
        }
    }

    #[test]
    fn near_misses_are_named() {
        assert_eq!(nearest("kvaps/lop"), Some("kvaps/loop"));
        assert_eq!(nearest("zzz"), None);
    }
}

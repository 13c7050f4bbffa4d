//! The drivers, one file for each kind of storage, and the table of all drivers.

pub mod bind;
pub mod blobfuse;
mod block;
mod ceph;
pub mod cephfs;
pub mod cifs;
pub mod csi;
mod disk;
pub mod exec;
mod fuse;
pub mod git;
pub mod glusterfs;
pub mod image;
pub mod iscsi;
pub mod lizardfs;
pub mod lvm;
pub mod nbd;
pub mod nfs;
pub mod overlay;
pub mod qcow2;
pub mod rbd;
pub mod rclone;
pub mod s3;
pub mod secretfiles;
mod share;
mod ssh;
pub mod sshfs;
pub mod tmpfs;
pub mod webdav;

use crate::driver::Driver;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::mount_options::{self, MountFlags};
use flexvol_protocol::{Access, DriverName, Options};

/// Every driver, in the order `flexvol drivers` prints them.
pub const ALL: &[&dyn Driver] = &[
    &tmpfs::Tmpfs,
    &bind::Bind,
    &image::Image,
    &nfs::Nfs,
    &cifs::Cifs,
    &qcow2::Qcow2::DRIVER,
    &rbd::Rbd::DRIVER,
    &lvm::Lvm::DRIVER,
    &nbd::NbdDriver::DRIVER,
    &iscsi::IscsiDriver::DRIVER,
    &secretfiles::SecretFiles,
    &overlay::OverlayDriver,
    &sshfs::Sshfs,
    &s3::S3,
    &rclone::Rclone,
    &webdav::Webdav,
    &glusterfs::Glusterfs,
    &cephfs::Cephfs,
    &blobfuse::Blobfuse,
    &lizardfs::Lizardfs,
    &git::Git,
    &csi::Csi,
    &exec::Exec,
];

/// Returns the driver of exactly that name.
pub fn find(name: &str) -> Option<&'static dyn Driver> {
    ALL.iter().copied().find(|driver| driver.name() == name)
}

/// Vendor of a driver that is installed without a vendor in its name.
pub const VENDOR: &str = "flexvol";

/// Returns the full name of a flexvol driver that a volume names without a vendor: kubelet looks
/// for exactly the name in the volume, and no driver is installed under a name without a vendor.
pub fn with_vendor(name: &DriverName) -> Option<String> {
    let ours = name.vendor().is_none() && find(name.driver()).is_some();
    ours.then(|| format!("{VENDOR}/{name}"))
}

/// Returns the flags that every volume starts from: safe, and read-only if kubelet says so.
fn flags(options: &Options) -> MountFlags {
    MountFlags { read_only: options.access() == Access::ReadOnly, ..MountFlags::DEFAULT }
}

/// Parses `mountOptions` of a mount without its own file system, such as a bind: flags only.
fn flags_alone(list: Option<&str>, options: &Options, what: &str) -> Result<MountFlags> {
    let (flags, further) = mount_options::parse(list.unwrap_or_default(), flags(options), &[])?;
    match further.first() {
        Some(option) => Err(Failure::options(format!(
            "mountOptions: {:?} has no meaning for {what}: leave it out",
            option.key
        ))),
        None => Ok(flags),
    }
}

/// Returns the access that a mount with these flags gives.
fn access(flags: MountFlags) -> Access {
    if flags.read_only { Access::ReadOnly } else { Access::ReadWrite }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::side_file;
    use flexvol_protocol::Verb;

    #[test]
    fn names_are_found_exactly() {
        for driver in ALL {
            assert_eq!(find(driver.name()).map(Driver::name), Some(driver.name()));
        }
        assert!(find("TMPFS").is_none() && find("xtmpfs").is_none());
    }

    #[test]
    fn our_names_need_a_vendor() {
        let meant = |name: &str| with_vendor(&DriverName::parse(name).unwrap());
        assert_eq!(meant("tmpfs").as_deref(), Some("flexvol/tmpfs"));
        assert_eq!((meant("example/tmpfs"), meant("mine")), (None, None));
    }

    #[test]
    fn attach_is_claimed_only_with_its_verbs() {
        for driver in ALL {
            for attach in [None, Some(false), Some(true)] {
                let settings = Settings { attach, ..Settings::default() };
                let (verbs, capabilities) = (driver.verbs(&settings), driver.capabilities(&settings));
                let may = verbs.contains(Verb::Attach);
                assert_eq!(capabilities.attach, may && attach == Some(true), "{} {attach:?}", driver.name());
                assert_eq!(
                    verbs.contains(Verb::ExpandFs),
                    capabilities.requires_fs_resize,
                    "{}",
                    driver.name()
                );
                assert!(verbs.contains(Verb::Init) && verbs.contains(Verb::Unmount), "{}", driver.name());
            }
        }
    }

    #[test]
    fn the_programs_of_exec_are_its_commands() {
        let commands =
            r#"{"mount":["/b","x"],"unmount":["/a"],"attach":["/b"],"detach":["/{node}"],"expandfs":[]}"#;
        let settings = format!(r#"{{"driver":"exec","exec":{{"commands":{commands}}}}}"#);
        let settings = side_file::parse(&settings).unwrap();
        assert_eq!(exec::Exec.programs(&settings), ["/a", "/b"]);
        assert_eq!(exec::Exec.programs(&Settings::default()), [""; 0]);
    }

    #[test]
    fn every_option_is_documented() {
        for spec in ALL.iter().flat_map(|driver| driver.options()) {
            assert!(!spec.doc.is_empty() && spec.doc[0].trim().len() > 10, "{}", spec.name);
            assert!(!spec.required() || !spec.example.is_empty(), "{} needs an example", spec.name);
        }
    }
}

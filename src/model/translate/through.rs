//! Volumes of another FlexVolume driver that the driver `csi` serves, translated by the rows that a
//! migration uses.
//!
//! Nothing is written anywhere: the PV stays as it is, and each `mount` is translated when it
//! comes. So the parts that only an object has are missing: its annotations, Secrets of another
//! namespace, and whether it is a PV at all. `WAYS` has the rows that need none of them.
//!
//! Only the agent contains the table. The executable that kubelet runs contains only the names,
//! which are taken from the table when flexvol is built.

use super::options;
use super::target::{FsType, Handle, Login, Target};
use super::targets::TARGETS;
use super::{Reason, Warning};
use crate::csi::handle::of_foreign;
use crate::csi::name::hash;
use crate::csi::volume::CsiVolume;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::ordered::filled;
use flexvol_protocol::secret::Secret;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Names of a translation from some FlexVolume drivers to one CSI driver.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    from: &'static [&'static str],
    to: &'static str,
    is_open: bool,
}

impl Way {
    const fn of(row: &Target) -> Self {
        // Not if the handle comes from the storage: such volumes are attached first. Not if it is
        // the name of a PV: a mount does not tell whether there is a PV.
        let is_own = matches!(row.handle, Handle::Made) && matches!(row.fs_type, FsType::Dropped);
        let is_open = is_own && !matches!(row.secret, Login::Own(..));
        Self { from: row.from, to: row.to, is_open }
    }
}

/// One way for each row, in the same order.
static WAYS: [Way; TARGETS.len()] = {
    let mut ways = [Way::of(TARGETS[0]); TARGETS.len()];
    let mut at = 1;
    while at < ways.len() {
        ways[at] = Way::of(TARGETS[at]);
        at += 1;
    }
    ways
};

/// Returns the CSI drivers that can serve volumes of this FlexVolume driver.
pub fn ways(from: &str) -> impl Iterator<Item = &'static str> {
    WAYS.iter().filter(move |way| way.is_open && way.from.contains(&from)).map(|way| way.to)
}

/// Refuses a FlexVolume driver whose volumes cannot be translated for the CSI driver.
pub fn check(from: &str, to: &str) -> Result<()> {
    if ways(from).any(|way| way == to) {
        return Ok(());
    }
    let known: Vec<_> = ways(from).collect();
    let fix = if known.is_empty() {
        "flexvol-kit translate makes PersistentVolumes of CSI of them, if anything does".to_owned()
    } else {
        format!("write {}", known.join(" or "))
    };
    Err(Failure::options(format!(
        "volumes of {from} cannot be served by the CSI driver {to} as they are: {fix}"
    )))
}

/// Returns the volume as it is requested from its CSI driver, with warnings for its author. A
/// volume in the CSI driver's own words is returned unchanged.
pub fn volume(asked: CsiVolume) -> Result<(CsiVolume, Vec<Warning>)> {
    let Some(from) = asked.from.clone() else { return Ok((asked, Vec::new())) };
    let row = row(&from, &asked.driver)?;
    let given: Map<String, Value> =
        filled(asked.attributes.iter().map(|(key, value)| (key.clone(), value.clone().into())));
    let applied = options::apply(&given, row).map_err(|reason| refused(&reason))?;
    let text = |(key, value): (String, Value)| (key, value.as_str().unwrap_or_default().to_owned());
    let words = applied.mount_options.iter().filter_map(Value::as_str);
    let made = CsiVolume {
        handle: of_target(&asked.target),
        fs_type: String::new(),
        mount_flags: words.map(str::to_owned).collect(),
        attributes: applied.attributes.into_iter().map(text).collect(),
        ..asked
    };
    Ok((made, applied.warnings))
}

/// Returns the secrets under the names that the CSI driver reads.
pub fn secrets(volume: &CsiVolume, given: BTreeMap<String, Secret>) -> Result<BTreeMap<String, Secret>> {
    let Some(from) = &volume.from else { return Ok(given) };
    match row(from, &volume.driver)?.secret {
        Login::None | Login::Own(..) if !given.is_empty() => {
            Err(refused(&Reason::NoSecret(row(from, &volume.driver)?.to)))
        }
        Login::Renamed(keys) => {
            let renamed = |key: String| {
                let found = keys.iter().find(|(was, _)| *was == key);
                found.map_or(key, |(_, is)| (*is).to_owned())
            };
            Ok(given.into_iter().map(|(key, secret)| (renamed(key), secret)).collect())
        }
        _ => Ok(given),
    }
}

fn row(from: &str, to: &str) -> Result<&'static Target> {
    check(from, to)?;
    let row = TARGETS.iter().find(|row| row.to == to && row.from.contains(&from));
    row.copied().ok_or_else(|| Failure::options(format!("there is no way from {from} to {to}")))
}

/// Returns a handle for one pod alone, as each mount was for one pod before. Volumes of two pods
/// may have the same name but different Secrets. With a shared handle, one pod would see the data
/// of the other's login.
fn of_target(target: &str) -> String {
    of_foreign(&format!("~{}", hash(target.as_bytes())))
}

fn refused(reason: &Reason) -> Failure {
    let fix = reason.fix().replace("leave out --to", "install the driver without --through-csi");
    Failure::options(format!("{reason}: {fix}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::HoldAccess;
    use crate::csi::volume::AccessMode;
    use crate::translate::form::{Word, Words};
    use crate::translate::target::Becomes;

    fn asked(from: &str, to: &str, own: &[(&str, &str)]) -> CsiVolume {
        let own = own.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        CsiVolume {
            driver: to.to_owned(),
            handle: String::new(),
            target: "/var/lib/kubelet/pods/1/volumes/fstab~cifs/data".to_owned(),
            access_mode: AccessMode::ReadWriteOnce,
            access: HoldAccess::ReadWrite,
            fs_type: "cifs".to_owned(),
            mount_flags: Vec::new(),
            attributes: own.collect(),
            pod_info: BTreeMap::new(),
            topology: BTreeMap::new(),
            group: Some(1000),
            from: Some(from.to_owned()),
        }
    }

    const SMB: &str = "smb.csi.k8s.io";
    const SHARE: (&str, &str) = ("networkPath", "//nas/web");

    #[test]
    fn a_volume_gets_the_words_of_its_csi_driver() {
        let given = asked("fstab/cifs", SMB, &[SHARE, ("mountOptions", "vers=3.0,uid=7,nofail")]);
        let (made, warnings) = volume(given.clone()).unwrap();
        assert_eq!(made.attributes, [("source".to_owned(), "//nas/web".to_owned())].into());
        assert_eq!(
            (made.mount_flags, made.fs_type),
            (vec!["vers=3.0".into(), "uid=7".into()], String::new())
        );
        assert_eq!((made.group, made.target, warnings.len()), (given.group, given.target.clone(), 1));
        assert!(!made.handle.contains(['#', '/']), "{}", made.handle);
        // A volume in the CSI driver's own words stays unchanged.
        let own = CsiVolume { from: None, ..given };
        assert_eq!(volume(own.clone()).unwrap().0, own);
    }

    #[test]
    fn each_pod_has_a_volume_of_its_own() {
        let one = asked("fstab/cifs", SMB, &[SHARE]);
        let other = CsiVolume { target: one.target.replace("/1/", "/2/"), ..one.clone() };
        let handle = |asked| volume(asked).unwrap().0.handle;
        assert_eq!(handle(one.clone()), handle(one.clone()));
        assert_ne!(handle(one), handle(other));
    }

    #[test]
    fn a_secret_has_the_csi_driver_s_keys_and_is_not_dropped() {
        let secret = || BTreeMap::from([("accountkey".to_owned(), Secret::new(b"hunter2".to_vec()))]);
        let keys = |from, to| secrets(&asked(from, to, &[]), secret()).map(|all| all.into_keys().collect());
        assert_eq!(
            keys("azure/blobfuse", "blob.csi.azure.com"),
            Ok(vec!["azurestorageaccountkey".to_owned()])
        );
        assert_eq!(keys("fstab/cifs", SMB), Ok(vec!["accountkey".to_owned()]));
        let message = keys("k8s/nfs", "nfs.csi.k8s.io").unwrap_err().message();
        assert!(!message.contains("hunter2"), "{message}");
    }

    #[test]
    fn what_has_no_way_is_refused() {
        let fails = |from, to, own: &[(&str, &str)]| volume(asked(from, to, own)).is_err();
        for (from, to) in [
            ("fstab/cifs", "nfs.csi.k8s.io"),
            ("acme/cifs", SMB),
            ("fstab/cifs", "*"),
            // These need the object, a Secret that kubelet does not pass on, or an attached volume.
            ("oracle/oci", "blockvolume.csi.oraclecloud.com"),
            ("ceph.rook.io/rook", "rook-ceph.rbd.csi.ceph.com"),
            ("ceph.rook.io/", "rook-ceph.rbd.csi.ceph.com"),
            ("alicloud/oss", "ossplugin.csi.alibabacloud.com"),
            ("linbit/linstor-flexvolume", "linstor.csi.linbit.com"),
        ] {
            assert!(check(from, to).is_err() && fails(from, to, &[]), "{from} {to}");
        }
        assert!(check("fstab/cifs", SMB).is_ok());
        let hostile: [&[(&str, &str)]; 6] = [
            &[],
            &[("networkPath", "//nas/../x")],
            &[SHARE, ("evil", "x")],
            &[SHARE, ("mountOptions", "credentials=/etc/shadow")],
            &[SHARE, ("mountOptions", "suid")],
            &[SHARE, ("csi.storage.k8s.io/pod.name", "x")],
        ];
        for own in hostile {
            assert!(fails("fstab/cifs", SMB, own), "{own:?}");
        }
    }

    /// The driver's check has seen the author's words, before they became mount flags.
    #[test]
    fn no_way_lifts_what_a_policy_forbids() {
        let lists = |becomes: &Becomes| match becomes {
            Becomes::MountOptions(words) | Becomes::Flags(words) | Becomes::FlagsAttribute(_, words) => {
                Some(*words)
            }
            _ => None,
        };
        let all = TARGETS.iter().flat_map(|row| row.options).filter_map(|(_, becomes)| lists(becomes));
        let all: Vec<&Words> = all.collect();
        assert!(!all.is_empty());
        for words in all {
            for word in ["suid", "dev", "exec,suid"] {
                assert!(!matches!(words.read(word), Word::Kept), "{word}");
            }
        }
    }
}

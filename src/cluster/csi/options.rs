//! Options for a call of the driver, from CSI's request for a volume. Pure.

use super::capability::{Capability, invalid};
use super::habits::Habits;
use super::request::{Attach, Publish, Stage, Volume};
use flexvol_protocol::secret::Secret;
use flexvol_protocol::{Access, Options};
use std::collections::BTreeMap;
use tonic::Status;

/// Key of the fsGroup: kubelet used it up to 1.14, and documents still name it.
const LEGACY_FS_GROUP: &str = "kubernetes.io/fsGroup";

/// Limit for options, in bytes: an argument of a program may have at most 128 KiB.
const LIMIT: usize = 120 << 10;

/// Options that the admin sets for every volume, and the option for mount flags.
#[derive(Clone, Debug, Default)]
pub struct Ground {
    /// Options of a volume that it does not set itself.
    pub defaults: BTreeMap<String, String>,
    /// The driver's habits.
    pub habits: Habits,
}

impl Ground {
    /// Returns the options of every verb but `mount`.
    pub fn of_device(&self, volume: &Volume, read_only: bool) -> Result<Options, Status> {
        let mut own = self.defaults.clone();
        own.extend(volume.own.clone());
        self.add_mount_flags(&mut own, &volume.capability)?;
        checked(Options {
            fs_type: Some(volume.capability.fs_type.clone()),
            access: Some(if read_only { Access::ReadOnly } else { Access::ReadWrite }),
            volume_name: Some(volume.name.clone()),
            own,
            ..Options::default()
        })
    }

    /// Returns the options of `attach`.
    pub fn of_attach(&self, request: &Attach) -> Result<Options, Status> {
        self.of_device(&request.volume, request.read_only)
    }

    /// Returns the options of `waitforattach` and `mountdevice`.
    pub fn of_stage(&self, request: &Stage) -> Result<Options, Status> {
        let options = self.of_device(&request.volume, request.volume.capability.is_read_only())?;
        let secrets = if self.habits.stage_secrets { request.secrets.clone() } else { BTreeMap::new() };
        checked(Options { secrets, ..options })
    }

    /// Returns the options of `mount`: as with kubelet, only this call has the pod, its group and
    /// the secrets.
    pub fn of_mount(&self, request: &Publish) -> Result<Options, Status> {
        let Publish { volume, read_only, secrets, .. } = request;
        let legacy = volume.capability.group.map(|group| (LEGACY_FS_GROUP.to_owned(), group.gid.to_string()));
        checked(Options {
            pod: volume.pod.clone(),
            fs_group: volume.capability.group,
            secrets: secrets.clone(),
            reserved: flexvol_protocol::ordered::filled(legacy),
            ..self.of_device(volume, *read_only)?
        })
    }

    fn add_mount_flags(
        &self,
        own: &mut BTreeMap<String, String>,
        capability: &Capability,
    ) -> Result<(), Status> {
        if capability.mount_flags.is_empty() {
            return Ok(());
        }
        let Some(place) = &self.habits.mount_options else {
            return Err(invalid(
                "the driver has no option for mount flags: leave out mountOptions of the PersistentVolume",
            ));
        };
        let given = own.remove(&place.option).filter(|words| !words.is_empty());
        let words: Vec<_> = given.into_iter().chain(capability.mount_flags.iter().cloned()).collect();
        own.insert(place.option.clone(), words.join(&place.separator));
        Ok(())
    }
}

fn checked(options: Options) -> Result<Options, Status> {
    let secret = |secret: &Secret| secret.expose().len() / 3 * 4;
    let secrets: usize = options.secrets.values().map(secret).sum();
    if secrets > LIMIT || options.to_json().len() > LIMIT {
        return Err(invalid(&format!(
            "options and secrets are more than {LIMIT} bytes: no driver can be given them"
        )));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::super::capability::tests::mounted;
    use super::super::habits::MountOptions;
    use super::*;
    use crate::wire::csi::NodePublishVolumeRequest;
    use crate::wire::csi::volume_capability::AccessType;
    use crate::wire::csi::volume_capability::access_mode::Mode;

    fn publish(flags: &[&str], group: &str, own: &[(&str, &str)]) -> Box<Publish> {
        let mut capability = mounted(Mode::SingleNodeWriter, flags);
        if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
            mount.volume_mount_group = group.into();
        }
        Publish::parse(NodePublishVolumeRequest {
            volume_id: "fx1#pv".into(),
            target_path: "/t".into(),
            volume_capability: Some(capability),
            volume_context: own.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            secrets: [("k".to_owned(), "hunter2".to_owned())].into(),
            ..NodePublishVolumeRequest::default()
        })
        .unwrap()
    }

    fn ground(option: Option<(&str, &str)>) -> Ground {
        let mount_options = option
            .map(|(option, separator)| MountOptions { option: option.into(), separator: separator.into() });
        Ground {
            defaults: [("size".to_owned(), "1Mi".to_owned())].into(),
            habits: Habits { mount_options, ..Habits::default() },
        }
    }

    #[test]
    fn mount_gets_everything_and_the_others_less() {
        let request = publish(&["ro"], "7", &[("server", "s")]);
        let json = ground(None).of_mount(&request).unwrap().to_json();
        let expected = concat!(
            r#"{"kubernetes.io/fsGroup":"7","kubernetes.io/fsType":"","kubernetes.io/mounterArgs.FsGroup":"7","#,
            r#""kubernetes.io/pvOrVolumeName":"pv","kubernetes.io/readwrite":"ro","#,
            r#""kubernetes.io/secret/k":"aHVudGVyMg==","server":"s","size":"1Mi"}"#
        );
        assert_eq!(json, expected);
        let options = ground(None).of_device(&request.volume, false).unwrap();
        assert!(
            options.secrets.is_empty() && options.fs_group.is_none() && options.access() == Access::ReadWrite
        );
        assert_eq!(Options::parse(&json).unwrap().secrets["k"].expose(), b"hunter2");
    }

    #[test]
    fn mount_flags_go_into_the_driver_s_option() {
        let own = |flags: &[&str], given: &[(&str, &str)], option| {
            ground(option).of_mount(&publish(flags, "", given)).map(|options| options.own)
        };
        let flags = &["noatime", "ro", "vers=3"];
        assert_eq!(own(flags, &[], Some(("opts", ","))).unwrap()["opts"], "noatime,vers=3");
        assert_eq!(own(flags, &[("o", "x")], Some(("o", " "))).unwrap()["o"], "x noatime vers=3");
        assert!(own(flags, &[], None).is_err());
        assert_eq!(own(&["ro"], &[("size", "2Mi")], None).unwrap()["size"], "2Mi");
    }

    #[test]
    fn more_than_a_program_can_be_given_is_refused() {
        let huge = "x".repeat(LIMIT);
        assert!(ground(None).of_mount(&publish(&[], "", &[("a", &huge)])).is_err());
    }
}

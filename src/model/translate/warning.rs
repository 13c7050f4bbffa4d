//! Warnings for the reader of a translated object.

use flexvol_protocol::text::one_line;
use std::fmt;

/// Change beside the source, or a difference between what the object says and what happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The reclaim policy was this, and is now `Retain`.
    Retained(String),
    /// The reclaim policy is this again.
    PolicyRestored(String),
    /// The annotations and finalizers of its provisioner are removed.
    ProvisionerRemoved,
    /// Its first access mode is `ReadOnlyMany`, which FlexVolume ignored.
    ReadOnlyNow,
    /// The `PersistentVolume` has `readOnly`, which kubelet reads neither before nor after.
    ReadOnlyIgnored,
    /// `claimRef` has no UID: a claim that was bound to the volume before stays `Lost`.
    ClaimWithoutUid,
    /// The CSI volume was changed after its translation; the changes are lost.
    Drift,
    /// The driver of a pod's volume is not known: `flexvold csi` refuses the volume if the driver
    /// attaches.
    MayAttach,
    /// Warning about the pod's volume of this name.
    Volume(String, Box<Warning>),
    /// An option, or a mount option, is left out; the second text is the reason why nothing is
    /// lost.
    Ignored(String, &'static str),
    /// Difference in the behaviour of the CSI driver.
    Differs(&'static str),
    /// Its access modes are now `ReadWriteOnce` alone.
    OneWriter,
    /// This Secret has to be created, with these keys.
    SecretToMake(String, String),
    /// Volumes of this driver cannot be translated for the CSI driver; the volume stays as it is.
    Left(String),
}

impl Warning {
    /// Returns the name for programs.
    pub fn id(&self) -> &'static str {
        match self {
            Self::Retained(_) => "retained",
            Self::PolicyRestored(_) => "policy-restored",
            Self::ProvisionerRemoved => "provisioner-removed",
            Self::ReadOnlyNow => "read-only-now",
            Self::ReadOnlyIgnored => "read-only-ignored",
            Self::ClaimWithoutUid => "claim-without-uid",
            Self::Drift => "drift",
            Self::MayAttach => "may-attach",
            Self::Volume(_, warning) => warning.id(),
            Self::Ignored(..) => "ignored",
            Self::Differs(_) => "differs",
            Self::SecretToMake(..) => "secret-to-make",
            Self::OneWriter => "one-writer",
            Self::Left(_) => "left",
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retained(was) => {
                write!(f, "the reclaim policy was {was} and is Retain: delete the data yourself")
            }
            Self::PolicyRestored(policy) => write!(f, "the reclaim policy is {policy} again"),
            Self::ProvisionerRemoved => {
                f.write_str("what named its provisioner is left out, so that nothing deletes the data")
            }
            Self::ReadOnlyNow => f.write_str(
                "its first access mode is ReadOnlyMany, which FlexVolume ignored: pods can no longer write to it, \
                 or write another mode first",
            ),
            Self::ReadOnlyIgnored => f.write_str(
                "kubelet reads readOnly of no PersistentVolume: write it in the pod's persistentVolumeClaim",
            ),
            Self::ClaimWithoutUid => f.write_str(
                "claimRef has no uid: a claim that is bound to the volume now would stay Lost: translate what \
                 kubectl get -o yaml says, or leave out claimRef",
            ),
            Self::Drift => {
                f.write_str("csi was changed since the translation: what was changed is not in the FlexVolume")
            }
            Self::Ignored(key, why) => write!(f, "option {} is left out: {why}", one_line(&format!("{key:?}"), 100)),
            Self::Differs(what) => f.write_str(what),
            Self::OneWriter => f.write_str(
                "its access modes are ReadWriteOnce alone: the plugin took others for that, and the driver refuses them",
            ),
            Self::SecretToMake(name, keys) => {
                write!(f, "the CSI driver reads Secret {}: make it with {keys}", one_line(name, 300))
            }
            Self::Left(driver) => {
                write!(f, "not translated: volumes of {} have no way to that driver", one_line(driver, 100))
            }
            Self::MayAttach => {
                f.write_str("flexvold csi refuses it if the driver attaches: see that its init says attach: false")
            }
            Self::Volume(name, warning) => write!(f, "volume {}: {warning}", one_line(name, 100)),
        }
    }
}

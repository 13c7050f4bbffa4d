//! Reasons why an object is not translated.

use super::ORIGINAL;
use flexvol_protocol::text::one_line;
use std::fmt;

/// Limit for a key or a path in a message, in bytes: tenants write them.
const QUOTED: usize = 200;

/// Reason for a refusal, by what has to be changed. It contains no value of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// `metadata.name` is missing, or the API server does not accept it.
    Name,
    /// The field at this path is not what Kubernetes has there; the text says what it must be.
    Field(String, &'static str),
    /// `flexVolume` has a field that no API server accepts.
    UnknownField(String),
    /// `flexVolume.driver` is not a driver's name.
    Driver,
    /// The volume has another source beside `flexVolume`.
    TwoSources,
    /// The volume is a block device.
    Block,
    /// The volume has `mountOptions`, which kubelet does not use for a FlexVolume.
    MountOptions,
    /// The volume is being deleted.
    BeingDeleted,
    /// The key of an option is reserved for Kubernetes or flexvol.
    ReservedOption(String),
    /// An option holds a credential.
    CredentialInOption(String),
    /// An annotation holds a credential.
    CredentialInAnnotation(String),
    /// The options are larger than what a driver can be given.
    OptionsTooLarge,
    /// `secretRef` has a name or a namespace that no object can have.
    SecretName,
    /// The namespace of the Secret is not given.
    SecretNamespace,
    /// The object has the annotation of a translated object, and also a `flexVolume`.
    HasOriginal,
    /// The annotations would be larger than the API server accepts.
    AnnotationsTooLarge,
    /// The annotation was changed since it was written.
    OriginalChanged,
    /// The annotation belongs to another object, or names a field that no translation changes.
    OriginalForeign,
    /// The object has the annotation, but no `csi`.
    NotCsi,
    /// A pod's volume has no name, or the same name as another volume.
    VolumeName,
    /// The driver of a pod's volume attaches, which CSI does not do for inline volumes.
    AttachedInline,
    /// The CSI driver has no equivalent for this option.
    OptionUnknown(String, &'static str),
    /// An option is given twice: in two spellings, or under two names with two values.
    OptionTwice(String),
    /// The value of this option does not have the required form; the second text says what to
    /// write.
    OptionForm(&'static str, &'static str),
    /// This option is missing.
    OptionMissing(&'static str),
    /// This option cannot be translated for the CSI driver; the texts are the reason and the fix.
    OptionRefused(&'static str, &'static str, &'static str),
    /// This mount option is not known to be safe.
    MountOption(String),
    /// The CSI driver does not take a Secret.
    NoSecret(&'static str),
    /// The CSI driver does not take volumes with this `fsType`, or takes only those.
    FsType(&'static str, &'static str),
    /// The zones of the volume belong to several regions.
    Zones,
    /// The annotation with the storage's own name of the volume is missing or not valid.
    Identity(&'static str),
    /// The CSI driver takes no inline volume of a pod.
    NoInline(&'static str),
    /// The reason of this volume of the pod.
    Volume(String, Box<Reason>),
}

impl Reason {
    /// Returns the name for programs.
    pub fn id(&self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Field(..) => "field",
            Self::UnknownField(_) => "unknown-field",
            Self::Driver => "driver",
            Self::TwoSources => "two-sources",
            Self::Block => "block",
            Self::MountOptions => "mount-options",
            Self::BeingDeleted => "being-deleted",
            Self::ReservedOption(_) => "reserved-option",
            Self::CredentialInOption(_) => "credential-in-option",
            Self::CredentialInAnnotation(_) => "credential-in-annotation",
            Self::OptionsTooLarge => "options-too-large",
            Self::SecretName => "secret-name",
            Self::SecretNamespace => "secret-namespace",
            Self::HasOriginal => "has-original",
            Self::AnnotationsTooLarge => "annotations-too-large",
            Self::OriginalChanged => "original-changed",
            Self::OriginalForeign => "original-foreign",
            Self::NotCsi => "not-csi",
            Self::VolumeName => "volume-name",
            Self::AttachedInline => "attached-inline",
            Self::OptionUnknown(..) => "option-unknown",
            Self::OptionTwice(_) => "option-twice",
            Self::OptionForm(..) => "option-form",
            Self::OptionMissing(_) => "option-missing",
            Self::OptionRefused(..) => "option-refused",
            Self::MountOption(_) => "mount-option",
            Self::NoSecret(_) => "no-secret",
            Self::FsType(..) => "fs-type",
            Self::Identity(_) => "identity",
            Self::Zones => "zones",
            Self::NoInline(_) => "no-inline",
            Self::Volume(_, reason) => reason.id(),
        }
    }

    /// Returns the fix.
    pub fn fix(&self) -> &'static str {
        match self {
            Self::Name => "write lower-case letters, digits, '-' and '.', at most 253",
            Self::Field(..) | Self::UnknownField(_) => "flexvol validate names the line",
            Self::Driver => "write VENDOR/DRIVER, as below kubelet's plugin directory",
            Self::TwoSources | Self::OptionTwice(_) => "remove one",
            Self::Block => "remove volumeMode",
            Self::MountOptions => "put them into flexVolume.options, where the driver reads them",
            Self::BeingDeleted => "wait until it is gone, or take it from a backup",
            Self::ReservedOption(_) => "rename it: the driver never sees an option of that domain",
            Self::CredentialInOption(_) => {
                "put it into a Secret whose type is the driver's name, write secretRef, and remove the option"
            }
            Self::CredentialInAnnotation(_) => "remove the annotation, and replace the credential",
            Self::OptionsTooLarge => "shorten them: no program can be given more than 120 KiB",
            Self::SecretName => "write the names of a Secret and of its namespace",
            Self::SecretNamespace => "write flexVolume.secretRef.namespace: that of its pods",
            Self::HasOriginal => "remove the annotation if the volume is a FlexVolume again",
            Self::AnnotationsTooLarge => "remove annotations that nothing reads",
            Self::OriginalChanged | Self::OriginalForeign | Self::NotCsi => {
                "take the object from a backup of before the translation"
            }
            Self::VolumeName => "give each volume a name of its own",
            Self::AttachedInline => "make a PersistentVolume, and a claim of it for the pod",
            Self::OptionUnknown(..) | Self::MountOption(_) => {
                "remove it if it does nothing, or leave out --to"
            }
            Self::OptionForm(_, fix) | Self::OptionRefused(_, _, fix) => fix,
            Self::OptionMissing(_) => "write it",
            Self::FsType(..) => "write the --to of its kind, or leave out --to",
            Self::Zones => "write the zones of its region into the label",
            Self::Identity(_) => "write what the storage calls the volume there, whole",
            Self::NoSecret(_) => "remove secretRef if the storage asks for no login, or leave out --to",
            Self::NoInline(_) => "make a PersistentVolume, and a claim of it for the pod, or leave out --to",
            Self::Volume(_, reason) => reason.fix(),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |text: &str| one_line(&format!("{text:?}"), QUOTED);
        match self {
            Self::Name => f.write_str("metadata.name is missing or not valid"),
            Self::Field(path, must) => write!(f, "{} must be {must}", one_line(path, QUOTED)),
            Self::UnknownField(key) => write!(f, "flexVolume has no field {}", quoted(key)),
            Self::Driver => f.write_str("flexVolume.driver is not a driver's name"),
            Self::TwoSources => f.write_str("it has two sources"),
            Self::Block => f.write_str("it is a block device, and FlexVolume has none"),
            Self::MountOptions => f.write_str("it has mountOptions, with which kubelet mounts no FlexVolume"),
            Self::BeingDeleted => f.write_str("it is being deleted"),
            Self::ReservedOption(key) => write!(f, "option {} is reserved", quoted(key)),
            Self::CredentialInOption(key) => {
                write!(
                    f,
                    "option {} holds a credential, which whoever reads the volume can read",
                    quoted(key)
                )
            }
            Self::CredentialInAnnotation(key) => {
                write!(
                    f,
                    "annotation {} holds a credential, which whoever reads the volume can read",
                    quoted(key)
                )
            }
            Self::OptionsTooLarge => f.write_str("its options are too large"),
            Self::SecretName => f.write_str("flexVolume.secretRef is not valid"),
            Self::SecretNamespace => f.write_str("the namespace of its Secret is unknown"),
            Self::HasOriginal => write!(f, "it has the annotation {ORIGINAL} already"),
            Self::AnnotationsTooLarge => f.write_str("its annotations would be more than 256 KiB"),
            Self::OriginalChanged => write!(f, "the annotation {ORIGINAL} was changed since it was written"),
            Self::OriginalForeign => write!(f, "the annotation {ORIGINAL} is of another object"),
            Self::NotCsi => write!(f, "it has the annotation {ORIGINAL} and no csi"),
            Self::VolumeName => f.write_str("a volume has no name, or that of another"),
            Self::AttachedInline => {
                f.write_str("its driver attaches, and CSI attaches no volume that stands in a pod")
            }
            Self::OptionUnknown(key, to) => write!(f, "{to} has nothing for option {}", quoted(key)),
            Self::OptionTwice(key) => write!(f, "option {} has two values", quoted(key)),
            Self::OptionForm(key, _) => write!(f, "option {key:?} has a value that is not valid"),
            Self::OptionMissing(key) => write!(f, "option {key:?} is missing"),
            Self::OptionRefused(key, why, _) => write!(f, "option {key:?}: {why}"),
            Self::MountOption(key) => write!(f, "mount option {} is not known to be safe", quoted(key)),
            Self::NoSecret(to) => write!(f, "{to} takes no Secret"),
            Self::FsType(to, fs_type) => {
                write!(f, "whether fsType is {fs_type} says which driver it is for, and {to} is the other")
            }
            Self::Zones => f.write_str("the label of its zones names several regions, or none"),
            Self::Identity(key) => write!(f, "annotation {key:?} is missing or not valid"),
            Self::NoInline(to) => write!(f, "{to} takes no volume that stands in a pod"),
            Self::Volume(name, reason) => write!(f, "volume {}: {reason}", one_line(name, QUOTED)),
        }
    }
}

//! Row of the table: a translation from some FlexVolume drivers to one CSI driver.

use super::form::{Form, Words};

/// Translation from some FlexVolume drivers to one CSI driver.
#[derive(Debug)]
pub struct Target {
    /// Names in `flexVolume.driver`. A name that ends in `/` is a vendor and stands for all its
    /// drivers.
    pub from: &'static [&'static str],
    /// The CSI driver.
    pub to: &'static str,
    /// Translation of each option. An option that is not listed is refused.
    pub options: &'static [(&'static str, Becomes)],
    /// True if the FlexVolume driver reads its options in any case, as programs in Go do.
    pub any_case: bool,
    /// Attributes composed of options: `{option}` is the value of a [`Becomes::Part`].
    pub attributes: &'static [(&'static str, &'static str)],
    /// Required attributes.
    pub needs: &'static [&'static str],
    /// Mount options that every volume gets, before its own.
    pub mount_options: &'static [&'static str],
    /// Source of the CSI driver's login.
    pub secret: Login,
    /// Handle of the volume.
    pub handle: Handle,
    /// Translation of `fsType`.
    pub fs_type: FsType,
    /// Translation of a volume in a pod.
    pub inline: Inline,
    /// Differences after the translation, for people.
    pub differs: &'static [&'static str],
}

/// Translation of an option's value, which must have the form. An empty value counts as absent.
#[derive(Clone, Copy, Debug)]
pub enum Becomes {
    /// Entry of `volumeAttributes`.
    Attribute(&'static str, Form),
    /// Required part of [`Target::attributes`].
    Part(Form),
    /// Optional part.
    Option(Form),
    /// Part with a default for an absent option.
    PartOr(Form, &'static str),
    /// Mount options, word by word.
    MountOptions(&'static Words),
    /// Mount options in the form of a command line: `-o NAME=VALUE` and `--NAME=VALUE`.
    Flags(&'static Words),
    /// The same, joined into one attribute.
    FlagsAttribute(&'static str, &'static Words),
    /// Single mount option, `NAME=value`.
    MountOption(&'static str, Form),
    /// No effect; the text is the reason why nothing is lost.
    Nothing(&'static str),
    /// Refusal: the reason and the fix.
    Refused(&'static str, &'static str),
}

/// Source of a CSI driver's login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Login {
    /// No Secret: the driver takes none.
    None,
    /// The same Secret with the same keys, as `nodeStageSecretRef`.
    Staged,
    /// The same Secret with the same keys, as `nodePublishSecretRef`.
    Published,
    /// A copy of the Secret, `NAME-csi`, in which these keys have other names.
    Renamed(&'static [(&'static str, &'static str)]),
    /// A Secret of the driver's own: its name, the option with its namespace, and its required
    /// content.
    Own(&'static str, &'static str, &'static str),
}

/// Handle of a volume for a CSI driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handle {
    /// Generated, and unique to this volume.
    Made,
    /// The volume's name, by which the driver looks it up.
    Name,
    /// The storage's name of the volume, which is this [`Becomes::Part`]. Two volumes over the same
    /// storage have the same handle.
    Part(&'static str),
    /// The storage's name from a [`Becomes::Option`], or the volume's name if that option is left
    /// out.
    PartOrName(&'static str),
    /// The storage's name from this annotation, which the FlexVolume driver's provisioner wrote.
    Annotation(&'static str, Form),
}

/// Translation of `fsType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsType {
    /// Dropped: the storage has its own file system.
    Dropped,
    /// Kept.
    Kept,
    /// Kept, except for this value: that volume belongs to another row.
    KeptBut(&'static str),
    /// Required to be this value.
    Only(&'static str),
}

/// Translation of a volume in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inline {
    /// Refused: the driver takes only `PersistentVolume`s.
    Refused,
    /// The Secret's name and the mount options become attributes of these names.
    Attributes(&'static str, &'static str),
}

impl Target {
    /// Reports whether this row translates volumes of the FlexVolume driver.
    pub(super) fn is_from(&self, driver: &str) -> bool {
        self.from.iter().any(|name| *name == driver || name.ends_with('/') && driver.starts_with(name))
    }
}

/// Defaults of every target.
pub(super) const PLAIN: Target = Target {
    from: &[],
    to: "",
    options: &[],
    any_case: false,
    attributes: &[],
    needs: &[],
    mount_options: &[],
    secret: Login::None,
    handle: Handle::Made,
    fs_type: FsType::Dropped,
    inline: Inline::Refused,
    differs: &[],
};

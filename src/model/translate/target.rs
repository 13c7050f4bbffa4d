//! What a row of the table says: from some FlexVolume drivers to one CSI driver.

use super::form::{Form, Words};

/// From some FlexVolume drivers to one CSI driver.
#[derive(Debug)]
pub struct Target {
    /// Their names in `flexVolume.driver`; one that ends in `/` is a vendor, whatever the driver.
    pub from: &'static [&'static str],
    /// The CSI driver.
    pub to: &'static str,
    /// What becomes of each option. One that is not here is a refusal.
    pub options: &'static [(&'static str, Becomes)],
    /// Whether the FlexVolume driver reads its options in any case, as programs in Go do.
    pub any_case: bool,
    /// Attributes that are put together of options: `{option}` is the value of a [`Becomes::Part`].
    pub attributes: &'static [(&'static str, &'static str)],
    /// Attributes without which there is no volume.
    pub needs: &'static [&'static str],
    /// Mount options that every volume gets, before its own.
    pub mount_options: &'static [&'static str],
    /// Where the CSI driver finds its login.
    pub secret: Login,
    /// What the CSI driver knows the volume by.
    pub handle: Handle,
    /// What becomes of `fsType`.
    pub fs_type: FsType,
    /// What becomes of a volume in a pod.
    pub inline: Inline,
    /// What is not the same afterwards.
    pub differs: &'static [&'static str],
}

/// What becomes of an option's value, if it has the form. An empty one is like one that is not
/// there.
#[derive(Clone, Copy, Debug)]
pub enum Becomes {
    /// This entry of `volumeAttributes`.
    Attribute(&'static str, Form),
    /// A part of what [`Target::attributes`] put together; must be there.
    Part(Form),
    /// The same, if it is there.
    Option(Form),
    /// The same, with what it is if left out.
    PartOr(Form, &'static str),
    /// Mount options, word by word.
    MountOptions(&'static Words),
    /// Mount options that are words of a command line: `-o NAME=VALUE` and `--NAME=VALUE`.
    Flags(&'static Words),
    /// The same as one attribute.
    FlagsAttribute(&'static str, &'static Words),
    /// One mount option, `NAME=value`.
    MountOption(&'static str, Form),
    /// Nothing, and the reason why nothing is lost.
    Nothing(&'static str),
    /// A refusal: why, and what to do.
    Refused(&'static str, &'static str),
}

/// Where a CSI driver finds its login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Login {
    /// It takes no Secret.
    None,
    /// In the same Secret, which has the same keys, as `nodeStageSecretRef`.
    Staged,
    /// The same as `nodePublishSecretRef`.
    Published,
    /// In a copy of the Secret, `NAME-csi`, in which these keys have other names.
    Renamed(&'static [(&'static str, &'static str)]),
    /// In a Secret of the driver's own: its name, the option that is its namespace, and what it
    /// must have.
    Own(&'static str, &'static str, &'static str),
}

/// What a CSI driver knows a volume by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handle {
    /// Anything that is this volume's alone.
    Made,
    /// The volume's name: the driver looks it up by that.
    Name,
    /// What the storage calls it, which is this [`Becomes::Part`]. Two volumes of one thing have
    /// one handle.
    Part(&'static str),
    /// The same of a [`Becomes::Option`], or the volume's name if that is left out.
    PartOrName(&'static str),
    /// The same, in this annotation, which the FlexVolume driver's provisioner wrote.
    Annotation(&'static str, Form),
}

/// What becomes of `fsType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsType {
    /// Nothing: the storage has one of its own.
    Dropped,
    /// It stays.
    Kept,
    /// It stays, unless it is this: that is a volume of another row.
    KeptBut(&'static str),
    /// It must be this.
    Only(&'static str),
}

/// What becomes of a volume in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inline {
    /// It is refused: the driver takes `PersistentVolume`s alone.
    Refused,
    /// The driver wants the Secret's name and the mount options as attributes of these names.
    Attributes(&'static str, &'static str),
}

impl Target {
    /// Whether volumes of this FlexVolume driver go this way.
    pub(super) fn is_from(&self, driver: &str) -> bool {
        self.from.iter().any(|name| *name == driver || name.ends_with('/') && driver.starts_with(name))
    }
}

/// What every target starts from.
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

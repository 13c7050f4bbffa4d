//! FlexVolume volumes as volumes of CSI drivers, and back: pure, total and deterministic.
//!
//! ```text
//! PersistentVolume, pod template, StorageClass ──▶ to_csi ──▶ the same object for a CSI driver
//!                                              ◀── to_flex ◀── (annotation: what it was)
//! ```
//!
//! * [`TARGETS`] says from which FlexVolume driver to which CSI driver, and what becomes of each
//!   option: read [`targets::smb`](mod@targets) first. A driver without a row, and every driver if
//!   nothing else is asked for, goes to `flexvold csi` over the same driver: the same executable
//!   goes on to mount.
//! * [`in_tree::PLUGINS`] is the same for the volumes that Kubernetes itself once had.
//! * What an object was is kept in it, in the annotation [`WAS`]: the way back is exact, and is
//!   refused where that is missing or was touched.
//!
//! What holds for every object, whoever wrote it:
//!
//! 1. each option is consumed, or ignored with a warning, or the object is refused;
//! 2. no credential gets into an attribute, an annotation or a message: an option that holds one is
//!    a refusal, and of a Secret only names are known here;
//! 3. the volume cannot be deleted by its new driver: the reclaim policy is Retain, no provisioner
//!    is named, and a handle made here ([`handle`]) is no path to any driver that would delete one.

mod back;
mod credential;
pub mod handle;
pub mod in_tree;
mod object;
mod options;
mod pod;
mod storage_class;
pub mod targets;
mod volume;
mod was;
mod words;

pub use targets::TARGETS;
pub use was::WAS;

use flexvol_protocol::mount_options::Rule;
use serde_json::Value;
use std::fmt;

/// From some FlexVolume drivers to one CSI driver.
#[derive(Debug)]
pub struct Target {
    /// Their names in `flexVolume.driver`.
    pub from: &'static [&'static str],
    /// The CSI driver. Some are deployed under a prefix of their own: `rook-ceph.` before it.
    pub to: &'static str,
    /// What becomes of each option. One that is not here is a refusal.
    pub options: &'static [(&'static str, Becomes)],
    /// Whether the driver reads its options in any case, as programs in Go do.
    pub any_case: bool,
    /// Attributes that every volume gets; `{option}` is the value of one that is a [`Becomes::Part`].
    pub attributes: &'static [(&'static str, &'static str)],
    /// Attributes without which there is no volume.
    pub needs: &'static [&'static str],
    /// Mount options that every volume gets, before its own.
    pub mount_options: &'static [&'static str],
    /// Whether the CSI driver looks at `fsType`.
    pub fs_type: bool,
    /// The volume's handle.
    pub handle: Handle,
    /// The volume's Secret.
    pub secret: Secret,
    /// What becomes of a volume in a pod.
    pub inline: Inline,
    /// StorageClasses of the FlexVolume driver's provisioner, if there was one.
    pub class: Option<Class>,
    /// What is not the same afterwards: a line each.
    pub differs: &'static [&'static str],
}

/// What becomes of an option's value, if it has the form.
#[derive(Clone, Copy, Debug)]
pub enum Becomes {
    /// This entry of `volumeAttributes`.
    Attribute(&'static str, Form),
    /// A part of what [`Target::attributes`] or the handle put together; must be there.
    Part(Form),
    /// The same, with what it is if left out.
    PartOr(Form, &'static str),
    /// Mount options, word by word.
    MountOptions(&'static Words),
    /// One mount option, `NAME=value`.
    MountOption(&'static str, Form),
    /// Nothing, and the reason why nothing is lost.
    Nothing(&'static str),
    /// A refusal unless it is empty: why, and what to do.
    Refused(&'static str, &'static str),
}

/// What a value must look like. Whatever does not is a refusal: tenants write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One line.
    Text,
    /// Letters, digits and `. _ -`, a letter or digit first.
    Name,
    /// Name or address of a machine.
    Host,
    /// `//server/share`, and a directory in it, with either slash; without `..`.
    Share,
    /// A path without `..`; a slash is put before it.
    Path,
    /// `host` or `https://host`, without a password in it.
    Url,
    /// Digits.
    Number,
    /// One of these.
    OneOf(&'static [&'static str]),
}

/// What may stand in a list of mount options.
#[derive(Debug)]
pub struct Words {
    /// How they are written.
    pub split: Split,
    /// What is allowed.
    pub allowed: &'static [&'static [Rule]],
    /// What is ignored, and why.
    pub ignored: &'static [(&'static str, &'static str)],
}

/// How mount options are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Between commas.
    Comma,
    /// Words of a command line: `-o uid=1 --flag=2`.
    CommandLine,
}

/// A volume's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handle {
    /// One made of the PersistentVolume's name: [`handle::of_volume`].
    Made,
    /// The storage's own name, and how it begins: put together of [`Becomes::Part`]s and `{name}`,
    /// the PersistentVolume's. Only for drivers that know volumes by nothing else.
    Own(&'static str, &'static str),
}

/// What becomes of `secretRef`.
#[derive(Clone, Copy, Debug)]
pub enum Secret {
    /// The driver wants none.
    None,
    /// `nodeStageSecretRef`, with these keys: their names before and after.
    Stage(&'static [(&'static str, &'static str)]),
    /// `nodePublishSecretRef`, likewise.
    Publish(&'static [(&'static str, &'static str)]),
    /// The Secret that comes with the driver, in the namespace that a [`Becomes::Part`] names.
    Deployed(&'static str, &'static str),
}

/// What becomes of a volume in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inline {
    /// It is refused: the driver takes PersistentVolumes alone.
    Refused,
    /// The driver wants the Secret's name and the mount options as attributes of these names.
    Attributes(&'static str, &'static str),
}

/// StorageClasses of a FlexVolume driver's provisioner.
#[derive(Debug)]
pub struct Class {
    /// Its names.
    pub provisioners: &'static [&'static str],
    /// What becomes of each parameter.
    pub parameters: &'static [(&'static str, Becomes)],
    /// Parameters that every class gets.
    pub set: &'static [(&'static str, &'static str)],
}

/// What every target starts from.
const PLAIN: Target = Target {
    from: &[],
    to: "",
    options: &[],
    any_case: false,
    attributes: &[],
    needs: &[],
    mount_options: &[],
    fs_type: false,
    handle: Handle::Made,
    secret: Secret::None,
    inline: Inline::Refused,
    class: None,
    differs: &[],
};

/// An object that was translated.
#[derive(Clone, Debug, PartialEq)]
pub struct Translation {
    /// The whole object as it is now.
    pub object: Value,
    /// What its reader has to know, a line each.
    pub warnings: Vec<String>,
    /// The handle of each PersistentVolume: driver and handle.
    pub handle: Option<(String, String)>,
    /// Secrets that must be there under other keys than the volume's Secret has.
    pub secrets: Vec<SecretCopy>,
}

/// A Secret that is made of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretCopy {
    /// The namespace of both.
    pub namespace: String,
    /// The Secret that is there.
    pub from: String,
    /// The Secret to make.
    pub to: String,
    /// Each key there, and what it is called in the new one. No other key is copied.
    pub keys: &'static [(&'static str, &'static str)],
}

/// Why an object is not translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Kind and name.
    pub object: String,
    /// What is in the way.
    pub reason: String,
    /// What to do.
    pub fix: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.object, self.reason, self.fix)
    }
}

/// Translates an object for the first of the CSI drivers that its volumes can go to; `drivers`
/// empty: for `flexvold csi` over the same FlexVolume driver.
///
/// `None` if there is nothing to translate in it.
pub fn to_csi(object: &Value, drivers: &[&str]) -> Result<Option<Translation>, Refusal> {
    object::translate(object, drivers)
}

/// The object as it was before [`to_csi`]; `None` if it was not translated.
pub fn to_flex(object: &Value) -> Result<Option<Translation>, Refusal> {
    back::translate(object)
}

/// The CSI drivers that the volumes of a FlexVolume driver can go to, beside `flexvold csi`.
pub fn targets_of(driver: &str) -> impl Iterator<Item = &'static Target> {
    TARGETS.iter().copied().filter(move |target| target.from.contains(&driver))
}

/// Whether a name is one of a CSI driver that something can be translated for.
pub fn is_target(name: &str) -> bool {
    let rows = TARGETS.iter().map(|target| target.to);
    rows.chain(in_tree::PLUGINS.iter().map(|plugin| plugin.to)).any(|to| names(name, to))
}

/// Whether `name` is the driver `to`, or `to` under a prefix of its own.
fn names(name: &str, to: &str) -> bool {
    let prefix = name.strip_suffix(to);
    name.len() < 64 && prefix.is_some_and(|rest| rest.is_empty() || rest.ends_with('.') && rest.len() > 1)
}

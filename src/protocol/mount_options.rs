//! Option `mountOptions`: a tenant's comma list, checked word by word against an allow-list.
//!
//! Words that every file system knows become [`MountFlags`]. Every other word must match a [`Rule`]
//! of the file system and is passed on as a single key-value pair, so that no value can carry a
//! further option. `ro` wins over `rw`. nosuid and nodev stay unless the node's policy lets the
//! tenant lift them.

use crate::failure::{Failure, Result};
use crate::quantity::Quantity;
use serde::{Serialize, Serializer};
use std::fmt;

/// Desired per-mount flags of mount(8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one flag of mount(8), independent of the others")]
pub struct MountFlags {
    /// Writes fail with EROFS.
    pub read_only: bool,
    /// Set-user-id bits work; only if the policy allows it.
    pub suid: bool,
    /// Device nodes work; only if the policy allows it.
    pub dev: bool,
    /// Programs can be run.
    pub exec: bool,
    /// Time at which access times are written.
    pub atime: Atime,
    /// Access times of directories are written, too.
    pub diratime: bool,
}

/// Time at which access times are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    /// If older than the last change, or than a day: the kernel's default.
    Relative,
    /// Never.
    Never,
    /// Always.
    Strict,
}

impl MountFlags {
    /// Flags of a volume that sets none.
    pub const DEFAULT: Self = Self {
        read_only: false,
        suid: false,
        dev: false,
        exec: true,
        atime: Atime::Relative,
        diratime: true,
    };

    fn words(self) -> impl Iterator<Item = &'static str> {
        let atime = match self.atime {
            Atime::Relative => None,
            Atime::Never => Some("noatime"),
            Atime::Strict => Some("strictatime"),
        };
        let flags = [
            (true, if self.read_only { "ro" } else { "rw" }),
            (!self.suid, "nosuid"),
            (!self.dev, "nodev"),
            (!self.exec, "noexec"),
            (!self.diratime, "nodiratime"),
        ];
        flags.into_iter().filter_map(|(set, word)| set.then_some(word)).chain(atime)
    }

    /// Applies one of the words that every file system knows; returns false for any other word.
    fn take(&mut self, word: &str) -> bool {
        match word {
            "ro" => self.read_only = true,
            // "rw" and "defaults" have no effect: kubelet's `readwrite` decides, and a requested ro
            // always wins.
            "rw" | "defaults" | "async" | "relatime" | "_netdev" => {}
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "noatime" => self.atime = Atime::Never,
            "strictatime" => self.atime = Atime::Strict,
            "diratime" => self.diratime = true,
            "nodiratime" => self.diratime = false,
            word => return is_idle(word),
        }
        true
    }
}

impl fmt::Display for MountFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().collect::<Vec<_>>().join(","))
    }
}

impl Serialize for MountFlags {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Propagation types of mount(2), in Kubernetes' words where they exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Propagation {
    /// No propagation in either direction.
    Private,
    /// Mounts of the node appear in the pod.
    HostToContainer,
    /// Mounts of the node appear in the pod, and mounts of the pod on the node.
    Bidirectional,
}

/// Option of a file system of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsOption {
    /// Name of the option.
    pub key: String,
    /// Value, if it has one.
    pub value: Option<String>,
}

impl FsOption {
    /// Makes an option with a value.
    pub fn new(key: &str, value: impl fmt::Display) -> Self {
        Self { key: key.into(), value: Some(value.to_string()) }
    }

    /// Makes an option without a value.
    pub fn flag(key: &str) -> Self {
        Self { key: key.into(), value: None }
    }
}

impl fmt::Display for FsOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{}={value}", self.key),
            None => f.write_str(&self.key),
        }
    }
}

impl Serialize for FsOption {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Option that a tenant may give a file system, and its allowed values.
#[derive(Clone, Copy, Debug)]
pub struct Rule(pub &'static str, pub Value);

/// Allowed values of an option.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// None: the word alone.
    None,
    /// Digits.
    Number,
    /// A size.
    Size,
    /// Letters, digits and `_ . : / @ -`.
    Word,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// No value is allowed: this other option is used in its place.
    Instead(&'static str),
}

impl Value {
    fn accepts(self, value: Option<&str>) -> bool {
        let harmless = |c: char| c.is_ascii_alphanumeric() || "_.:/@-".contains(c);
        match (self, value) {
            (Self::None, None) => true,
            (Self::Number, Some(text)) => {
                !text.is_empty() && text.len() < 20 && text.bytes().all(|b| b.is_ascii_digit())
            }
            (Self::Size, Some(text)) => Quantity::parse(text).is_ok(),
            (Self::Word, Some(text)) => !text.is_empty() && text.chars().all(harmless),
            (Self::OneOf(words), Some(text)) => words.contains(&text),
            _ => false,
        }
    }
}

/// Options that the VFS itself accepts for every superblock.
const COMMON: &[Rule] =
    &[Rule("sync", Value::None), Rule("dirsync", Value::None), Rule("lazytime", Value::None)];

/// Words without effect here. mount(8) and mount.nfs act on them themselves, `intr` has no meaning
/// since Linux 2.6.25, and retries are kubelet's task.
const IDLE: [&str; 10] =
    ["auto", "noauto", "nofail", "users", "nouser", "intr", "nointr", "bg", "fg", "sloppy"];

/// Reports whether a word of a list is accepted and left out, for any file system: see nfs(5),
/// mount(8).
fn is_idle(word: &str) -> bool {
    IDLE.contains(&word)
        || ["x-", "retry=", "clientaddr=", "comment="].iter().any(|start| word.starts_with(start))
}

/// Returns the words of a list that are accepted and left out, for their author.
pub fn idle(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|word| is_idle(word))
}

/// Parses a comma list. Returns the resulting flags, starting from `flags`, and the file system's
/// own options.
pub fn parse(list: &str, mut flags: MountFlags, rules: &[Rule]) -> Result<(MountFlags, Vec<FsOption>)> {
    let read_only = flags.read_only;
    let mut options = Vec::new();
    for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        if !flags.take(word) {
            options.push(own_option(word, rules)?);
        }
    }
    flags.read_only |= read_only;
    Ok((flags, options))
}

fn own_option(word: &str, rules: &[Rule]) -> Result<FsOption> {
    let (key, value) = word.split_once('=').map_or((word, None), |(key, value)| (key, Some(value)));
    let rule = COMMON.iter().chain(rules).find(|rule| rule.0 == key);
    match rule {
        // The error omits the value, which may be a password.
        Some(Rule(_, Value::Instead(place))) => {
            Err(Failure::options(format!("mountOptions: {key:?} is not allowed here: use {place}")))
        }
        Some(rule) if rule.1.accepts(value) => {
            Ok(FsOption { key: key.into(), value: value.map(str::to_owned) })
        }
        Some(rule) => Err(Failure::options(format!("mountOptions: {word:?} does not fit: {}", usage(rule)))),
        None => Err(Failure::options(format!(
            "mountOptions: {key:?} is not allowed here: allowed are ro, noexec, noatime, strictatime, nodiratime, {}",
            allowed(rules).collect::<Vec<_>>().join(", ")
        ))),
    }
}

fn allowed(rules: &[Rule]) -> impl Iterator<Item = &'static str> {
    let all = COMMON.iter().chain(rules);
    all.filter(|rule| !matches!(rule.1, Value::Instead(_))).map(|rule| rule.0)
}

fn usage(Rule(key, value): &Rule) -> String {
    match value {
        Value::None => format!("write {key} without a value"),
        Value::Number => format!("write {key}=NUMBER"),
        Value::Size => format!("write {key}=SIZE, such as 64k"),
        Value::Word => format!("write {key}=WORD"),
        Value::OneOf(words) => format!("write {key}={}", words.join(&format!(" or {key}="))),
        Value::Instead(place) => format!("use {place}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::wording_of;

    const RULES: &[Rule] = &[
        Rule("commit", Value::Number),
        Rule("data", Value::OneOf(&["ordered"])),
        Rule("discard", Value::None),
        Rule("password", Value::Instead("the Secret's password")),
    ];

    fn flags(list: &str, read_only: bool) -> String {
        parse(list, MountFlags { read_only, ..MountFlags::DEFAULT }, RULES).unwrap().0.to_string()
    }

    #[test]
    fn flags_start_safe_and_ro_wins() {
        assert_eq!(flags("", false), "rw,nosuid,nodev");
        assert_eq!(flags("rw", true), "ro,nosuid,nodev");
        assert_eq!(flags("ro,rw", false), "ro,nosuid,nodev");
        assert_eq!(flags("noexec, noatime,nodiratime,suid", false), "rw,nodev,noexec,nodiratime,noatime");
    }

    #[test]
    fn what_is_for_mount_alone_is_left_out() {
        let list = "nofail,x-systemd.automount,bg, retry=5,discard,x-systemd.requires=/a b";
        let (flags, options) = parse(list, MountFlags::DEFAULT, RULES).unwrap();
        assert_eq!((flags, options), (MountFlags::DEFAULT, vec![FsOption::flag("discard")]));
        let left_out: Vec<_> = idle(list).collect();
        assert_eq!(left_out, ["nofail", "x-systemd.automount", "bg", "retry=5", "x-systemd.requires=/a b"]);
    }

    #[test]
    fn own_options_are_single_pairs() {
        let (_, options) =
            parse("commit=5,discard,data=ordered,lazytime", MountFlags::DEFAULT, RULES).unwrap();
        let words: Vec<_> = options.iter().map(ToString::to_string).collect();
        assert_eq!(words, ["commit=5", "discard", "data=ordered", "lazytime"]);
    }

    #[test]
    fn what_takes_a_word_s_place_is_said() {
        let refused = |list| parse(list, MountFlags::DEFAULT, RULES).unwrap_err().message();
        let expected = wording_of("option-elsewhere", ["password", "the Secret's password"]);
        assert_eq!(refused("password=hunter2"), expected);
        let others = refused("passwd=hunter2");
        assert!(others.ends_with("lazytime, commit, data, discard"), "{others}");
    }

    #[test]
    fn nothing_else_passes() {
        for list in [
            "errors=panic",
            "commit=5\nuid=0",
            "commit=",
            "commit",
            "discard=1",
            "data=journal",
            "=x",
            "context=a",
            "bind",
            "remount",
            "rbind",
        ] {
            let message = parse(list, MountFlags::DEFAULT, RULES).unwrap_err().message();
            assert!(
                message.contains("not allowed here") || message.contains("does not fit"),
                "{list}: {message}"
            );
        }
    }
}

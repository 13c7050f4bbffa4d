//! Record of a mounted volume: a small file in /run, without any secret, that may be lost at any
//! time.
//!
//! The mount table decides what is mounted. A record only adds what the table cannot know: the
//! requested options, and that a mount outside kubelet's tree is ours.

use anyhow::{Context as _, Result};
use flexvol_linux::fs::{files, listing};
use flexvol_linux::proc::{clock, process};
use flexvol_model::paths;
use flexvol_protocol::text::hex;
use flexvol_protocol::{Call, Options, TargetPath};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Size limit for a record, in bytes: it holds a path and three names.
const LARGEST: usize = 64 * 1024;

/// Prefix for the names of root locks; no target's lock has it.
const ROOT: &str = "root:";

/// Record of one mounted volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The driver's name.
    pub driver: String,
    /// Path where the volume is mounted.
    pub target: PathBuf,
    /// PV or pod-volume name, as kubelet sent it.
    #[serde(default)]
    pub volume: String,
    /// `namespace/name` of the pod, as kubelet sent it.
    #[serde(default)]
    pub pod: String,
    /// The mount's id: a record of another mount at the same place does not count.
    #[serde(default)]
    pub mount_id: u64,
    /// The id that is never given to another mount, if the kernel has one.
    #[serde(default)]
    pub unique_id: Option<u64>,
    /// Device and inode of the mount's root: they are the same in another mount namespace, where
    /// the ids differ.
    #[serde(default)]
    pub root: Option<(u64, u64)>,
    /// Digest of the request; equal requests have equal digests.
    pub asked: String,
    /// Name of the volume in its storage, for a driver that tells it; nothing secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Time of the call, in seconds since 1970.
    pub since: u64,
    /// PID of the process that kubelet started; its worker wrote this. The mount of a call that was
    /// killed after that belongs to no successful call.
    #[serde(default)]
    pub supervisor: i32,
}

impl Record {
    /// Returns the record of a call that mounts; `None` for all other calls.
    pub fn of(driver: &str, call: &Call) -> Option<Self> {
        let (Call::Mount { target, options, .. } | Call::MountDevice { target, options, .. }) = call else {
            return None;
        };
        let pod = [&options.pod.namespace, &options.pod.name].map(|part| part.clone().unwrap_or_default());
        Some(Self {
            driver: driver.into(),
            target: target.as_path().into(),
            volume: options.volume_name.clone().unwrap_or_default(),
            pod: pod.join("/"),
            mount_id: 0,
            unique_id: None,
            root: None,
            asked: Asked::of(options).digest,
            identity: None,
            since: clock::seconds(),
            supervisor: process::supervisor(),
        })
    }

    /// Returns the same record for a mount with these ids.
    #[must_use]
    pub fn with_mount(self, mount_id: u64, unique_id: Option<u64>) -> Self {
        Self { mount_id, unique_id, ..self }
    }

    /// Reports whether the record belongs to the mount with these ids.
    pub fn is_of(&self, mount_id: u64, unique_id: Option<u64>) -> bool {
        self.mount_id == mount_id && (self.unique_id == unique_id || unique_id.is_none())
    }

    /// Reads the record of this target, if there is one and it can be read.
    pub fn read(target: &TargetPath) -> Option<Self> {
        let read = |path: PathBuf| {
            let text = files::read_small(&path, LARGEST).ok()??;
            serde_json::from_str(&text).ok().filter(|record: &Self| record.target == target.as_path())
        };
        record_paths(target.as_path()).find_map(read)
    }

    /// Returns all records that can be read.
    pub fn all() -> Vec<Self> {
        let all = paths::run(paths::VOLUMES);
        let names = listing::names(&all).unwrap_or_default().into_iter();
        let names = names.filter(|name| !listing::is_hidden(name));
        let texts = names.filter_map(|name| files::read_small(&all.join(name), LARGEST).ok()?);
        texts.filter_map(|text| serde_json::from_str(&text).ok()).collect()
    }

    /// Writes the record, under the protection of the target's lock.
    pub fn write(&self) -> Result<()> {
        files::replace(&record_path(&self.target), &serde_json::to_vec(self)?)
    }
}

/// Removes the records of a target.
pub fn forget(target: &TargetPath) {
    for path in record_paths(target.as_path()) {
        let _ = files::forget(&path);
    }
}

/// Makes the directories of locks and records.
pub fn prepare() -> Result<()> {
    let make = |path: &Path| files::make_directories(path, 0o700);
    let directories = [paths::VOLUMES, paths::LOCKS].map(paths::run);
    for path in directories.iter().filter(|path| !path.is_dir()) {
        make(path).with_context(|| format!("make {}", path.display()))?;
    }
    Ok(())
}

/// Returns the path of a target's lock.
pub fn lock_path(target: &TargetPath) -> PathBuf {
    path_for(paths::LOCKS, target.as_path())
}

/// Returns the path of the lock of a volume that is attached to a node, or detached.
pub fn attachment_lock_path(volume: &str, node: &str) -> PathBuf {
    path_for(paths::LOCKS, &Path::new("attachments").join(node).join(volume))
}

/// Returns the path of the lock of a directory below which sources are made. Its name consists of
/// the directory's device and inode, whatever path the directory has.
pub fn root_lock_path((device, inode): (u64, u64)) -> PathBuf {
    locks().join(format!("{ROOT}{device}-{inode}"))
}

/// Returns the paths of the root locks that exist.
pub fn root_lock_paths() -> impl Iterator<Item = PathBuf> {
    locks_of(ROOT).map(|root| locks().join(format!("{ROOT}{root}")))
}

/// Returns the directory of all locks.
pub(super) fn locks() -> PathBuf {
    paths::run(paths::LOCKS)
}

/// Returns the rest of each lock name that begins with `beginning`.
pub(super) fn locks_of(beginning: &'static str) -> impl Iterator<Item = String> {
    let names = listing::names(&locks()).unwrap_or_default().into_iter();
    names.filter_map(move |name| Some(name.to_str()?.strip_prefix(beginning)?.to_owned()))
}

/// Returns the path of a target's record. If kubelet mounts a volume once for the node, its path
/// contains the name of a PV, which a tenant may have chosen. A name that does not fit whole into
/// the file's name is followed by a collision-resistant digest.
fn record_path(target: &Path) -> PathBuf {
    if target.file_name().is_none_or(|name| name.len() <= READABLE) {
        return path_for(paths::VOLUMES, target);
    }
    let name = format!("{}-{}", plain(target, READABLE), strong_digest([target.as_os_str().as_bytes()]));
    paths::run(paths::VOLUMES).join(name)
}

/// Returns the record's path, and the path where an older version has written it.
fn record_paths(target: &Path) -> impl Iterator<Item = PathBuf> {
    let (new, old) = (record_path(target), path_for(paths::VOLUMES, target));
    let old = Some(old).filter(|old| *old != new);
    std::iter::once(new).chain(old)
}

/// Returns a file name for everything else that belongs to a target.
pub(super) fn name_of(target: &TargetPath) -> String {
    file_name(target.as_path())
}

/// Returns eight digits for a target, for people to search for.
pub fn short_id(target: &TargetPath) -> String {
    let mut id = digest(&[target.as_path().as_os_str().as_bytes()]);
    // The digest has only hexadecimal digits.
    id.truncate(8);
    id
}

fn path_for(kind: &str, target: &Path) -> PathBuf {
    paths::run(kind).join(file_name(target))
}

/// Limit for a path's last component in a file's name, in characters.
const READABLE: usize = 64;

/// Returns a path's last component, for people, and a digest of the whole path.
pub(super) fn file_name(target: &Path) -> String {
    format!("{}-{}", plain(target, READABLE), digest(&[target.as_os_str().as_bytes()]))
}

/// Returns a path's last component for people and programs: at most `longest` plain characters.
pub(super) fn plain(path: &Path, longest: usize) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    name.chars().map(plain).take(longest).collect()
}

/// Request for a volume: everything that decides how it is mounted, and nothing about the pod.
/// Secrets are left out: a rotated password does not make another volume. Tenants choose the text,
/// so the digest is collision-resistant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    digest: String,
    /// Digest of the same request in older versions.
    old: String,
}

impl Asked {
    /// Returns the request of a call that mounts; `None` for all other calls.
    pub(super) fn by(call: &Call) -> Option<Self> {
        match call {
            Call::Mount { options, .. } | Call::MountDevice { options, .. } => Some(Self::of(options)),
            _ => None,
        }
    }

    fn of(options: &Options) -> Self {
        let group = options.fs_group.as_ref().map(|group| group.gid.to_string()).unwrap_or_default();
        let mut parts = vec![options.access().word(), options.fs_type().unwrap_or_default(), group.as_str()];
        parts.extend(options.own.iter().flat_map(|(key, value)| [key.as_str(), value.as_str()]));
        let parts: Vec<_> = parts.iter().map(|part| part.as_bytes()).collect();
        Self { digest: strong_digest(parts.iter().copied()), old: digest(&parts) }
    }

    /// Reports whether a record has the same request.
    pub(super) fn is_in(&self, record: &Record) -> bool {
        [&self.digest, &self.old].contains(&&record.asked)
    }
}

/// Computes SHA-256 over the parts and their lengths.
fn strong_digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part.len().to_le_bytes());
        digest.update(part);
    }
    hex(&digest.finalize())
}

/// Computes FNV-1a of 128 bits over the parts and their lengths, for the names of locks and of what
/// belongs to a target. Running daemons have such names already.
///
/// Nobody can choose two targets with the same digest. The path of a pod's volume contains the
/// pod's UID, which the API server chooses. The path of a volume mounted once for the node contains
/// the name of its PV; two of these with the same digest would only wait for each other's lock.
fn digest(parts: &[&[u8]]) -> String {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let add = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    let hash = parts.iter().fold(BASIS, |hash, part| {
        part.iter().chain(&part.len().to_le_bytes()).fold(hash, |hash, byte| add(hash, *byte))
    });
    let mut text = String::with_capacity(32);
    let _ = write!(text, "{hash:032x}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_protocol::secret::Secret;

    fn options(json: &str) -> Options {
        Options::parse(json).unwrap()
    }

    #[test]
    fn the_digest_is_fnv_1a_with_lengths() {
        assert_eq!(digest(&[]), "6c62272e07bb014262b821756295c58d");
        assert_ne!(digest(&[b"ab", b"c"]), digest(&[b"a", b"bc"]));
    }

    #[test]
    fn asked_is_about_the_volume_and_not_about_the_pod_or_its_secrets() {
        let base = Asked::of(&options(r#"{"size":"1Mi","kubernetes.io/pod.name":"a"}"#));
        assert_eq!(base, Asked::of(&options(r#"{"size":"1Mi","kubernetes.io/pod.name":"b"}"#)));
        assert_ne!(base, Asked::of(&options(r#"{"size":"2Mi"}"#)));
        assert_ne!(base, Asked::of(&options(r#"{"size":"1Mi","kubernetes.io/readwrite":"ro"}"#)));
        let mut secret = options(r#"{"size":"1Mi"}"#);
        secret.secrets.insert("password".into(), Secret::new(b"hunter2".to_vec()));
        assert_eq!(base, Asked::of(&secret));
    }

    /// Volumes stay mounted while a driver is upgraded.
    #[test]
    fn what_tenants_choose_has_a_strong_digest_and_old_records_count() {
        let target = |name: &str| {
            let path = format!("/k/plugins/kubernetes.io/flexvolume/example/x/mounts/{name}");
            TargetPath::parse(path.as_ref()).unwrap()
        };
        let record = |target: &TargetPath| {
            let (target, options) = (target.clone(), options(r#"{"size":"1Mi"}"#));
            Record::of("x", &Call::MountDevice { target, device: String::new(), options }).unwrap()
        };
        let new = record(&target("short"));
        assert_eq!(new.asked.len(), 64, "{}", new.asked);
        let [same, other] = [r#"{"size":"1Mi"}"#, r#"{"size":"2Mi"}"#].map(|text| Asked::of(&options(text)));
        let old = Record { asked: same.old.clone(), ..new.clone() };
        assert!(same.is_in(&new) && same.is_in(&old) && !other.is_in(&new) && !other.is_in(&old));
        let digits = |target: &TargetPath| {
            record_path(target.as_path()).to_string_lossy().rsplit('-').next().map(str::len)
        };
        let long = target(&"x".repeat(65));
        assert_eq!((digits(&target("short")), digits(&long)), (Some(32), Some(64)));
        assert_eq!(record_paths(long.as_path()).count(), 2);
        assert_eq!(record_paths(target("short").as_path()).count(), 1);
    }

    #[test]
    fn a_record_holds_no_option_and_no_secret() {
        let target = TargetPath::parse("/k/pods/1/volumes/example~x/v".as_ref()).unwrap();
        let options = options(r#"{"akSecret":"topsecret","kubernetes.io/secret/password":"aHVudGVyMg=="}"#);
        let record = Record::of("x", &Call::Mount { target, device: None, options }).unwrap();
        let text = serde_json::to_string(&record).unwrap();
        assert!(!text.contains("topsecret") && !text.contains("hunter2") && !text.contains("aHVu"), "{text}");
    }

    #[test]
    fn file_names_are_short_plain_and_distinct() {
        let name = |path: &str| file_name(Path::new(path));
        assert!(name("/a/b c/../d\n").starts_with("d_-"));
        assert_ne!(name("/a/v"), name("/b/v"));
        assert!(name(&format!("/{}", "x".repeat(255))).len() < 128);
    }
}

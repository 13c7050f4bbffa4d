//! Leftovers of a driver after a case: searched for, not assumed.
//!
//! Some of the files that were made do no harm. Not counted are
//!
//! * files where logs are kept: below a directory `log`, or with that extension;
//! * empty directories, except in /tmp: few drivers remove them, and a driver that makes one for
//!   each volume is found by the cases that count;
//! * empty lock files: in /run, or with a word in their name that begins with `lock`;
//! * files that the system's own tools write, and services that they start;
//! * data that a driver keeps in the same place after every volume: the survey finds it ([`kept`]).

use super::in_time::Deadline;
use super::subject::{KUBELET_ROOT, Subject};
use crate::sandbox::Inside;
use anyhow::{Context as _, Result};
use flexvol_linux::mount::mount_table::Entry;
use flexvol_linux::proc::process;
use flexvol_protocol::ordered::filled;
use flexvol_protocol::text::find_word;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Deadline for things that disappear on their own.
const MOMENT: Duration = Duration::from_millis(500);

/// Deadline for files alone, and for all leftovers of a driver that is known to leave something.
const SHORT_MOMENT: Duration = Duration::from_millis(30);

/// Deadline for a device. The kernel ends it with its last close, and that may be the close of a
/// process that only looks at it, as udev does.
const LETTING_GO: Duration = Duration::from_secs(2);

/// Pause between two looks.
const TICK: Duration = Duration::from_millis(5);

/// Places where mount(8), blkid, lvm and others store what they know.
const NOTES: &[&str] = &[
    "/etc/blkid.tab",
    "/etc/lvm",
    "/etc/mtab",
    "/run/blkid",
    "/run/cryptsetup",
    "/run/lvm",
    "/run/mount",
    "/run/rpcbind",
    "/run/rpc.statd.pid",
    "/run/udev",
    "/var/cache",
    "/var/lib/nfs",
];

/// Directories that many programs share: if one file in them stays, another is not excused.
const EVERYBODYS: &[&str] = &[
    "/",
    "/dev/shm",
    "/etc",
    "/home",
    "/mnt",
    "/opt",
    "/root",
    "/run",
    "/run/lock",
    "/srv",
    "/tmp",
    "/usr",
    "/usr/local",
    "/var",
    "/var/lib",
    "/var/spool",
    "/var/tmp",
];

/// Things that exist at the end of a case but not at its beginning, each described for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// `tmpfs at /path`.
    pub mounts: Vec<String>,
    /// Loop devices, and those of device mapper, the network, Ceph and iSCSI.
    pub devices: Vec<String>,
    /// `1234 (command line)`.
    pub processes: Vec<String>,
    /// Files that were made, changed or removed anywhere else, and those in kubelet's directory.
    pub files: Vec<String>,
    /// Files that were made, changed or removed in the driver's own directory.
    pub own_directory: Vec<String>,
}

impl Left {
    /// Searches for leftovers. Waits a moment for things that disappear on their own.
    pub fn look(subject: &Subject<'_>) -> Result<Self> {
        let mut waited = Deadline::new(MOMENT);
        loop {
            let found = Self::at_once(subject)?;
            let patience = match () {
                () if found.is_clean() => return Ok(found),
                () if subject.facts.litters || found.is_only_files() => SHORT_MOMENT,
                () if !found.devices.is_empty() => LETTING_GO,
                () => MOMENT,
            };
            if waited.is_over_after(patience) {
                return Ok(found);
            }
            std::thread::sleep(TICK);
        }
    }

    fn at_once(subject: &Subject<'_>) -> Result<Self> {
        let inside = subject.inside;
        let mounts = inside.mounts()?;
        let mut found = Self {
            mounts: mounts.iter().filter(|entry| !subject.is_ours(&entry.target)).map(words_of).collect(),
            devices: devices(subject)?,
            processes: processes(inside)?,
            ..Self::default()
        };
        let own = own_directory(subject)?;
        for path in files(subject)? {
            let is_own = is_seen_in(&own, &path);
            if is_own || !subject.facts.keeps.iter().any(|kept| path.starts_with(kept)) {
                let words = if path.symlink_metadata().is_ok() { "" } else { " (removed)" };
                let list = if is_own { &mut found.own_directory } else { &mut found.files };
                list.push(format!("{}{words}", path.display()));
            }
        }
        Ok(found)
    }

    /// Reports whether nothing was left.
    pub fn is_clean(&self) -> bool {
        *self == Self::default()
    }

    /// Reports whether none of the leftovers can be expected to disappear.
    pub fn is_only_files(&self) -> bool {
        self.mounts.is_empty() && self.devices.is_empty() && self.processes.is_empty()
    }
}

/// Lists what a driver that keeps data leaves after each volume.
/// `first` and `second` are the files after the first pod and after the second. The result has
/// single files, and whole directories in which the second pod added nothing.
pub(super) fn kept(first: &BTreeSet<PathBuf>, second: &BTreeSet<PathBuf>, first_pod: &str) -> Vec<PathBuf> {
    let more: Vec<_> = second.difference(first).filter_map(|path| path.parent()).collect();
    let stays = first.intersection(second).filter(|path| !path.to_string_lossy().contains(first_pod));
    let kept = stays.map(|path| match path.parent() {
        Some(directory)
            if is_somebodys(directory) && !more.iter().any(|path| path.starts_with(directory)) =>
        {
            directory.to_owned()
        }
        _ => path.clone(),
    });
    filled::<BTreeSet<_>, _>(kept).into_iter().collect()
}

fn is_somebodys(directory: &Path) -> bool {
    !EVERYBODYS.iter().any(|path| directory == Path::new(path))
}

/// Lists the files that were made, changed or removed, and count.
pub(super) fn files(subject: &Subject<'_>) -> Result<BTreeSet<PathBuf>> {
    let own = own_directory(subject)?;
    let mut found: BTreeSet<_> = filled(subject.inside.changed()?);
    found.retain(|path| is_seen_in(&own, path) || counts(path));
    in_kubelets(Path::new(KUBELET_ROOT), &subject.inside.mounts()?, &mut found)?;
    found.retain(|path| !subject.is_ours(path));
    Ok(found)
}

/// Returns the driver's own directory, as the mount table and the layers of the sandbox name it.
/// Kubelet sees everything in it, of any kind.
fn own_directory(subject: &Subject<'_>) -> Result<PathBuf> {
    let driver = &subject.given.driver;
    let own = driver.parent().with_context(|| format!("{} is in no directory", driver.display()))?;
    // The path of a removed directory is assumed to have had no symlinks.
    Ok(own.canonicalize().unwrap_or_else(|_| own.to_owned()))
}

/// Reports whether kubelet sees a path in `own`: it does not look at names with a leading dot.
fn is_seen_in(own: &Path, path: &Path) -> bool {
    let is_hidden =
        |below: &Path| below.components().any(|name| name.as_os_str().as_bytes().starts_with(b"."));
    path.strip_prefix(own).is_ok_and(|below| !is_hidden(below))
}

/// Reports whether a file belongs to a system tool, and not to the driver.
pub(super) fn is_note(path: &Path) -> bool {
    NOTES.iter().any(|note| path.starts_with(note))
}

fn counts(path: &Path) -> bool {
    let is_log = path.ancestors().skip(1).any(|above| above.file_name().is_some_and(|name| name == "log"))
        || path.extension().is_some_and(|ending| ending == "log");
    let is_cache = path.components().any(|part| part.as_os_str() == "__pycache__");
    !is_log
        && !is_note(path)
        && !is_cache
        && path.symlink_metadata().map_or(true, |data| counts_as(path, &data))
}

fn counts_as(path: &Path, data: &Metadata) -> bool {
    if data.is_dir() {
        return path
            .parent()
            .is_some_and(|above| above == Path::new("/tmp") || above == Path::new("/var/tmp"));
    }
    let named_lock =
        path.file_name().is_some_and(|name| find_word(&name.to_string_lossy(), "lock").is_some());
    let is_lock = data.is_file() && data.len() == 0 && (named_lock || path.starts_with("/run"));
    !is_lock
}

/// Finds everything in kubelet's directory except directories, which are kubelet's.
/// Does not look into mounts there.
fn in_kubelets(directory: &Path, mounts: &[Entry], found: &mut BTreeSet<PathBuf>) -> Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("list {}", directory.display()))?,
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if mounts.iter().any(|mount| mount.target == path) {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            in_kubelets(&path, mounts, found)?;
        } else {
            found.insert(path);
        }
    }
    Ok(())
}

/// Lists the devices that were made.
pub(super) fn devices(subject: &Subject<'_>) -> Result<Vec<String>> {
    let found = subject.inside.devices()?.into_iter().filter(|path| !subject.is_ours(path));
    Ok(found.map(|path| path.display().to_string()).collect())
}

/// Lists the devices that were not there before and stay.
pub(super) fn devices_but(subject: &Subject<'_>, before: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut end = Deadline::new(LETTING_GO);
    loop {
        let mut found = subject.inside.devices()?;
        found.retain(|device| !before.contains(device));
        if found.is_empty() || end.is_over() {
            return Ok(found);
        }
        std::thread::sleep(TICK);
    }
}

/// Lists the processes, except services that a node runs only once.
pub(super) fn processes(inside: &Inside) -> Result<Vec<String>> {
    let is_service = |line: &str| {
        let program = line.split(' ').next().unwrap_or(line);
        let name = program.rsplit('/').next().unwrap_or(program);
        process::SERVICES.contains(&name)
    };
    let found = inside.processes()?.into_iter().filter(|(_, line)| !is_service(line));
    Ok(found.map(|(pid, line)| format!("{pid} ({line})")).collect())
}

fn words_of(entry: &Entry) -> String {
    format!("{} at {}", entry.file_system, entry.target.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_excused_as_a_lock_by_the_word_alone() {
        let directory = tempfile::tempdir().unwrap();
        let counts = |name: &str| {
            let path = directory.path().join(name);
            fs::File::create(&path).unwrap();
            counts_as(&path, &path.symlink_metadata().unwrap())
        };
        for name in ["lock", "data.lock", ".lockfile", "flexvol-lock-7"] {
            assert!(!counts(name), "{name}");
        }
        for name in ["block-7", "wallclock", "unlocked"] {
            assert!(counts(name), "{name}");
        }
    }

    fn paths(paths: &[&str]) -> BTreeSet<PathBuf> {
        paths.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn what_stays_the_same_is_kept_data() {
        let first =
            paths(&["/var/lib/disks/a.img", "/etc/driver.conf", "/run/driver/pod-1", "/srv/x/pod-1/log"]);
        let second = paths(&[
            "/var/lib/disks/a.img",
            "/etc/driver.conf",
            "/run/driver/pod-1",
            "/run/driver/pod-2",
            "/srv/x/pod-1/log",
        ]);
        assert_eq!(kept(&first, &second, "pod-1"), ["/etc/driver.conf", "/var/lib/disks"].map(PathBuf::from));
        // If a file is added for each pod, only files that were there before are excused.
        let first = paths(&["/var/lib/disks/a.img", "/var/lib/disks/tmp.1"]);
        let second = paths(&["/var/lib/disks/a.img", "/var/lib/disks/tmp.2"]);
        assert_eq!(kept(&first, &second, "pod-1"), [PathBuf::from("/var/lib/disks/a.img")]);
    }

    #[test]
    fn kubelet_sees_what_has_no_dot() {
        let seen = |path: &str| is_seen_in(Path::new("/d/a.b~c"), Path::new(path));
        assert!(seen("/d/a.b~c/log") && seen("/d/a.b~c/x/y"));
        assert!(!seen("/d/a.b~c/.log") && !seen("/d/a.b~c/.x/y") && !seen("/d/a.b~cd/x"));
    }

    #[test]
    fn logs_locks_and_notes_do_not_count() {
        for (path, counted) in [
            ("/var/log/driver/x", false),
            ("/run/driver/log/x", false),
            ("/opt/driver.log", false),
            ("/run/mount/utab", false),
            ("/usr/lib/python3/__pycache__/x.pyc", false),
            ("/etc/hosts.none", true),
            ("/var/logs", true),
            ("/var/log", true),
        ] {
            assert!(counts(Path::new(path)) == counted || Path::new(path).exists(), "{path}");
        }
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("directory")).unwrap();
        for name in ["x.lock", "empty", "full.lock"] {
            fs::File::create(at(name)).unwrap();
        }
        std::io::Write::write_all(&mut fs::File::create(at("full.lock")).unwrap(), b"x").unwrap();
        let counted = ["directory", "x.lock", "empty", "full.lock"].map(|name| counts(&at(name)));
        assert_eq!(counted, [false, false, true, true]);
        assert_eq!(counts(directory.path()), directory.path().parent() == Some(Path::new("/tmp")));
    }
}

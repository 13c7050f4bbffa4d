//! Failures for which kubelet waits for a volume: the reason, since when, and how many.

use super::pods::Pods;
use super::{Volume, flex_dir, of_kubelet};
use flexvol_model::diagnostics::{self, KnownError, known_errors};
use flexvol_node::driver_log;
use flexvol_protocol::TargetPath;
use flexvol_protocol::volume_dir::VolumeDir;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// A mount or unmount that kubelet retries again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// True for an unmount, false for a mount.
    pub goes: bool,
    /// The driver's last message with its known cause, or the known cause of kubelet's message.
    pub why: String,
    /// The fix, unless `why` contains it.
    pub fix: Option<&'static str>,
    /// Times of the first and the last failure.
    pub times: (String, String),
    /// Number of failures.
    pub count: usize,
}

impl Failing {
    /// Makes a failure from a known error, with its times and its count.
    pub(super) fn known(goes: bool, error: &KnownError, times: (String, String), count: usize) -> Self {
        Self { goes, why: error.cause.to_owned(), fix: Some(error.fix), times, count }
    }

    fn of_log(failed: &driver_log::Failing) -> Self {
        let goes = failed.last.verb.starts_with("unmount");
        let times = (failed.since.clone(), failed.last.time.clone());
        let Some(why) = failed.last.message.clone() else {
            return Self::known(goes, &known_errors::WORDLESS, times, failed.times);
        };
        let known = diagnostics::explain(&why).map(|explained| explained.known_error);
        let fix = known.filter(|known| !why.contains(known.fix)).map(|known| known.fix);
        let cause = known.filter(|known| !why.contains(known.cause)).map(|known| known.cause);
        let why = [Some(&*why), cause].into_iter().flatten().collect::<Vec<_>>().join(": ");
        Self { goes, why, fix, times, count: failed.times }
    }

    /// Returns the reason, and the fix.
    pub fn reason(&self) -> String {
        [Some(&*self.why), self.fix].into_iter().flatten().collect::<Vec<_>>().join(": ")
    }
}

impl fmt::Display for Failing {
    /// Prints `mount failed 3 times since 2026-11-25T10:00:00, last at 2026-11-25T10:04:00`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { goes, times: (since, last), count, .. } = self;
        let (since, last) = (short(since), short(last));
        write!(f, "{} failed ", if *goes { "unmount" } else { "mount" })?;
        if *count < 2 {
            write!(f, "at {last}")
        } else {
            write!(f, "{count} times since {since}, last at {last}")
        }
    }
}

/// Cuts off the fractions of a second.
fn short(time: &str) -> &str {
    time.split('.').next().unwrap_or_default()
}

/// Notes a failed call at its volume, and adds the volume if it is missing: kubelet makes its
/// directory for each call, and removes it after a failed one.
pub(super) fn note(
    found: &mut BTreeMap<PathBuf, Volume>,
    roots: &BTreeSet<PathBuf>,
    names: &Pods,
    failed: &driver_log::Failing,
) {
    let Some(target) = failed.last.target.as_deref().map(PathBuf::from) else { return };
    let waiting = match flex_dir(&target) {
        Some(dir) if roots.contains(&dir.root) => of_kubelet(&target, names),
        Some(_) => None,
        None => over_csi(&target, roots, names, failed),
    };
    let Some(waiting) = waiting else { return };
    let volume = found.entry(target).or_insert(waiting);
    volume.is_ours = true;
    volume.failing = Some(Failing::of_log(failed));
    let pod = failed.last.pod.clone().filter(|pod| pod.contains('/'));
    volume.pod = volume.pod.take().or(pod);
}

/// Returns a volume that is mounted over CSI. Its directory does not name the driver; the log does.
fn over_csi(
    target: &Path,
    roots: &BTreeSet<PathBuf>,
    names: &Pods,
    failed: &driver_log::Failing,
) -> Option<Volume> {
    let dir = VolumeDir::of(&TargetPath::parse(target.as_os_str()).ok()?);
    let uid = dir.below.strip_prefix("pods").ok().and_then(|rest| rest.components().next());
    let uid = uid.map(|uid| uid.as_os_str().to_string_lossy().into_owned());
    let name = failed.last.volume.clone().unwrap_or_default();
    (dir.is_csi() && roots.contains(&dir.root)).then(|| Volume {
        root: Some(dir.root),
        pod: uid.as_deref().and_then(|uid| names.name_of(uid)),
        uid,
        is_ours: true,
        ..Volume::named(failed.last.driver.clone(), name, target.to_owned())
    })
}

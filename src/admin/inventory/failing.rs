//! Why kubelet waits for a volume, since when, and how often it has tried.

use super::pods::Pods;
use super::{Volume, flex_dir, of_kubelet};
use flexvol_model::diagnostics::{self, KnownError, known_errors};
use flexvol_node::driver_log;
use flexvol_protocol::TargetPath;
use flexvol_protocol::volume_dir::VolumeDir;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// What kubelet asks for again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Whether it is to be unmounted; else mounted.
    pub goes: bool,
    /// The driver's last words and what is known of them, or what is known of kubelet's.
    pub why: String,
    /// What to do about it, if these words do not say it.
    pub fix: Option<&'static str>,
    /// When it failed first, and last.
    pub times: (String, String),
    /// How often.
    pub count: usize,
}

impl Failing {
    /// Of an error that is known; when it came, and how often.
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

    /// Why, and what to do about it.
    pub fn reason(&self) -> String {
        [Some(&*self.why), self.fix].into_iter().flatten().collect::<Vec<_>>().join(": ")
    }
}

impl fmt::Display for Failing {
    /// `mount failed 3 times since 2026-11-25T10:00:00, last at 2026-11-25T10:04:00`.
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

/// Without fractions of a second.
fn short(time: &str) -> &str {
    time.split('.').next().unwrap_or_default()
}

/// A volume that is waited for has no directory while it is not mounted: kubelet makes that for
/// each call, and removes it after one that failed.
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

/// What is mounted over CSI has a directory that does not say whose it is; the log does.
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

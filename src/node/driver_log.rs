//! Log of the drivers: one line of JSON for every call that was carried out.
//!
//! kubelet shows a message in the pod's Events, and then forgets it. The log keeps the requests and
//! their outcomes on the node. `flexvol deploy` streams it to where a cluster collects logs.
//!
//! A line is written after the reply, so it can neither delay nor damage the reply; a call does not
//! fail if the log cannot be written. A line holds no options and no secrets: its message is the
//! reply's, which holds none either. `init` is not logged, because it opens only the side file.
//! Calls that cannot be parsed, and verbs that the driver does not have, are not logged either.

use crate::executor::record;
use flexvol_linux::fs::{append, files};
use flexvol_linux::proc::clock;
use flexvol_model::paths;
use flexvol_protocol::text::one_line;
use flexvol_protocol::volume_dir::VolumeDir;
use flexvol_protocol::{Call, Reply, TargetPath};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Size limit of the log, in bytes. A full log is kept once, as `drivers.jsonl.1`.
const SIZE_LIMIT: u64 = 1 << 20;

/// Limit for a text in a line, in bytes; the message and names have their own limits. Even with
/// every byte escaped, a line fits into [`LINE_LIMIT`].
const TEXT_LIMIT: usize = 640;

/// Limit for the name of a driver, volume or pod, in bytes; Kubernetes allows no longer names.
const NAME_LIMIT: usize = 318;

/// Limit for a line, in bytes. Each line is a single write, so lines of two processes do not mix.
pub const LINE_LIMIT: usize = 6144;

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// End of the call.
    pub time: String,
    /// `vendor~driver`, or the driver's own name if it ran without such a directory.
    pub driver: String,
    /// The verb.
    pub verb: Cow<'static, str>,
    /// Path where the volume appears or disappears; absent for verbs without a target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Id of the target, eight digits: the same for all its calls, and different for other targets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Name of the PV or pod volume, from kubelet or else the last part of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// `namespace/name` of the pod if kubelet passes it (with `mount`), else its uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The reply's status in kubelet's spelling.
    pub outcome: Cow<'static, str>,
    /// The reply's message; absent unless the call failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Time from the call's arrival to its reply, in milliseconds.
    pub took_ms: u64,
    /// The process that kubelet started.
    pub pid: u32,
}

impl Entry {
    /// Describes a call that began at `started` and has just been replied to.
    pub fn of(driver: &str, call: &Call, started: Instant, reply: &Reply) -> Self {
        let target = call.target();
        Self {
            time: clock::now(),
            driver: one_line(driver, NAME_LIMIT),
            verb: call.verb().name().into(),
            target: target.map(|target| one_line(&target.as_path().to_string_lossy(), TEXT_LIMIT)),
            id: target.map(record::short_id),
            volume: volume(call).map(|name| one_line(&name, NAME_LIMIT)),
            pod: pod(call).map(|name| one_line(&name, NAME_LIMIT)),
            outcome: reply.status().into(),
            message: match reply {
                Reply::Failure(message) => Some(one_line(message, flexvol_protocol::failure::MESSAGE_LIMIT)),
                Reply::Success(_) | Reply::NotSupported => None,
            },
            took_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            pid: std::process::id(),
        }
    }

    /// Returns the line; its only line feed is at the end.
    pub fn to_line(&self) -> String {
        // Strings and numbers always become JSON.
        serde_json::to_string(self).map(|line| line + "\n").unwrap_or_default()
    }

    /// Parses a line of the log; `None` for any other text.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }

    /// Appends the entry to this node's log. Ignores an error: there is no one left to tell.
    pub fn note(&self) {
        let _ = append::line(&path(), &self.to_line(), SIZE_LIMIT);
    }
}

/// A target whose last call failed, and that kubelet still asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// The last call.
    pub last: Entry,
    /// Time of the first of these failures.
    pub since: String,
    /// Number of failures in a row.
    pub times: usize,
}

/// Returns all targets whose last call failed, and that kubelet still asks for.
///
/// After a failed `mount`, kubelet removes the volume's directory until the next call, but not the
/// pod's directory. Failures of calls by hand on other paths do not count: nothing waits for them.
pub fn failing() -> Vec<Failing> {
    let log = path();
    let parts = [append::previous(&log), log];
    let text: String = parts.iter().filter_map(|path| files::end(path, 1 << 20).ok()).collect();
    failing_of(&text)
}

fn failing_of(log: &str) -> Vec<Failing> {
    let mut all: BTreeMap<_, Failing> = BTreeMap::new();
    for last in log.lines().filter_map(Entry::parse) {
        let new = Failing { since: last.time.clone(), times: 0, last };
        let key = (new.last.driver.clone(), new.last.target.clone());
        let failing = all.entry(key).or_insert_with(|| new.clone());
        if failing.last.outcome != new.last.outcome || failing.last.verb != new.last.verb {
            *failing = new;
        } else {
            failing.last = new.last;
        }
        failing.times += 1;
    }
    all.into_values().filter(|it| it.last.outcome == "Failure" && is_asked_for(&it.last)).collect()
}

fn is_asked_for(entry: &Entry) -> bool {
    let Some(target) = entry.target.as_deref().map(Path::new) else { return false };
    let is_there = |path: &Path| path.symlink_metadata().is_ok();
    match pod_directory(target) {
        Some(pod) if entry.verb == "mount" => is_there(&pod),
        Some(_) => is_there(target),
        None => is_device(target) && is_there(target),
    }
}

/// Reports whether kubelet mounts a device at the target, once per node.
fn is_device(target: &Path) -> bool {
    TargetPath::parse(target.as_os_str())
        .is_ok_and(|target| VolumeDir::of(&target).below.starts_with("plugins"))
}

/// Returns kubelet's directory of the pod whose volume is at `target`.
fn pod_directory(target: &Path) -> Option<PathBuf> {
    let dir = VolumeDir::of(&TargetPath::parse(target.as_os_str()).ok()?);
    let uid = dir.below.strip_prefix("pods").ok()?.components().next()?;
    Some(dir.root.join("pods").join(uid))
}

fn volume(call: &Call) -> Option<String> {
    let told = call.options().and_then(|options| options.volume_name.clone());
    let named = || Some(call.target()?.as_path().file_name()?.to_string_lossy().into_owned());
    told.filter(|name| !name.is_empty()).or_else(named)
}

fn pod(call: &Call) -> Option<String> {
    let told = call.options().and_then(|options| {
        let pod = &options.pod;
        Some(format!("{}/{}", pod.namespace.as_deref()?, pod.name.as_deref()?))
    });
    told.or_else(|| {
        let dir = VolumeDir::of(call.target()?);
        let mut parts = dir.below.iter();
        let in_pod = dir.driver.is_some() && parts.next()? == "pods";
        parts.next().filter(|_| in_pod).map(|uid| uid.to_string_lossy().into_owned())
    })
}

/// Returns the path of this node's log. The previous part has the same name with `.1` at the end.
pub fn path() -> PathBuf {
    directory().join("drivers.jsonl")
}

/// Returns the directory that holds only the log.
pub fn directory() -> PathBuf {
    paths::run(paths::LOG)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_protocol::Verb;

    fn mount(target: &str, options: &str) -> Call {
        Call::parse(Verb::Mount, &[target.into(), options.into()]).unwrap()
    }

    #[test]
    fn a_line_says_what_became_of_a_call_and_no_option_of_it() {
        let options = r#"{"size":"16Mi","kubernetes.io/secret/password":"aHVudGVyMg=="}"#;
        let call = mount("/k/pods/1/volumes/example~tmpfs/v", options);
        let reply = Reply::Failure("size: no\nroom".into());
        let line = Entry::of("example~tmpfs", &call, Instant::now(), &reply).to_line();
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(value["driver"], "example~tmpfs");
        assert_eq!(value["verb"], "mount");
        assert_eq!(value["target"], "/k/pods/1/volumes/example~tmpfs/v");
        assert_eq!((&value["outcome"], &value["message"]), (&"Failure".into(), &"size: no; room".into()));
        assert_eq!((&value["volume"], &value["pod"]), (&"v".into(), &"1".into()));
        assert_eq!(value["id"].as_str().unwrap().len(), 8);
        assert_eq!(value["pid"], std::process::id());
        assert!(value["tookMs"].as_u64().unwrap() < 60_000);
        assert!(!line.contains("16Mi") && !line.contains("aHVu") && !line.contains("hunter2"), "{line}");
    }

    #[test]
    fn mount_and_unmount_of_a_target_have_one_id_and_the_pod_is_named_if_it_is_told() {
        let target = "/k/pods/1/volumes/example~tmpfs/v";
        let of = |call: &Call| Entry::of("d", call, Instant::now(), &Reply::NotSupported);
        let told = r#"{"kubernetes.io/pod.name":"web","kubernetes.io/pod.namespace":"shop","kubernetes.io/pvOrVolumeName":"pv"}"#;
        let (first, last) = (of(&mount(target, told)), Call::parse(Verb::Unmount, &[target.into()]).unwrap());
        assert_eq!((first.pod.as_deref(), first.volume.as_deref()), (Some("shop/web"), Some("pv")));
        assert_eq!((of(&last).id, of(&last).pod.as_deref()), (first.id.clone(), Some("1")));
        assert_ne!(of(&mount("/k/pods/2/volumes/example~tmpfs/v", "{}")).id, first.id);
        assert_eq!(Entry::parse(&first.to_line()), Some(first));
    }

    #[test]
    fn a_failure_counts_as_long_as_its_pod_is_there() {
        let root = tempfile::tempdir().unwrap();
        let target = |uid: &str| format!("{}/pods/{uid}/volumes/example~tmpfs/v", root.path().display());
        // kubelet has removed the volume's directory, but not the pod's.
        std::fs::create_dir_all(root.path().join("pods/waits/volumes/example~tmpfs")).unwrap();
        let line =
            |call: &Call, reply: &Reply| Entry::of("example~tmpfs", call, Instant::now(), reply).to_line();
        let failure = Reply::Failure("unknown option \"sise\"".into());
        let success = Reply::Success(flexvol_protocol::Fields::default());
        let mounts = |uid: &str, reply: &Reply| line(&mount(&target(uid), "{}"), reply);
        let unmount = Call::parse(Verb::Unmount, &[target("waits").into()]).unwrap();

        let waits = failing_of(&(mounts("waits", &failure) + &mounts("gone", &failure)));
        assert_eq!(waits.iter().map(|it| it.last.pod.as_deref()).collect::<Vec<_>>(), [Some("waits")]);
        // A call by hand.
        assert_eq!(failing_of(&line(&mount("/tmp", "{}"), &failure)), []);
        assert_eq!(failing_of(&(mounts("waits", &failure) + &mounts("waits", &success))), []);
        // A target that is gone needs no unmount.
        assert_eq!(failing_of(&line(&unmount, &failure)), []);
    }

    #[test]
    fn failures_in_a_row_are_counted_from_the_first() {
        let root = tempfile::tempdir().unwrap();
        let target = format!("{}/pods/7/volumes/example~tmpfs/v", root.path().display());
        std::fs::create_dir_all(root.path().join("pods/7")).unwrap();
        let call = mount(&target, "{}");
        let line = |time: &str, reply: &Reply| {
            Entry { time: time.into(), ..Entry::of("example~tmpfs", &call, Instant::now(), reply) }.to_line()
        };
        let (failure, success) =
            (Reply::Failure("x".into()), Reply::Success(flexvol_protocol::Fields::default()));
        let log = ["1", "2", "4", "5", "6"].map(|time| line(time, &failure));
        let failing = failing_of(&[&log[..2], &[line("3", &success)], &log[2..]].concat().concat());
        let told: Vec<_> = failing.iter().map(|it| (&*it.since, &*it.last.time, it.times)).collect();
        assert_eq!(told, [("4", "6", 3)]);
    }

    #[test]
    fn the_longest_line_fits() {
        for filler in ["\"", "\u{1}", "ä", "\\"] {
            let target = format!("/{}", filler.repeat(2000));
            let reply = Reply::Failure(filler.repeat(5000));
            let driver = filler.repeat(300);
            let line = Entry::of(&driver, &mount(&target, "{}"), Instant::now(), &reply).to_line();
            assert!(line.len() <= LINE_LIMIT, "{filler:?}: {}", line.len());
        }
    }
}

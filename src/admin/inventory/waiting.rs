//! Volumes that pods wait for, according to kubelet's log: if no driver was called, or a foreign
//! one, only this log has the reason. The lines may hold secrets, so none is repeated: the text of
//! the known error is shown instead.

use super::{Failing, Volume};
use crate::kubelet_log::unattached;
use flexvol_model::diagnostics::{self, KnownError, known_errors};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Last error for one volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiting {
    /// `namespace/name`, if any line has it.
    pod: Option<String>,
    /// The driver's directory, if the line names it.
    driver: Option<String>,
    /// True if the volume is to be unmounted.
    goes: bool,
    why: &'static KnownError,
    /// Times of the first and the last error.
    times: (String, String),
    /// Number of errors.
    count: usize,
}

impl Waiting {
    fn failing(&self) -> Failing {
        Failing::known(self.goes, self.why, self.times.clone(), self.count)
    }
}

/// Notes in `volumes` why kubelet waits for them, and adds volumes that appear only in the log.
/// Skips pods without a directory below one of the roots.
pub fn note_waiting(volumes: &mut Vec<Volume>, roots: &BTreeSet<PathBuf>, log: &str) {
    for ((uid, name), waiting) in in_log(log) {
        let Some(root) = roots.iter().find(|root| root.join("pods").join(&uid).is_dir()) else { continue };
        let is_it = |volume: &&mut Volume| volume.uid.as_deref() == Some(&uid) && has_name(volume, &name);
        match volumes.iter_mut().find(is_it) {
            Some(volume) => note(volume, &waiting),
            None if !waiting.goes => volumes.push(unknown(&uid, &name, root, &waiting)),
            None => {}
        }
    }
}

/// Reports whether the line is about a volume of a pod on this node: it is shown with that pod.
pub fn is_of_pod(line: &str, roots: &BTreeSet<PathBuf>) -> bool {
    uid(line).is_some_and(|uid| {
        volume(line, uid).is_some() && roots.iter().any(|root| root.join("pods").join(uid).is_dir())
    })
}

fn uid(line: &str) -> Option<&str> {
    after(line, &["podUID=\"", "(UID: \"", "(UID: \\\""])
}

fn has_name(volume: &Volume, name: &str) -> bool {
    volume.name == name || volume.target.file_name().is_some_and(|last| last == name)
}

/// Notes the error unless the volume was mounted or unmounted since. An error from our own drivers
/// is more precise and stays.
fn note(volume: &mut Volume, waiting: &Waiting) {
    let still = volume.vitals.is_some() == waiting.goes;
    if still && volume.failing.is_none() {
        volume.failing = Some(waiting.failing());
    }
    volume.pod = volume.pod.take().or_else(|| waiting.pod.clone());
}

fn unknown(uid: &str, name: &str, root: &Path, waiting: &Waiting) -> Volume {
    let driver = waiting.driver.clone().unwrap_or_else(|| "-".to_owned());
    let target = root.join("pods").join(uid).join("volumes").join(&driver).join(name);
    Volume {
        root: Some(root.to_owned()),
        uid: Some(uid.to_owned()),
        pod: waiting.pod.clone(),
        failing: Some(waiting.failing()),
        ..Volume::named(driver, name.to_owned(), target)
    }
}

/// Returns the last error of each volume, by the pod's uid and the volume's name.
fn in_log(log: &str) -> BTreeMap<(String, String), Waiting> {
    let (mut pods, mut found) = (BTreeMap::new(), BTreeMap::new());
    for line in log.lines() {
        let Some(uid) = uid(line) else { continue };
        if let Some(pod) = after(line, &["pod=\""]).filter(|pod| pod.contains('/')) {
            pods.insert(uid.to_owned(), pod.to_owned());
        }
        let Some((name, driver)) = volume(line, uid) else { continue };
        let Some(why) = why(line) else { continue };
        let (goes, time) = (line.contains("UnmountVolume."), time(line).unwrap_or_default());
        let key = (uid.to_owned(), name.to_owned());
        let before = found.get(&key).filter(|before: &&Waiting| before.goes == goes);
        let (since, count) =
            before.map_or_else(|| (time.clone(), 0), |before| (before.times.0.clone(), before.count));
        let waiting = Waiting { pod: None, driver, goes, why, times: (since, time), count: count + 1 };
        found.insert(key, waiting);
    }
    for ((uid, _), waiting) in &mut found {
        waiting.pod = pods.get(uid).cloned();
    }
    found
}

/// Returns the known error in a line. A summary with unattached volumes counts as `UNATTACHED`.
fn why(line: &str) -> Option<&'static KnownError> {
    match diagnostics::explain(line)?.known_error {
        summary if summary.id == "waited-too-long" && unattached(line).is_some() => {
            Some(&known_errors::UNATTACHED)
        }
        other => Some(other),
    }
}

/// Returns `11-24 15:04:05` for kubelet's `E1124 15:04:05.000000`.
fn time(line: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    let day = words.find(|word| word.len() == 5 && word[1..].bytes().all(|byte| byte.is_ascii_digit()))?;
    let time = words.next()?.split('.').next()?;
    Some(format!("{}-{} {time}", &day[1..3], &day[3..]))
}

/// Returns the name of the volume that an error is about, and its driver's directory.
fn volume<'a>(line: &'a str, uid: &str) -> Option<(&'a str, Option<String>)> {
    if let Some(name) = after(line, &["failed for volume \""]) {
        let mut parts = after(line, &["UniqueName: \""])?.split('/');
        let directory = format!("{}~{}", parts.next()?, parts.next()?);
        // For an unmount, kubelet knows no other name than the unique one.
        let last = name.rsplit('/').next()?;
        let name = last.strip_prefix(uid).and_then(|rest| rest.strip_prefix('-')).unwrap_or(last);
        return (!super::is_in_tree(&directory)).then_some((name, Some(directory)));
    }
    if line.contains("no volume plugin matched") {
        return Some((after(line, &["unmounted volumes=["])?, None));
    }
    Some((unattached(line)?, None))
}

/// Returns the word after the first of these texts that the line contains.
fn after<'a>(line: &'a str, texts: &[&str]) -> Option<&'a str> {
    let (_, rest) = texts.iter().find_map(|text| line.split_once(text))?;
    let end = rest.find(['"', '\\', ']', ',', ' ']).unwrap_or(rest.len());
    Some(&rest[..end]).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_linux::mount::mount_health::Vitals;

    /// Lines of kubelet 1.37.2, shortened where the code reads nothing.
    const LOG: &str = r#"
I1124 1 reconciler_common.go:245] "operationExecutor.MountVolume started for volume \"v\" (UniqueName: \"a/secretfiles/1-v\") pod \"secret\" (UID: \"1\") " pod="shop/secret"
E1124 2 nestedpendingoperations.go:348] Operation for "{volumeName:a/secretfiles/1-v podName:1 nodeName:}" failed. Error: MountVolume.SetUp failed for volume "v" (UniqueName: "a/secretfiles/1-v") pod "secret" (UID: "1") : couldn't get secret shop/absent err: secrets "absent" not found
E1124 3 pod_workers.go:1338] "Error syncing pod, skipping" err="unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: failed to get Plugin from volumeSpec for volume \"v\" err=no volume plugin matched" pod="shop/absent" podUID="2"
E1124 4 nestedpendingoperations.go:348] Operation for "{volumeName:a/b/3-w podName:3 nodeName:}" failed. Error: UnmountVolume.TearDown failed for volume "a/b/3-w" (UniqueName: "a/b/3-w") pod "3" (UID: "3") : unexpected end of JSON input
E1124 5 pod_workers.go:1338] "Error syncing pod, skipping" err="unmounted volumes=[v], unattached volumes=[v], failed to process volumes=[]: context deadline exceeded" pod="shop/moves" podUID="4"
E1124 6 nestedpendingoperations.go:348] Operation for "{volumeName:kubernetes.io/projected/5-token podName:5 nodeName:}" failed. Error: MountVolume.SetUp failed for volume "token" (UniqueName: "kubernetes.io/projected/5-token") pod "x" (UID: "5") : failed to sync configmap cache: timed out waiting for the condition
"#;

    fn noted(uids: &[&str], mut volumes: Vec<Volume>) -> Vec<Volume> {
        let root = tempfile::tempdir().unwrap();
        for uid in uids {
            std::fs::create_dir_all(root.path().join("pods").join(uid)).unwrap();
        }
        note_waiting(&mut volumes, &[root.path().to_owned()].into(), LOG);
        volumes
    }

    #[test]
    fn what_no_driver_was_called_for_is_there_with_its_reason() {
        let volumes = noted(&["1", "2", "4", "5"], Vec::new());
        let told: Vec<_> = volumes
            .iter()
            .map(|volume| (volume.pod.as_deref().unwrap(), volume.driver.as_str(), volume.name.as_str()))
            .collect();
        assert_eq!(
            told,
            [("shop/secret", "a~secretfiles", "v"), ("shop/absent", "-", "v"), ("shop/moves", "-", "v")]
        );
        let reasons = ["no Secret of that name", "kubelet has no driver of that name", "gave up waiting"];
        for (volume, reason) in volumes.iter().zip(reasons) {
            assert!(volume.failing.as_ref().unwrap().why.contains(reason), "{volume:?}");
        }
        let attached = volumes[2].failing.as_ref().unwrap();
        assert!(attached.fix.unwrap().contains("--flex-volume-plugin-dir"), "{attached:?}");
    }

    #[test]
    fn how_often_and_since_when_is_counted() {
        let line = |time: &str| {
            format!(
                "E1124 {time}.000001 7 nestedpendingoperations.go:348] Error: MountVolume.SetUp failed for volume \"v\" \
                 (UniqueName: \"a/b/1-v\") pod \"web\" (UID: \"1\") : unexpected end of JSON input\n"
            )
        };
        let log = ["10:00:00", "10:00:01", "10:00:03"].map(line).concat();
        let waiting = in_log(&log).remove(&("1".to_owned(), "v".to_owned())).unwrap();
        let told = waiting.failing().to_string();
        assert_eq!(told, "mount failed 3 times since 11-24 10:00:00, last at 11-24 10:00:03");
    }

    #[test]
    fn pods_that_are_gone_wait_for_nothing() {
        assert_eq!(noted(&[], Vec::new()), []);
    }

    #[test]
    fn what_is_mounted_waits_only_to_go() {
        let of = |uid: &str, name: &str| Volume {
            vitals: Some(Vitals::Hung),
            failing: None,
            uid: Some(uid.to_owned()),
            ..unknown(uid, name, Path::new("/k"), &in_log(LOG)[&("1".to_owned(), "v".to_owned())])
        };
        let volumes = noted(&["1", "3"], vec![of("1", "v"), of("3", "w")]);
        assert_eq!(volumes[0].failing, None, "mounted meanwhile");
        assert!(volumes[1].failing.as_ref().unwrap().why.contains("printed nothing"), "{:?}", volumes[1]);
        assert_eq!(volumes.len(), 2);
    }
}

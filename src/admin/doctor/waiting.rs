//! Pods that wait for a volume to be mounted or unmounted: the most frequent question.

use super::{DoctorRequest, Finding};
use crate::inventory::{self, Volume};
use crate::kubelet_log;
use anyhow::Result;
use flexvol_kubelet::{locate, scan};
use flexvol_linux::proc::{clock, process};
use flexvol_model::diagnostics::known_errors;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Maximum number of pods that are named per driver.
const NAMED: usize = 5;

pub(super) fn look(request: &DoctorRequest) -> Result<Vec<Finding>> {
    let mut volumes = inventory::volumes(&request.kubelet_root, inventory::HEALTH_WAIT)?;
    let roots = inventory::roots(&request.kubelet_root)?;
    // Another check reports a log that cannot be read.
    let log = kubelet_log::text(request.kubelet_log.as_deref()).unwrap_or_default();
    inventory::note_waiting(&mut volumes, &roots, &log);
    let mounted = mounted(&volumes);
    let kubelets = locate::kubelets().unwrap_or_default();
    let mut findings = of_drivers(request, &mounted, kubelets.first().map(|kubelet| kubelet.pid));
    findings.extend(volumes.iter().filter_map(of_volume));
    if process::own_user() != 0 {
        findings.push(Finding::warning(
            "not-root",
            "this is not run as root: other users' processes, /run/flexvol with what drivers did, and directories of pods could not be read, so this list is not whole",
            "run it with sudo",
        ));
    }
    Ok(findings)
}

/// Returns the mounted volumes of pods.
pub(super) fn mounted(volumes: &[Volume]) -> Vec<&Volume> {
    volumes.iter().filter(|it| it.mount.is_some() && it.uid.is_some()).collect()
}

fn of_volume(volume: &Volume) -> Option<Finding> {
    let failing = volume.failing.as_ref()?;
    let what = format!("volume {} of {}", volume.name, volume.driver_name());
    let (id, waits) = if failing.goes { ("pod-ends-not", "cannot end") } else { ("pod-waits", "waits") };
    let evidence = format!("{} {waits}: {what}: {failing}: {}", pod(volume), failing.why);
    Some(Finding::error(id, &evidence, failing.fix.unwrap_or(known_errors::SAID.fix)))
}

fn pod(volume: &Volume) -> String {
    let pod = volume.pod.as_ref().or(volume.uid.as_ref());
    pod.map_or_else(|| "every pod".to_owned(), |pod| format!("pod {pod}"))
}

pub(super) fn pods(volumes: &[&Volume]) -> String {
    let named: Vec<_> =
        volumes.iter().take(NAMED).map(|volume| format!("{} ({})", pod(volume), volume.name)).collect();
    let more = volumes.len() - named.len();
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    named.join(", ") + &more
}

/// Finds mounted volumes whose driver is missing, or was installed after kubelet had started.
fn of_drivers(request: &DoctorRequest, mounted: &[&Volume], kubelet: Option<u32>) -> Vec<Finding> {
    let plugins = request.plugin_dirs().unwrap_or_default();
    let mut drivers: BTreeMap<&str, Vec<&Volume>> = BTreeMap::new();
    for volume in mounted.iter().filter(|_| !plugins.is_empty()) {
        drivers.entry(&volume.driver).or_default().push(volume);
    }
    let finding = |(directory, volumes): (&str, Vec<&Volume>)| match plugins
        .iter()
        .find(|plugins| scan::executable(plugins, directory.as_ref()).exists())
    {
        None => Some(lost(&plugins, &volumes)),
        Some(found) => late(&found.join(directory), &volumes, kubelet?),
    };
    drivers.into_iter().filter_map(finding).collect()
}

fn lost(plugins: &[PathBuf], volumes: &[&Volume]) -> Finding {
    let driver = volumes[0].driver_name();
    let places: Vec<_> = plugins.iter().map(|plugins| plugins.display().to_string()).collect();
    let evidence = format!(
        "{driver} is not in {}, so its volumes that are mounted cannot be unmounted: {}",
        places.join(", "),
        pods(volumes)
    );
    let fix = format!(
        "put the driver back (flexvol install {driver}, if it was flexvol's): until then these pods hang in Terminating; if kubelet was started meanwhile, start it once more afterwards"
    );
    Finding::error("driver-lost", &evidence, &fix)
}

/// Reports volumes that kubelet may not know: its start skips volumes without an installed driver.
fn late(home: &Path, volumes: &[&Volume], kubelet: u32) -> Option<Finding> {
    let age = process::age(i32::try_from(kubelet).ok()?)?.as_secs();
    let began = clock::seconds().saturating_sub(age);
    let born = home.metadata().and_then(|found| found.created()).ok()?;
    let born = born.duration_since(UNIX_EPOCH).ok()?.as_secs();
    let missed: Vec<_> =
        volumes.iter().copied().filter(|volume| is_missed(volume.since, began, born)).collect();
    let first = missed.first()?;
    let evidence = format!(
        "kubelet (pid {kubelet}) was started while {} was not installed, and may not know volumes that were mounted before: {}",
        first.driver_name(),
        pods(&missed)
    );
    let fix = "if such a pod hangs in Terminating, restart kubelet once more while the driver is in place";
    Some(Finding::warning("driver-late", &evidence, fix))
}

fn is_missed(mounted: Option<u64>, kubelet: u64, driver: u64) -> bool {
    mounted.is_some_and(|mounted| mounted < kubelet) && kubelet < driver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_mounted_before_a_kubelet_that_came_before_its_driver_is_missed() {
        assert!(is_missed(Some(1), 2, 3));
        for (mounted, kubelet, driver) in [(Some(2), 1, 3), (Some(1), 3, 2), (None, 2, 3), (Some(3), 2, 1)] {
            assert!(!is_missed(mounted, kubelet, driver), "{mounted:?} {kubelet} {driver}");
        }
    }
}

//! Volumes that do not work, and directories of pods that are gone.

use super::{DoctorRequest, Finding, Repair};
use crate::inventory::{self, Volume, pods};
use anyhow::Result;
use flexvol_linux::fs::{files, listing};
use flexvol_linux::mount::mount_health::{Vitals, words};
use flexvol_model::diagnostics;
use flexvol_protocol::ordered::filled;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Age limit for directories of pods: the pod of a younger one may be starting.
const YOUNG: Duration = Duration::from_mins(10);

pub(super) fn look(request: &DoctorRequest) -> Result<Vec<Finding>> {
    let volumes = inventory::volumes(&request.kubelet_root, inventory::HEALTH_WAIT)?;
    let roots = inventory::kubelet_roots(&request.kubelet_root);
    let unmounted = inventory::unmounted_csi(&roots)?;
    let all: Vec<_> = volumes.iter().chain(&unmounted).collect();
    let gone = gone(&roots, &all);
    // Leftovers of a pod that is gone are reported once.
    let stays = |volume: &&Volume| !gone.iter().any(|directory| volume.target.starts_with(directory));
    let mut findings: Vec<_> =
        volumes.iter().filter(stays).filter_map(|volume| of_volume(volume, &roots)).collect();
    findings.extend(gone.iter().map(|directory| orphaned(directory, &all)));
    findings.extend(strangers(&volumes));
    Ok(findings)
}

/// Returns a text such as `pod shop/web, volume data of fstab/cifs at /…`.
fn named(volume: &Volume) -> String {
    let pod =
        volume.pod.as_ref().or(volume.uid.as_ref()).map_or_else(String::new, |pod| format!("pod {pod}, "));
    let source = volume.source().map_or_else(String::new, |source| format!(" from {source}"));
    format!("{pod}volume {} of {} at {}{source}", volume.name, volume.driver_name(), volume.target.display())
}

fn of_volume(volume: &Volume, roots: &BTreeSet<PathBuf>) -> Option<Finding> {
    let name = named(volume);
    match volume.vitals {
        Some(Vitals::Dead(number)) => {
            let said = words(number);
            let evidence = format!("{name} is dead ({said})");
            let known_error = diagnostics::explain(&said).map(|explained| explained.known_error);
            let finding = match known_error {
                Some(known_error) => Finding::of_known_error("volume-dead", &evidence, known_error),
                None => Finding::error(
                    "volume-dead",
                    &evidence,
                    "unmount it (umount -l) and delete the pod, so that it is mounted again",
                ),
            };
            let is_repaired = volume.root.is_none() || is_kubelet_s(volume, roots);
            let repair = Repair::Detach { target: volume.target.clone() };
            Some(if is_repaired { finding.with(repair) } else { finding })
        }
        Some(Vitals::Hung) => {
            let evidence =
                format!("{name} does not answer: whoever looks at it waits, pods, df and kubelet too");
            let fix = match volume.mount.as_ref().map(|entry| entry.file_system.as_str()) {
                Some(kind) if kind.starts_with("fuse") => {
                    "look at the program that serves it (stopped, or waiting for its own server?); ending it makes the volume dead, which --repair fixes"
                }
                _ => {
                    "bring its server back; if it is gone for good, umount -f -l the volume and delete the pod"
                }
            };
            Some(Finding::error("volume-hung", &evidence, fix))
        }
        Some(Vitals::Alive(_)) if volume.layers > 1 => {
            let evidence = format!("{name} is mounted {} times on top of itself", volume.layers);
            Some(Finding::warning(
                "volume-stacked",
                &evidence,
                "its driver mounts again what is mounted (flexvol check names the case); unmount the upper ones when the pod is gone",
            ))
        }
        Some(Vitals::Alive(_)) => None,
        None => unmounted(volume, &name),
    }
}

/// Reports files in the directory of an unmounted volume: they are on the node's own disk. An empty
/// directory is fine, as it may be about to be mounted.
fn unmounted(volume: &Volume, name: &str) -> Option<Finding> {
    let entries = listing::list(&volume.target).ok()?;
    let first = entries.first()?;
    let evidence = format!(
        "{name} is not mounted, but holds {} and {} more",
        first.name.to_string_lossy(),
        entries.len() - 1
    );
    let fix = "look at these files and move them away: they are on the node's own disk, and kubelet cannot remove the directory; the driver said Success without a mount, or is no driver that mounts";
    Some(Finding::warning("volume-files", &evidence, fix))
}

/// Finds files beside volumes. kubelet takes each for a volume, and most of them hold credentials.
fn strangers(volumes: &[Volume]) -> Vec<Finding> {
    let of_pods = volumes.iter().filter(|volume| volume.uid.is_some());
    let parents: BTreeSet<_> = filled(of_pods.filter_map(|volume| volume.target.parent()));
    let files = parents.into_iter().flat_map(|parent| {
        let entries = listing::list(parent).unwrap_or_default();
        let files =
            entries.into_iter().filter(|entry| entry.kind != flexvol_linux::fs::directory::Kind::Directory);
        files.map(|entry| parent.join(entry.name))
    });
    files
        .map(|path| {
            let evidence = format!(
                "{} lies beside volumes: kubelet takes it for one, and it may hold credentials",
                path.display()
            );
            Finding::warning(
                "file-beside-volumes",
                &evidence,
                "remove it once the pod is gone; a driver must keep its files elsewhere",
            )
        })
        .collect()
}

/// Finds directories of pods that are gone. kubelet creates a pod's control group before it mounts
/// anything, and removes it when all has ended. So a pod is gone if it has no control group and its
/// directory is kubelet's own and not young. Without control groups for pods, the result is empty.
///
/// kubelet's log is no evidence: it repeats what tenants write.
fn gone(roots: &BTreeSet<PathBuf>, volumes: &[&Volume]) -> BTreeSet<PathBuf> {
    let Some(running) = pods::running() else { return BTreeSet::new() };
    let of_kubelets = volumes.iter().filter(|volume| is_kubelet_s(volume, roots));
    let pods = of_kubelets.filter_map(|volume| {
        let uid = volume.uid.as_ref().filter(|uid| !running.contains(*uid))?;
        Some(volume.root.as_ref()?.join("pods").join(uid))
    });
    filled(pods.filter(|directory| files::age(directory).is_some_and(|age| age > YOUNG)))
}

/// Reports whether the volume is below a kubelet's own directory. Volumes below the directory of
/// another program, such as `flexvold`, are that program's to end.
fn is_kubelet_s(volume: &Volume, roots: &BTreeSet<PathBuf>) -> bool {
    volume.root.as_ref().is_some_and(|root| roots.contains(root))
}

fn orphaned(directory: &Path, volumes: &[&Volume]) -> Finding {
    let left: Vec<_> = volumes.iter().filter(|volume| volume.target.starts_with(directory)).collect();
    let names: Vec<_> =
        left.iter().map(|volume| format!("{} of {}", volume.name, volume.driver_name())).collect();
    let evidence = format!(
        "the pod of {} is gone (no control group of it is left), and its volumes are left: {}",
        directory.display(),
        names.join(", ")
    );
    let fix = "unmount what is mounted there, move files away, and remove the empty directories; for CSI volumes restart kubelet";
    let targets = left.iter().map(|volume| volume.target.clone()).collect();
    Finding::error("pod-orphaned", &evidence, fix)
        .with(Repair::ClearPod { directory: directory.to_owned(), targets })
}

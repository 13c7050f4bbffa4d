//! Leftovers of killed calls and installers: loop devices, credentials, records, hidden files.

use super::{DoctorRequest, Finding, Repair};
use crate::inventory;
use crate::plugin_dir::{in_use, litter};
use anyhow::Result;
use flexvol_linux::block::loop_device;
use flexvol_model::paths;
use flexvol_node::executor::leftovers;
use std::path::Path;

pub(super) fn look(request: &DoctorRequest) -> Result<Vec<Finding>> {
    let mut findings = loop_devices(request)?;
    let mounts = in_use::mounts(paths::RUN.as_ref());
    if let Err(error) = &mounts {
        let fix =
            "run flexvol doctor there: else it is not known what in /run/flexvol/daemons is still needed";
        findings.push(Finding::note("mounts-unseen", &format!("{error:#}"), fix));
    }
    findings.extend(mounts.iter().flat_map(|mounts| leftovers::homes(mounts)).map(|name| {
        let evidence = format!("the files, maybe credentials, of a volume that is no longer mounted: {name} below /run/flexvol/daemons");
        let fix = "remove them, and kill orphaned daemons";
        Finding::warning("credentials-left", &evidence, fix).with(Repair::RemoveHome { name })
    }));
    findings.extend(mounts.iter().flat_map(|mounts| leftovers::records(mounts)).map(|target| {
        let evidence = format!("nothing is mounted at {target}, but /run/flexvol has a record of it: another driver or a person unmounted it");
        let fix = "forget it, and release what was there for it";
        let target = target.as_path().to_owned();
        Finding::warning("record-left", &evidence, fix).with(Repair::ForgetRecord { target })
    }));
    for plugins in request.plugin_dirs().unwrap_or_default() {
        if let Some(holder) = litter::holder(&plugins) {
            let evidence = format!(
                "{} is held by an installer ({holder}): install, uninstall and deploy wait for it",
                plugins.display()
            );
            let fix = "let it end, or end it: what it has begun the next one completes";
            findings.push(Finding::warning("installer-holds", &evidence, fix));
        }
        let names = litter::of(&plugins);
        if !names.is_empty() {
            let evidence =
                format!("an installer that was killed left {} in {}", names.join(", "), plugins.display());
            let finding =
                Finding::warning("install-litter", &evidence, "the next flexvol install removes it");
            findings.push(finding.with(Repair::ClearLitter { directory: plugins }));
        }
    }
    Ok(findings)
}

/// Finds unused loop devices over files of volumes, if the kernel does not release them on its own.
fn loop_devices(request: &DoctorRequest) -> Result<Vec<Finding>> {
    let mut places: Vec<_> = inventory::roots(&request.kubelet_root)?.into_iter().collect();
    places.push(paths::IMAGES.into());
    let is_volume_s = |file: &Path| places.iter().any(|place| file.starts_with(place));
    let leaked = loop_device::leaked(is_volume_s)?;
    Ok(leaked
        .into_iter()
        .map(|(device, file)| {
            let evidence =
                format!("{} shows {} and is not used: a driver forgot it", device.display(), file.display());
            let fix = format!("losetup -d {}", device.display());
            Finding::warning("loop-device-leaked", &evidence, &fix).with(Repair::ReleaseLoop { device, file })
        })
        .collect())
}

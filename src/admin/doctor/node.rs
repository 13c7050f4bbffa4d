//! Requirements of the node: mount propagation, security modules, and control groups of daemons.

use super::{DoctorRequest, Finding};
use crate::inventory;
use anyhow::Result;
use flexvol_kubelet::locate;
use flexvol_linux::fs::files;
use flexvol_linux::mount::mount_table;
use flexvol_linux::proc::process;
use std::path::Path;

pub(super) fn look(request: &DoctorRequest) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let kubelets = locate::kubelets().unwrap_or_default();
    if kubelets.is_empty() && request.plugin_dir.is_empty() {
        findings.push(Finding::note(
            "kubelet-none",
            "no kubelet process found",
            "run this on the node, as root; or name its directories with --plugin-dir and --kubelet-root",
        ));
    }
    for root in inventory::roots(&request.kubelet_root)?.into_iter().filter(|root| root.join("pods").is_dir())
    {
        if mount_table::is_shared(&root)? == Some(false) {
            let evidence = format!("mounts below {} do not travel to other mount namespaces", root.display());
            let fix = format!(
                "mount --make-rshared the mount that {} is on; containers started before do not see volumes",
                root.display()
            );
            findings.push(Finding::warning("root-not-shared", &evidence, &fix));
        }
    }
    let enforcing = files::read_small(Path::new("/sys/fs/selinux/enforce"), 16).ok().flatten();
    if enforcing.is_some_and(|text| text.trim() == "1") {
        findings.push(Finding::note("selinux-enforcing", "SELinux is enforcing", "volumes of file systems without labels need mount option context=, which flexvol's drivers take from mountOptions; denials are in ausearch -m avc"));
    }
    for kubelet in &kubelets {
        findings.extend(confined(kubelet.pid));
        findings.extend(daemons_of(kubelet.pid));
    }
    Ok(findings)
}

fn confined(kubelet: u32) -> Option<Finding> {
    let profile =
        files::read_small(Path::new(&format!("/proc/{kubelet}/attr/apparmor/current")), 4096).ok()??;
    let profile = profile.trim().to_owned();
    (!profile.is_empty() && !profile.starts_with("unconfined")).then(|| {
        let evidence =
            format!("kubelet (pid {kubelet}) is confined by AppArmor profile {profile}, and so are drivers");
        Finding::warning(
            "apparmor-confined",
            &evidence,
            "allow there what drivers do (mount, umount, executing helpers); denials are in dmesg",
        )
    })
}

/// Finds programs that serve FUSE in kubelet's own control group: a restart of its unit kills them.
fn daemons_of(kubelet: u32) -> Option<Finding> {
    let with = process::in_group_of(kubelet, Path::new("/dev/fuse"));
    (!with.is_empty()).then(|| {
        let pids: Vec<_> = with.iter().map(ToString::to_string).collect();
        let evidence = format!("processes {} serve volumes in kubelet's own control group: a restart of kubelet ends them, and the volumes are dead", pids.join(", "));
        Finding::warning("daemon-in-kubelet-group", &evidence, "drivers must start such programs in a scope of their own (systemd-run --scope), as flexvol's do; or set KillMode=process in kubelet's unit")
    })
}

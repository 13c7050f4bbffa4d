//! Messages about volumes in kubelet's log. Some problems leave no other trace on the node, because
//! no driver was ever called. The lines may hold secrets, so none is repeated.

use super::{DoctorRequest, Finding, waiting};
use crate::{inventory, kubelet_log};
use anyhow::Result;
use flexvol_kubelet::locate;
use flexvol_model::diagnostics::{self, Explained};
use std::collections::BTreeMap;

/// Words that mark a line about volumes.
const ABOUT: &[&str] = &[
    "flexvolume",
    "flex volume",
    "mountvolume.",
    "mountdevice",
    "volume plugin",
    "orphaned pod",
    "probing plugins",
    "driver call failed",
    "attachvolume.",
    "unmountvolume.",
];

/// Start of Go's message about a crash.
const PANIC: &str = "panic: runtime error";

/// Start of kubelet's message about a driver that it does not load.
const OF_DRIVER: &str = "error creating Flexvolume plugin from directory ";

/// Limit for the lines of a crash's stack that are searched.
const STACK: usize = 60;

/// Meaning of one line.
#[derive(Clone, Debug)]
struct Said {
    /// Its explanation.
    explained: Explained,
    /// True if a pod waits for its volume to be attached.
    unattached: bool,
    /// True if the line names a volume of a pod on this node.
    of_pod: bool,
}

pub(super) fn look(request: &DoctorRequest) -> Result<Vec<Finding>> {
    let mut findings = Vec::from_iter(no_kubelet(request)?);
    if findings.is_empty() {
        kubelet_log::is_there(request.kubelet_log.as_deref())?;
    }
    let mut counted: BTreeMap<(&str, Vec<String>), (Explained, usize)> = BTreeMap::new();
    for Said { explained, unattached, of_pod, .. } in said(request)? {
        // The pods check reports what pods wait for. The errors of a driver are in its own log, but
        // a volume that is not attached has none there. A Secret that comes late is common, for
        // volumes of all kinds. This check skips them.
        let told_elsewhere = match explained.known_error.id {
            "object-not-read" => true,
            "waited-too-long" => of_pod || !unattached,
            _ => of_pod,
        };
        if told_elsewhere {
            continue;
        }
        let known =
            counted.entry((explained.known_error.id, explained.did.clone())).or_insert((explained, 0));
        known.1 += 1;
    }
    let finding = |(explained, count): &(Explained, usize)| {
        let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
        let did =
            if explained.did.is_empty() { String::new() } else { format!(": {}", explained.did.join(", ")) };
        let evidence = format!("kubelet logged it {times}{did}");
        Finding::of_known_error(
            &format!("log-{}", explained.known_error.id),
            &evidence,
            explained.known_error,
        )
    };
    findings.extend(counted.values().map(finding));
    Ok(findings)
}

fn no_kubelet(request: &DoctorRequest) -> Result<Option<Finding>> {
    if !locate::kubelets().unwrap_or_default().is_empty() {
        return Ok(None);
    }
    let volumes = inventory::volumes(&request.kubelet_root, inventory::HEALTH_WAIT)?;
    let mounted = waiting::mounted(&volumes);
    let evidence = format!(
        "no kubelet process is found, and volumes are mounted, which are not unmounted without one: {}",
        waiting::pods(&mounted)
    );
    let fix = "start kubelet (journalctl -u kubelet says why it ended); in a container, run this where the node's processes are seen (hostPID)";
    Ok((!mounted.is_empty()).then(|| Finding::error("kubelet-gone", &evidence, fix)))
}

/// Returns every line about volumes that has an explanation, the oldest first.
fn said(request: &DoctorRequest) -> Result<Vec<Said>> {
    let text = kubelet_log::text(request.kubelet_log.as_deref())?;
    let roots = inventory::roots(&request.kubelet_root)?;
    let lines: Vec<_> = text.lines().flat_map(of_each_driver).collect();
    let said = lines.iter().enumerate().filter_map(|(at, line)| {
        let unattached = kubelet_log::unattached(line).is_some();
        if !unattached && !is_about_volumes(line) && !is_a_crash(&lines[at..]) {
            return None;
        }
        let explained = diagnostics::explain(line)?;
        Some(Said { explained, unattached, of_pod: inventory::is_of_pod(line, &roots) })
    });
    Ok(said.collect())
}

/// Splits kubelet's one line for the errors of all drivers: `Error dynamically probing plugins:
/// [error creating Flexvolume plugin from directory a~b, skipping. Error: …,
/// error creating …]`.
fn of_each_driver(line: &str) -> Vec<&str> {
    let mut starts: Vec<_> = line.match_indices(OF_DRIVER).map(|(at, _)| at).skip(1).collect();
    starts.push(line.len());
    let mut from = 0;
    starts.into_iter().map(|to| &line[std::mem::replace(&mut from, to)..to]).collect()
}

fn is_about_volumes(line: &str) -> bool {
    let small = line.to_lowercase();
    ABOUT.iter().any(|word| small.contains(word))
}

/// Reports whether kubelet crashed there in the code that calls FlexVolume drivers. Go prints the
/// panic first, and then the functions of the stack.
fn is_a_crash(lines: &[&str]) -> bool {
    let Some((first, stack)) = lines.split_first() else { return false };
    let is_inside = |line: &&str| line.contains("/pkg/volume/flexvolume");
    first.contains(PANIC) && stack.iter().take(STACK).take_while(|line| !line.contains(PANIC)).any(is_inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_an_attachment_is_told_of() {
        let told = |unattached: &str| {
            let log = tempfile::NamedTempFile::new().unwrap();
            let line = format!(
                "E1124 pod_workers.go:1338] \"Error syncing pod, skipping\" err=\"unmounted volumes=[v], unattached \
                 volumes=[{unattached}], failed to process volumes=[]: context deadline exceeded\" pod=\"shop/web\""
            );
            std::io::Write::write_all(&mut log.as_file(), line.as_bytes()).unwrap();
            let request =
                DoctorRequest { kubelet_log: Some(log.path().to_owned()), ..DoctorRequest::default() };
            look(&request).unwrap().iter().map(|finding| finding.id.clone()).collect::<Vec<_>>()
        };
        assert_eq!(told("v"), ["log-waited-too-long"]);
        assert_eq!(told(""), [""; 0]);
    }

    #[test]
    fn the_line_about_all_drivers_is_one_of_each() {
        let line =
            |what: &str| format!("E1 plugins.go:752] \"Error dynamically probing plugins\" err=\"[{what}]\"");
        let of = |name: &str| format!("{OF_DRIVER}{name}, skipping. Error: unexpected end of JSON input");
        let log = tempfile::NamedTempFile::new().unwrap();
        let text = line(&[of("a~b"), of("c~d"), of("e~f")].join(", "));
        std::io::Write::write_all(&mut log.as_file(), text.as_bytes()).unwrap();
        let request = DoctorRequest { kubelet_log: Some(log.path().to_owned()), ..DoctorRequest::default() };
        let found = look(&request).unwrap();
        let names: Vec<_> = ["\"a~b\"", "\"c~d\"", "\"e~f\""]
            .into_iter()
            .filter(|name| found.iter().any(|finding| finding.evidence.contains(name)))
            .collect();
        assert_eq!((found.len(), names.len()), (3, 3), "{found:?}");
        assert_eq!(of_each_driver("no driver"), ["no driver"]);
        assert_eq!(of_each_driver(&of("a~b")), [of("a~b")]);
    }

    #[test]
    fn a_crash_is_known_by_the_functions_it_was_in() {
        let crash = "panic: runtime error: invalid memory address or nil pointer dereference\n\
                     [signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x2b6b0c4]\n\
                     goroutine 1 [running]:\n";
        let ours = "k8s.io/kubernetes/pkg/volume/flexvolume.(*flexVolumePlugin).Init(...)\n";
        let findings = |text: String| {
            let log = tempfile::NamedTempFile::new().unwrap();
            std::io::Write::write_all(&mut log.as_file(), text.as_bytes()).unwrap();
            let request =
                DoctorRequest { kubelet_log: Some(log.path().to_owned()), ..DoctorRequest::default() };
            look(&request).unwrap().len()
        };
        assert_eq!(findings(format!("{crash}{ours}")), 1);
        assert_eq!(findings(format!("{crash}k8s.io/kubernetes/pkg/kubelet.(*Kubelet).syncPod(...)\n")), 0);
        assert_eq!(findings(format!("{crash}other\n{crash}{ours}")), 1);
    }

    #[test]
    fn lines_are_counted_and_never_repeated() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let line = r#"W0101 driver-call.go:149] FlexVolume: driver call failed: executable: /p/d, args: [mount /t {"kubernetes.io/secret/password":"aHVudGVyMg=="}], error: exit status 1, output: """#;
        std::io::Write::write_all(&mut log.as_file(), format!("{line}\n{line}\nother\n").as_bytes()).unwrap();
        let late = r#"E0101 MountVolume.SetUp failed for volume "kube-api-access" : failed to sync configmap cache: timed out waiting for the condition"#;
        std::io::Write::write_all(&mut log.as_file(), late.as_bytes()).unwrap();
        let request = DoctorRequest { kubelet_log: Some(log.path().to_owned()), ..DoctorRequest::default() };
        let findings = look(&request).unwrap();
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].evidence.contains("2 times") && !format!("{findings:?}").contains("aHVu"));
    }
}

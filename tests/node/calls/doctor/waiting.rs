//! What is asked about first: pods that wait, drivers that are gone, calls that run; and what could
//! not be looked at.

use super::{GOOD, Sick, tmpfs, unmount};
use crate::support::wording::wording;
use crate::support::{BINARY, eventually, skip};
use nix::mount::MsFlags;
use std::fs;
use std::path::Path;
use std::process::Command;

/// kubelet removes the volume's directory after each `mount` that failed.
#[test]
fn pods_that_wait_come_first_with_since_when_and_how_often() {
    let Some(node) = Sick::new("doctor::pods_that_wait_come_first_with_since_when_and_how_often") else {
        return;
    };
    node.site.driver("example~noisy", "init) echo x;;");
    let volume = node.target("example~tmpfs", "data");
    fs::remove_dir(&volume).unwrap();
    fs::create_dir_all("/run/flexvol/log").unwrap();
    let line = |target: &Path, time: &str, message: &str| {
        let entry = serde_json::json!({
            "time": time, "driver": "example~tmpfs", "verb": "mount", "target": target, "pod": "shop/web",
            "volume": "data", "outcome": "Failure", "message": message, "tookMs": 3, "pid": 7
        });
        format!("{entry}\n")
    };
    let (first, last) = ("2026-11-21T10:00:00.000Z", "2026-11-21T10:00:09.000Z");
    let lines = [
        line(&volume, first, "old words"),
        line(Path::new("/mnt"), first, "by hand"),
        line(&volume, last, "unknown option \"sise\": did you mean \"size\"?"),
    ];
    fs::write("/run/flexvol/log/drivers.jsonl", lines.concat()).unwrap();
    let evidence = "pod shop/web waits: volume data of example/tmpfs: mount failed 2 times since \
                    2026-11-21T10:00:00, last at 2026-11-21T10:00:09: unknown option \"sise\"";
    assert_eq!(node.first(evidence, "correct the option"), "pod-waits");
    assert!(!node.doctor(&[]).out.contains("/mnt"));
    fs::remove_dir_all(node.site.path("kubelet/pods/7")).unwrap();
    assert!(!node.has("pod-waits"), "it is gone");
}

#[test]
fn a_call_that_runs_is_shown_at_once() {
    let Some(node) = Sick::new("doctor::a_call_that_runs_is_shown_at_once") else { return };
    let driver = node.site.driver("example~slow", &format!("{GOOD}\nmount) sleep 100;;"));
    let target = node.target("example~slow", "data");
    let mut call = Command::new(driver).arg("mount").arg(&target).arg("{}").spawn().unwrap();
    // One of less than five seconds is none to speak of.
    let hangs = || node.findings(&[]).into_iter().find(|finding| finding["id"] == "call-hangs");
    let mut found = None;
    eventually("the call counts", || {
        found = hangs();
        found.is_some()
    });
    let status =
        node.site.flexvol(&["status", "--kubelet-root", node.site.path("kubelet").to_str().unwrap()]);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", call.id())).unwrap_or_default();
    call.kill().unwrap();
    call.wait().unwrap();
    for child in children.split_whitespace() {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.parse().unwrap()), nix::sys::signal::SIGKILL)
            .unwrap();
    }
    let found = found.unwrap();
    assert_eq!(found["severity"], "note", "{found}");
    let evidence = found["evidence"].as_str().unwrap();
    assert!(evidence.starts_with(&format!("mount of {} running for ", target.display())), "{evidence}");
    let flat = status.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("not mounted: mount running for "), "{status:?}");
}

/// The pod that never ends is the worst there is.
#[test]
fn a_driver_that_is_gone_under_mounted_volumes_is_error_number_one() {
    let Some(node) = Sick::new("doctor::a_driver_that_is_gone_under_mounted_volumes_is_error_number_one")
    else {
        return;
    };
    node.site.driver("example~noisy", "init) echo x;;");
    let target = node.target("fstab~cifs", "data");
    tmpfs(&target, "size=1m", MsFlags::empty());
    let id = node.first("fstab/cifs is not in ", wording("put-driver-back"));
    node.site.driver("fstab~cifs", GOOD);
    let there = (node.has("driver-lost"), node.has("kubelet-gone"));
    unmount(&target);
    assert_eq!((id.as_str(), there), ("driver-lost", (false, true)));
    assert!(!node.has("kubelet-gone"));
}

#[test]
fn what_others_may_write_into_is_an_error() {
    let Some(node) = Sick::new("doctor::what_others_may_write_into_is_an_error") else { return };
    let driver = node.site.driver("example~good", GOOD);
    let open = |path: &Path, mode: u32| {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    assert!(!node.has("open-to-others"));
    for path in [driver.as_path(), driver.parent().unwrap(), &node.site.path("plugins")] {
        open(path, 0o777);
        let fix = format!("chmod go-w {}", path.display());
        assert_eq!(node.first(&path.display().to_string(), &fix), "open-to-others");
        open(path, 0o755);
    }
}

/// Waits until three of its kind are alive, says so, and hangs.
const BESIDE: &str = r#"init) echo $$ >>$LOG/pids
    alive() { for pid in $(cat $LOG/pids); do kill -0 $pid 2>/dev/null && echo $pid; done; }
    until [ "$(alive | wc -l)" -eq 3 ]; do sleep 0.05; done
    echo 3 >>$LOG/beside; exec sleep 300;;"#;

/// One that hangs holds up no other: ten seconds are for all of them.
#[test]
fn drivers_are_probed_at_the_same_time() {
    let Some(node) = Sick::new("doctor::drivers_are_probed_at_the_same_time") else { return };
    for name in ["a~a", "b~b", "c~c"] {
        node.site.driver(name, BESIDE);
    }
    let findings = node.findings(&["--check", "drivers"]);
    assert_eq!(findings.iter().filter(|finding| finding["id"] == "driver-fails").count(), 3, "{findings:#?}");
    assert!(node.site.path("beside").exists(), "never all of them at once");
}

#[test]
fn who_is_not_root_is_told_what_could_not_be_read() {
    use std::os::unix::process::CommandExt as _;
    let Some(_node) = Sick::new("doctor::who_is_not_root_is_told_what_could_not_be_read") else { return };
    fs::create_dir_all("/run/flexvol/log").unwrap();
    for path in ["/run/flexvol", "/run/flexvol/log"] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    }
    let said = |words: &[&str]| {
        let output = Command::new(BINARY).args(words).current_dir("/").uid(65534).gid(65534).output();
        output.ok().map(|output| {
            let text = [output.stdout, output.stderr].concat();
            let flat = String::from_utf8(text).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
            (output.status.code().unwrap(), flat)
        })
    };
    let Some((status, logs)) = said(&["logs"]) else {
        return skip(
            "doctor::who_is_not_root_is_told_what_could_not_be_read",
            "nobody may not execute flexvol",
        );
    };
    assert!(status == 1 && logs.contains(wording("run-as-root")), "{logs}");
    let (status, doctor) = said(&["doctor", "--check", "pods"]).unwrap();
    assert!(status == 1 && doctor.contains("not-root") && !doctor.contains("0 warnings"), "{doctor}");
    let (_, status) = said(&["status"]).unwrap();
    assert!(status.starts_with(wording("status-not-root")), "{status}");
}

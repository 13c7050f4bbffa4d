//! `flexvol pod`: whole lives of volumes, with stand-ins that log their calls and with our own
//! drivers.

use crate::support::namespace::{enter, mounts_at};
use crate::support::skip;
use crate::support::stand_in::Site;
use crate::support::wording::{wording, wording_of};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A driver that attaches and mounts a tmpfs for its device.
const ATTACHES: &str = r#"init) ok ',"capabilities":{"attach":true}';;
getvolumename) ok;;
attach|waitforattach) ok ',"device":"/dev/none"';;
isattached) ok ',"attached":true';;
mountdevice) mount -t tmpfs -o size=1M none "$2" && ok;;
mount) mount --bind "$LOG/kubelet/plugins/kubernetes.io/flexvolume/example/att/mounts/$(basename "$2")" "$2" && ok;;
unmount|unmountdevice) umount "$2" && ok;;
detach) ok;;
expandfs) ok;;"#;

const POD: &str = "kind: Pod\nmetadata: {name: web, uid: u-1}\nspec:\n  volumes:\n  - name: data\n    \
                   flexVolume: {driver: example/plain, options: {a: b}}\n";

/// A PV of `example/att`, its claim, and two pods that use it.
const SHARED: &str = "\
kind: PersistentVolume
metadata: {name: pv}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteMany], flexVolume: {driver: example/att}}
---
kind: PersistentVolumeClaim
metadata: {name: c}
spec: {accessModes: [ReadWriteMany], volumeName: pv}
---
kind: Pod
metadata: {name: one, uid: u-1}
spec: {volumes: [{name: data, persistentVolumeClaim: {claimName: c}}]}
---
kind: Pod
metadata: {name: two, uid: u-2}
spec: {volumes: [{name: data, persistentVolumeClaim: {claimName: c, readOnly: true}}]}
";

fn pod_mount(site: &Site, uid: &str, driver: &str, name: &str) -> PathBuf {
    site.path("kubelet/pods").join(uid).join("volumes").join(driver).join(name)
}

fn sh(line: &str) -> bool {
    Command::new("sh").args(["-c", line]).status().unwrap().success()
}

#[test]
fn a_driver_that_attaches_is_called_in_kubelet_s_order() {
    if !enter("pod::a_driver_that_attaches_is_called_in_kubelet_s_order") {
        return;
    }
    let site = Site::new();
    site.driver("example~att", ATTACHES);
    site.file("p.yaml", SHARED);
    let global = site.path("kubelet/plugins/kubernetes.io/flexvolume/example/att/mounts/pv");
    site.pod(&["up", "-f", "p.yaml"]).good();
    assert_eq!(
        site.verbs(),
        [
            "init",
            "init",
            "getvolumename",
            "attach",
            "getvolumename",
            "waitforattach",
            "getvolumename",
            "mountdevice",
            "mount", // and the second pod:
            "isattached",
            "getvolumename",
            "waitforattach",
            "mount"
        ]
    );
    let targets = ["u-1", "u-2"].map(|uid| pod_mount(&site, uid, "example~att", "pv"));
    assert!(targets.iter().chain([&global]).all(|path| mounts_at(path) == ["tmpfs"]));

    site.pod(&["up", "-f", "p.yaml"]).good();
    let again = ["init", "init", "isattached", "getvolumename", "waitforattach", "getvolumename"];
    assert_eq!(site.verbs()[..6], again, "the device is found mounted");

    site.pod(&["down", "-f", "p.yaml"]).good();
    let down =
        ["init", "init", "unmount", "unmount", "getvolumename", "unmountdevice", "getvolumename", "detach"];
    assert_eq!(site.verbs(), down);
    assert!(site.left().is_empty(), "{:?}", site.left());
    assert!(site.pod(&["down", "-f", "p.yaml"]).good().out.contains("nothing to do"));
    assert!(site.verbs().is_empty());
}

#[test]
fn growth_is_told_to_the_driver_with_device_and_sizes() {
    if !enter("pod::growth_is_told_to_the_driver_with_device_and_sizes") {
        return;
    }
    let site = Site::new();
    site.driver("example~att", ATTACHES);
    site.file("p.yaml", SHARED.split("---\nkind: Pod").next().unwrap());
    site.pod(&["up", "-f", "p.yaml", "--expand", "2Gi"]).good();
    let calls = site.calls();
    let grown = calls.last().unwrap();
    assert_eq!((grown[0].as_str(), grown[2].as_str()), ("expandfs", "/dev/none"));
    assert_eq!(grown[4..], ["2147483648", "1073741824"]);
    assert!(mounts_at(Path::new(&grown[3])) == ["tmpfs"], "{grown:?}");
    site.pod(&["down", "-f", "p.yaml"]).good();

    let inline = site.file("q.yaml", &POD.replace("plain", "att"));
    let said = site.pod(&["up", "-f", inline.to_str().unwrap(), "--expand", "2Gi"]);
    assert!(said.status == 1 && said.out.contains(wording("inline-cannot-grow")), "{said:?}");
    site.pod(&["down", "-f", "q.yaml"]).good();
}

/// Section H of the recorded calls: a driver that knows nothing but init.
#[test]
fn a_driver_that_lacks_everything_is_served_by_kubelet() {
    if !enter("pod::a_driver_that_lacks_everything_is_served_by_kubelet") {
        return;
    }
    let site = Site::new();
    site.driver("example~bare", "init) ok;;");
    site.file("p.yaml", &POD.replace("plain", "bare"));
    let said = site.pod(&["up", "-f", "p.yaml"]).good();
    let up =
        ["init", "init", "getvolumename", "attach", "getvolumename", "waitforattach", "mountdevice", "mount"];
    assert_eq!(site.verbs(), up);
    assert!(said.out.contains("bind without driver") && said.out.contains("lacks"), "{}", said.out);
    let target = pod_mount(&site, "u-1", "example~bare", "data");
    assert_eq!(mounts_at(&target).len(), 1, "silently bound: an empty directory");
    site.pod(&["down", "-f", "p.yaml"]).good();
    // unmountdevice is not called: nothing was mounted there.
    assert_eq!(site.verbs(), ["init", "init", "unmount", "getvolumename", "getvolumename", "detach"]);
    assert!(site.left().is_empty(), "{:?}", site.left());
}

/// Kubelet's own mountdevice, mount, expandfs, unmount and unmountdevice, on a real loop device.
#[test]
fn a_device_is_formatted_mounted_and_grown_without_the_driver() {
    let name = "pod::a_device_is_formatted_mounted_and_grown_without_the_driver";
    if !enter(name) {
        return;
    }
    if !Path::new("/dev/loop-control").exists()
        || !sh("command -v mkfs.ext4 >/dev/null && losetup -f >/dev/null")
    {
        return skip(name, "needs loop devices, losetup and mkfs.ext4");
    }
    let site = Site::new();
    site.driver(
        "example~att",
        r#"init) ok;;
attach) d=$(losetup -f --show "$LOG/image") && echo "$d" > "$LOG/device" && ok ",\"device\":\"$d\"";;
detach) losetup -d "$(cat "$LOG/device")" && rm "$LOG/device" && ok;;"#,
    );
    fs::File::create(site.path("image")).unwrap().set_len(16 << 20).unwrap();
    site.file("p.yaml", SHARED.split("---\nkind: Pod\nmetadata: {name: two").next().unwrap());
    site.pod(&["up", "-f", "p.yaml", "--expand", "2Gi"]).good();
    let target = pod_mount(&site, "u-1", "example~att", "pv");
    assert_eq!(mounts_at(&target), ["ext4"]);
    fs::write(target.join("kept"), "data").unwrap();
    site.pod(&["down", "-f", "p.yaml"]).good();
    assert!(!site.path("device").exists(), "detached");
    // The second time nothing is formatted.
    site.pod(&["up", "-f", "p.yaml"]).good();
    assert_eq!(fs::read_to_string(target.join("kept")).unwrap(), "data");
    site.pod(&["down", "-f", "p.yaml"]).good();
    // And a blank device is not, for reading only.
    fs::remove_file(site.path("image")).unwrap();
    fs::File::create(site.path("image")).unwrap().set_len(16 << 20).unwrap();
    site.file("p.yaml", &SHARED.replace("claimName: c}", "claimName: c, readOnly: true}"));
    let said = site.pod(&["up", "-f", "p.yaml"]);
    assert!(said.status == 1 && said.out.contains(wording("read-only-not-formatted")), "{said:?}");
    site.pod(&["down", "-f", "p.yaml"]).good();
    assert!(!site.path("device").exists() && site.left().is_empty(), "{:?}", site.left());
}

#[test]
fn a_failed_mount_is_repeated_after_kubelet_s_times_and_costs_nothing() {
    let site = Site::new();
    site.driver(
        "example~plain",
        "init) ok ',\"capabilities\":{\"attach\":false}';;\nmount) fail 'no server';;",
    );
    site.file("p.yaml", POD);
    let start = Instant::now();
    let said = site.pod(&["up", "-f", "p.yaml", "--retries", "2"]);
    assert_eq!(said.status, 1);
    assert!(start.elapsed() >= Duration::from_millis(1500), "0.5 s and 1 s");
    assert_eq!(site.verbs(), ["init", "mount", "mount", "mount"]);
    let event = "MountVolume.SetUp failed for volume \"data\" : mount command failed, status: Failure, reason: no server";
    assert!(said.out.contains(event), "{}", said.out);
    assert_eq!(said.out.matches("wait").count(), 2, "{}", said.out);
    assert!(!pod_mount(&site, "u-1", "example~plain", "data").exists());
    site.pod(&["down", "-f", "p.yaml"]).good();
    assert!(site.verbs().is_empty(), "what was never mounted is not unmounted");
}

#[test]
fn after_a_failed_attach_the_volume_is_detached() {
    let site = Site::new();
    site.driver("example~att", "init) ok;;\nattach) fail no;;\ndetach) ok;;");
    site.file("p.yaml", &POD.replace("plain", "att"));
    let said = site.pod(&["up", "-f", "p.yaml", "--json"]);
    assert_eq!(said.status, 1);
    let event = said.json()["volumes"][0]["event"].as_str().unwrap().to_owned();
    assert!(
        event.starts_with("AttachVolume.Attach failed for volume \"data\" : attach command failed"),
        "{event}"
    );
    assert_eq!(site.verbs(), ["init", "init", "getvolumename", "attach"]);
    site.pod(&["down", "-f", "p.yaml"]).good();
    assert_eq!(site.verbs(), ["init", "init", "getvolumename", "detach"]);
    assert!(site.left().is_empty(), "{:?}", site.left());
}

#[test]
fn one_volume_s_failure_leaves_the_others_alone() {
    let site = Site::new();
    site.driver("example~plain", "init) ok ',\"capabilities\":{\"attach\":false}';;\nmount|unmount) ok;;");
    let two = format!("{POD}  - name: other\n    flexVolume: {{driver: example/missing}}\n");
    site.file("p.yaml", &two);
    let said = site.pod(&["up", "-f", "p.yaml"]);
    assert_eq!(said.status, 1);
    assert!(said.out.contains("1 of 2 volumes up"), "{}", said.out);
    assert!(said.out.contains(wording_of("not-installed", ["example/missing"])), "{}", said.out);
    site.pod(&["down", "-f", "p.yaml"]).good();
}

#[test]
fn secrets_go_to_the_driver_and_nowhere_else() {
    let site = Site::new();
    site.driver(
        "example~plain",
        "init) ok ',\"capabilities\":{\"attach\":false}';;\nmount) fail 'login with hunter2 (aHVudGVyMg==) failed';;",
    );
    let secret = "kind: Secret\nmetadata: {name: s}\ntype: example/plain\nstringData: {password: hunter2}\n";
    site.file("s.yaml", secret);
    site.file("p.yaml", &POD.replace("options:", "secretRef: {name: s}, options:"));
    for more in [&[][..], &["--json"], &["--dry-run"], &["--dry-run", "--json"], &["--retries", "1"]] {
        let said = site.pod(&[&["up", "-f", "p.yaml", "-f", "s.yaml"], more].concat());
        for form in ["hunter2", "aHVudGVyMg"] {
            assert!(!said.all().contains(form), "{more:?}: {said:?}");
        }
    }
    let calls = site.calls();
    assert!(calls[1][2].contains(r#""kubernetes.io/secret/password":"aHVudGVyMg==""#), "{calls:?}");
}

#[test]
fn a_rehearsal_calls_nobody() {
    let site = Site::new();
    site.driver("example~att", ATTACHES);
    site.file("p.yaml", SHARED);
    let said = site.pod(&["up", "-f", "p.yaml", "--dry-run", "--json"]).good();
    let verbs: Vec<_> =
        said.json().as_array().unwrap().iter().map(|call| call["arguments"][0].clone()).collect();
    assert_eq!(verbs.len(), 12);
    let down = site.pod(&["down", "-f", "p.yaml", "--dry-run"]).good().out;
    assert!(down.contains("* detach pv vm\n") && !down.contains("attach '"), "{down}");
    assert!(site.verbs().is_empty() && !site.path("kubelet").exists());
}

/// Volumes of other drivers' documentation that our own can serve.
#[test]
fn our_own_drivers_serve_volumes_written_for_others() {
    let name = "pod::our_own_drivers_serve_volumes_written_for_others";
    if !enter(name) {
        return;
    }
    let site = Site::new();
    let images = site.path("images");
    fs::create_dir_all(site.path("srv/web")).unwrap();
    fs::create_dir(&images).unwrap();
    site.own("k8s~dummy", r#"{"driver":"tmpfs","options":{"size":"1Mi"}}"#);
    site.own("nodeagent~uds", r#"{"driver":"tmpfs","options":{"size":"1Mi"}}"#);
    site.own("example~bind", &format!(r#"{{"policy":{{"bindRoots":["{}"]}}}}"#, site.path("srv").display()));
    site.own(
        "ramax.com~local-storage",
        r#"{"driver":"exec","exec":{"options":["volume-uid","volume-gid","volume-mode"],"commands":{
        "mount":["/bin/sh","-c","mount -t tmpfs -o size=1M,uid=$2,gid=$3,mode=$4 local \"$1\"","sh","{target}",
        "{option.volume-uid}","{option.volume-gid}","{option.volume-mode}"]}}}"#,
    );
    let bind = "{driver: example/bind, readOnly: true, options: {path: SRV}}"
        .replace("SRV", site.path("srv/web").to_str().unwrap());
    let volume = |name: &str, flex: &str| format!("  - {{name: {name}, flexVolume: {flex}}}\n");
    let text = "kind: Pod\nmetadata: {name: web, uid: u-1}\nspec:\n  volumes:\n".to_owned()
        + &volume("o01", "{driver: k8s/dummy}")
        + &volume(
            "o06",
            "{driver: ramax.com/local-storage, options: {volume-uid: \"33\", volume-gid: \"33\", volume-mode: \"0750\"}}",
        )
        + &volume("o07", "{driver: nodeagent/uds}")
        + &volume("bound", &bind);
    site.file("p.yaml", &text);
    for _ in 0..2 {
        site.pod(&["up", "-f", "p.yaml"]).good();
    }
    for (driver, name) in [("k8s~dummy", "o01"), ("ramax.com~local-storage", "o06"), ("nodeagent~uds", "o07")]
    {
        assert_eq!(mounts_at(&pod_mount(&site, "u-1", driver, name)), ["tmpfs"], "{name}");
    }
    let about = fs::metadata(pod_mount(&site, "u-1", "ramax.com~local-storage", "o06")).unwrap();
    assert_eq!((about.uid(), about.gid(), about.mode() & 0o7777), (33, 33, 0o750));
    let refused = fs::write(pod_mount(&site, "u-1", "example~bind", "bound").join("x"), "").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(30), "read-only");
    for _ in 0..2 {
        site.pod(&["down", "-f", "p.yaml"]).good();
    }
    assert!(site.left().is_empty(), "{:?}", site.left());
}

/// `kvaps/loop`: a file with a file system, made when it is first asked for.
#[test]
fn an_image_written_for_kvaps_loop_keeps_its_data() {
    let name = "pod::an_image_written_for_kvaps_loop_keeps_its_data";
    if !enter(name) {
        return;
    }
    if !Path::new("/dev/loop-control").exists()
        || !sh("command -v mkfs.ext4 >/dev/null && losetup -f >/dev/null")
    {
        return skip(name, "needs loop devices and mkfs.ext4");
    }
    let site = Site::new();
    let images = site.path("kube-volumes");
    fs::create_dir(&images).unwrap();
    let side_file = r#"{"driver":"image","options":{"format":"ifBlank"},"policy":{"imageRoots":["ROOT"]}}"#;
    site.own("kvaps~loop", &side_file.replace("ROOT", images.to_str().unwrap()));
    let file = images.join("test");
    site.file(
        "b03.yaml",
        &format!(
            "kind: Pod\nmetadata: {{name: b03, uid: u-1}}\nspec:\n  volumes:\n  - name: test\n    flexVolume:\n      \
             driver: kvaps/loop\n      fsType: ext4\n      options: {{file: {}, size: 1g}}\n",
            file.display()
        ),
    );
    let target = pod_mount(&site, "u-1", "kvaps~loop", "test");
    for round in 0..2 {
        site.pod(&["up", "-f", "b03.yaml"]).good();
        assert_eq!(mounts_at(&target), ["ext4"]);
        if round == 0 {
            fs::write(target.join("kept"), "data").unwrap();
        }
        assert_eq!(fs::read_to_string(target.join("kept")).unwrap(), "data");
        site.pod(&["down", "-f", "b03.yaml"]).good();
    }
    assert!(site.left().is_empty(), "{:?}", site.left());
}

#[test]
fn bad_input_is_one_line_with_the_fix() {
    let site = Site::new();
    let good = site.file("good.yaml", POD);
    for (text, expected) in [
        (
            POD.replace("a: b", "a: 5"),
            wording_of(
                "must-be-text",
                [
                    "flexvol: bad.yaml: Pod web: spec.volumes[0].flexVolume.options[\"a\"]",
                    "a number",
                    "quote it",
                ],
            ),
        ),
        (POD.replace("a: b", "a: b, a: c"), "flexvol: bad.yaml: not valid YAML: line 6, column"),
        ("a: &a [x]\nb: [*a, *c]".to_owned(), "flexvol: bad.yaml: not valid YAML: line 2, column"),
        (
            "kind: Service\nmetadata: {name: x}\n".to_owned(),
            &["flexvol: ", wording("no-flex-volume-in-file")].concat(),
        ),
        (
            POD.replace("options:", "secretRef: {name: s}, options:"),
            wording_of("no-secret", ["default", "s"]),
        ),
    ] {
        site.file("bad.yaml", &text);
        let said = site.pod(&["up", "-f", "bad.yaml"]);
        assert!(said.complaint().contains(expected), "{said:?}");
        let json = site.pod(&["up", "-f", "bad.yaml", "--json"]);
        assert!(json.json()["error"].is_string() && json.status == 1, "{json:?}");
    }
    assert!(
        site.pod(&["up", "-f", "nothing.yaml"]).complaint().contains(wording_of("no-file", ["nothing.yaml"]))
    );
    assert_eq!(site.pod(&["up"]).status, 2);
    fs::write(site.path("large.yaml"), vec![b'#'; 4 << 20]).unwrap();
    assert!(site.pod(&["up", "-f", "large.yaml"]).complaint().contains("larger than"));
    fs::create_dir_all(site.path("kubelet/plugins_registry")).unwrap();
    let said = site.pod(&["up", "-f", good.to_str().unwrap()]);
    assert!(said.complaint().contains(wording("kubelet-owns-directory")), "{said:?}");
}

//! What the commands of the `exec` driver answer and leave behind.

use crate::support::scripts::{MOUNT, Node};
use crate::support::wording::{wording, wording_of};
use crate::support::{Plugin, eventually, is_alive};
use flexvol::mount_options::MountFlags;
use flexvol::protocol::{StatusKind, TargetPath};
use flexvol::sys::mount::place::Place;
use flexvol::sys::mount::{self, Way};
use nix::mount::MsFlags;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;

#[test]
fn the_answers_of_the_rarer_verbs() {
    let commands = r#"{"driver":"exec","exec":{"commands":{
        "attach":["/bin/sh","-c","echo warning >&2; echo; echo /dev/sdb; echo second >&2","sh","{node}"],
        "waitforattach":["/bin/echo","{device}"],
        "isattached":["/bin/echo","true"],
        "getvolumename":["/bin/echo"," name "],
        "mountdevice":["/x"],"detach":["/bin/sh","-c","echo maybe; exit 1"]},"capabilities":{"attach":true}}}"#;
    let plugin = Plugin::new("example~share", "share", Some(commands));
    let reply = plugin.call(["attach", "{}", "n"]).run().reply();
    assert_eq!((reply.outcome(), reply.device.as_str()), (StatusKind::Success, "/dev/sdb"));
    assert_eq!(plugin.call(["waitforattach", "/dev/x", "{}"]).run().reply().device, "/dev/x");
    assert!(plugin.call(["isattached", "{}", "n"]).run().reply().attached);
    let named = plugin.call(["getvolumename", "{}"]).run();
    named.success();
    assert!(String::from_utf8_lossy(&named.output).contains(r#""volumeName":"name""#), "{named:?}");
    assert!(plugin.call(["detach", "v", "n"]).run().failure().contains("saying: maybe"));
    assert_eq!(plugin.call(["expandfs", "x"]).run().outcome(), StatusKind::NotSupported);
}

#[test]
fn what_is_no_answer_is_a_failure() {
    for (script, printed) in [
        ("echo /dev/sdb; echo second", wording_of("line-is-no-answer", ["/dev/sdb; second"])),
        ("echo /dev/sdb >&2", "nothing"),
        ("echo", "nothing"),
        ("head -c 5000 /dev/zero | tr '\\0' x", r#""xxx"#),
    ] {
        for verb in ["attach", "getvolumename", "isattached"] {
            let other = if verb == "attach" { "" } else { r#""attach":["/x"],"# };
            let side = format!(
                r#"{{"driver":"exec","exec":{{"capabilities":{{"attach":true}},
                "commands":{{{other}"mountdevice":["/x"],"{verb}":["/bin/sh","-c",{script:?}]}}}}}}"#
            );
            let plugin = Plugin::new("example~share", "share", Some(&side));
            let arguments = if verb == "getvolumename" { &[verb, "{}"][..] } else { &[verb, "{}", "n"] };
            let failure = plugin.call(arguments).run().failure();
            assert!(failure.starts_with(&format!("the command printed {printed}")), "{failure}");
        }
    }
}

#[test]
fn a_command_that_is_not_there() {
    for program in ["/nonexistent/x", "relative", "/etc/passwd", "/bin", ""] {
        let side = format!(r#"{{"driver":"exec","exec":{{"commands":{{"getvolumename":["{program}"]}}}}}}"#);
        let plugin = Plugin::new("example~share", "share", Some(&side));
        let failure = plugin.call(["getvolumename", "{}"]).run().failure();
        assert!(failure.contains(wording("no-executable-file").trim_start()), "{failure}");
    }
}

/// kubelet was restarted meanwhile, and attaches the volume again.
#[test]
fn what_a_killed_detach_left_running_removes_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let [disk, begun, go] = ["disk", "begun", "go"].map(|name| directory.path().join(name));
    let attach = format!("mkdir -p {0}; echo {0}", disk.display());
    let until_go = format!("until [ -e {} ]; do sleep 0.05; done", go.display());
    let detach = format!("({until_go}; rm -rf {}) & echo $! >{}; wait", disk.display(), begun.display());
    let side = format!(
        r#"{{"driver":"exec","exec":{{"capabilities":{{"attach":true}},
        "commands":{{"mountdevice":["/x"],"attach":["/bin/sh","-c",{attach:?}],"detach":["/bin/sh","-c",{detach:?}]}}}}}}"#
    );
    let plugin = Plugin::new("example~share", "share", Some(&side));
    let attach = || plugin.call(["attach", r#"{"kubernetes.io/pvOrVolumeName":"vol"}"#, "n"]).run().success();
    attach();
    let mut call = plugin.call(["detach", "vol", "n"]);
    call.0.process_group(0);
    let mut running = call.start();
    let pid = || fs::read_to_string(&begun).ok()?.strip_suffix('\n')?.parse().ok();
    eventually("the command", || pid().is_some());
    kill(Pid::from_raw(-running.pid()), Signal::SIGKILL).unwrap();
    running.child.wait().unwrap();
    attach();
    eventually("the end of what removes it", || !is_alive(pid().unwrap()));
    fs::write(go, "").unwrap();
    assert!(disk.is_dir());
}

/// In a session of its own, where the end of the command does not reach it.
#[test]
fn what_a_failed_command_left_running_mounts_no_more() {
    let until = |file: &str| format!("until [ -e \"$2/{file}\" ]; do sleep 0.05; done");
    let left = format!("echo >\"$2/begun\"; {}; {MOUNT}; exec sleep MARK", until("go"));
    let script = format!("setsid sh -c '{left}' sh \"$1\" \"$2\" & {}; exit 7", until("begun"));
    let Some(node) = Node::new("what_a_failed_command_left", &script, None) else { return };
    node.start("{}").finish().failure();
    // All of the script has ended, and only a process of it could mount now.
    node.is_clean();
    fs::write(node.file("go"), "").unwrap();
    node.is_clean();
}

#[test]
fn a_mount_that_cannot_be_taken_off_hides_no_error() {
    // Who uses the mount is no child of the command.
    let script = format!(
        "{MOUNT}; echo mounted >\"$2/mounted\"; until [ -e \"$2/used\" ]; do sleep 0.05; done; echo no luck; exit 7"
    );
    let Some(node) = Node::new("a_mount_that_cannot_be_taken_off", &script, None) else { return };
    let running = node.start("{}");
    node.left("mounted");
    let used = fs::File::create(node.target.join("used")).unwrap();
    fs::write(node.file("used"), "").unwrap();
    let failure = running.finish().failure();
    assert!(
        failure.starts_with("/bin/sh failed (exit status: 7) saying: no luck; left behind: a mount at /"),
        "{failure}"
    );
    assert!(failure.contains("is in use"), "{failure}");
    drop(used);
    node.unmount().finish().success();
    node.is_clean();
}

/// The per-mount options of the mount on top at a path.
fn flags_at(path: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let fields = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut flags = fields.filter(|fields| Path::new(fields[4]) == path).map(|fields| fields[5].to_owned());
    flags.next_back().expect("a mount").split(',').map(str::to_owned).collect()
}

#[test]
fn a_command_s_mount_is_nosuid_and_nodev() {
    let script = "mount -t tmpfs -o suid,dev,noexec,noatime x \"$1\"; mkdir \"$1/in\"; mount -t tmpfs -o suid,dev y \"$1/in\"";
    let Some(node) = Node::new("a_command_s_mount", script, None) else { return };
    node.start("{}").finish().success();
    assert_eq!(flags_at(&node.target), ["rw", "nosuid", "nodev", "noexec", "noatime"]);
    assert_eq!(flags_at(&node.target.join("in"))[..3], ["rw", "nosuid", "nodev"]);
    // The same again is the same.
    node.start("{}").finish().success();
    node.unmount().finish().success();
    node.is_clean();
}

#[test]
fn read_only_is_read_only_whatever_the_command_did() {
    let Some(node) = Node::new("read_only_is_read_only", MOUNT, None) else { return };
    let read_only = r#"{"kubernetes.io/readwrite":"ro"}"#;
    node.start(read_only).finish().success();
    assert_eq!(flags_at(&node.target)[..3], ["ro", "nosuid", "nodev"]);
    assert_eq!(fs::write(node.target.join("x"), "").unwrap_err().raw_os_error(), Some(nix::libc::EROFS));
    node.start(read_only).finish().success();
    node.unmount().finish().success();
    node.is_clean();
}

#[test]
fn the_policy_leaves_a_command_its_suid_and_dev() {
    let Some(node) = Node::new("the_policy_leaves", MOUNT, None) else { return };
    let file = node.plugin.executable.with_file_name(".flexvol.json");
    let text = fs::read_to_string(&file).unwrap();
    let lifted = r#"{"policy":{"allowSuid":true,"allowDev":true},"#;
    fs::write(&file, text.replacen('{', lifted, 1)).unwrap();
    node.start("{}").finish().success();
    assert_eq!(flags_at(&node.target), ["rw", "relatime"]);
    node.unmount().finish().success();
}

#[test]
fn both_ways_restrict_and_lift_nothing() {
    for way in [Way::Detached, Way::Classic] {
        let Some(node) = Node::new("both_ways_restrict", MOUNT, None) else { return };
        let source = Some("x");
        let own = MsFlags::MS_NOEXEC | MsFlags::MS_NOATIME | MsFlags::MS_NODIRATIME;
        nix::mount::mount(source, &node.target, Some("tmpfs"), own, None::<&str>).unwrap();
        let place = Place::open(&TargetPath::parse(node.target.as_os_str()).unwrap()).unwrap().unwrap();
        mount::restrict(&place, MountFlags::DEFAULT, way).unwrap();
        let flags = ["rw", "nosuid", "nodev", "noexec", "noatime", "nodiratime"];
        assert_eq!(flags_at(&node.target), flags, "{way:?}");
        let wanted = MountFlags { read_only: true, suid: true, dev: true, ..MountFlags::DEFAULT };
        mount::restrict(&place, wanted, way).unwrap();
        assert_eq!(flags_at(&node.target), [&["ro"], &flags[1..]].concat(), "{way:?}");
        mount::restrict(&place, MountFlags::DEFAULT, way).unwrap();
        assert_eq!(flags_at(&node.target)[0], "ro", "{way:?}");
    }
}

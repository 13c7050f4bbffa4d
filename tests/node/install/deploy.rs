//! A deployment that keeps real drivers in real directories, in a mount namespace of its own.

use crate::support::wording::wording;
use flexvol::driver_log;
use flexvol::sys::fs::append;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

mod heal;

mod node;
use crate::support::{Call, children, release, skip};
use node::{Deployment, Node, READY, eventually, is_at_once, program};

#[test]
fn what_is_removed_or_altered_comes_back() {
    let Some(node) = Node::new("deploy::what_is_removed_or_altered_comes_back") else { return };
    let whole = fs::metadata(program()).unwrap().len();
    let is_whole = || fs::metadata(node.driver()).is_ok_and(|file| file.len() == whole) && node.answers();
    let directory = node.plugins.join("example~tmpfs");
    let side_file = directory.join(".flexvol.json");
    let cut = |size| File::options().write(true).open(node.driver()).unwrap().set_len(size).unwrap();
    let damages: [(&str, &dyn Fn()); 13] = [
        ("side file removed", &|| fs::remove_file(&side_file).unwrap()),
        ("side file garbled", &|| fs::write(&side_file, "{\"driver\":").unwrap()),
        ("side file emptied", &|| fs::write(&side_file, "").unwrap()),
        ("executable emptied", &|| cut(0)),
        ("side file removed and executable cut", &|| {
            fs::remove_file(&side_file).unwrap();
            cut(whole / 2);
        }),
        ("side file removed and executable a prefix of itself", &|| {
            let bytes = fs::read(node.driver()).unwrap();
            fs::remove_file(&side_file).unwrap();
            fs::remove_file(node.driver()).unwrap();
            fs::write(node.driver(), &bytes[..bytes.len() / 3]).unwrap();
        }),
        ("directory emptied", &|| {
            fs::remove_file(&side_file).unwrap();
            fs::remove_file(node.driver()).unwrap();
        }),
        ("executable removed", &|| fs::remove_file(node.driver()).unwrap()),
        ("directory removed", &|| fs::remove_dir_all(&directory).unwrap()),
        ("directory renamed", &|| fs::rename(&directory, node.root.path().join("elsewhere")).unwrap()),
        ("cut short", &|| {
            fs::remove_file(node.driver()).unwrap();
            fs::write(node.driver(), "#!/bin/sh\n").unwrap();
        }),
        ("mode", &|| fs::set_permissions(node.driver(), PermissionsExt::from_mode(0o600)).unwrap()),
        ("plugin directory removed", &|| fs::remove_dir_all(&node.plugins).unwrap()),
    ];
    let edited = |text: &str| text.replacen('{', r#"{"policy":{"maxSize":"7Mi"},"#, 1);
    node.deploy(&["example/tmpfs"]).says("ready");
    fs::write(&side_file, edited(&fs::read_to_string(&side_file).unwrap())).unwrap();
    let has_policy = || fs::read_to_string(&side_file).is_ok_and(|text| text.contains("7Mi"));
    for (damage, damaged) in damages {
        // One each: what has to be fixed again and again is fixed ever later.
        let deployment = node.deploy(&["example/tmpfs"]);
        deployment.says("ready");
        assert!(is_whole());
        damaged();
        eventually(damage, || is_whole() && has_policy());
        eventually("ready", || Path::new(READY).exists());
    }
}

#[test]
fn an_admin_s_settings_come_back_with_the_driver() {
    let Some(node) = Node::new("deploy::an_admin_s_settings_come_back_with_the_driver") else { return };
    let deployment = node.deploy(&["example/tmpfs"]);
    deployment.says("ready");
    let side_file = node.plugins.join("example~tmpfs/.flexvol.json");
    let mut settings: Value = serde_json::from_slice(&fs::read(&side_file).unwrap()).unwrap();
    settings["deadlines"]["mount"] = 77.into();
    let edited = node.root.path().join("edited");
    fs::write(&edited, settings.to_string()).unwrap();
    fs::rename(&edited, &side_file).unwrap();
    let mount = || {
        let text = fs::read(&side_file).unwrap_or_default();
        serde_json::from_slice::<Value>(&text).unwrap_or_default()["deadlines"]["mount"].clone()
    };
    assert_eq!(mount(), 77);
    // Somebody looks at it again, also at the settings.
    fs::remove_file(node.driver()).unwrap();
    deployment.says("repaired");
    fs::remove_dir_all(side_file.parent().unwrap()).unwrap();
    eventually("the driver is back", || node.answers());
    assert_eq!(mount(), 77);
}

/// What is not yet whole is neither replaced nor taken for another driver's side file, once ours
/// was there.
#[test]
fn a_side_file_that_is_just_being_written_is_not_taken_over() {
    let Some(node) = Node::new("deploy::a_side_file_that_is_just_being_written_is_not_taken_over") else {
        return;
    };
    let deployment = node.deploy(&["example/tmpfs", "--take-over"]);
    deployment.says("ready");
    let side_file = node.plugins.join("example~tmpfs/.flexvol.json");
    let whole = fs::read_to_string(&side_file).unwrap().replacen('{', r#"{"policy":{"maxSize":"1Mi"},"#, 1);
    let (begin, end) = whole.split_at(whole.len() / 2);
    let mut writer = File::create(&side_file).unwrap();
    writer.write_all(begin.as_bytes()).unwrap();
    deployment.says("failed");
    assert_eq!(fs::read_to_string(&side_file).unwrap(), begin);
    writer.write_all(end.as_bytes()).unwrap();
    drop(writer);
    fs::remove_file(node.driver()).unwrap();
    deployment.says("repaired");
    assert!(fs::read_to_string(&side_file).unwrap().contains("1Mi"));
}

#[test]
fn every_call_on_the_node_is_told_across_rotations_of_the_log() {
    let Some(node) = Node::new("deploy::every_call_on_the_node_is_told_across_rotations_of_the_log") else {
        return;
    };
    let earlier = driver_log::path();
    append::line(&earlier, "{\"verb\":\"before\"}\n", 1 << 20).unwrap();
    let deployment = node.deploy(&["example/tmpfs"]);
    deployment.says("ready");
    let target = node.root.path().join("pods/1/volumes/example~tmpfs/v");
    fs::create_dir_all(&target).unwrap();
    let target = target.to_str().unwrap();
    Call::new(&node.driver(), ["mount", target, r#"{"size":"1Mi"}"#]).run().success();
    Call::new(&node.driver(), ["unmount", target]).run().success();
    let told = || -> Vec<String> {
        deployment.lines().iter().filter_map(|line| Some(line["verb"].as_str()?.to_owned())).collect()
    };
    for number in 0..300 {
        if number % 40 == 0 {
            // As fast as it can be read: two files of 9000 bytes are all that is kept.
            let last = format!("x{}", number - 1);
            eventually(&last, || number == 0 || told().contains(&last));
        }
        let line = format!("{{\"verb\":\"x{number}\",\"filler\":\"{}\"}}\n", "x".repeat(200));
        append::line(&driver_log::path(), &line, 9000).unwrap();
    }
    eventually("the last line", || told().last().is_some_and(|last| last == "x299"));
    let expected =
        ["mount", "unmount"].map(str::to_owned).into_iter().chain((0..300).map(|n| format!("x{n}")));
    assert_eq!(told(), expected.collect::<Vec<_>>());

    // Also when somebody clears it away whole.
    fs::remove_dir_all("/run/flexvol/log").unwrap();
    eventually("the directory", || Path::new("/run/flexvol/log").exists());
    append::line(&driver_log::path(), "{\"verb\":\"after\"}\n", 1 << 20).unwrap();
    eventually("a line of the new log", || told().last().is_some_and(|last| last == "after"));
}

#[test]
fn told_to_stop_it_leaves_at_once_and_is_ready_no_more() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let Some(node) = Node::new("deploy::told_to_stop_it_leaves_at_once_and_is_ready_no_more") else {
            return;
        };
        let mut deployment = node.deploy(&["example/tmpfs"]);
        deployment.says("ready");
        assert!(Path::new(READY).exists());
        let (status, took) = deployment.stop(signal);
        assert_eq!(status.code(), Some(0));
        assert!(is_at_once(took), "{took:?}");
        assert!(!Path::new(READY).exists() && node.answers());
        assert_eq!(deployment.events().last().unwrap(), "leaving");
    }
}

#[test]
fn it_is_ready_when_all_is_in_place_and_not_before() {
    let Some(node) = Node::new("deploy::it_is_ready_when_all_is_in_place_and_not_before") else { return };
    let is_ready = || {
        let output = Command::new(program()).args(["deploy", "--is-ready"]).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    assert!(is_ready().1.contains(wording("drivers-not-in-place")));
    fs::create_dir(&node.plugins).unwrap();
    let flags = |more| mount(Some("tmpfs"), &node.plugins, Some("tmpfs"), more, None::<&str>).unwrap();
    flags(MsFlags::MS_RDONLY);
    let mut deployment = node.deploy(&["example/tmpfs", "example/scratch=tmpfs"]);
    deployment.says("failed");
    assert_eq!(is_ready().0, 1);
    let message =
        deployment.lines().iter().find(|line| line["event"] == "failed").unwrap()["message"].clone();
    assert!(message.as_str().unwrap().contains("read-only"), "{message}");
    flags(MsFlags::MS_REMOUNT);
    deployment.says("ready");
    assert_eq!(is_ready().0, 0);
    // Said once for each driver, however often it was tried.
    assert_eq!(deployment.events().iter().filter(|event| *event == "failed").count(), 2);
    // Whoever is killed cannot clear up behind itself.
    deployment.stop(Signal::SIGKILL);
    assert!(Path::new(READY).exists());
    let (status, error) = is_ready();
    assert!(status == 1 && error.contains("has ended"), "{error}");
}

/// Where even the plugin directory is new, nothing was watched when the driver came.
#[test]
fn what_happens_before_anything_is_watched_is_seen() {
    let name = "deploy::what_happens_before_anything_is_watched_is_seen";
    let Some(node) = Node::new(name) else { return };
    if Command::new("strace").arg("-V").output().is_err() {
        return skip(name, "no strace");
    }
    let deploy = node.command(&["example/tmpfs"]);
    let mut slowed = Command::new("strace");
    // After those that find nothing to watch, and the one of the log. The process we start is the
    // deployment.
    slowed.args(["-D", "-qq", "-o", "/dev/null", "-e", "inject=inotify_add_watch:delay_enter=2s:when=4"]);
    let deployment = node.start({
        slowed.arg(deploy.get_program()).args(deploy.get_args());
        slowed
    });
    deployment.says("installed");
    fs::remove_file(node.driver()).unwrap();
    eventually("its return", || node.answers());
}

#[test]
fn two_that_disagree_do_not_outdo_each_other() {
    let Some(node) = Node::new("deploy::two_that_disagree_do_not_outdo_each_other") else { return };
    let ready = node.root.path().join("ready");
    let other = ["example/tmpfs", "--set", "size=2Mi", "--ready-file", ready.to_str().unwrap()];
    let both = [node.deploy(&["example/tmpfs", "--set", "size=1Mi"]), node.deploy(&other)];
    let changes = || both.iter().flat_map(Deployment::events).filter(|event| event == "configured").count();
    eventually("the quarrel", || changes() >= 4);
    let (start, before) = (Instant::now(), changes());
    while start.elapsed() < Duration::from_secs(6) {
        std::thread::sleep(Duration::from_millis(50));
    }
    // Pauses of 1, 2, 4, 8 seconds for each of the two; without them there are two in each second.
    let (further, took) = (changes() - before, start.elapsed());
    assert!(further as u64 <= 4 * took.as_secs().div_ceil(6), "{further} in {took:?}");
}

#[test]
fn at_rest_it_neither_wakes_nor_grows() {
    let name = "deploy::at_rest_it_neither_wakes_nor_grows";
    let Some(program) = release() else { return skip(name, "FLEXVOL_RELEASE is not set: use tests/run") };
    assert!(program.exists(), "{}", program.display());
    let Some(node) = Node::new(name) else { return };
    let deployment = node.deploy(&["example/tmpfs", "example/scratch=tmpfs"]);
    deployment.says("ready");
    let field = |name: &str| -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", deployment.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    // After its own changes have been looked at it does not wake for two seconds.
    let mut switches = (field("voluntary_ctxt_switches:"), Instant::now());
    eventually("rest", || {
        let now = field("voluntary_ctxt_switches:");
        if now != switches.0 {
            switches = (now, Instant::now());
        }
        switches.1.elapsed() > Duration::from_secs(2)
    });
    // Its own; pages of the program are the page cache's, whatever the linker puts beside each
    // other.
    let kibibytes = field("RssAnon:");
    println!("{kibibytes} KiB at rest");
    assert!(kibibytes <= 512, "{kibibytes} KiB");
}

#[test]
fn once_is_install() {
    let Some(node) = Node::new("deploy::once_is_install") else { return };
    let once = |arguments: &[&str]| {
        let output = node.command(arguments).arg("--once").output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (status, text) = once(&["example/tmpfs"]);
    assert!(status == 0 && text.contains("installed") && node.answers(), "{status} {text}");
    assert!(!Path::new(READY).exists());
    let foreign = node.plugins.join("example~bind");
    fs::create_dir(&foreign).unwrap();
    fs::copy("/bin/true", foreign.join("bind")).unwrap();
    assert_eq!(once(&["example/bind"]).0, 4);
}

#[test]
fn what_was_asked_for_wrongly_ends_at_once() {
    let Some(node) = Node::new("deploy::what_was_asked_for_wrongly_ends_at_once") else { return };
    for (arguments, status, word) in [
        (&["example/tmpsf"][..], 2, "no driver \"tmpsf\""),
        (&["example/tmpfs", "--set", "deadlines.mount=soon"], 2, wording("expected-seconds")),
        (&["example/tmpfs", "--dry-run"], 2, "--once"),
        (&["example/tmpfs", "--once", "--uninstall-on-exit"], 2, "--once"),
    ] {
        let output = node.command(arguments).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(status) && error.contains(word), "{arguments:?}: {error}");
    }
    assert!(!node.driver().exists());
}

#[test]
fn a_directory_replaced_behind_the_container_s_mount_ends_it() {
    let name = "deploy::a_directory_replaced_behind_the_container_s_mount_ends_it";
    let Some(node) = Node::new(name) else { return };
    let host = node.root.path().join("host");
    fs::create_dir(&host).unwrap();
    fs::create_dir(&node.plugins).unwrap();
    mount(Some(&host), &node.plugins, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let mut deployment = node.deploy(&["example/tmpfs"]);
    deployment.says("ready");
    fs::rename(&host, node.root.path().join("old")).unwrap();
    eventually("the end", || deployment.child.try_wait().unwrap().is_some());
    assert_eq!(deployment.child.wait().unwrap().code(), Some(1));
    let last = deployment.lines().pop().unwrap();
    assert!(last["message"].as_str().unwrap().contains("restart the container"), "{last}");
    assert!(!Path::new(READY).exists());
}

#[test]
fn uninstalled_on_exit_unless_a_volume_is_mounted() {
    let Some(node) = Node::new("deploy::uninstalled_on_exit_unless_a_volume_is_mounted") else { return };
    let leave = || {
        let mut deployment = node.deploy(&["example/tmpfs", "--uninstall-on-exit"]);
        deployment.says("ready");
        let (status, took) = deployment.stop(Signal::SIGTERM);
        assert!(status.code() == Some(0) && is_at_once(took), "{status} {took:?}");
        deployment.lines().pop().unwrap()
    };
    let target = node.root.path().join("pods/1/volumes/example~tmpfs/v");
    fs::create_dir_all(&target).unwrap();
    mount(Some("tmpfs"), &target, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let last = leave();
    assert!(
        last["event"] == "not removed" && last["message"].as_str().unwrap().contains("mounted"),
        "{last}"
    );
    assert!(node.answers());
    umount(&target).unwrap();
    assert_eq!(leave()["event"], "removed");
    assert_eq!(fs::read_dir(&node.plugins).unwrap().count(), 0);
}

/// Two deployments on one node are often told to stop at the same moment.
#[test]
fn who_leaves_waits_for_another_installer() {
    let Some(node) = Node::new("deploy::who_leaves_waits_for_another_installer") else { return };
    let mut deployment = node.deploy(&["example/tmpfs", "--uninstall-on-exit"]);
    deployment.says("ready");
    let held = Flock::lock(File::open(&node.plugins).unwrap(), FlockArg::LockExclusive).unwrap();
    kill(Pid::from_raw(deployment.pid()), Signal::SIGTERM).unwrap();
    deployment.says("leaving");
    std::thread::sleep(Duration::from_secs(3));
    drop(held);
    deployment.child.wait().unwrap();
    assert_eq!(deployment.lines().pop().unwrap()["event"], "removed");
}

/// In a pod: its own mount table has no volume of the node's, whatever is mounted there.
#[test]
fn who_sees_no_kubelet_does_not_uninstall() {
    let Some(node) = Node::new("deploy::who_sees_no_kubelet_does_not_uninstall") else { return };
    fs::create_dir(&node.plugins).unwrap();
    let plugins = &node.plugins;
    mount(Some(plugins), plugins, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let leave = |beside: &str| {
        let deploy = node.command(&["example/tmpfs", "--uninstall-on-exit"]);
        let mut command = Command::new("unshare");
        // Without any capability.
        let script = format!("{beside} exec setpriv --bounding-set=-all --inh-caps=-all \"$@\"");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", &script, "bash"]);
        command.arg(deploy.get_program()).args(deploy.get_args());
        let mut deployment = node.start(command);
        deployment.says("ready");
        let first = Pid::from_raw(children(deployment.pid())[0]);
        kill(first, Signal::SIGTERM).unwrap();
        deployment.child.wait().unwrap();
        deployment.lines().pop().unwrap()
    };
    let last = leave("");
    assert!(
        last["event"] == "not removed" && last["message"].as_str().unwrap().contains("hostPID"),
        "{last}"
    );
    assert!(node.answers());
    // It has a mount table of its own, with a volume in it.
    let volume = node.root.path().join("pods/1/volumes/example~tmpfs/v");
    fs::create_dir_all(&volume).unwrap();
    let mounts = format!("mount -t tmpfs x {};", volume.display());
    let kubelet = |mounts: &str| {
        let ready = node.root.path().join("kubelet-is-up");
        let _ = fs::remove_file(&ready);
        let script = format!("{mounts} touch {}; exec -a kubelet sleep 600", ready.display());
        format!("unshare --mount bash -c {script:?} & until [ -e {} ]; do sleep 0.01; done;", ready.display())
    };
    let last = leave(&kubelet(&mounts));
    assert!(
        last["event"] == "not removed" && last["message"].as_str().unwrap().contains("a volume"),
        "{last}"
    );
    assert_eq!(leave(&kubelet(""))["event"], "removed");
}

/// Whoever loses its parent becomes a child of process 1, which has to take it away when it ends.
#[test]
fn process_1_reaps() {
    let Some(node) = Node::new("deploy::process_1_reaps") else { return };
    let deploy = node.command(&["example/tmpfs"]);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.arg(deploy.get_program()).args(deploy.get_args());
    let deployment = node.start(command);
    deployment.says("ready");
    let first = children(deployment.pid())[0].to_string();
    let go = node.root.path().join("go");
    let orphans = "for i in 1 2 3; do (until [ -e \"$0\" ]; do sleep 0.05; done; exit 3) & done; exit 0";
    let mut enter = Command::new("nsenter");
    enter.args(["-t", &first, "-p", "-m", "sh", "-c", orphans]).arg(&go);
    assert!(enter.status().unwrap().success());
    eventually("they came", || children(first.parse().unwrap()).len() == 3);
    fs::write(&go, "").unwrap();
    eventually("they are taken away", || children(first.parse().unwrap()).is_empty());
    let status = fs::read_to_string(format!("/proc/{first}/status")).unwrap();
    assert!(
        status.contains("NSpid:")
            && status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
    );
}

#[test]
fn it_keeps_drivers_although_nobody_reads_what_it_says() {
    let Some(node) = Node::new("deploy::it_keeps_drivers_although_nobody_reads_what_it_says") else { return };
    let mut full = Deployment {
        child: node.command(&["example/tmpfs"]).stdout(Stdio::piped()).spawn().unwrap(),
        output: PathBuf::new(),
    };
    eventually("ready", || Path::new(READY).exists());
    // More than a pipe holds.
    for number in 0..2000 {
        append::line(&driver_log::path(), &format!("{{\"verb\":\"{number:0200}\"}}\n"), 1 << 20).unwrap();
    }
    fs::remove_file(node.driver()).unwrap();
    eventually("the driver is back", || node.answers());
    drop(full.child.stdout.take());
    fs::remove_file(node.driver()).unwrap();
    eventually("the driver is back without a reader", || node.answers());
    let (status, took) = full.stop(Signal::SIGTERM);
    assert!(status.code() == Some(0) && is_at_once(took), "{status} {took:?}");
}

//! Commands that hang, die, lie or talk too much, and processes that are killed: the reply comes,
//! and nothing is left.
//!
//! The commands are small scripts of the `exec` driver; each test has a mount namespace of its own.

use crate::support::pace::deadline;
use crate::support::scripts::{MOUNT, Node, short};
use crate::support::wording::{wording, wording_of};
use crate::support::{Plugin, Running, children, descendants, eventually, is_alive, processes_with, skip};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::{Duration, Instant};

fn send(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

/// The fork that does the work.
fn worker_of(running: &Running) -> i32 {
    eventually("a worker", || !children(running.pid()).is_empty());
    children(running.pid())[0]
}

fn secret(value: &[u8]) -> String {
    format!(r#"{{"kubernetes.io/secret/password":"{}"}}"#, STANDARD.encode(value))
}

#[test]
fn a_command_that_hangs_is_ended_with_all_its_children() {
    for script in [
        "sleep MARK",
        "sleep MARK & sleep MARK",
        "trap '' TERM; sleep MARK & while :; do sleep MARK; done",
        "(trap '' TERM; sleep MARK; sleep MARK) & sleep MARK",
        // A command that ends well when it is told to, with a child that does not.
        "(trap '' TERM; sleep MARK; sleep MARK) & trap 'exit 0' TERM; while :; do sleep 0.1; done",
        "mount -t tmpfs share \"$1\"; sleep MARK",
    ] {
        let Some(node) = Node::hanging("a_command_that_hangs", script, None, "") else { return };
        let run = node.start("{}").finish();
        let failure = run.failure();
        let expected = format!("deadline of {} s passed while running sh", short());
        assert!(failure.starts_with(&expected), "{failure}");
        // Its end is SIGTERM, and two seconds later SIGKILL; each script sleeps 1000 s.
        let passed = Duration::from_secs(short());
        assert!(run.took >= passed && run.took < passed + deadline(20), "{:?}: {script}", run.took);
        node.is_clean();
    }
}

#[test]
fn told_to_stop_it_undoes_and_replies() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let Some(node) = Node::new("told_to_stop", &format!("{MOUNT}; sleep MARK"), None) else { return };
        let running = node.start("{}");
        eventually("the command's mount", || !node.mounts().is_empty());
        let told = Instant::now();
        send(running.pid(), signal);
        let failure = running.finish().failure();
        assert!(failure.starts_with(wording_of("told-to-stop", ["running sh"])), "{failure}");
        // Sooner than the deadline of the verb.
        assert!(told.elapsed() < deadline(15), "{:?}", told.elapsed());
        node.is_clean();
    }
}

/// As when kubelet's service is stopped while it starts us: the signal waits until somebody handles
/// it.
#[test]
fn told_to_stop_before_it_begins() {
    let plugin = Plugin::new("example~tmpfs", "tmpfs", None);
    let nowhere = "/nonexistent/pods/1/volumes/example~tmpfs/v";
    let shell = ["env", "--block-signal=TERM", "sh", "-c", "kill -TERM $$; exec \"$0\" \"$@\""];
    plugin.through(&shell, &["init"]).run().success();
    for arguments in [&["mount", nowhere, "{}"][..], &["unmount", nowhere]] {
        let failure = plugin.through(&shell, arguments).run().failure();
        assert_eq!(failure, wording("stopped-before-work"));
    }
}

#[test]
fn a_killed_worker_is_a_failure_and_nothing_stays_mounted() {
    let script = format!("{MOUNT}; sleep MARK & sleep MARK");
    let Some(node) = Node::new("a_killed_worker", &script, None) else { return };
    let running = node.start("{}");
    eventually("the command's mount", || !node.mounts().is_empty());
    send(worker_of(&running), Signal::SIGKILL);
    let failure = running.finish().failure();
    assert_eq!(failure, "the driver's worker was killed by SIGKILL: kubelet tries again");
    node.is_clean();
}

#[test]
fn a_killed_worker_of_an_unmount_is_finished() {
    let Some(node) = Node::new("a_killed_worker_of_an_unmount", MOUNT, Some("sleep MARK")) else { return };
    node.start("{}").finish().success();
    let running = node.unmount();
    eventually("the command", || !processes_with(&node.mark).is_empty());
    send(worker_of(&running), Signal::SIGKILL);
    running.finish().success();
    node.is_clean();
}

#[test]
fn the_worker_of_a_killed_driver_undoes_and_ends() {
    let script = format!("{MOUNT}; sleep MARK & sleep MARK");
    let Some(node) = Node::new("the_worker_of_a_killed_driver", &script, None) else { return };
    let mut running = node.start("{}");
    eventually("the command's mount", || !node.mounts().is_empty());
    let worker = worker_of(&running);
    send(running.pid(), Signal::SIGKILL);
    running.child.wait().unwrap();
    eventually("the worker ends", || !is_alive(worker));
    node.is_clean();
}

/// As when the node's kubelet service is killed: whoever is left finds a state it can undo.
/// A mount whose whole process group is killed once it has come so far.
fn kill_mount(node: &Node, has_come_so_far: impl FnOnce()) {
    let mut call = node.plugin.call(["mount", node.target.to_str().unwrap(), "{}"]);
    call.0.process_group(0);
    let mut running = call.start();
    has_come_so_far();
    send(-running.pid(), Signal::SIGKILL);
    running.child.wait().unwrap();
}

#[test]
fn after_the_whole_group_is_killed_an_unmount_cleans_up() {
    let Some(node) = Node::new("the_whole_group", &format!("{MOUNT}; exec sleep MARK"), None) else { return };
    kill_mount(&node, || eventually("the command's mount", || !node.mounts().is_empty()));
    eventually("the end of all", || processes_with(&node.mark).is_empty());
    node.unmount().finish().success();
    node.is_clean();
}

/// The kernel ends the command with its worker, and not what the command has started.
#[test]
fn what_a_killed_call_left_running_mounts_no_more() {
    let until_go = "until [ -e \"$2/go\" ]; do sleep 0.05; done";
    let script = format!("({until_go}; {MOUNT}; exec sleep MARK) & echo >\"$2/begun\"; wait");
    let Some(node) = Node::new("what_a_killed_call_left_running", &script, None) else { return };
    kill_mount(&node, || drop(node.left("begun")));
    node.unmount().finish().success();
    // All of the script has ended, and only a process of it could mount now.
    node.is_clean();
    fs::write(node.file("go"), "").unwrap();
    node.is_clean();
}

/// The daemon of a command that came no further than to mount: whoever is deaf to SIGTERM leaves
/// its mount dead, and so does one that was killed with the call.
#[test]
fn what_a_killed_call_has_mounted_is_mounted_anew() {
    const NAME: &str = "supervision::what_a_killed_call_has_mounted_is_mounted_anew";
    if !Path::new("/usr/bin/bindfs").exists() || !Path::new("/dev/fuse").exists() {
        return skip(NAME, "needs bindfs and /dev/fuse");
    }
    for with_its_daemon in [false, true] {
        let serve = "mkdir -p \"$2/served\"; env --block-signal=TERM bindfs \"$2/served\" \"$1\"";
        let script =
            format!("{serve}; if [ ! -e \"$2/again\" ]; then echo >\"$2/begun\"; exec sleep MARK; fi");
        let Some(node) = Node::new(NAME, &script, None) else { return };
        kill_mount(&node, || drop(node.left("begun")));
        if with_its_daemon {
            let served = node.file("served");
            let daemons = || processes_with(served.to_str().unwrap());
            for daemon in daemons() {
                send(daemon, Signal::SIGKILL);
            }
            eventually("the daemon ends", || daemons().is_empty());
        }
        fs::write(node.file("again"), "").unwrap();
        node.start("{}").finish().success();
        fs::write(node.target.join("f"), "").unwrap();
        assert!(node.file("served/f").exists());
        node.unmount().finish().success();
        node.is_clean();
    }
}

#[test]
fn a_talkative_command_is_quoted_with_its_last_words() {
    for end in ["exit 3", "sleep MARK"] {
        let script =
            format!("head -c 1048576 /dev/zero | tr '\\0' x; echo; echo the disk is on fire >&2; {end}");
        let Some(node) = Node::hanging("a_talkative_command", &script, None, "") else { return };
        let run = node.start("{}").finish();
        let failure = run.failure();
        assert!(failure.contains("the disk is on fire"), "{failure}");
        node.is_clean();
    }
    let script = format!("{MOUNT}; head -c 1048576 /dev/urandom");
    let Some(node) = Node::new("a_talkative_command", &script, None) else { return };
    node.start("{}").finish().success();
}

/// Not whole, not in part, in none of its spellings, whatever the end of the command.
#[test]
fn a_printed_secret_is_masked() {
    let secrets = [
        "correct horse battery staple",
        "alpha bravo charlie\ndelta echo foxtrot\n",
        "tab\tand \"quotes\" \\ bell\u{7}bell",
    ];
    let prints = [
        "cat \"$3\"",
        "base64 -w0 \"$3\"",
        "cat \"$3\" \"$3\"; cat",
        "i=0; while [ $i -lt 400 ]; do cat \"$3\"; i=$((i+1)); done",
    ];
    for value in secrets {
        for print in prints {
            for end in ["exit 1", "sleep MARK"] {
                if end == "sleep MARK" && print == prints[1] {
                    continue;
                }
                let further = r#","secretsOnStdin":true"#;
                let script = format!("{print}; {end}");
                let Some(node) = Node::hanging("a_printed_secret", &script, None, further) else { return };
                let failure = node.start(&secret(value.as_bytes())).finish().failure();
                assert!(failure.contains("***"), "{script}: {failure}");
                for part in parts(value).chain(parts(&STANDARD.encode(value))) {
                    assert!(!failure.contains(&part), "{script}: {part:?} of {value:?} in {failure}");
                }
            }
        }
    }
}

/// Every eight characters of a text.
fn parts(text: &str) -> impl Iterator<Item = String> {
    let chars: Vec<_> = text.chars().collect();
    chars.windows(8).map(|window| window.iter().collect()).collect::<Vec<_>>().into_iter()
}

#[test]
fn no_descendant_shows_a_secret_while_it_runs() {
    let further = r#","secretsOnStdin":true"#;
    let script = "sleep MARK & sleep MARK";
    let Some(node) = Node::with("no_descendant_shows_a_secret", script, None, further) else { return };
    let running = node.start(&secret(b"correct horse battery staple"));
    eventually("the command", || processes_with(&node.mark).len() >= 3);
    let worker = worker_of(&running);
    let others: Vec<_> = descendants(running.pid()).into_iter().filter(|pid| *pid != worker).collect();
    assert!(others.len() >= 3, "{others:?}");
    for pid in others {
        for file in ["cmdline", "environ"] {
            let text = fs::read(format!("/proc/{pid}/{file}")).unwrap();
            let text = String::from_utf8_lossy(&text);
            for spelling in ["correct horse", &STANDARD.encode("correct horse battery staple")] {
                assert!(!text.contains(spelling), "{file} of {pid}: {text}");
            }
        }
    }
    send(running.pid(), Signal::SIGTERM);
    running.finish().failure();
}

#[test]
fn secrets_arrive_byte_for_byte() {
    let bytes: Vec<u8> = (0..=255).chain(*b"\n\n").collect();
    for value in [&bytes[..], b"", b"x", &vec![b'y'; 60_000]] {
        let script = format!("cat \"$3\" >\"$2/file\"; cat >\"$2/stdin\"; {MOUNT}");
        let further = r#","secretsOnStdin":true"#;
        let Some(node) = Node::with("secrets_arrive", &script, None, further) else { return };
        node.start(&secret(value)).finish().success();
        assert!(fs::read(node.file("file")).unwrap() == value, "{} bytes", value.len());
        let input: BTreeMap<String, String> =
            serde_json::from_slice(&fs::read(node.file("stdin")).unwrap()).unwrap();
        assert_eq!(input, BTreeMap::from([("password".to_owned(), STANDARD.encode(value))]));
    }
}

#[test]
fn what_a_failed_command_mounted_is_unmounted() {
    for mounts in [1, 3] {
        let script = format!("{}; echo no luck; exit 7", vec![MOUNT; mounts].join(";"));
        let Some(node) = Node::new("a_failed_command", &script, None) else { return };
        let failure = node.start("{}").finish().failure();
        assert_eq!(failure, "/bin/sh failed (exit status: 7) saying: no luck");
        node.is_clean();
    }
}

#[test]
fn success_without_the_mount_is_a_failure() {
    for script in ["exit 0", "sleep MARK & exit 0"] {
        let Some(node) = Node::new("success_without_the_mount", script, None) else { return };
        let failure = node.start("{}").finish().failure();
        assert!(failure.starts_with(wording_of("nothing-mounted-after-all", [])), "{failure}");
        assert!(failure.ends_with(wording_of("nothing-mounted-after-all", ["…"])), "{failure}");
        node.is_clean();
    }
}

#[test]
fn another_mount_than_the_promised_one_is_a_failure() {
    for (json, further) in [
        ("{}", r#","fileSystem":"fuse.share""#),
        (r#"{"kubernetes.io/readwrite":"ro"}"#, r#","fileSystem":"ramfs""#),
    ] {
        let script = format!("{MOUNT}; sleep MARK &");
        let Some(node) = Node::with("another_mount", &script, None, further) else { return };
        node.start(json).finish().failure();
        node.is_clean();
    }
}

#[test]
fn a_daemon_lives_on_and_holds_nothing_of_ours() {
    let script = format!("{MOUNT}; sleep MARK & echo $! >\"$2/pid\"");
    let Some(node) = Node::new("a_daemon", &script, None) else { return };
    let run = node.start("{}").finish();
    run.success();
    // Before the deadline of the verb, and long before the daemon ends.
    assert!(run.took < deadline(15), "{:?}", run.took);
    let pid = node.left("pid").parse().unwrap();
    assert!(is_alive(pid));
    // The rest of its descriptors is the command's own pipe, which nobody reads any more.
    let held = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    assert!(held <= 3, "{held} descriptors");
    assert_eq!(node.mounts(), ["tmpfs"]);
    node.unmount().finish().success();
    assert_eq!(node.mounts(), [""; 0]);
}

#[test]
fn inherited_descriptors_end_with_us() {
    let script = "for p in $$ $PPID $(cut -d' ' -f4 /proc/$PPID/stat); do ls -l /proc/$p/fd; done >\"$2/held\"; exit 1";
    let Some(node) = Node::new("inherited_descriptors", script, None) else { return };
    let (secret_file, other) = (node.file("inherited-1"), node.file("inherited-2"));
    let shell =
        format!("exec 3<>'{}' 7>'{}' 9<&0 && exec \"$0\" \"$@\"", secret_file.display(), other.display());
    node.plugin
        .through(&["bash", "-c", &shell], &["mount", node.target.to_str().unwrap(), "{}"])
        .run()
        .failure();
    assert!(secret_file.exists() && other.exists());
    let held = fs::read_to_string(node.file("held")).unwrap();
    assert!(held.lines().count() > 9, "{held}");
    assert!(!held.contains("inherited"), "{held}");
}

#[test]
fn two_mounts_at_once_are_one() {
    let script = format!("echo run >>\"$2/log\"; sleep 0.3; {MOUNT}");
    let Some(node) = Node::new("two_mounts_at_once", &script, None) else { return };
    let running = [node.start("{}"), node.start("{}"), node.start("{}")];
    for running in running {
        running.finish().success();
    }
    assert_eq!(node.mounts(), ["tmpfs"]);
    assert_eq!(fs::read_to_string(node.file("log")).unwrap(), "run\n");
    // Asked for otherwise, it is not the same.
    let other = node.start(r#"{"kubernetes.io/readwrite":"ro"}"#).finish().failure();
    assert!(other.contains("read-write: unmount it first"), "{other}");
}

#[test]
fn mounts_and_unmounts_at_once_take_turns() {
    let Some(node) = Node::new("mounts_and_unmounts", MOUNT, Some("umount \"$1\"")) else { return };
    for _ in 0..10 {
        let running = [node.start("{}"), node.unmount(), node.start("{}"), node.unmount()];
        for running in running {
            running.finish().success();
        }
        assert!(node.mounts().len() <= 1, "{:?}", node.mounts());
    }
    node.unmount().finish().success();
    node.is_clean();
    assert_eq!(fs::read_dir("/run/flexvol/locks").unwrap().count(), 0);
}

#[test]
fn an_unmount_command_may_do_what_it_likes() {
    for script in ["exit 1", "exit 0", "sleep MARK", "umount \"$1\"; exit 9", "echo Failure; exit 0"] {
        let script = format!("echo run >>\"$2/log\"; {script}");
        let Some(node) = Node::hanging("an_unmount_command", MOUNT, Some(&script), "") else { return };
        node.start("{}").finish().success();
        node.unmount().finish().success();
        node.is_clean();
        // Again, and without a mount: nothing to run, nothing to do.
        node.unmount().finish().success();
        assert_eq!(fs::read_to_string(node.file("log")).unwrap(), "run\n", "{script}");
    }
}

/// The reader of the answer is gone, as after a restart of kubelet: the work is finished all the
/// same.
#[test]
fn without_a_reader_the_work_is_finished() {
    let until_go = "until [ -e \"$2/go\" ]; do sleep 0.05; done";
    for (end, mounts) in [("", 1), ("; exit 1", 0)] {
        let script = format!("{until_go}; {MOUNT}{end}");
        let Some(node) = Node::new("without_a_reader", &script, None) else { return };
        let mut running = node.start("{}");
        drop(std::mem::replace(&mut running.reader, fs::File::open("/dev/null").unwrap().into()));
        fs::write(node.file("go"), "").unwrap();
        assert_eq!(running.child.wait().unwrap().code(), Some(0));
        assert_eq!(node.mounts().len(), mounts);
    }
}

#[test]
fn any_umask_and_directory_mounts_the_same() {
    for umask in ["0", "077", "0777"] {
        let Some(node) =
            Node::new("any_umask", &format!("umask >\"$2/umask\"; pwd >\"$2/pwd\"; {MOUNT}"), None)
        else {
            return;
        };
        let shell = format!("umask {umask}; cd /proc; exec \"$0\" \"$@\"");
        node.plugin
            .through(&["sh", "-c", &shell], &["mount", node.target.to_str().unwrap(), "{}"])
            .run()
            .success();
        assert_eq!((node.left("umask").as_str(), node.left("pwd").as_str()), ("0077", "/"));
        let state = fs::metadata("/run/flexvol").unwrap();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&state.permissions()) & 0o7777, 0o700);
    }
}

//! `flexvol probe` and `flexvol watch` from outside.

use super::plugin_dir::{PluginDir, remove_all};
use crate::support::pace::{deadline, slow_seconds};
use crate::support::wording::wording;
use crate::support::{BINARY, eventually, is_alive, mark, processes_with, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Exit status, standard output and standard error.
fn probe(dir: &Path, more: &[&str]) -> (i32, String, String) {
    told(Command::new(BINARY).arg("probe").arg("--plugin-dir").arg(dir).args(more))
}

fn told(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn probe_shows_what_is_loaded_failed_and_ignored() {
    let dir = PluginDir::with(&["v~a"]);
    let (status, out, error) = probe(&dir.path, &[]);
    assert_eq!((status, error.as_str()), (0, ""), "{out}");
    assert!(
        out.contains("LOADED  v~a        selinuxRelabel fsGroup requiresFSResize\n1 loaded from"),
        "{out}"
    );

    dir.install("v~b", "bad");
    drop(File::create(dir.at("README")).unwrap());
    let (status, out, _) = probe(&dir.path, &[]);
    assert_eq!(status, 1);
    assert!(out.contains("IGNORED  README     not a directory\n"), "{out}");
    assert!(out.contains("FAILED   v~b        error creating Flexvolume plugin from directory v~b"), "{out}");
    let (status, out, _) = probe(&dir.path, &["--json"]);
    let found: Value = serde_json::from_str(&out).unwrap();
    let all: Vec<_> = found["found"].as_array().unwrap().iter().map(|each| each["state"].as_str()).collect();
    assert_eq!((status, all), (1, ["ignored", "loaded", "failed"].map(Some).to_vec()));
    assert_eq!(found["found"][1]["driver"], "v/a");
    assert_eq!(found["found"][1]["capabilities"]["attach"], false);
}

#[test]
fn without_drivers_probe_says_what_to_do() {
    let dir = PluginDir::new();
    for (path, fix) in [
        (dir.path.clone(), wording("no-driver-there")),
        (dir.at("none"), wording("plugin-directory-missing")),
        (dir.beside("good"), wording("not-a-directory")),
    ] {
        let (status, out, error) = probe(&path, &[]);
        assert_eq!((status, out.as_str()), (1, ""), "{error}");
        assert!(error.contains(fix) && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn names_on_disk_do_not_reach_the_terminal_raw() {
    let dir = PluginDir::new();
    fs::create_dir(dir.at("v~\x1b[31m\n")).unwrap();
    let (_, out, _) = probe(&dir.path, &[]);
    assert!(!out.contains('\x1b') && out.contains("v~?[31m"), "{out:?}");
}

#[test]
fn what_may_not_be_read_is_told_apart() {
    if !rustix::process::geteuid().is_root() {
        return skip(
            "prober::command_line::what_may_not_be_read_is_told_apart",
            "needs root to become nobody",
        );
    }
    let dir = PluginDir::with(&["v~a", "v~b"]);
    let copy = dir.beside("flexvol");
    // And the kit, which the command is one of.
    let programs = [BINARY.to_owned(), format!("{BINARY}-kit")];
    assert!(Command::new("cp").args(programs).arg(copy.parent().unwrap()).status().unwrap().success());
    fs::set_permissions(copy.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(dir.at("v~b"), Permissions::from_mode(0o700)).unwrap();
    File::create(dir.beside("calls")).unwrap().set_permissions(Permissions::from_mode(0o666)).unwrap();
    let as_nobody = || {
        let mut command = Command::new(&copy);
        command.uid(65534).gid(65534).arg("probe").arg("--plugin-dir").arg(&dir.path);
        told(&mut command)
    };
    let (status, out, _) = as_nobody();
    assert!(status == 1 && out.contains("LOADED  v~a") && out.contains("Permission denied"), "{out}");
    fs::set_permissions(&dir.path, Permissions::from_mode(0o700)).unwrap();
    let (status, _, error) = as_nobody();
    assert!(status == 1 && error.contains(wording("run-as-root")), "{error}");
}

/// `flexvol watch --json` under way.
struct Watching {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Watching {
    fn of(dir: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(BINARY);
        command.args(["watch", "--json", "--plugin-dir"]).arg(dir).args(more);
        command.args(["--for", &slow_seconds(60).to_string()]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    /// Told to stop: how long that took. It has nothing more to say.
    fn stop(mut self) -> Duration {
        let start = Instant::now();
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).unwrap();
        let mut status = None;
        eventually("it leaves", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let took = start.elapsed();
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        assert_eq!((status.unwrap().code(), rest.as_str()), (Some(0), ""));
        took
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // After a failure; else it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn watch_prints_one_line_an_event_as_it_happens() {
    let dir = PluginDir::with(&["v~a"]);
    let mut watching = Watching::of(&dir.path, &[]);
    let first = watching.next();
    assert_eq!(
        (&first["event"], &first["driver"], &first["directory"]),
        (&"added".into(), &"v/a".into(), &"v~a".into())
    );
    assert_eq!((&first["inService"], &first["capabilities"]["attach"]), (&true.into(), &false.into()));
    assert!(first["time"].as_str().is_some_and(|time| time.starts_with("20") && time.ends_with('Z')));
    dir.replace("v~a", "bad");
    let second = watching.next();
    assert_eq!((&second["event"], &second["inService"]), (&"failed".into(), &false.into()));
    assert!(second["reason"].as_str().is_some_and(|reason| reason.contains("no luck")));
    dir.remove("v~a");
    assert_eq!(watching.next()["event"], "removed");
    assert!(watching.stop() < deadline(5));
}

#[test]
fn watch_ends_when_the_time_is_over() {
    let dir = PluginDir::with(&["v~a"]);
    let mut command = Command::new(BINARY);
    command.args(["watch", "--for", "1", "--plugin-dir"]);
    let (start, (status, out, error)) = (Instant::now(), told(command.arg(&dir.path)));
    assert_eq!((status, error.as_str()), (0, ""));
    assert!(
        start.elapsed() >= Duration::from_secs(1) && out.contains("  added    v/a  selinuxRelabel"),
        "{out}"
    );
    let (status, _, error) = told(Command::new(BINARY).args(["watch", "--plugin-dir"]).arg(dir.at("none")));
    assert!(status == 1 && error.contains("does not exist"), "{error}");
}

#[test]
fn watch_leaves_at_once_while_drivers_hang() {
    let dir = PluginDir::new();
    let mark = mark();
    dir.script("hangs", &format!("trap '' TERM; sleep {mark}; exit 1"));
    for number in 0..50 {
        dir.install(&format!("v~d{number}"), "hangs");
    }
    let watching = Watching::of(&dir.path, &[]);
    eventually("a driver hangs", || !processes_with(&mark).is_empty());
    let took = watching.stop();
    assert!(took < deadline(5), "{took:?}");
    eventually("nothing is left behind", || processes_with(&mark).iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn watch_at_rest_does_nothing() {
    let dir = PluginDir::with(&["v~a"]);
    let mut watching = Watching::of(&dir.path, &[]);
    watching.next();
    let status = format!("/proc/{}/status", watching.child.id());
    let switches = || {
        let text = fs::read_to_string(&status).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse::<u32>().unwrap()
    };
    // Once its own work is done, two seconds come in which it does not wake.
    let mut last = (switches(), Instant::now());
    eventually("no polling", || {
        if switches() != last.0 {
            last = (switches(), Instant::now());
        }
        last.1.elapsed() > Duration::from_secs(2)
    });
    watching.stop();
}

#[test]
fn watch_can_make_the_plugin_directory() {
    let dir = PluginDir::new();
    remove_all(&dir.path);
    let mut watching = Watching::of(&dir.path, &["--create"]);
    eventually("it is made", || dir.path.is_dir());
    fs::create_dir(dir.at("v~a")).unwrap();
    symlink(dir.beside("good"), dir.at("v~a/a")).unwrap();
    while watching.next()["event"] != "added" {}
    watching.stop();
}

//! Broken nodes: `doctor` names the cause of each first, says how it is fixed, and fixes what it
//! can.

mod agent;
mod gone;
mod linked;
mod mount_pods;
mod waiting;

use crate::support::wording::{wording, wording_of};
use flexvol::executor::record;
use flexvol::protocol::TargetPath;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::BINARY;
use crate::support::fuse::Silent;
use crate::support::namespace::{enter, mounts_at};
use crate::support::stand_in::{Said, Site};

const GOOD: &str = r#"init) ok ',"capabilities":{"attach":false}';;"#;

/// A node: a plugin directory, kubelet's own, and its log.
struct Sick {
    site: Site,
}

impl Sick {
    /// `None` where a namespace cannot be had.
    fn new(name: &str) -> Option<Self> {
        if !enter(name) {
            return None;
        }
        let site = Site::new();
        fs::create_dir_all(site.path("kubelet/pods")).unwrap();
        site.file("kubelet.log", "");
        Some(Self { site })
    }

    fn doctor(&self, more: &[&str]) -> Said {
        let line = ["doctor", "--plugin-dir", "plugins", "--kubelet-log", "kubelet.log", "--kubelet-root"];
        let root = self.site.path("kubelet");
        self.site.flexvol(&[&line[..], &[root.to_str().unwrap()], more].concat())
    }

    fn findings(&self, more: &[&str]) -> Vec<Value> {
        let said = self.doctor(&[more, &["--json"]].concat());
        let value = said.json();
        let unable: Vec<_> =
            value["checks"].as_array().unwrap().iter().filter(|check| !check["unable"].is_null()).collect();
        assert!(unable.is_empty(), "{unable:?}");
        value["findings"].as_array().unwrap().clone()
    }

    /// What it names first: its id, after it was seen that it is an error with evidence and fix,
    /// and what is asked of the exit status.
    fn first(&self, evidence: &str, fix: &str) -> String {
        let findings = self.findings(&[]);
        let first = &findings[0];
        assert_eq!(first["severity"], "error", "{findings:#?}");
        let holds = |key: &str, text: &str| first[key].as_str().unwrap().contains(text);
        assert!(holds("evidence", evidence) && holds("fix", fix), "{first:#}");
        assert_eq!(self.doctor(&[]).status, 1);
        first["id"].as_str().unwrap().to_owned()
    }

    fn has(&self, id: &str) -> bool {
        self.findings(&[]).iter().any(|finding| finding["id"] == id)
    }

    fn target(&self, driver: &str, name: &str) -> PathBuf {
        let path = self.site.path(&format!("kubelet/pods/7/volumes/{driver}/{name}"));
        fs::create_dir_all(&path).unwrap();
        path
    }
}

fn tmpfs(target: &Path, options: &str, flags: MsFlags) {
    mount(Some("tmpfs"), target, Some("tmpfs"), flags, Some(options)).unwrap();
}

fn unmount(target: &Path) {
    umount2(target, MntFlags::MNT_DETACH).unwrap();
}

#[test]
fn a_node_that_is_well_has_no_finding_worth_an_error() {
    let Some(node) = Sick::new("doctor::a_node_that_is_well_has_no_finding_worth_an_error") else { return };
    node.site.driver("example~good", GOOD);
    let findings = node.findings(&[]);
    // In a namespace of its own no mount travels anywhere.
    let others: Vec<_> = findings.iter().filter(|finding| finding["severity"] != "note").collect();
    assert!(others.iter().all(|finding| finding["id"] == "root-not-shared"), "{others:#?}");
    assert!(node.doctor(&["--list"]).good().out.contains("leftovers"));
    let text = node.doctor(&["--check", "drivers"]).good().out;
    assert!(text.starts_with("0 errors, 0 warnings, 0 notes of 1 check in "), "{text}");
}

#[test]
fn drivers_where_kubelet_does_not_look() {
    let Some(node) = Sick::new("doctor::drivers_where_kubelet_does_not_look") else { return };
    let usual = Path::new("/usr/libexec/kubernetes/kubelet-plugins/volume/exec");
    // Whatever the machine has there, it is hidden here.
    let Some(above) = usual.ancestors().find(|path| path.is_dir()) else { return };
    tmpfs(above, "size=1m", MsFlags::empty());
    fs::create_dir_all(usual.join("fstab~cifs")).unwrap();
    symlink("/bin/true", usual.join("fstab~cifs/cifs")).unwrap();
    let id = node.first("fstab~cifs lies in /usr/libexec", wording("install-where-kubelet-looks"));
    unmount(above);
    assert_eq!(id, "plugin-dir-wrong");
}

#[test]
fn a_plugin_directory_where_nothing_can_be_executed() {
    let Some(node) = Sick::new("doctor::a_plugin_directory_where_nothing_can_be_executed") else { return };
    let plugins = node.site.path("plugins");
    tmpfs(&plugins, "size=1m", MsFlags::MS_NOEXEC);
    node.site.driver("example~good", GOOD);
    let id = node.first("mounted noexec", "remount");
    unmount(&plugins);
    assert_eq!(id, "plugin-dir-noexec");
}

#[test]
fn a_program_that_a_driver_needs_is_missing() {
    let Some(node) = Sick::new("doctor::a_program_that_a_driver_needs_is_missing") else { return };
    // No node of the tests has Azure's.
    node.site.driver("azure~blobfuse", &format!("{GOOD}\nmount) blobfuse2 \"$2\";;"));
    assert_eq!(
        node.first(wording_of("script-lacks-program", ["…", "blobfuse2"]), "install blobfuse2"),
        "helper-missing"
    );
    fs::remove_dir_all(node.site.path("plugins/azure~blobfuse")).unwrap();
    node.site.own("example~blobfuse", r#"{"driver":"blobfuse"}"#);
    assert!(node.has("helper-missing"));
}

#[test]
fn a_secret_of_the_wrong_type() {
    let Some(node) = Sick::new("doctor::a_secret_of_the_wrong_type") else { return };
    node.site.driver("fstab~cifs", GOOD);
    node.site.file(
        "kubelet.log",
        "E1 nestedpendingoperations.go:348] MountVolume.SetUp failed for volume \"data\" : Couldn't get secret shop/smb err: Cannot get secret of type fstab/cifs\n",
    );
    assert_eq!(node.first("volume \"data\"", "type: VENDOR/DRIVER"), "log-secret-type");
}

#[test]
fn a_dead_fuse_volume_is_named_and_detached() {
    let Some(node) = Sick::new("doctor::a_dead_fuse_volume_is_named_and_detached") else { return };
    node.site.driver("azure~blobfuse", GOOD);
    let target = node.target("azure~blobfuse", "data");
    Silent::mount(&target).end();
    assert_eq!(mounts_at(&target).len(), 0, "a fixture that is dropped is gone");
    let mut dead = Silent::mount(&target);
    dead.end();
    assert_eq!(node.first(&["is dead (", wording("endpoint-gone")].concat(), "umount -l"), "volume-dead");
    let dry = node.doctor(&["--repair"]);
    assert!(dry.out.contains(&["would ", wording("detach-dead-mount")].concat()), "{}", dry.out);
    assert_eq!(mounts_at(&target).len(), 1);
    let done = node.doctor(&["--repair=now"]);
    assert!(done.out.contains(&["repaired ", wording("detach-dead-mount")].concat()), "{}", done.out);
    assert_eq!(mounts_at(&target).len(), 0);
    assert!(!node.has("volume-dead"));
}

#[test]
fn a_foreign_driver_that_is_half_there() {
    let Some(node) = Sick::new("doctor::a_foreign_driver_that_is_half_there") else { return };
    fs::create_dir(node.site.path("plugins/fstab~cifs")).unwrap();
    node.site.file("plugins/fstab~cifs/jq", "");
    assert_eq!(
        node.first(
            wording_of("driver-not-loaded", ["fstab~cifs"]),
            wording_of("no-executable-in-directory", ["cifs"])
        ),
        "driver-fails"
    );
}

#[test]
fn a_foreign_driver_that_warns_on_standard_error() {
    let Some(node) = Sick::new("doctor::a_foreign_driver_that_warns_on_standard_error") else { return };
    node.site.driver(
        "example~noisy",
        r#"init) echo "WARN: old config" >&2; ok ',"capabilities":{"attach":false}';;"#,
    );
    let fix = wording("one-object");
    assert_eq!(node.first("invalid character 'W' looking for beginning of value", fix), "driver-fails");
}

#[test]
fn a_full_run() {
    let Some(node) = Sick::new("doctor::a_full_run") else { return };
    tmpfs(Path::new("/run"), "size=64k", MsFlags::empty());
    let mut file = fs::File::create("/run/full").unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    let id = node.first("/run has only", "df -h /run");
    unmount(Path::new("/run"));
    assert_eq!(id, "run-full");
}

#[test]
fn a_volume_whose_server_hangs() {
    let Some(node) = Sick::new("doctor::a_volume_whose_server_hangs") else { return };
    node.site.driver("example~nfs", GOOD);
    let hung = Silent::mount(&node.target("example~nfs", "data"));
    assert_eq!(node.first(wording("volume-silent"), wording("end-the-server")), "volume-hung");
    drop(hung);
    assert!(!node.has("volume-hung"));
}

#[test]
fn a_call_that_failed_is_explained() {
    let Some(node) = Sick::new("doctor::a_call_that_failed_is_explained") else { return };
    let target = node.target("example~cifs", "data");
    fs::create_dir_all("/run/flexvol/log").unwrap();
    let line = format!(
        r#"{{"time":"2026-11-21T00:00:00.000Z","driver":"example~cifs","verb":"mount","target":"{}","outcome":"Failure","message":"//nas/a: mount error(13): Permission denied","tookMs":3,"pid":7}}"#,
        target.display()
    );
    fs::write("/run/flexvol/log/drivers.jsonl", format!("{line}\nno json\n")).unwrap();
    assert_eq!(node.first(wording("server-refuses-user"), "Secret's username"), "pod-waits");
}

#[test]
fn the_words_of_a_call_that_failed_are_whole_and_no_cause_is_a_fix() {
    let Some(node) = Sick::new("doctor::the_words_of_a_call_that_failed_are_whole_and_no_cause_is_a_fix")
    else {
        return;
    };
    let target = node.target("example~nfs", "data");
    let words = wording_of("no-host", ["\"server\"", "\"127.0.0.1:/x\""]);
    fs::create_dir_all("/run/flexvol/log").unwrap();
    let line = serde_json::json!({
        "time": "2026-11-21T00:00:00.000Z", "driver": "example~nfs", "verb": "mount", "target": target,
        "outcome": "Failure", "message": words, "tookMs": 3, "pid": 7
    });
    fs::write("/run/flexvol/log/drivers.jsonl", format!("{line}\n")).unwrap();
    assert_eq!(node.first(words, wording("do-what-it-says")), "pod-waits");
}

#[test]
fn what_cannot_be_fixed_from_here_is_said_when_asked_for() {
    let Some(node) = Sick::new("doctor::what_cannot_be_fixed_from_here_is_said_when_asked_for") else {
        return;
    };
    node.site.driver("example~noisy", "init) echo x;;");
    for repair in ["--repair", "--repair=now"] {
        let said = node.doctor(&["--check", "drivers", repair]);
        assert!(said.out.ends_with(&[wording("nothing-fixed-from-here"), "\n"].concat()), "{said:?}");
    }
    node.site.driver("example~noisy", GOOD);
    let said = node.doctor(&["--check", "drivers", "--repair"]).good();
    assert!(said.out.ends_with(&[wording("nothing-to-fix"), "\n"].concat()), "{said:?}");
    assert!(node.doctor(&["--check", "drivers"]).out.ends_with(" s\n"), "nobody asked");
}

#[test]
fn a_log_that_is_not_there_is_wrong_usage() {
    let Some(node) = Sick::new("doctor::a_log_that_is_not_there_is_wrong_usage") else { return };
    fs::remove_file(node.site.path("kubelet.log")).unwrap();
    let said = node.doctor(&["--check", "kubelet-log"]);
    assert_eq!(said.status, 2, "{said:?}");
    assert!(said.err.contains("--kubelet-log") && said.err.contains("No such file"), "{said:?}");
}

/// Loop devices are the machine's: this one is let go whatever happens.
struct Forgotten(PathBuf);

impl Drop for Forgotten {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).stderr(std::process::Stdio::null()).status();
    }
}

#[test]
fn what_was_left_behind_is_found_and_removed() {
    let Some(node) = Sick::new("doctor::what_was_left_behind_is_found_and_removed") else { return };
    node.site.driver("example~good", GOOD);
    fs::create_dir(node.site.path("plugins/.flexvol-1-2-3")).unwrap();
    node.site.file("plugins/example~good/.flexvol-1-2-4", "half");
    let home = Path::new("/run/flexvol/daemons/data-00000000000000000000000000000000");
    fs::create_dir_all(home).unwrap();
    fs::write(home.join("passwd"), "hunter2").unwrap();
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_hours(1);
    fs::File::open(home).unwrap().set_modified(long_ago).unwrap();
    let image = node.target("kvaps~loop", "data").join("disk.img");
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let attached = Command::new("losetup").args(["-f", "--show"]).arg(&image).output().unwrap();
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    let device = Forgotten(device.into());
    let ids = ["install-litter", "credentials-left", "loop-device-leaked"];
    let expected = if attached.status.success() { &ids[..] } else { &ids[..2] };
    for id in expected {
        assert!(node.has(id), "{id}");
    }
    let held = fs::File::open(node.site.path("plugins")).unwrap();
    let lock = nix::fcntl::Flock::lock(held, nix::fcntl::FlockArg::LockExclusive).unwrap();
    assert!(lock.as_raw_fd() > 0 && !node.has("install-litter"), "an installer is at work");
    let held = node.findings(&["--check", "leftovers"]);
    let held = held.iter().find(|finding| finding["id"] == "installer-holds").unwrap();
    let pid = format!("(pid {}, ", std::process::id());
    assert!(held["evidence"].as_str().unwrap().contains(&pid), "{held}");
    drop(lock);
    let done = node.doctor(&["--repair=now", "--check", "leftovers"]).good().out;
    assert_eq!(done.matches("repaired").count(), expected.len(), "{done}");
    assert!(!home.exists() && !node.site.path("plugins/.flexvol-1-2-3").exists());
    assert!(node.site.path("plugins/example~good/good").exists() && image.exists());
    let shown = fs::read_to_string(format!(
        "/sys/block/{}/loop/backing_file",
        device.0.file_name().unwrap().to_str().unwrap_or("none")
    ));
    assert!(shown.is_err() || shown.is_ok_and(|name| name.trim() != image.to_str().unwrap()));
}

/// A driver that was rolled back, or an admin, unmounts what ours has mounted, and knows nothing of
/// records.
#[test]
fn a_record_whose_volume_others_unmounted_is_found_and_forgotten() {
    let Some(node) = Sick::new("doctor::a_record_whose_volume_others_unmounted_is_found_and_forgotten")
    else {
        return;
    };
    node.site.driver("example~good", GOOD);
    record::prepare().unwrap();
    let remember = |name: &str, since: u64| {
        let target = TargetPath::parse(node.target("example~good", name).as_os_str()).unwrap();
        let text =
            serde_json::json!({"driver": "tmpfs", "target": target.as_path(), "asked": "", "since": since});
        let record: record::Record = serde_json::from_value(text).unwrap();
        record.write().unwrap();
        target
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let (left, used, young) =
        (remember("left", now - 3600), remember("used", now - 3600), remember("young", now));
    mount(Some("x"), used.as_path(), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let said = node.doctor(&["--check", "leftovers"]).out;
    assert!(said.contains("record-left") && said.contains(&left.to_string()), "{said}");
    assert!(!said.contains(&used.to_string()) && !said.contains(&young.to_string()), "{said}");
    let done = node.doctor(&["--repair=now", "--check", "leftovers"]).good().out;
    assert_eq!(done.matches("repaired").count(), 1, "{done}");
    let known = |target: &TargetPath| record::Record::read(target).is_some();
    assert_eq!((known(&left), known(&used), known(&young)), (false, true, true));
    assert!(!node.has("record-left"));
}

/// Where the private files of a volume are: they have the name of its lock.
fn home_of(target: &Path) -> PathBuf {
    let lock = record::lock_path(&TargetPath::parse(target.as_os_str()).unwrap());
    Path::new("/run/flexvol/daemons").join(lock.file_name().unwrap())
}

/// A pod's own mount table has no volume of the node's, whatever is mounted there.
#[test]
fn who_sees_no_kubelet_in_a_pod_removes_no_daemon_s_files() {
    let Some(node) = Sick::new("doctor::who_sees_no_kubelet_in_a_pod_removes_no_daemon_s_files") else {
        return;
    };
    let (state, target) = (Path::new("/run/flexvol"), node.target("example~good", "data"));
    let home = home_of(&target);
    fs::create_dir_all(&home).unwrap();
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_hours(1);
    fs::File::open(&home).unwrap().set_modified(long_ago).unwrap();
    mount(Some(state), state, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let in_pod = |beside: &str| {
        let script = format!("{beside} exec \"$@\"");
        let mut command = Command::new("unshare");
        command.args([
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "bash",
            "-c",
            &script,
            "bash",
            BINARY,
        ]);
        command.args(["doctor", "--repair=now", "--check", "leftovers", "--plugin-dir"]);
        let output = command.arg(node.site.path("plugins")).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let said = in_pod("");
    let flat = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(home.exists() && flat.contains(wording("no-kubelet-seen")), "{said}");
    // A mount table of its own, with the volume in it.
    let kubelet = |mounts: &str| {
        let ready = node.site.path("kubelet-is-up");
        let _ = fs::remove_file(&ready);
        let script = format!("{mounts} touch {0}; exec -a kubelet sleep 600", ready.display());
        format!("unshare --mount bash -c '{script}' & until [ -e {} ]; do sleep 0.01; done;", ready.display())
    };
    let said = in_pod(&kubelet(&format!("mount -t tmpfs x {};", target.display())));
    assert!(home.exists(), "{said}");
    let said = in_pod(&kubelet(""));
    assert!(!home.exists() && said.contains("repaired"), "{said}");
}

#[test]
fn a_check_that_cannot_look_says_so_and_the_others_go_on() {
    let Some(node) = Sick::new("doctor::a_check_that_cannot_look_says_so_and_the_others_go_on") else {
        return;
    };
    fs::remove_file(node.site.path("kubelet.log")).unwrap();
    fs::create_dir(node.site.path("kubelet.log")).unwrap();
    node.site.driver("example~noisy", "init) echo x;;");
    let said = node.doctor(&[]);
    assert!(said.out.contains("unable   kubelet-log") && said.out.contains("driver-fails"), "{}", said.out);
    assert!(Path::new(BINARY).exists());
}

/// What was installed and is damaged is named, with what puts it back; and one that was removed,
/// unless it was uninstalled.
#[test]
fn a_damaged_driver_is_named_with_what_puts_it_back() {
    let Some(node) = Sick::new("doctor::a_damaged_driver_is_named_with_what_puts_it_back") else { return };
    let state = Path::new("/var/lib/flexvol");
    fs::create_dir_all(state).unwrap();
    mount(Some("t"), state, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let plugins = node.site.path("plugins");
    let run = |verb: &str| {
        let said = node.site.flexvol(&[verb, "v/tmpfs", "--plugin-dir", plugins.to_str().unwrap()]);
        assert_eq!(said.status, 0, "{said:?}");
    };
    let home = plugins.join("v~tmpfs");
    let named = |id: &str, evidence: &str| {
        let findings = node.findings(&["--no-init"]);
        let found = findings.iter().find(|finding| finding["id"] == id);
        let found = found.unwrap_or_else(|| panic!("no {id}: {findings:#?}"));
        assert!(found["evidence"].as_str().unwrap().contains(evidence), "{found}");
        assert!(found["fix"].as_str().unwrap().contains("flexvol install 'v~tmpfs' puts it back"), "{found}");
    };
    run("install");
    assert!(!node.has("driver-altered") && !node.has("driver-gone"));
    fs::remove_file(home.join(".flexvol.json")).unwrap();
    named("driver-altered", &["v~tmpfs: ", wording("side-file-gone")].concat());
    fs::File::options().write(true).open(home.join("tmpfs")).unwrap().set_len(99).unwrap();
    named("driver-altered", &[wording("side-file-gone"), ", and ", wording("other-executable")].concat());
    fs::remove_file(home.join("tmpfs")).unwrap();
    named("driver-altered", &["v~tmpfs: ", wording("files-gone")].concat());
    fs::remove_dir(&home).unwrap();
    named("driver-gone", "v~tmpfs was installed in");
    run("install");
    fs::write(home.join(".flexvol.json"), "{").unwrap();
    named("driver-altered", wording("side-file-no-json"));
    run("uninstall");
    assert!(!node.has("driver-altered") && !node.has("driver-gone"));
    // flexvol has no such driver: the fix names what can be done.
    let driver = node.site.driver("example~strict", GOOD);
    let file = node.site.path("strict");
    fs::rename(&driver, &file).unwrap();
    fs::remove_dir_all(plugins.join("example~strict")).unwrap();
    let words = ["install", "example/strict", "--binary", file.to_str().unwrap(), "--plugin-dir"];
    assert_eq!(node.site.flexvol(&[&words[..], &[plugins.to_str().unwrap()]].concat()).status, 0);
    fs::remove_dir_all(plugins.join("example~strict")).unwrap();
    let findings = node.findings(&["--no-init"]);
    let found = findings.iter().find(|finding| finding["id"] == "driver-gone").unwrap();
    assert!(
        found["fix"].as_str().unwrap().contains("flexvol install 'example~strict' --binary FILE"),
        "{found}"
    );
}

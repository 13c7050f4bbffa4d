//! `flexvol locate` and processes that are, or say that they are, kubelet. Other tests start such
//! processes as well: each looks for its own only.

use crate::support::wording::{wording, wording_of};
use crate::support::{BINARY, copy, eventually, skip};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A process that does nothing but have a command line, until it is dropped.
struct Pretender(Child);

impl Pretender {
    /// A shell under another name, in this thread's namespaces.
    fn start(name: &str, arguments: &[&str]) -> Self {
        Self::of(Command::new("/bin/sh").arg0(name).args(["-c", "read line"]).args(arguments))
    }

    fn of(command: &mut Command) -> Self {
        let started = Self(command.stdin(Stdio::piped()).spawn().unwrap());
        // A process that was started a moment ago has our command line, and then for a moment none.
        let line = format!("/proc/{}/cmdline", started.pid());
        let ours = fs::read("/proc/self/cmdline").unwrap();
        eventually("it has its name", || fs::read(&line).is_ok_and(|line| !line.is_empty() && line != ours));
        started
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// What `locate` says of it: the candidate whose evidence names the process.
    fn of_located(&self, located: &Value) -> Value {
        let mark = format!("pid {},", self.pid());
        let found = candidates(located).find(|candidate| text(candidate, "evidence").starts_with(&mark));
        found.unwrap_or_else(|| panic!("{mark} {located:#}")).clone()
    }
}

impl Drop for Pretender {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn candidates(located: &Value) -> impl Iterator<Item = &Value> {
    located["candidates"].as_array().unwrap().iter()
}

fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value[member].as_str().unwrap_or_default()
}

fn origin<'a>(located: &'a Value, name: &str) -> &'a Value {
    candidates(located).find(|candidate| text(candidate, "origin") == name).unwrap_or(&Value::Null)
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.arg("locate").args(arguments).env_remove("FLEXVOL_PLUGIN_DIR");
    command
}

/// Exit status, standard output, standard error.
fn run(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn json(command: &mut Command) -> Value {
    let (_, out, error) = run(command.arg("--json"));
    serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{error}"))
}

fn locate(arguments: &[&str]) -> Value {
    json(&mut command(arguments))
}

/// A directory with these files in it.
fn tree(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn is_root(name: &str) -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        skip(name, "only a process of root's is believed");
    }
    is_root
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_running_kubelet_is_asked_for_its_flag() {
    if !is_root("locate::a_running_kubelet_is_asked_for_its_flag") {
        return;
    }
    let root = tree(&[("plugins/a~b/b", ""), ("plugins/.x/y", "")]);
    let plugins = root.path().join("plugins");
    let flag = format!("--volume-plugin-dir={}", plugins.display());
    for (name, arguments) in
        [("/usr/bin/kubelet", vec!["--v=2", &flag]), ("kubelet", vec!["--volume_plugin_dir", path(&plugins)])]
    {
        let kubelet = Pretender::start(name, &arguments);
        let located = locate(&[]);
        let found = kubelet.of_located(&located);
        assert_eq!(text(&found, "directory"), path(&plugins));
        assert_eq!((text(&found, "origin"), text(&found, "verdict")), ("kubelet", "chosen"));
        assert!(text(&found, "evidence").ends_with(&format!("{name}, command line: --volume-plugin-dir")));
        assert_eq!((&found["state"]["exists"], &found["state"]["drivers"]), (&true.into(), &1.into()));
        assert!(located["chosen"].as_array().unwrap().contains(&path(&plugins).into()));
    }
}

#[test]
fn a_running_kubelet_is_asked_for_its_files_from_where_it_stands() {
    if !is_root("locate::a_running_kubelet_is_asked_for_its_files_from_where_it_stands") {
        return;
    }
    let root = tree(&[
        ("etc/kubelet.yaml", "kind: KubeletConfiguration\nvolumePluginDir: plugins\n"),
        ("etc/drop-ins/20.conf", "volumePluginDir: /drop/in\n"),
    ]);
    let start = |arguments: &[&str]| {
        let mut command = Command::new("/bin/sh");
        command.arg0("kubelet").args(["-c", "read line"]).args(arguments).current_dir(root.path());
        Pretender::of(&mut command)
    };
    let kubelet = start(&["--config", "etc/kubelet.yaml"]);
    let expected = fs::canonicalize(root.path()).unwrap().join("etc/plugins");
    let found = kubelet.of_located(&locate(&[]));
    assert_eq!(text(&found, "directory"), path(&expected));
    assert_eq!(found["state"]["exists"], false);
    let kubelet = start(&["--config=etc/kubelet.yaml", "--config-dir=etc/drop-ins"]);
    assert_eq!(text(&kubelet.of_located(&locate(&[])), "directory"), "/drop/in");
}

#[test]
fn a_hostile_configuration_is_refused_in_one_line() {
    if !is_root("locate::a_hostile_configuration_is_refused_in_one_line") {
        return;
    }
    let root = tree(&[("broken", "a: [\n"), ("directory/x", "")]);
    fs::File::create(root.path().join("huge")).unwrap().set_len(2 << 20).unwrap();
    nix::unistd::mkfifo(&root.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (name, reason) in [
        ("broken", "broken"),
        ("huge", "larger than 1048576"),
        ("fifo", "not a file"),
        ("directory", "is not there"),
        ("none", "is not there"),
    ] {
        let file = format!("--config={}", root.path().join(name).display());
        let kubelet = Pretender::start("kubelet", &[&file]);
        let found = kubelet.of_located(&locate(&[]));
        let verdict = if name == "broken" { "unclear" } else { "refused" };
        assert_eq!((text(&found, "verdict"), &found["directory"]), (verdict, &Value::Null), "{name}");
        assert!(text(&found, "reason").contains(reason), "{name}: {found}");
    }
}

/// A wrong directory is worse than none: whoever is asked next would only guess.
#[test]
fn a_configuration_that_is_not_clear_ends_the_search() {
    if !is_root("locate::a_configuration_that_is_not_clear_ends_the_search") {
        return;
    }
    let root = tree(&[("k.yaml", "maxPods: 5\nvolumePluginDir: &dir /a\n")]);
    let file = format!("--config={}", root.path().join("k.yaml").display());
    let kubelet = Pretender::start("kubelet", &[&file]);
    let located = locate(&[]);
    let found = kubelet.of_located(&located);
    assert_eq!(text(&found, "verdict"), "unclear");
    let reason = text(&found, "reason");
    assert!(reason.contains("line 2") && reason.contains("--plugin-dir"), "{reason}");
    let weaker = |each: &&Value| ["configuration", "platform", "default"].contains(&text(each, "origin"));
    assert!(candidates(&located).filter(weaker).all(|each| text(each, "verdict") != "chosen"), "{located}");
}

#[test]
fn a_controller_manager_and_a_titled_k3s_are_found() {
    if !is_root("locate::a_controller_manager_and_a_titled_k3s_are_found") {
        return;
    }
    let manager = Pretender::start("kube-controller-manager", &["--flex-volume-plugin-dir=/cm"]);
    let k3s = Pretender::of(Command::new("/bin/cat").arg0("/usr/local/bin/k3s server"));
    let located = locate(&[]);
    let found = manager.of_located(&located);
    assert_eq!((text(&found, "origin"), text(&found, "directory")), ("controller-manager", "/cm"));
    assert_eq!(text(&found, "verdict"), "passed over", "k3s has a kubelet in it");
    let warnings = located["warnings"].as_array().unwrap();
    assert!(warnings.iter().any(|warning| warning.as_str().unwrap().contains("/cm")), "{warnings:?}");
    assert_eq!(text(&k3s.of_located(&located), "origin"), "kubelet");
}

#[test]
fn a_pod_that_calls_itself_kubelet_is_not_believed() {
    if !is_root("locate::a_pod_that_calls_itself_kubelet_is_not_believed") {
        return;
    }
    let in_a_pod = || {
        unshare(CloneFlags::CLONE_NEWPID).unwrap();
        Pretender::start("kubelet", &["--volume-plugin-dir=/evil"])
    };
    let pod = std::thread::spawn(in_a_pod).join().unwrap();
    let user = Pretender::of(
        Command::new("/bin/sh")
            .arg0("kubelet")
            .args(["-c", "read line", "--volume-plugin-dir=/evil"])
            .uid(1234),
    );
    for (liar, reason) in [(pod, "pid namespace"), (user, "user 1234")] {
        let located = locate(&[]);
        let found = liar.of_located(&located);
        assert_eq!((text(&found, "verdict"), &found["directory"]), ("refused", &Value::Null), "{found}");
        assert!(text(&found, "reason").contains(reason), "{found}");
        assert!(candidates(&located).all(|candidate| candidate["directory"] != "/evil"), "{located:#}");
        let warnings = located["warnings"].to_string();
        assert!(warnings.contains(&format!("pid {}, kubelet", liar.pid())), "{warnings}");
    }
}

/// A root directory with a shell called `/kubelet` in it, in a mount namespace of its own in which
/// `mounts`, a script, is run first; what it executes.
fn container(root: &Path, mounts: &str, arguments: &str) -> Command {
    fs::create_dir(root.join("usr")).unwrap();
    for name in ["bin", "lib", "lib64"] {
        let real = fs::canonicalize(format!("/{name}")).unwrap_or_default();
        if real.starts_with("/usr") {
            symlink(real.strip_prefix("/").unwrap(), root.join(name)).unwrap();
        }
    }
    symlink(fs::canonicalize("/bin/sh").unwrap(), root.join("kubelet")).unwrap();
    let root = root.display();
    let script = format!(
        "set -e; mount -o bind,ro /usr {root}/usr; {mounts} exec chroot {root} /kubelet -c 'read line' {arguments}"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "/bin/sh", "-c", &script]);
    command
}

fn started(container: &mut Command) -> Pretender {
    let kubelet = Pretender::of(container);
    let line = format!("/proc/{}/cmdline", kubelet.pid());
    eventually("the shell is kubelet", || fs::read(&line).is_ok_and(|line| line.starts_with(b"/kubelet")));
    kubelet
}

#[test]
fn a_directory_of_a_containers_kubelet_is_found_on_the_node() {
    if !is_root("locate::a_directory_of_a_containers_kubelet_is_found_on_the_node") {
        return;
    }
    let node = tree(&[("opt/var/lib/kubelet/x", "")]);
    let node = fs::canonicalize(node.path()).unwrap();
    let image = tree(&[
        ("etc/kubelet.yaml", "volumePluginDir: /var/lib/kubelet/plugins\n"),
        ("var/lib/kubelet/x", ""),
    ]);
    let kubelet_root = node.join("opt/var/lib/kubelet");
    let bind =
        format!("mount --bind {} {}/var/lib/kubelet; ", kubelet_root.display(), image.path().display());
    let kubelet = started(&mut container(image.path(), &bind, "--config=/etc/kubelet.yaml"));
    let found = kubelet.of_located(&locate(&[]));
    assert_eq!(text(&found, "directory"), path(&kubelet_root.join("plugins")), "{found:#}");
    assert_eq!(text(&found, "directoryOfKubelet"), "/var/lib/kubelet/plugins");
    assert!(text(&found, "evidence").ends_with("/etc/kubelet.yaml: volumePluginDir"), "{found}");
    fs::create_dir_all(kubelet_root.join("plugins/a~b")).unwrap();
    let found = kubelet.of_located(&locate(&[]));
    assert_eq!(text(&found, "directory"), path(&kubelet_root.join("plugins")));
    assert_eq!(found["state"]["drivers"], 1);
}

#[test]
fn a_directory_only_a_container_has_is_reached_through_its_process() {
    if !is_root("locate::a_directory_only_a_container_has_is_reached_through_its_process") {
        return;
    }
    let image = tree(&[("plugins/x", "")]);
    let own = format!("mount -t tmpfs own {}/plugins; ", image.path().display());
    let kubelet = started(&mut container(image.path(), &own, "--volume-plugin-dir=/plugins"));
    let found = kubelet.of_located(&locate(&[]));
    let root = format!("/proc/{}/root", kubelet.pid());
    let through = format!("{root}/plugins");
    assert_eq!(
        (text(&found, "directory"), text(&found, "directoryOfKubelet")),
        (through.as_str(), "/plugins")
    );
    assert!(found["notes"][0].as_str().unwrap().contains(wording("mount-a-directory")), "{found}");
    assert_eq!(found["state"]["exists"], true);
}

#[test]
fn the_command_line_beats_the_environment_and_both_beat_all_else() {
    let root = tree(&[("etc/kubernetes/azure.json", ""), ("a/x~y/y", ""), ("b/x", "")]);
    let root_flag = ["--root", path(root.path())];
    let chosen = |located: &Value| located["chosen"].as_array().unwrap().clone();
    let within = |name: &str| Value::from(path(&root.path().join(name)));
    let mut plain = command(&root_flag);
    let located = json(plain.env("FLEXVOL_PLUGIN_DIR", "/a::/b:relative"));
    assert_eq!(chosen(&located), [within("a"), within("b")]);
    assert!(located["warnings"].to_string().contains(wording("not-absolute")), "{located}");
    let mut told = command(&root_flag);
    told.args(["--plugin-dir", "/b", "--plugin-dir", "b"]);
    let located = json(told.env("FLEXVOL_PLUGIN_DIR", "/a"));
    assert_eq!(chosen(&located), [within("b")]);
    assert_eq!(origin(&located, "environment")["verdict"], "passed over");
    assert_eq!(origin(&located, "platform")["directoryOfKubelet"], "/etc/kubernetes/volumeplugins");
    let relative = json(command(&["--plugin-dir", "a"]).current_dir(root.path()));
    assert_eq!(chosen(&relative), [within("a")]);
}

#[test]
fn another_root_is_recognised_by_its_files_and_never_left() {
    for (files, platform, directory) in [
        (
            &[("etc/os-release", "NAME=x\nID=bottlerocket\n")][..],
            "bottlerocket",
            "/var/lib/kubelet/plugins/volume/exec",
        ),
        (&[("usr/lib/os-release", "ID=\"flatcar\"\n")], "flatcar", "/var/lib/kubelet/volumeplugins"),
        (&[("etc/os-release", "ID=cos\n")], "cos", "/home/kubernetes/flexvolume"),
        (
            &[("etc/rancher/k3s/config.yaml", "kubelet-arg:\n- volume-plugin-dir=/var/plugins\n")],
            "k3s",
            "/var/plugins",
        ),
        (&[("var/lib/kubelet/config.yaml", "volumePluginDir: /etc/plugins\n")], "default", "/etc/plugins"),
    ] {
        let root = tree(files);
        let located = locate(&["--root", path(root.path())]);
        assert_eq!(located["platform"], platform);
        let expected = root.path().join(directory.strip_prefix('/').unwrap());
        assert_eq!(located["chosen"][0], path(&expected), "{located:#}");
    }
    let root = tree(&[("etc/os-release", "ID=flatcar\n"), ("real/x", "")]);
    fs::create_dir_all(root.path().join("var/lib")).unwrap();
    symlink("/real", root.path().join("var/lib/kubelet")).unwrap();
    let located = locate(&["--root", path(root.path())]);
    assert_eq!(located["chosen"][0], path(&root.path().join("real/volumeplugins")));
    assert_eq!(located["candidates"][0]["directoryOfKubelet"], "/var/lib/kubelet/volumeplugins");
}

#[test]
fn processes_of_a_node_mounted_elsewhere_are_seen() {
    if !is_root("locate::processes_of_a_node_mounted_elsewhere_are_seen") {
        return;
    }
    let shared = tree(&[("plugins/a~b/b", "")]);
    let node = tree(&[("srv/x", ""), ("proc/x", "")]);
    let kubelet =
        Pretender::start("kubelet", &[&format!("--volume-plugin-dir={}/plugins", shared.path().display())]);
    let arguments = ["--root", path(node.path())];
    let without = locate(&arguments);
    assert_eq!(origin(&without, "kubelet"), &Value::Null, "no proc, no process");
    let (at, from) = (node.path().display(), shared.path().display());
    let mounts = format!("mount --bind {from} {at}/srv; mount --bind /proc {at}/proc;");
    let found = kubelet.of_located(&json(&mut mounted(&mounts, &arguments)));
    assert_eq!(text(&found, "directory"), path(&node.path().join("srv/plugins")), "{found:#}");
    assert_eq!(text(&found, "directoryOfKubelet"), path(&shared.path().join("plugins")));
    assert_eq!(found["state"]["drivers"], 1);
}

/// `locate` in a mount namespace of its own in which `mounts`, a script, is run first.
///
/// No mount is ever made where this process sees it: a temporary directory that is removed while
/// something is mounted in it takes what is mounted there along.
fn mounted(mounts: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    let script = format!("set -e; {mounts} exec \"$0\" locate \"$@\"");
    command.args(["--mount", "--propagation", "private", "/bin/sh", "-c", &script, BINARY]).args(arguments);
    command
}

#[test]
fn what_cannot_be_used_is_named_with_the_fix() {
    if !is_root("locate::what_cannot_be_used_is_named_with_the_fix") {
        return;
    }
    let root = tree(&[("file", ""), ("etc/os-release", "ID=cos\n"), ("home/kubernetes/flexvolume/x", "")]);
    let (status, _, error) = run(&mut command(&["--plugin-dir", path(&root.path().join("file"))]));
    assert!(status == 1 && error.contains(wording("not-a-directory")), "{error}");
    let directory = root.path().join("home/kubernetes/flexvolume");
    let tmpfs = |options: &str| format!("mount -t tmpfs -o {options} test {};", directory.display());
    let (status, out, error) = run(&mut mounted(&tmpfs("noexec"), &["--root", path(root.path())]));
    assert!(out.contains("noexec") && error.contains("remount,exec"), "{out}{error}");
    assert_eq!((status, error.lines().count()), (1, 1));
    let new = directory.join("new");
    let (status, _, error) = run(&mut mounted(&tmpfs("ro"), &["--plugin-dir", path(&new)]));
    assert!(status == 1 && error.contains("read-only"), "{error}");
    let located = json(&mut mounted(&tmpfs("ro"), &["--plugin-dir", path(&directory)]));
    assert_eq!(located["candidates"][0]["state"]["writable"], false);
    assert!(located["problems"][0].as_str().unwrap().contains("read-only"), "{located}");
}

#[test]
fn talos_has_no_directory() {
    let root = tree(&[("etc/os-release", "ID=talos\n")]);
    let (status, out, error) = run(&mut command(&["--root", path(root.path())]));
    assert!(status == 1 && error.contains(wording("talos")), "{out}{error}");
    let (status, out, error) = run(&mut command(&["--root", path(root.path()), "--plugin-dir", "/p", "-q"]));
    assert_eq!((status, out.trim_end(), error.as_str()), (0, path(&root.path().join("p")), ""));
}

#[test]
fn a_table_for_people_and_one_line_for_scripts() {
    let root = tree(&[("etc/os-release", "ID=flatcar\n"), ("var/lib/kubelet/volumeplugins/a~b/b", "")]);
    let arguments = ["--root", path(root.path())];
    let (status, out, error) = run(&mut command(&arguments));
    assert_eq!((status, error.as_str()), (0, ""), "{out}");
    for expected in ["DIRECTORY", "*", "platform", "1 driver", "flatcar: /etc/os-release says ID=flatcar"] {
        assert!(out.contains(expected), "{expected}: {out}");
    }
    assert!(out.contains(wording("no-kubelet-says-so")), "{out}");
    let directory = root.path().join("var/lib/kubelet/volumeplugins");
    assert!(out.contains(&format!("flexvol install --root {} DRIVER", root.path().display())), "{out}");
    let (_, out, _) = run(&mut command(&["--plugin-dir", "/dev/null"]));
    assert!(!out.contains("put drivers there"), "{out}");
    let (status, out, _) = run(command(&arguments).arg("--quiet"));
    assert_eq!((status, out), (0, format!("{}\n", directory.display())));
    let (status, _, error) = run(&mut command(&["--root", "/none"]));
    let told = error.contains(wording_of("no-root", ["/none"]));
    assert!(status == 2 && told && error.lines().count() == 1, "{error}");
}

#[test]
fn who_is_not_root_is_told_what_cannot_be_seen() {
    if !is_root("locate::who_is_not_root_is_told_what_cannot_be_seen") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let binary: PathBuf = directory.path().join("flexvol");
    copy(Path::new(BINARY), &binary);
    let kubelet = Pretender::start("kubelet", &["--volume-plugin-dir=/a"]);
    let mut command = Command::new(&binary);
    let found = kubelet.of_located(&json(command.arg("locate").uid(1234).gid(1234)));
    assert_eq!((text(&found, "directory"), text(&found, "verdict")), ("/a", "chosen"));
    assert!(found["notes"].to_string().contains("run as root"), "{found}");
}

#[test]
fn who_is_root_in_a_user_namespace_of_its_own_is_not_believed() {
    if !is_root("locate::who_is_root_in_a_user_namespace_of_its_own_is_not_believed") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let shell = place.path().join("kubelet");
    symlink(fs::canonicalize("/bin/sh").unwrap(), &shell).unwrap();
    let liar = Pretender::of(Command::new("unshare").args(["--user", "--map-root-user"]).arg(&shell).args([
        "-c",
        "read line",
        "--volume-plugin-dir=/evil-root",
    ]));
    let line = format!("/proc/{}/cmdline", liar.pid());
    let start = path(&shell).as_bytes();
    eventually("the shell is kubelet", || fs::read(&line).is_ok_and(|line| line.starts_with(start)));
    let found = liar.of_located(&locate(&[]));
    assert_eq!((text(&found, "verdict"), &found["directory"]), ("refused", &Value::Null), "{found}");
    assert!(text(&found, "reason").contains("user namespace"), "{found}");
}

#[test]
fn a_device_in_an_image_is_not_opened() {
    if !is_root("locate::a_device_in_an_image_is_not_opened") {
        return;
    }
    let image = tree(&[("etc/empty", "")]);
    // A number nobody has a driver for: opening it is an error of its own.
    let made =
        Command::new("mknod").arg(image.path().join("etc/os-release")).args(["c", "240", "0"]).status();
    if !made.is_ok_and(|status| status.success()) {
        return skip("locate::a_device_in_an_image_is_not_opened", "no device node");
    }
    let opened = Command::new("strace")
        .args(["-f", "-e", "trace=openat", BINARY, "locate", "--root"])
        .arg(image.path())
        .output();
    let Ok(opened) = opened else { return skip("locate::a_device_in_an_image_is_not_opened", "no strace") };
    let trace = String::from_utf8_lossy(&opened.stderr);
    assert!(trace.contains("os-release"), "{trace}");
    assert!(!trace.contains("ENXIO"), "{trace}");
}

//! The command line from outside: the built binary, its output and its exit status.

use crate::support::pace::slow_seconds;
use crate::support::wording::{wording, wording_of};
use crate::support::{BINARY, copy, write_executable};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn command(line: &[&str]) -> Command {
    of(Path::new(BINARY), line)
}

fn of(program: &Path, line: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(line);
    command
}

/// Exit status, standard output and standard error.
fn flexvol(line: &[&str]) -> (i32, String, String) {
    told(&command(line).output().unwrap())
}

fn told(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn ok(line: &[&str]) -> String {
    let (status, out, error) = flexvol(line);
    assert_eq!((status, error.as_str()), (0, ""), "{line:?}: {out}");
    assert!(!out.contains('\x1b'), "{line:?}: colour without a terminal");
    out
}

fn json(line: &[&str]) -> Value {
    serde_json::from_str(&ok(line)).unwrap()
}

const DRIVERS: [&str; 9] = ["tmpfs", "bind", "image", "exec", "sshfs", "s3", "rclone", "webdav", "glusterfs"];

#[test]
fn without_a_command_it_says_what_to_try() {
    let (status, out, error) = flexvol(&[]);
    assert_eq!((status, error.as_str()), (2, ""));
    for command in ["flexvol try", "flexvol drivers", "flexvol explain", "flexvol plan", "flexvol run"] {
        assert!(out.contains(command), "{command}");
    }
    assert!(ok(&["--version"]).starts_with("flexvol "));
    assert!(ok(&["--help"]).contains("Examples:"));
    for command in ["try", "explain", "plan", "run", "completions", "man"] {
        assert!(ok(&[command, "--help"]).contains("flexvol"), "{command}");
    }
}

#[test]
fn drivers_are_listed_and_explained() {
    let table = ok(&["drivers"]);
    assert!(DRIVERS.iter().all(|driver| table.lines().any(|line| line.starts_with(driver))), "{table}");
    let listed = json(&["drivers", "--json"]);
    assert_eq!(listed[0]["driver"], "tmpfs");
    assert_eq!(listed[0]["capabilities"]["attach"], false);
    assert_eq!(listed[0]["programs"], serde_json::json!([]));
    assert!(listed[2]["programs"].as_array().unwrap().iter().any(|program| program == "mkfs.xfs"));
    for driver in DRIVERS {
        let text = ok(&["explain", driver]);
        assert!(text.contains(&format!("driver: example.com/{driver}")), "{text}");
        let explained = json(&["explain", driver, "--json"]);
        assert!(explained["verbs"].as_array().unwrap().iter().any(|verb| verb == "mount"));
    }
    assert!(ok(&["explain", "bind"]).contains("bindRoots"));
    assert_eq!(ok(&["explain", "flexvol/tmpfs"]), ok(&["explain", "tmpfs"]));
    assert_eq!(ok(&["explain", "fstab/cifs"]), ok(&["explain", "--profile", "fstab/cifs"]));
}

#[test]
fn the_keys_of_a_secret_are_explained() {
    let mut explained = 0;
    for driver in flexvol::drivers::ALL {
        let text = ok(&["explain", driver.name()]);
        let keys = json(&["explain", driver.name(), "--json"])["secretKeys"].as_array().unwrap().clone();
        assert_eq!(keys.len(), driver.secrets().len(), "{}", driver.name());
        assert_eq!(text.contains(wording("keys-of-the-secret")), !keys.is_empty(), "{text}");
        for (spec, key) in driver.secrets().iter().zip(keys) {
            let doc = spec.doc.split(' ').take(4).collect::<Vec<_>>().join(" ");
            assert!(text.contains(&spec.keys.join(" or ")) && text.contains(&doc), "{text}");
            assert_eq!((&key["keys"][0], &key["doc"]), (&Value::from(spec.keys[0]), &Value::from(spec.doc)));
            explained += 1;
        }
    }
    assert!(explained > 10, "{explained}");
    assert!(ok(&["explain", "--profile", "fstab/cifs"]).contains("username or user"));
}

/// The help is printed as it is, not as an error message.
#[test]
fn a_missing_command_is_answered_with_the_help() {
    let (status, _, error) = flexvol(&["pod"]);
    assert_eq!((status, error.lines().next()), (2, ok(&["pod", "--help"]).lines().next()));
}

#[test]
fn a_mistyped_driver_is_a_usage_error_with_a_hint() {
    let (status, out, error) = flexvol(&["explain", "tmpsf"]);
    assert_eq!((status, out.as_str()), (2, ""));
    assert!(error.starts_with("flexvol: ") && error.contains("'tmpfs'"), "{error}");
}

#[test]
fn plans_are_shown_and_held_against_the_policy() {
    let text = ok(&["plan", "tmpfs", "mount", "/mnt/v", "-o", "size=16Mi", "--ro"]);
    assert!(text.contains("2. mount tmpfs at /mnt/v") && text.contains("undo: unmount"), "{text}");
    assert!(text.contains("policy: allowed"));
    let plan = json(&["plan", "tmpfs", "mount", "/mnt/v", "--json"]);
    assert_eq!((plan["plan"]["steps"].as_array().unwrap().len(), &plan["refusal"]), (2, &Value::Null));
    let line = ["plan", "bind", "mount", "/mnt/v", "-o", "source=/srv/a"];
    let (status, out, _) = flexvol(&line);
    assert!(status == 1 && out.contains("policy: refused") && out.contains("policy.bindRoots"), "{out}");

    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let bad = file("bad.json", "{");
    let (status, _, error) = flexvol(&[&line[..], &["--settings", &bad]].concat());
    assert!(status == 1 && error.starts_with(&format!("flexvol: {bad}: EOF")), "{error}");
    let side = file("side", r#"{"policy":{"bindRoots":["/srv"]}}"#);
    ok(&[&line[..], &["--settings", &side]].concat());

    // What is typed counts before what the side file says.
    let side = file("profile", r#"{"profile":"kvaps/loop"}"#);
    let line = ["plan", "image", "mount", "/mnt/v", "--settings", &side, "--profile", "fstab/cifs"];
    let (status, _, error) = flexvol(&line);
    assert!(status == 1 && error.contains("the profile fstab/cifs is for"), "{error}");

    let exec = r#"{"exec":{"commands":{"mount":["/bin/mnt","{target}","key={secret.key}"]}}}"#;
    let (side, key) = (file("exec", exec), file("key", "hunter2"));
    for format in [&[][..], &["--json"]] {
        let secret = format!("key=@{key}");
        let line = ["plan", "exec", "mount", "/mnt/v", "--settings", &side, "--secret", &secret];
        let text = ok(&[&line[..], format].concat());
        assert!(text.contains("{secret.key}") && !text.contains("hunter2") && !text.contains("aHVudGVyMg"));
    }
}

#[test]
fn run_answers_like_the_driver() {
    let reply = ok(&["run", "tmpfs", "init", "--json"]);
    assert!(reply.starts_with(r#"{"status":"Success","capabilities":{"attach":false,"#), "{reply}");
    assert!(ok(&["run", "tmpfs", "init"]).contains("selinuxRelabel"));

    let (status, out, error) = flexvol(&["run", "tmpfs", "attach", "{}", "n"]);
    assert_eq!((status, out.as_str()), (3, ""));
    assert!(error.contains("it has init, mount, unmount"), "{error}");
    assert_eq!(
        flexvol(&["run", "tmpfs", "attach", "{}", "n", "--json"]).1,
        "{\"status\":\"Not supported\"}\n"
    );

    let wrong = ["run", "tmpfs", "mount", "/nowhere/at/all", "-o", "sise=1"];
    let (status, out, error) = flexvol(&wrong);
    assert_eq!((status, out.as_str()), (1, ""));
    assert_eq!(error, "flexvol: unknown option \"sise\": did you mean \"size\"?\n");
    let (status, out, _) = flexvol(&[&wrong[..], &["--json"]].concat());
    assert!(status == 1 && out.starts_with(r#"{"status":"Failure","message":"unknown option"#), "{out}");
    assert_eq!(flexvol(&["run", "tmpfs", "mount", "/a", "--secret", "key=hunter2"]).0, 2);
    assert_eq!(flexvol(&["run", "tmpfs", "mount", "/a", "{}", "--ro"]).0, 2);
}

#[test]
fn shells_and_manual_are_served() {
    for (shell, word) in
        [("bash", "complete -F"), ("zsh", "#compdef flexvol"), ("fish", "complete -c flexvol")]
    {
        assert!(ok(&["completions", shell]).contains(word), "{shell}");
    }
    assert!(ok(&["man"]).contains(".TH flexvol 1"));
    assert!(ok(&["man", "run"]).contains(".TH flexvol-run 1"));
    assert!(flexvol(&["man", "runn"]).2.contains("did you mean \"run\"?"));
}

#[test]
fn the_kit_answers_for_its_commands() {
    // By the name that was typed, and with all of its own help.
    assert!(ok(&["check", "--help"]).contains("Usage: flexvol check"));
    assert!(ok(&["man", "check"]).contains(".TH flexvol-check 1"));
    assert_eq!(flexvol(&["call"]).0, 2);
    let pages = tempfile::tempdir().unwrap();
    ok(&["man", "--output", pages.path().to_str().unwrap()]);
    let page = |command: &str| fs::read_to_string(pages.path().join(format!("flexvol-{command}.1"))).unwrap();
    assert!(fs::read_to_string(pages.path().join("flexvol.1")).unwrap().contains("install"));
    assert!(page("check").contains("junit") && page("install").contains("take\\-over"));
}

#[test]
fn a_node_without_the_kit_says_where_it_comes_from() {
    let alone = tempfile::tempdir().unwrap();
    let program = alone.path().join("flexvol");
    copy(Path::new(BINARY), &program);
    let (status, _, error) = told(&of(&program, &["check", "./my-driver"]).output().unwrap());
    assert_eq!(status, 1, "{error}");
    assert!(error.contains(wording_of("kit-not-here", ["flexvol-kit"])), "{error}");
    let (_, help, _) = told(&of(&program, &["--help"]).output().unwrap());
    assert!(help.contains("\n  check "), "it is named all the same: {help}");
    let (status, _, error) = told(&of(&program, &["why", "data"]).output().unwrap());
    assert!(status == 1 && error.contains(wording_of("kit-not-here", ["flexvold"])), "{error}");
}

/// `flexvold` asks the cluster. How the volumes of this machine are `flexvol` itself says, unless
/// kubectl asks.
#[test]
fn what_a_cluster_is_asked_goes_to_the_daemon() {
    let home = tempfile::tempdir().unwrap();
    let [program, plugin] = ["flexvol", "kubectl-flexvol"].map(|name| home.path().join(name));
    copy(Path::new(BINARY), &program);
    symlink("flexvol", &plugin).unwrap();
    let (status, _, error) = told(&of(&plugin, &["--json", "status"]).output().unwrap());
    assert!(status == 1 && error.is_empty(), "{error}");
    write_executable(&home.path().join("flexvold"), "#!/bin/sh\necho \"asked: $*\"\nexit 7\n");
    for words in [
        &["locks", "data", "-n", "shop"][..],
        &["why", "data"],
        &["why", "--help"],
        &["locks", "--json"],
        &["force-detach", "--node", "n", "--yes"],
        &["mounter", "upgrade", "--node", "n"],
    ] {
        for program in [&program, &plugin] {
            let said = told(&of(program, words).output().unwrap());
            assert_eq!(said, (7, format!("asked: {}\n", words.join(" ")), String::new()));
        }
    }
    let said = told(&of(&plugin, &["--json", "status", "-n", "shop"]).output().unwrap());
    assert_eq!((said.0, &*said.1), (7, "asked: --json status -n shop\n"));
    let said = told(&of(&program, &["status", "--help"]).output().unwrap());
    assert!(said.0 == 0 && said.1.contains("Usage: flexvol status"), "{said:?}");
}

#[test]
fn programs_get_json_of_everything() {
    let of = |line: &[&str], expected: i32| -> Value {
        let (status, out, error) = flexvol(&[line, &["--json"]].concat());
        assert_eq!((status, error.as_str()), (expected, ""), "{line:?}: {out}");
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{line:?}: {error}: {out}"))
    };
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let commands = of(&[], 2);
    let commands: Vec<_> = commands.as_array().unwrap().iter().map(|each| text(each, "command")).collect();
    let expected = "try drivers explain plan run locate install uninstall list deploy manifest doctor status logs explain-error probe watch record \
        call pod validate check force-detach locks migrate mounter why completions man";
    assert_eq!(commands.join(" "), expected);
    assert!(text(&of(&["man", "run"], 0), "man").contains(".TH flexvol-run 1"));
    assert!(text(&of(&["completions", "bash"], 0), "completions").contains("complete -F"));
    for (line, status, word) in [
        (&["explain", "tmpsf"][..], 2, "'tmpfs'"),
        (&["nothing"], 2, "'nothing'"),
        (&["man", "runn"], 2, "did you mean"),
        (&["plan", "tmpfs", "mount", "relative"], 2, "absolute path"),
        (&["plan", "tmpfs", "mount"], 2, wording_of("arguments-missing", ["mount", "target", "0"])),
        (&["plan", "tmpfs", "mount", "/v", "{}", "-o", "size=1"], 2, wording("options-not-taken")),
        (&["plan", "tmpfs", "init"], 2, wording("run-init")),
        (&["plan", "tmpfs", "mount", "/v", "-o", "sise=1"], 1, "did you mean"),
        (&["plan", "tmpfs", "mount", "/v", "--profile", "kvaps/loop"], 1, "the profile kvaps/loop is for"),
        (&["plan", "tmpfs", "attach", "{}", "n"], 3, "it has init"),
    ] {
        let said = of(line, status);
        assert!(text(&said, "error").contains(word), "{line:?}: {said}");
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command(&["explain", "image"]).stdout(writer).output().unwrap();
    assert_eq!(told(&output), (0, String::new(), String::new()));
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn try_without_the_right_to_mount_names_the_fix() {
    let mut command = command(&["try"]);
    if is_root() {
        command.uid(65534).gid(65534);
    }
    let Ok(output) = command.output() else {
        return eprintln!("SKIP: another user cannot execute {BINARY}");
    };
    let (status, out, error) = told(&output);
    assert_eq!((status, out.as_str(), error.lines().count()), (1, "", 1));
    assert!(error.contains(wording("needs-sudo")), "{error}");
}

#[test]
fn try_finds_the_drivers_good_and_nothing_left() {
    if !is_root() {
        return eprintln!("SKIP: needs root");
    }
    let temporary = tempfile::tempdir().unwrap();
    let receipts = || Path::new("/var/lib/flexvol/installed").read_dir().map_or(0, Iterator::count);
    let before = receipts();
    let output = command(&["try", "--json"]).env("TMPDIR", temporary.path()).output().unwrap();
    let (status, out, error) = told(&output);
    if error.contains("a privileged one") {
        return eprintln!("SKIP: {error}");
    }
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &report["failures"], &report["clean"]), (0, &0.into(), &true.into()), "{out}");
    assert!(report["calls"].as_u64().unwrap() >= 18, "{out}");
    let steps: Vec<_> = report["rows"].as_array().unwrap().iter().map(|row| &row["step"]).collect();
    assert!(steps.contains(&&wording("already-mounted-no-call").into()), "{out}");
    assert_eq!((temporary.path().read_dir().unwrap().count(), receipts()), (0, before));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&*temporary.path().to_string_lossy()) && Path::new("/run").exists());
}

#[test]
fn profiles_are_listed_and_explained() {
    let table = ok(&["drivers", "--profiles"]);
    let listed = json(&["drivers", "--profiles", "--json"]);
    for profile in flexvol::profiles::ALL {
        assert!(table.lines().any(|line| line.starts_with(profile.name)), "{table}");
        assert!(listed.as_array().unwrap().iter().any(|one| one["profile"] == profile.name));
        let text = ok(&["explain", "--profile", profile.name]);
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for line in profile.deviations {
            assert!(flat.contains(&line.split_whitespace().collect::<Vec<_>>().join(" ")), "{line}\n{text}");
        }
        assert!(text.contains(&format!("driver: {}", profile.name)), "{text}");
        assert_eq!(json(&["explain", "--profile", profile.name, "--json"])["driver"], profile.driver.name());
        assert!(ok(&["explain", profile.driver.name()]).contains(profile.name));
    }
    assert_eq!(flexvol(&["explain"]).0, 2);
    assert_eq!(flexvol(&["explain", "tmpfs", "--profile", "k8s/dummy"]).0, 2);
    assert!(flexvol(&["explain", "--profile", "k8s/dumy"]).2.contains("k8s/dummy"));
}

#[test]
fn plans_in_the_dialect_of_others() {
    let loops = ["plan", "image", "mount", "/mnt", "-o", "share=/var/lib/flexvol/images", "-o", "file=a"];
    let with = |more: &[&'static str]| [&loops[..], more].concat();
    let text = ok(&with(&["--profile", "kvaps/loop", "-o", "fsk=no"]));
    assert!(text.contains("/var/lib/flexvol/images/a") && text.contains("note: option \"fsk\""), "{text}");
    assert_eq!(ok(&with(&["--as", "kvaps~loop", "-o", "fsk=no"])), text);
    assert_eq!(flexvol(&with(&["--as", "acme~loop"])).0, 1);
    assert_eq!(flexvol(&with(&["--as", "kvaps~loop", "--profile", "none"])).0, 1);
    let (status, _, error) = flexvol(&with(&["--profile", "k8s/dummy"]));
    assert!(status == 1 && error.contains(wording_of("other-driver-in-side-file", ["tmpfs"])), "{error}");
    assert_eq!(json(&with(&["--profile", "kvaps/loop", "--json"]))["notes"], serde_json::json!([]));
}

#[test]
fn an_error_text_is_explained() {
    let event = r#"MountVolume.SetUp failed for volume "v" : mount command failed, status: Failure, reason: mount error(13): Permission denied"#;
    let text = ok(&["explain-error", event]);
    for (start, words) in
        [("kubelet", "volume \"v\""), ("cause", "user and password"), ("fix", "Secret's username")]
    {
        let is_said = |line: &str| line.starts_with(start) && line.contains(words);
        assert!(text.lines().any(is_said), "{start}: {text}");
    }
    assert!(text.lines().last().unwrap().starts_with("next      "), "{text}");
    let explained = json(&["explain-error", "--json", event]);
    assert_eq!((&explained["understood"], &explained["id"]), (&true.into(), &"smb-denied".into()));
    assert_eq!(json(&["explain-error", event, "--json"]), explained);
    assert_eq!(explained["confidence"], "cause");
    let vague = ok(&["explain-error", "mount failed: exit status 32"]);
    assert!(vague.starts_with("cause     unknown:") && vague.contains("\nhint "), "{vague}");
    let (status, out, _) = flexvol(&["explain-error", "all", "is", "well"]);
    assert!(status == 1 && out.contains("flexvol doctor"), "{out}");
    let mut asked = command(&["explain-error", "-"]);
    let mut asked = asked.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    asked.stdin.take().unwrap().write_all(event.as_bytes()).unwrap();
    assert_eq!(told(&asked.wait_with_output().unwrap()).1, text);
}

/// A terminal of script(1) sees who works; a pipe sees nothing of it.
#[test]
fn a_terminal_sees_who_works_while_it_takes_long() {
    let name = "cli::a_terminal_sees_who_works_while_it_takes_long";
    if !nix::unistd::geteuid().is_root() || which::which("script").is_err() {
        return println!("SKIP {name}: needs root for a mount namespace, and script(1)");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |below: &str| directory.path().join(below).display().to_string();
    // Who works is shown after a second.
    let sleep = ["/bin/sleep".to_owned(), slow_seconds(4).to_string()];
    let exec = serde_json::json!({"driver": "exec", "exec": {"commands": {"mount": sleep}}}).to_string();
    let pod = "kind: Pod\nmetadata: {name: web, uid: u-1}\nspec: {volumes: [{name: data, flexVolume: {driver: example/slow}}]}\n";
    fs::create_dir_all(path("plugins/example~slow")).unwrap();
    for (below, text) in [("plugins/example~slow/.flexvol.json", exec.as_str()), ("pod.yaml", pod)] {
        fs::write(path(below), text).unwrap();
    }
    let binary = BINARY;
    symlink(binary, path("plugins/example~slow/slow")).unwrap();
    let seen = |words: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private"]).args(words);
        String::from_utf8_lossy(&unshare.stdin(Stdio::null()).output().unwrap().stdout).into_owned()
    };
    let settings = path("plugins/example~slow/.flexvol.json");
    let run = |at: &str| format!("{binary} run exec mount {} --settings {settings} 2>&1", path(at));
    let (file, plugins) = (path("pod.yaml"), path("plugins"));
    let up = |at: &str| format!("{binary} pod up -f {file} --driver-dir {plugins} --root {} 2>&1", path(at));
    // At the same time: each takes as long.
    std::thread::scope(|scope| {
        for line in [run("a"), up("b")] {
            scope.spawn(move || {
                let shown = seen(&["script", "-qec", &line, "/dev/null"]);
                assert!(shown.contains("sleep is at work"), "{shown:?}");
            });
        }
        for line in [run("c"), up("d")] {
            scope.spawn(move || {
                let piped = seen(&["sh", "-c", &line]);
                assert!(!piped.is_empty() && !piped.contains("at work"), "{piped:?}");
            });
        }
    });
}

//! The process kubelet starts: whatever it is given and wherever it runs, one JSON object on one
//! pipe and exit status 0.

use crate::support::pace::deadline;
use crate::support::wording::wording;
use crate::support::{BINARY, Call, Plugin, Run, release, skip};
use flexvol::protocol::{StatusKind, Verb};
use proptest::collection::vec;
use proptest::prelude::*;
use rustix::pipe::{PipeFlags, pipe_with};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Its parent does not exist: nothing can be mounted there.
pub(crate) const NOWHERE: &str = "/nonexistent/pods/1/volumes/example~tmpfs/v";

const DRIVERS: [&str; 4] = ["tmpfs", "bind", "image", "exec"];

fn driver(name: &str) -> Plugin {
    Plugin::new(format!("example~{name}"), name, None)
}

fn tmpfs() -> Plugin {
    driver("tmpfs")
}

pub(crate) fn init(run: &Run) {
    let reply = run.reply();
    assert_eq!(reply.outcome(), StatusKind::Success, "{}", reply.message);
    let capabilities = reply.capabilities.expect("capabilities");
    assert!(!capabilities.attach);
    let text = String::from_utf8_lossy(&run.output);
    for key in ["attach", "selinuxRelabel", "supportsMetrics", "fsGroup", "requiresFSResize"] {
        assert!(text.contains(&format!("\"{key}\":")), "{text}");
    }
}

/// All argument lists a verb is tried with, the right ones among them but never a target that
/// exists.
fn argument_lists() -> Vec<Vec<OsString>> {
    let list = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
    let long = "x".repeat(4096);
    let mut lists: Vec<_> = (0..=6).map(|count| list(&vec![""; count])).collect();
    lists.extend((1..=6).map(|count| list(&vec!["garbage"; count])));
    lists.push(list(&[&long]));
    lists.push(list(&[NOWHERE]));
    lists.push(list(&[NOWHERE, "{}"]));
    lists.push(list(&[NOWHERE, "", "{}"]));
    lists.push(list(&[NOWHERE, "{}", "", "surplus"]));
    lists.push(list(&[NOWHERE, &long]));
    lists.push(list(&[NOWHERE, "{\"size\":"]));
    lists.push(list(&["{}", "", NOWHERE, "2", "1"]));
    lists.push(list(&["{}", "", NOWHERE, "2", "1", "surplus"]));
    lists.push(vec![NOWHERE.into(), OsString::from_vec(b"\xff\xfe".to_vec())]);
    lists
}

#[test]
fn every_verb_with_whatever_arguments() {
    for name in DRIVERS {
        let plugin = driver(name);
        let verbs = flexvol::drivers::find(name).unwrap().verbs(&flexvol::settings::Settings::default());
        for verb in Verb::ALL {
            for arguments in argument_lists() {
                let words = [OsString::from(verb.name())].into_iter().chain(arguments.clone());
                let run = plugin.call(words).run();
                let right_unmount = verb == Verb::Unmount && arguments == [NOWHERE];
                match verb {
                    Verb::Init => init(&run),
                    _ if right_unmount => run.success(),
                    _ if verbs.contains(verb) => drop(run.failure()),
                    _ => assert_eq!(run.outcome(), StatusKind::NotSupported, "{name} {verb} {arguments:?}"),
                }
                assert!(run.took < deadline(10), "{name} {verb}: {:?}", run.took);
            }
        }
    }
}

#[test]
fn unknown_verbs_are_not_supported() {
    let plugin = tmpfs();
    let long = "m".repeat(4096);
    for verb in
        ["foo", "", "MOUNT", "mount ", " init", "--help", "waitfordetach", "getdevicemountpath", &long]
    {
        for arguments in [&[verb][..], &[verb, "{}"], &[verb, NOWHERE, "{}"]] {
            assert_eq!(plugin.call(arguments).run().outcome(), StatusKind::NotSupported, "{arguments:?}");
        }
    }
    let run = plugin.call([OsStr::from_bytes(b"\xff")]).run();
    assert_eq!(run.outcome(), StatusKind::NotSupported);
}

#[test]
fn no_verb_is_a_failure() {
    assert!(tmpfs().call([""; 0]).run().failure().starts_with("no verb"));
}

#[test]
fn an_empty_environment() {
    let plugin = tmpfs();
    init(&plugin.through(&["env", "-i"], &["init"]).run());
    plugin.through(&["env", "-i"], &["mount", NOWHERE, "{}"]).run().failure();
}

#[test]
fn a_hostile_environment() {
    let plugin = tmpfs();
    let hostile = [
        ("LC_ALL", "xx_YY.broken"),
        ("LANG", "\u{7}"),
        ("RUST_BACKTRACE", "full"),
        ("RUST_LOG", "trace"),
        ("RUST_MIN_STACK", "-1"),
        ("IFS", "/"),
        ("PS4", "$(id)"),
        ("BASH_ENV", "/etc/passwd"),
        ("ENV", "/etc/passwd"),
        ("PATH", ""),
        ("HOME", "/nonexistent"),
        ("TMPDIR", "/nonexistent"),
        ("MALLOC_CHECK_", "3"),
        ("http_proxy", "http://127.0.0.1:1"),
    ];
    for arguments in [&["init"][..], &["mount", NOWHERE, "{}"], &["unmount", NOWHERE], &["x"]] {
        let mut call = plugin.call(arguments);
        call.0.envs(hostile);
        call.run().reply();
    }
}

/// The dynamic loader of a dynamic binary complains before main: only the static one can be silent.
#[test]
fn a_preloaded_library() {
    let Some(binary) = release() else {
        return skip("process::a_preloaded_library", "FLEXVOL_RELEASE is not set");
    };
    let plugin = Plugin::copy(&binary, "example~tmpfs", "tmpfs");
    let mut call = plugin.call(["init"]);
    call.0
        .env("LD_PRELOAD", "/nonexistent/x.so")
        .env("LD_LIBRARY_PATH", "/nonexistent")
        .env("LD_DEBUG", "all");
    init(&call.run());
}

#[test]
fn a_working_directory_that_is_gone_or_closed() {
    let plugin = tmpfs();
    let gone = plugin.directory.path().join("gone");
    let script = format!("mkdir '{0}' && cd '{0}' && rmdir '{0}' && exec \"$0\" \"$@\"", gone.display());
    init(&plugin.through(&["sh", "-c", &script], &["init"]).run());
    plugin.through(&["sh", "-c", &script], &["mount", NOWHERE, "{}"]).run().failure();
    plugin.through(&["sh", "-c", &script], &["unmount", NOWHERE]).run().success();
}

#[test]
fn standard_descriptors_closed_in_every_combination() {
    let plugin = tmpfs();
    let closing = ["<&-", ">&-", "2>&-"];
    for combination in 0..8_usize {
        let closed = (0..3).filter(|bit| combination >> bit & 1 == 1).map(|bit| closing[bit]);
        let script = format!("exec \"$0\" \"$@\" {}", closed.collect::<Vec<_>>().join(" "));
        for arguments in [&["init"][..], &["mount", NOWHERE, "{}"], &["unmount", NOWHERE], &["x"], &[]] {
            let run = plugin.through(&["sh", "-c", &script], arguments).run();
            if combination & 2 == 0 {
                run.reply();
            } else {
                // Nobody to answer; what is left of the pipe stays empty.
                assert_eq!((run.status.code(), run.output.as_slice()), (Some(0), &b""[..]), "{script}");
            }
        }
    }
}

#[test]
fn a_reader_that_is_gone() {
    let plugin = tmpfs();
    for arguments in [&["init"][..], &["mount", NOWHERE, "{}"], &["x"]] {
        let mut running = plugin.call(arguments).start();
        drop(std::mem::replace(&mut running.reader, fs::File::open("/dev/null").unwrap().into()));
        assert_eq!(running.child.wait().unwrap().code(), Some(0), "{arguments:?}");
    }
}

#[test]
fn a_reader_that_comes_late_to_a_full_pipe() {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let size = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
    assert_eq!(rustix::io::write(&writer, &vec![b' '; size]).unwrap(), size);
    let running = tmpfs().call(["init"]).start_on((reader, writer));
    std::thread::sleep(Duration::from_millis(500));
    let run = running.finish();
    assert!(run.output.len() > size && run.took > Duration::from_millis(400));
    init(&Run { output: run.output[size..].to_vec(), ..run });
}

#[test]
fn options_as_large_as_a_kernel_lets_through() {
    let plugin = tmpfs();
    // One argument has at most 128 KiB with its NUL.
    let frame = r#"{"example.com/x":""}"#.len();
    let json = format!(r#"{{"example.com/x":"{}"}}"#, "y".repeat((128 << 10) - 1 - frame));
    let failure = plugin.call(["mount", NOWHERE, &json]).run().failure();
    assert!(failure.contains(wording("no-parent")), "{failure}");
    let json = json.replace("example.com/x", "somethingelse");
    assert!(plugin.call(["mount", NOWHERE, &json]).run().failure().starts_with("unknown option"));
}

/// As nobody, because the limit does not bind root.
#[test]
fn no_process_to_be_had() {
    if !rustix::process::getuid().is_root() {
        return skip("process::no_process_to_be_had", "needs root to become nobody");
    }
    let plugin = Plugin::copy(Path::new(BINARY), "example~tmpfs", "tmpfs");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(plugin.directory.path(), open).unwrap();
    let limited = ["setpriv", "--reuid=65534", "--clear-groups", "prlimit", "--nproc=0"];
    init(&plugin.through(&limited, &["init"]).run());
    assert_eq!(plugin.through(&limited, &["attach"]).run().outcome(), StatusKind::NotSupported);
    for arguments in [&["mount", NOWHERE, "{}"][..], &["unmount", NOWHERE]] {
        let failure = plugin.through(&limited, arguments).run().failure();
        assert!(failure.starts_with("start a worker: EAGAIN"), "{failure}");
    }
}

#[test]
fn any_umask() {
    let plugin = tmpfs();
    for umask in ["0", "077", "0777"] {
        let script = format!("umask {umask}; exec \"$0\" \"$@\"");
        init(&plugin.through(&["sh", "-c", &script], &["init"]).run());
        plugin.through(&["sh", "-c", &script], &["mount", NOWHERE, "{}"]).run().failure();
    }
}

#[test]
fn a_hundred_inits_at_once_are_one_answer() {
    let plugin = tmpfs();
    let running: Vec<_> = (0..100).map(|_| plugin.call(["init"]).start()).collect();
    let mut answers: Vec<_> = running.into_iter().map(crate::support::Running::finish).collect();
    init(&answers[0]);
    answers.dedup_by(|a, b| a.output == b.output);
    assert_eq!(answers.len(), 1);
}

#[test]
fn init_is_quick_and_leaves_no_trace() {
    let plugin = tmpfs();
    let home = plugin.executable.parent().unwrap();
    let before = fs::metadata(home).unwrap().modified().unwrap();
    let start = Instant::now();
    init(&plugin.call(["init", "", "{}", "surplus"]).run());
    assert!(start.elapsed() < deadline(10));
    assert_eq!(fs::metadata(home).unwrap().modified().unwrap(), before);
    assert_eq!(fs::read_dir(home).unwrap().count(), 1);
}

#[test]
fn init_in_a_place_without_anything() {
    let name = "process::init_in_a_place_without_anything";
    let Some(binary) = release() else { return skip(name, "FLEXVOL_RELEASE is not set") };
    if !rustix::process::getuid().is_root() {
        return skip(name, "needs root for chroot");
    }
    let plugin = Plugin::copy(&binary, "example~tmpfs", "tmpfs");
    let root = plugin.directory.path().to_str().unwrap().to_owned();
    for (arguments, outcome) in [
        (&["init"][..], StatusKind::Success),
        (&["attach", "{}", "n"], StatusKind::NotSupported),
        (&["mount", NOWHERE, "{}"], StatusKind::Failure),
    ] {
        let words = [&[root.as_str(), "/example~tmpfs/tmpfs"], arguments].concat();
        assert_eq!(Call::new(Path::new("/usr/sbin/chroot"), words).run().outcome(), outcome);
    }
}

#[test]
fn init_writes_no_file_and_starts_no_process() {
    let name = "process::init_writes_no_file_and_starts_no_process";
    let plugin = tmpfs();
    let trace = plugin.directory.path().join("trace");
    let strace = ["strace", "-f", "-qq", "-o", trace.to_str().unwrap()];
    let can = std::process::Command::new("strace").args(&strace[1..]).arg("true").output();
    if !can.is_ok_and(|output| output.status.success()) {
        return skip(name, "strace cannot trace here");
    }
    init(&plugin.through(&strace, &["init"]).run());
    let calls = fs::read_to_string(&trace).unwrap();
    assert!(calls.contains("execve(") && calls.contains("\\\"status\\\":\\\"Success\\\""), "{calls}");
    let changes = ["O_WRONLY", "O_CREAT", "O_TRUNC", "mkdir", "unlink", "rename", "mount", "flock", "socket"];
    let starts = ["clone", "fork"];
    for line in calls.lines().filter(|line| !line.contains("\"/dev/null\"") && !line.contains("readlink")) {
        let call = line.split_whitespace().nth(1).unwrap_or_default();
        assert!(!line.contains("O_RDWR"), "{line}");
        assert!(!changes.iter().any(|word| call.contains(word)) && !line.contains("O_CREAT"), "{line}");
        assert!(!starts.iter().any(|word| call.starts_with(word)), "{line}");
    }
}

/// Text that may hold anything but NUL, and never an absolute path that exists.
fn argument() -> impl Strategy<Value = OsString> {
    let verbs: Vec<_> = Verb::ALL.iter().map(|verb| verb.name()).collect();
    let words = [
        "",
        "{}",
        "[]",
        "null",
        "0",
        "-1",
        "18446744073709551616",
        NOWHERE,
        "/nonexistent/a/../b",
        "--help",
        "-",
    ];
    let json = r#"\{"[a-zA-Z./]{0,20}":("[^"\\\x00-\x1f]{0,40}"|[0-9]{1,5}|null)\}"#;
    prop_oneof![
        3 => prop::sample::select(verbs).prop_map(OsString::from),
        2 => prop::sample::select(words.to_vec()).prop_map(OsString::from),
        2 => json.prop_map(OsString::from),
        1 => vec(1..=255_u8, 0..200).prop_map(|bytes| OsString::from_vec(without_root(bytes))),
    ]
}

fn without_root(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.first() == Some(&b'/') {
        bytes.splice(0..0, *b"/nonexistent");
    }
    bytes
}

fn variable() -> impl Strategy<Value = (String, OsString)> {
    let names = [
        "PATH",
        "HOME",
        "LC_ALL",
        "LANG",
        "IFS",
        "TERM",
        "RUST_BACKTRACE",
        "TMPDIR",
        "TZ",
        "MALLOC_ARENA_MAX",
    ];
    let name =
        prop_oneof![prop::sample::select(names.to_vec()).prop_map(str::to_owned), "[A-KM-Z_][A-Z_]{0,9}"];
    (name, vec(1..=255_u8, 0..60).prop_map(OsString::from_vec))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_argv_in_any_environment_gets_one_answer(
        name in prop::sample::select(&DRIVERS[..]),
        arguments in vec(argument(), 0..7),
        environment in vec(variable(), 0..6),
        clear in any::<bool>(),
    ) {
        let plugin = driver(name);
        let mut call = plugin.call(&arguments);
        if clear {
            call.0.env_clear();
        }
        call.0.envs(environment);
        let run = call.run();
        run.reply();
        prop_assert!(run.took < deadline(10), "{:?}", run.took);
    }
}

mod identity {
    use super::*;

    fn named(plugin: &Plugin) {
        init(&plugin.call(["init"]).run());
        let failure = plugin.call(["mount", NOWHERE, r#"{"sise":"1"}"#]).run().failure();
        assert_eq!(failure, "unknown option \"sise\": did you mean \"size\"?");
    }

    #[test]
    fn by_the_name_of_a_copy() {
        named(&Plugin::copy(Path::new(BINARY), "example~tmpfs", "tmpfs"));
        named(&Plugin::copy(Path::new(BINARY), "tmpfs", "tmpfs"));
    }

    #[test]
    fn by_the_side_file() {
        named(&Plugin::new("acme.example~scratch", "scratch", Some(r#"{"driver":"tmpfs"}"#)));
        // It wins over the name, too.
        named(&Plugin::new("example~bind", "bind", Some(r#"{"driver":"tmpfs"}"#)));
    }

    #[test]
    fn in_directories_of_any_spelling() {
        for directory in
            ["a b/example~tmpfs", "ü\u{202e}\n$(id)/example~tmpfs", "x'\"\\/example~tmpfs", "-rf/~"]
        {
            named(&Plugin::new(directory, "tmpfs", None));
        }
        let directory = OsStr::from_bytes(b"\xff/example~tmp\xfe");
        named(&Plugin::new(directory, "tmpfs", Some(r#"{"driver":"tmpfs"}"#)));
    }

    #[test]
    fn by_a_relative_path() {
        let plugin = Plugin::new("example~disk", "disk", Some(r#"{"driver":"tmpfs"}"#));
        let root = plugin.directory.path();
        for (directory, program) in
            [(root.to_owned(), "example~disk/disk"), (root.to_owned(), "./example~disk/../example~disk/disk")]
        {
            let mut call = Call::new(&plugin.executable, ["init"]);
            call.0.current_dir(directory).arg0(program);
            init(&call.run());
        }
        let named = Plugin::new("example~tmpfs", "tmpfs", None);
        let mut call = Call::new(&named.executable, ["init"]);
        call.0.current_dir(named.executable.parent().unwrap()).arg0("./tmpfs");
        init(&call.run());
    }

    /// Found through PATH, it is not beside the side file of whatever directory the caller stands
    /// in.
    #[test]
    fn a_bare_name_takes_no_side_file_from_the_working_directory() {
        let plugin = Plugin::new("example~tmpfs", "tmpfs", Some(r#"{"driver":"bind"}"#));
        let mut call = Call::new(&plugin.executable, ["mount", NOWHERE, r#"{"sise":"1"}"#]);
        call.0.current_dir(plugin.executable.parent().unwrap()).arg0("tmpfs");
        assert_eq!(call.run().failure(), "unknown option \"sise\": did you mean \"size\"?");
    }

    #[test]
    fn an_unknown_driver_says_what_to_do() {
        for arguments in [&["init"][..], &["mount", NOWHERE, "{}"], &["foo"], &[]] {
            for (name, side) in [("z", None), ("tmpfs", Some(r#"{"driver":"z"}"#)), ("flexvol", None)] {
                let failure = Plugin::new("x~y", name, side).call(arguments).run().failure();
                assert!(failure.contains("no driver") && failure.contains(".flexvol.json"), "{failure}");
            }
        }
    }

    #[test]
    fn a_broken_side_file_is_named_and_not_repeated() {
        let huge = "x".repeat(2 << 20);
        let broken = [
            "",
            "{",
            "[]",
            "hunter2",
            "{\"driver\":\"hunter2\u{0}",
            r#"{"options":"hunter2"}"#,
            r#"{"x":1}"#,
            &huge,
        ];
        for text in broken {
            let plugin = Plugin::new("example~tmpfs", "tmpfs", Some(text));
            for verb in ["init", "unmount", "foo"] {
                let failure = plugin.call([verb]).run().failure();
                assert!(failure.contains(".flexvol.json") && !failure.contains("hunter2"), "{failure}");
            }
        }
    }

    /// A FIFO, too, must not hold up `init`, which runs under kubelet's lock.
    #[test]
    fn a_side_file_that_is_no_file() {
        for kind in ["mkdir", "mkfifo"] {
            let plugin = tmpfs();
            let side_file = plugin.executable.with_file_name(".flexvol.json");
            assert!(std::process::Command::new(kind).arg(&side_file).status().unwrap().success());
            assert!(plugin.call(["init"]).run().failure().contains(".flexvol.json"), "{kind}");
        }
    }
}

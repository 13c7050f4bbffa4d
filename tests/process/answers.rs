//! One JSON object and exit status 0, whatever a tenant writes into the options of whatever driver.

use crate::readers::plan;
use crate::report::rounds;
use crate::support::pace::deadline;
use crate::support::{Plugin, namespace};
use flexvol::drivers;
use flexvol::profiles;
use flexvol::protocol::{StatusKind, Verb};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Its parent does not exist: nothing can be mounted there.
const NOWHERE: &str = "/nonexistent/pods/1/volumes/example~x/v";

/// Every driver, and every dialect with its driver: side file and executable.
fn installed() -> Vec<(String, &'static str, Vec<&'static str>)> {
    let keys = |name: &str| {
        let options = drivers::find(name).unwrap().options().iter();
        options
            .flat_map(|spec| [spec.name].into_iter().chain(spec.aliases.iter().copied()))
            .collect::<Vec<_>>()
    };
    let own = drivers::ALL.iter().map(|driver| ("{}".to_owned(), driver.name(), keys(driver.name())));
    let theirs = profiles::ALL.iter().map(|profile| {
        let keys = profile.keys.iter().map(|key| key.theirs).chain(keys(profile.driver.name()));
        (json!({"profile": profile.name}).to_string(), profile.driver.name(), keys.collect())
    });
    own.chain(theirs).collect()
}

fn value() -> impl Strategy<Value = Value> {
    let odd = prop::sample::select(vec![
        "",
        "true",
        "1",
        "-1",
        "ro",
        "strict",
        "10.0.0.1",
        "a:b",
        "/srv/a",
        "../..",
        "a,b=c",
        "\0",
        "\n",
        "{target}",
        "18446744073709551616Ei",
        "0777",
        "//a/b",
        "https://a/b",
        "🦀",
        "\u{202e}",
        "''\"",
        "$(id)",
    ]);
    prop_oneof![
        6 => odd.prop_map(Value::from),
        3 => ".{0,12}".prop_map(Value::from),
        1 => prop::sample::select(vec![Value::Null, json!(1), json!([]), json!({}), json!(true)]),
    ]
}

/// Options as a tenant, or somebody who calls himself kubelet, may write them; indexes into a
/// driver's keys among them.
fn members() -> impl Strategy<Value = Vec<(usize, Value)>> {
    vec((0..200_usize, value()), 0..6)
}

fn options(keys: &[&str], members: Vec<(usize, Value)>) -> String {
    let special = [
        "kubernetes.io/readwrite",
        "kubernetes.io/fsType",
        "kubernetes.io/pvOrVolumeName",
        "kubernetes.io/mounterArgs.FsGroup",
        "kubernetes.io/secret/password",
        "kubernetes.io/secret/../x",
        "kubernetes.io/other",
        "",
    ];
    let all: Vec<_> = keys.iter().chain(&special).collect();
    let named = members.into_iter().map(|(index, value)| ((*all[index % all.len()]).to_owned(), value));
    Value::Object(named.collect()).to_string()
}

/// None of these reaches a network before it looks at its target.
fn verb() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "mount",
        "mount",
        "mount",
        "mountdevice",
        "unmount",
        "unmountdevice",
        "init",
        "mounts",
        "",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(200, 5_000), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_options_of_any_driver_get_one_answer(
        chosen in 0..1000_usize, verb in verb(), members in members(), argv in any::<bool>(), environment in vec(("[A-Z_]{1,9}", "\\PC{0,20}"), 0..4),
    ) {
        let installed = installed();
        let (side_file, driver, keys) = &installed[chosen % installed.len()];
        let plugin = Plugin::new(format!("example~{driver}"), driver, Some(side_file));
        let options = options(keys, members);
        let words = match verb {
            "mountdevice" => vec![verb, NOWHERE, "/dev/x", &options],
            "unmount" | "unmountdevice" => vec![verb, NOWHERE],
            _ if argv => vec![verb, &options, NOWHERE],
            _ => vec![verb, NOWHERE, &options],
        };
        let mut call = plugin.call(words);
        call.0.envs(environment.into_iter().filter(|(name, _)| !name.starts_with("LD_")));
        let run = call.run();
        let reply = run.reply();
        if verb == "mount" {
            prop_assert_eq!(reply.outcome(), StatusKind::Failure, "{}", reply.message);
        }
        prop_assert!(run.took < deadline(20), "{:?}", run.took);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(2_000, 300_000), failure_persistence: None, ..ProptestConfig::default() })]

    /// The same in this process, for every verb: no panic, and one printable line.
    #[test]
    fn any_options_of_any_driver_get_a_plan_or_a_line(chosen in 0..250_u8, verb in 0..Verb::ALL.len(), members in members()) {
        let all = installed();
        let (_, _, keys) = &all[usize::from(chosen) % all.len()];
        let options = options(keys, members);
        let verb = Verb::ALL[verb];
        let rest: Vec<_> = verb.spec().arguments.iter().map(|argument| match argument.name() {
            "options" => options.as_str(),
            "target" => "/k/pods/1/volumes/e~x/v",
            "new size" => "2",
            "old size" => "1",
            _ => "x",
        }).collect();
        let words = [&["{}", verb.name()], rest.as_slice()].concat().join("\0");
        plan(&[&[chosen], words.as_bytes()].concat());
    }
}

/// As deep and as long as exec(2) lets through.
#[test]
fn json_without_end_gets_one_answer() {
    let deep = |open: &str| open.repeat(((127 << 10) - 10) / open.len());
    let keys = (0..9_000).map(|number| format!("\"k{number}\":\"\"")).collect::<Vec<_>>().join(",");
    for driver in ["tmpfs", "nfs", "exec", "lvm"] {
        let plugin = Plugin::new(format!("example~{driver}"), driver, None);
        for text in [
            format!("{{\"a\":{}", deep("[")),
            format!("{{\"a\":{}", deep("{\"a\":")),
            deep("\\u0000"),
            format!("{{\"size\":\"{}\"}}", deep("9")),
            format!("{{\"{}\":\"\"}}", deep("\\\"")),
            format!("{{{keys}}}"),
            format!("{{\"kubernetes.io/secret/a\":\"{}\"}}", deep("QUFB")),
        ] {
            let run = plugin.call(["mount", NOWHERE, &text]).run();
            run.failure();
            assert!(run.took < deadline(20), "{driver} {:?}: {:?}", &text[..20], run.took);
        }
    }
}

/// What a command says is read to its end, and little of it is kept.
#[test]
fn a_command_that_talks_without_end_gets_one_answer() {
    if !namespace::enter("answers::a_command_that_talks_without_end_gets_one_answer") {
        return;
    }
    let megabyte = "head -c 1048576 /dev/zero | tr '\\0'";
    for (say, ends) in [("x", "1"), ("'\\n'", "0"), ("'\\033'", "1"), ("'\\377'", "1"), ("x", "0")] {
        for whereto in ["", " >&2"] {
            let script = format!("{megabyte} {say}{whereto}; exit {ends}");
            let commands =
                json!({"mount": ["/bin/sh", "-c", script], "getvolumename": ["/bin/sh", "-c", script]});
            let side_file = json!({"driver": "exec", "exec": {"commands": commands}}).to_string();
            let plugin = Plugin::new("example~exec", "exec", Some(&side_file));
            let target = plugin.directory.path().join("pods/1/volumes/example~exec/v");
            std::fs::create_dir_all(&target).unwrap();
            let message = plugin.call(["mount", target.to_str().unwrap(), "{}"]).run().failure();
            assert!(!message.contains('\u{1b}'), "{message}");
            plugin.call(["getvolumename", "{}"]).run().failure();
        }
    }
}

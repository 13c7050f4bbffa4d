//! The protocol module from outside: against the calls of a live kubelet, and against anything at
//! all.

use flexvol::protocol::{
    Access, Call, Capabilities, DriverStatus, Fields, FsGroup, FsGroupSpelling, Options, PodRef, Reply,
    StatusKind, TargetPath, Verb,
};
use flexvol::secret::Secret;
use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

/// One line of `data/kubelet-calls.jsonl`, recorded under Kubernetes 1.36.
#[derive(Deserialize)]
struct Recorded {
    argv: Vec<String>,
    output: String,
}

impl Recorded {
    fn call(&self) -> Call {
        let arguments: Vec<OsString> = self.argv[1..].iter().map(OsString::from).collect();
        let verb = Verb::parse(&arguments[0]).unwrap();
        Call::parse(verb, &arguments[1..]).unwrap_or_else(|failure| panic!("{:?}: {failure}", self.argv))
    }

    /// `None` where the recorder kept the first line only of an answer of several.
    fn status(&self) -> Option<Result<DriverStatus, String>> {
        let parse = || DriverStatus::parse(self.output.as_bytes()).map_err(|error| error.to_string());
        (self.output != "{").then(parse)
    }
}

fn recorded() -> Vec<Recorded> {
    let calls: Vec<_> = include_str!("data/kubelet-calls.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).expect("a recorded call"))
        .collect();
    assert_eq!(calls.len(), 103);
    calls
}

#[test]
fn every_recorded_call_is_parsed_and_rendered_byte_for_byte() {
    for recorded in recorded() {
        let argv: Vec<OsString> = recorded.argv.iter().map(OsString::from).collect();
        assert_eq!(recorded.call().to_arguments(), argv[1..]);
    }
}

#[test]
fn every_recorded_answer_means_what_it_meant_to_kubelet() {
    for recorded in recorded() {
        let Some(status) = recorded.status() else { continue };
        let outcome = status.map(|status| (status.outcome(), status.message));
        let expected = match recorded.output.as_str() {
            "" => Err("unexpected end of JSON input".to_owned()),
            "this is no JSON" => Err("invalid character 'h' in literal true (expecting 'r')".to_owned()),
            "{}" | r#"{"status":"success"}"# => Ok((StatusKind::Failure, String::new())),
            r#"{"status":"Not supported"}"# => Ok((StatusKind::NotSupported, String::new())),
            text => match text.strip_prefix(r#"{"status":"Failure","message":""#) {
                Some(rest) => Ok((StatusKind::Failure, rest.trim_end_matches("\"}").to_owned())),
                None if text.contains(r#""message":"hi""#) => Ok((StatusKind::Success, "hi".to_owned())),
                None => Ok((StatusKind::Success, String::new())),
            },
        };
        assert_eq!(outcome, expected, "{}", recorded.output);
    }
}

/// Which verbs kubelet sent to a driver shows which capabilities it had read, defaults included:
/// the driver of section H names none.
#[test]
fn only_drivers_that_attach_by_our_reading_got_the_verbs_of_attachment() {
    let calls = recorded();
    let mut attachers = BTreeMap::new();
    for init in calls.iter().filter(|recorded| recorded.call() == Call::Init) {
        let capabilities = init.status().unwrap().unwrap().capabilities.unwrap();
        attachers.insert(&init.argv[0], capabilities.attach);
    }
    let asked: BTreeSet<_> = calls
        .iter()
        .filter(|recorded| {
            matches!(recorded.call().verb(), Verb::Attach | Verb::WaitForAttach | Verb::MountDevice)
        })
        .map(|recorded| &recorded.argv[0])
        .collect();
    let attachers: BTreeSet<_> =
        attachers.into_iter().filter(|(_, attach)| *attach).map(|(driver, _)| driver).collect();
    assert_eq!(asked, attachers);
}

#[test]
fn recorded_devices_travel_from_answer_to_argument() {
    let mut device = String::new();
    let mut travelled = 0;
    for recorded in recorded() {
        match recorded.call() {
            Call::Attach { .. } => device = recorded.status().unwrap().unwrap().device,
            Call::MountDevice { device: passed, .. } if !device.is_empty() => {
                assert_eq!(passed, device);
                travelled += 1;
            }
            _ => {}
        }
    }
    assert!(travelled > 0);
}

#[test]
fn the_longest_argument_exec_passes_is_read() {
    let own = [("k".to_owned(), "<".repeat(21_000)), ("plain".to_owned(), "x".repeat(3_000))];
    let options = Options { own: own.into(), ..Options::default() };
    let json = options.to_json();
    assert!((127 * 1024 - 2_000..131_072).contains(&json.len()), "{}", json.len());
    assert_eq!(Options::parse(&json), Ok(options));
}

fn text() -> impl Strategy<Value = String> {
    let character = prop_oneof![
        any::<char>(),
        any::<char>(),
        "[ -~\u{0}-\u{1f}\u{7f}\u{2028}\u{2029}<>&\"\\\\]"
            .prop_map(|text| text.chars().next().unwrap_or('x'))
    ];
    vec(character, 0..8).prop_map(String::from_iter)
}

fn filled() -> impl Strategy<Value = String> {
    text().prop_filter("not empty", |text| !text.is_empty())
}

fn pod() -> impl Strategy<Value = PodRef> {
    (of(text()), of(text()), of(text()), of(text()))
        .prop_map(|(name, namespace, uid, service_account)| PodRef { name, namespace, uid, service_account })
}

fn fs_group() -> impl Strategy<Value = FsGroup> {
    let spelling = prop_oneof![Just(FsGroupSpelling::Current), Just(FsGroupSpelling::Legacy)];
    (0..u32::MAX, spelling).prop_map(|(gid, spelling)| FsGroup { gid, spelling })
}

prop_compose! {
    fn options()(
        fs_type in of(text()),
        access in of(prop_oneof![Just(Access::ReadWrite), Just(Access::ReadOnly)]),
        volume_name in of(text()),
        pod in pod(),
        fs_group in of(fs_group()),
        secrets in btree_map(text(), vec(any::<u8>(), 0..9).prop_map(Secret::new), 0..3),
        own in btree_map(text(), text(), 0..4),
        reserved in btree_map(text().prop_map(|key| format!("kubernetes.io/new.{key}")), text(), 0..2),
    ) -> Options {
        Options { fs_type, access, volume_name, pod, fs_group, secrets, own, reserved }
    }
}

fn target() -> impl Strategy<Value = TargetPath> {
    vec(vec(any::<u8>(), 1..9), 1..4).prop_filter_map("a path kubelet sends", |parts| {
        let path: Vec<u8> = parts.into_iter().flat_map(|part| [b"/".to_vec(), part].concat()).collect();
        TargetPath::parse(OsStr::from_bytes(&path)).ok()
    })
}

fn call() -> impl Strategy<Value = Call> {
    let size = || 0..=u64::MAX / 2;
    prop_oneof![
        Just(Call::Init),
        options().prop_map(|options| Call::GetVolumeName { options }),
        (options(), filled()).prop_map(|(options, node)| Call::Attach { options, node }),
        (filled(), filled()).prop_map(|(volume, node)| Call::Detach { volume, node }),
        (text(), options()).prop_map(|(device, options)| Call::WaitForAttach { device, options }),
        (options(), filled()).prop_map(|(options, node)| Call::IsAttached { options, node }),
        (target(), text(), options()).prop_map(|(target, device, options)| Call::MountDevice {
            target,
            device,
            options
        }),
        target().prop_map(|target| Call::UnmountDevice { target }),
        (target(), of(text()), options()).prop_map(|(target, device, options)| Call::Mount {
            target,
            device,
            options
        }),
        target().prop_map(|target| Call::Unmount { target }),
        (options(), filled(), size(), size()).prop_map(|(options, target, new_bytes, old_bytes)| {
            Call::ExpandVolume { options, target: target.into(), new_bytes, old_bytes }
        }),
        (options(), text(), target(), size(), size()).prop_map(
            |(options, device, target, new_bytes, old_bytes)| {
                Call::ExpandFs { options, device, target, new_bytes, old_bytes }
            }
        ),
    ]
}

prop_compose! {
    fn capabilities()(switches in any::<[bool; 5]>()) -> Capabilities {
        let [attach, selinux_relabel, supports_metrics, fs_group, requires_fs_resize] = switches;
        Capabilities { attach, selinux_relabel, supports_metrics, fs_group, requires_fs_resize }
    }
}

prop_compose! {
    fn fields()(
        device in of(text()),
        volume_name in of(text()),
        attached in of(any::<bool>()),
        capabilities in of(capabilities()),
        volume_new_size in of(any::<i64>()),
    ) -> Fields {
        Fields { device, volume_name, attached, capabilities, volume_new_size }
    }
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![fields().prop_map(Reply::Success), text().prop_map(Reply::Failure), Just(Reply::NotSupported)]
}

/// What kubelet must read from a reply.
fn understood(reply: Reply) -> DriverStatus {
    let default = DriverStatus::default();
    match reply {
        Reply::NotSupported => DriverStatus { status: "Not supported".into(), ..default },
        Reply::Failure(message) => DriverStatus { status: "Failure".into(), message, ..default },
        Reply::Success(fields) => DriverStatus {
            status: "Success".into(),
            message: String::new(),
            device: fields.device.unwrap_or_default(),
            volume_name: fields.volume_name.unwrap_or_default(),
            attached: fields.attached.unwrap_or_default(),
            capabilities: fields.capabilities.or(default.capabilities),
            volume_new_size: fields.volume_new_size.unwrap_or_default(),
        },
    }
}

/// Bytes that get further into a JSON reader than random ones.
fn json_soup() -> impl Strategy<Value = Vec<u8>> {
    let pieces: [&[u8]; 31] = [
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b" ",
        b"\n",
        b"\"",
        b"\\",
        b"\\u",
        b"d83d",
        b"\\ude00",
        b"\xff",
        b"\xe2",
        b"\0",
        b"-",
        b"0",
        b"12",
        b".5",
        b"e+",
        b"true",
        b"false",
        b"null",
        b"nul",
        b"\"status\":",
        b"\"Success\"",
        b"\"capabilities\":",
        b"\"attach\"",
        b"\"kubernetes.io/fsGroup\":",
        b"\"kubernetes.io/secret/k\":\"YQ==\"",
    ];
    let piece = proptest::sample::select(pieces.to_vec());
    prop_oneof![vec(piece, 0..12).prop_map(|pieces| pieces.concat()), vec(any::<u8>(), 0..40)]
}

proptest! {
    #[test]
    fn options_survive_the_wire(options in options()) {
        prop_assert_eq!(Options::parse(options.to_json()), Ok(options));
    }

    /// `serde_json` writes a sorted map as Go does but for five characters, which are in strings
    /// only.
    #[test]
    fn options_are_the_bytes_go_writes(options in options()) {
        let json = options.to_json();
        let map: BTreeMap<String, String> = serde_json::from_str(&json).unwrap();
        let go = ['<', '>', '&', '\u{2028}', '\u{2029}'].into_iter().fold(
            serde_json::to_string(&map).unwrap(),
            |json, c| json.replace(c, &format!("\\u{:04x}", u32::from(c))),
        );
        prop_assert_eq!(json, go);
    }

    #[test]
    fn calls_survive_the_wire(call in call()) {
        let arguments = call.to_arguments();
        let verb = Verb::parse(&arguments[0]);
        prop_assert_eq!(verb, Some(call.verb()));
        prop_assert_eq!(Call::parse(call.verb(), &arguments[1..]), Ok(call));
    }

    #[test]
    fn replies_survive_the_wire_on_one_line(reply in reply()) {
        let line = reply.to_line();
        prop_assert!(line.find('\n') == Some(line.len() - 1) && !line.contains('\r'), "{:?}", line);
        prop_assert_eq!(DriverStatus::parse(line.as_bytes()), Ok(understood(reply)));
    }

    #[test]
    fn a_reply_cut_anywhere_is_refused(reply in reply(), cut in any::<prop::sample::Index>()) {
        let line = reply.to_line();
        let cut = cut.index(line.len() - 1);
        prop_assert!(DriverStatus::parse(&line.as_bytes()[..cut]).is_err());
    }

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in json_soup(), more in vec(json_soup(), 0..5)) {
        let _ = Options::parse(OsStr::from_bytes(&bytes));
        let _ = DriverStatus::parse(&bytes);
        let arguments: Vec<_> = std::iter::once(bytes).chain(more).map(OsString::from_vec).collect();
        for verb in Verb::ALL {
            let _ = Call::parse(verb, &arguments);
        }
    }

    /// Where Go and `serde_json` agree, so must we: on all text without surrogates, huge numbers
    /// and bad UTF-8.
    #[test]
    fn plain_json_is_read_as_others_read_it(bytes in json_soup()) {
        let text = String::from_utf8_lossy(&bytes).replace("\\u", "").replace("e+", "");
        let theirs = serde_json::from_str::<serde_json::Value>(&text).is_ok();
        let ours = match DriverStatus::parse(text.as_bytes()) {
            Ok(_) => true,
            Err(error) => error.to_string().starts_with("json: cannot unmarshal"),
        };
        prop_assert_eq!(ours, theirs, "{:?}", text);
    }

    #[test]
    fn no_error_repeats_a_secret(noise in json_soup(), verb in prop::sample::select(Verb::ALL.to_vec())) {
        let noise = String::from_utf8_lossy(&noise);
        let json = OsString::from(format!("{{\"kubernetes.io/secret/k\":\"hunter2{noise}"));
        for arguments in [vec![json.clone()], vec![json.clone(), json.clone()], vec!["/a".into(), json]] {
            if let Err(failure) = Call::parse(verb, &arguments) {
                prop_assert!(!failure.message().contains("hunter2"), "{}", failure);
            }
        }
    }
}

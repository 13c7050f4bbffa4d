//! The readers of `flexvold`; `tests/csi/corpus.rs` gives them the committed inputs. Their names
//! begin with `csi_`.

use flexvol_cluster::csi::codes;
use flexvol_cluster::csi::controller;
use flexvol_cluster::csi::growth;
use flexvol_cluster::csi::habits::Habits;
use flexvol_cluster::csi::options::Ground;
use flexvol_cluster::csi::registration;
use flexvol_cluster::csi::request::{At, Attach, Publish, Stage, node, text};
use flexvol_cluster::csi::running;
use flexvol_cluster::wire::csi;
use flexvol_cluster::wire::registration::RegistrationStatus;
use flexvol_kubelet::{End, Exchange, Run, Verdict};
use flexvol_model::csi_journal::Entry;
use flexvol_protocol::{Call, Options, Verb};
use prost::Message;
use std::ffi::OsString;
use tonic::{Code, Status};

/// The longest message that a caller is answered.
const MESSAGE_LIMIT: usize = 1024;

/// No argument of a program may be longer.
const ARGUMENT_LIMIT: usize = 128 << 10;

/// What reads foreign bytes.
pub type Reader = fn(&[u8]);

/// All of them, by the names of their targets and corpora.
pub const READERS: &[(&str, Reader)] = &[
    ("csi_request", any_request),
    ("csi_reply", reply),
    ("csi_journal", journal),
    ("csi_registration", registered),
];

/// The first byte says which request the rest is.
fn any_request(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 10 {
        0 => decoded(bytes, publish),
        1 => decoded(bytes, stage),
        2 => decoded(bytes, attach),
        3 => decoded(bytes, |request: csi::NodeUnpublishVolumeRequest| {
            judged(At::parse(request.volume_id, "target_path", &request.target_path));
        }),
        4 => decoded(bytes, |request: csi::NodeUnstageVolumeRequest| {
            judged(At::parse(request.volume_id, "staging_target_path", &request.staging_target_path));
        }),
        5 => decoded(bytes, |request: csi::NodeGetVolumeStatsRequest| {
            judged(At::find(request.volume_id, &request.volume_path));
        }),
        6 => decoded(bytes, |request: csi::NodeExpandVolumeRequest| {
            judged(At::find(request.volume_id, &request.volume_path));
            judged(growth::size(request.capacity_range));
        }),
        7 => decoded(bytes, |request: csi::CreateVolumeRequest| create(request)),
        8 => decoded(bytes, |request: csi::ValidateVolumeCapabilitiesRequest| {
            judged(controller::validate(request));
        }),
        _ => decoded(bytes, |request: csi::ControllerUnpublishVolumeRequest| {
            judged(text("volume_id", request.volume_id));
            judged(node(request.node_id));
        }),
    }
}

fn decoded<T: Message + Default>(bytes: &[u8], read: impl FnOnce(T)) {
    if let Ok(request) = T::decode(bytes) {
        read(request);
    }
}

/// What was accepted; a refusal is the caller's fault, in one bounded line.
fn judged<T>(result: Result<T, Status>) -> Option<T> {
    let refused = |status: Status| {
        let fault = [Code::InvalidArgument, Code::NotFound, Code::OutOfRange].contains(&status.code());
        assert!(fault, "{status:?}");
        is_one_line(status.message());
    };
    result.map_err(refused).ok()
}

fn is_one_line(message: &str) {
    assert!(message.len() <= MESSAGE_LIMIT && !message.chars().any(char::is_control), "{message:?}");
}

/// Whatever is asked for: a call that a driver parses back, in arguments that exec takes.
pub fn is_callable(call: &Call) {
    let arguments: Vec<OsString> = call.to_arguments();
    for argument in &arguments {
        assert!(argument.len() < ARGUMENT_LIMIT && !argument.as_encoded_bytes().contains(&0));
    }
    let verb = Verb::parse(&arguments[0]).expect("a verb");
    assert!(Call::parse(verb, &arguments[1..]).is_ok(), "{call:?}");
}

/// No option of a tenant's is one that only kubelet may set.
fn is_own(options: &Options) {
    assert!(options.own.keys().all(|key| !key.starts_with("kubernetes.io/")), "{options:?}");
}

/// `NodePublishVolume`.
pub fn publish(request: csi::NodePublishVolumeRequest) {
    let Some(request) = judged(Publish::parse(request)) else { return };
    if let Some(options) = judged(Ground::default().of_mount(&request)) {
        is_own(&options);
        is_callable(&Call::Mount { target: request.target, device: None, options });
    }
}

/// `NodeStageVolume`.
pub fn stage(request: csi::NodeStageVolumeRequest) {
    let Some(request) = judged(Stage::parse(request)) else { return };
    if let Some(options) = judged(Ground::default().of_stage(&request)) {
        assert!(options.secrets.is_empty());
        is_own(&options);
        let device = request.device.unwrap_or_default();
        is_callable(&Call::MountDevice { target: request.staging, device, options });
    }
}

/// `ControllerPublishVolume`.
pub fn attach(request: csi::ControllerPublishVolumeRequest) {
    let Some(request) = judged(Attach::parse(request)) else { return };
    if let Some(options) = judged(Ground::default().of_attach(&request)) {
        is_own(&options);
        is_callable(&Call::Attach { options, node: request.node });
    }
}

fn create(request: csi::CreateVolumeRequest) {
    let Some(volume) = judged(controller::create(request)).and_then(|answer| answer.volume) else { return };
    assert!(volume.volume_id.len() <= 128, "{}", volume.volume_id);
    assert!(!volume.volume_context.keys().any(|key| key.starts_with("csi.storage.k8s.io/")));
}

/// What a driver prints, behind a byte that says how it ended.
fn reply(bytes: &[u8]) {
    let Some((end, output)) = bytes.split_first() else { return };
    let end = if *end < 128 { End::Exited((*end).into()) } else { End::Signaled((*end - 127).into()) };
    let run = Run { end, output: output.to_vec(), ..Run::nothing() };
    for verb in ["init", "mount"] {
        let verdict = Verdict::of(verb, &run);
        let exchange = Exchange { arguments: Vec::new(), run: Some(run.clone()), verdict };
        let status = codes::of_exchange(&exchange, &Habits::default());
        assert_eq!(status.code() == Code::Ok, exchange.verdict.is_success(), "{status:?}");
        is_one_line(status.message());
        if let Err(failure) = exchange.capabilities() {
            assert!(!failure.message().is_empty());
        }
    }
}

/// What was left on disk: of a volume, or of a process that ran.
fn journal(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(entry) = Entry::parse(text) {
        let again = serde_json::to_string(&entry).expect("JSON");
        assert_eq!(Entry::parse(&again).expect("what was written"), entry);
        let _ = Options::parse(&entry.options);
    }
    if let Some((call, _)) = running::read(text) {
        assert!(call.keys.len() <= text.len());
    }
}

/// What kubelet says about a registration.
fn registered(bytes: &[u8]) {
    decoded(bytes, |status: RegistrationStatus| is_one_line(&registration::reason(&status)));
}

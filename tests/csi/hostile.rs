//! Requests of any shape: decoded, parsed, and made options of. Nothing panics, and what is
//! accepted is what a driver may be called with. `PROPTEST_CASES=1000000` goes on for minutes.

use super::readers;
use flexvol_cluster::csi::handle::{Handle, of_name};
use flexvol_cluster::csi::request::At;
use flexvol_cluster::wire::csi;
use flexvol_cluster::wire::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use flexvol_protocol::{Call, Options};
use proptest::collection::{hash_map, vec};
use proptest::prelude::*;
use prost::Message as _;

/// What someone would try, and anything.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[a-z0-9.-]{1,20}",
        Just("fx1#pv-1".to_owned()),
        "fx1[#~].{0,20}",
        "csi-[0-9a-f]{64}",
        "/[a-z/.]{0,30}",
        Just("/k/pods/1/volumes/kubernetes.io~csi/data/mount".to_owned()),
        "(csi.storage.k8s.io|kubernetes.io|a.k8s.io|KUBERNETES.IO)/[a-z.]{0,12}",
        "\\PC{0,20}",
        "[\\x00-\\x1f\"'\\\\$`,;=]{0,6}",
        any::<String>(),
        (1_usize..200_000).prop_map(|length| "x".repeat(length)),
    ]
}

fn capability() -> impl Strategy<Value = Option<csi::VolumeCapability>> {
    let mount = (text(), vec(text(), 0..3), text()).prop_map(|(fs_type, mount_flags, volume_mount_group)| {
        AccessType::Mount(MountVolume { fs_type, mount_flags, volume_mount_group })
    });
    let plain = Just(AccessType::Mount(MountVolume::default()));
    let kind = prop_oneof![Just(AccessType::Block(BlockVolume {})), plain, mount];
    let mode = prop_oneof![0..8_i32, any::<i32>()].prop_map(|mode| AccessMode { mode });
    proptest::option::weighted(
        0.9,
        (proptest::option::weighted(0.9, kind), proptest::option::weighted(0.9, mode))
            .prop_map(|(access_type, access_mode)| csi::VolumeCapability { access_type, access_mode }),
    )
}

/// Anything, with some of it as it should be: so that each part is reached.
fn publish() -> impl Strategy<Value = csi::NodePublishVolumeRequest> {
    (anything(), any::<[bool; 6]>()).prop_map(|(request, [id, path, able, secrets, context, device])| {
        let good = super::node::publish_at("/k/pods/1/volumes/kubernetes.io~csi/data/mount".as_ref());
        csi::NodePublishVolumeRequest {
            volume_id: if id { good.volume_id } else { request.volume_id },
            target_path: if path { good.target_path.clone() } else { request.target_path },
            staging_target_path: if path { good.target_path } else { request.staging_target_path },
            volume_capability: if able { good.volume_capability } else { request.volume_capability },
            secrets: if secrets { good.secrets } else { request.secrets },
            volume_context: if context { good.volume_context } else { request.volume_context },
            publish_context: if device { good.publish_context } else { request.publish_context },
            readonly: request.readonly,
        }
    })
}

fn anything() -> impl Strategy<Value = csi::NodePublishVolumeRequest> {
    let map = || hash_map(text(), text(), 0..4);
    (text(), map(), text(), text(), capability(), any::<bool>(), map(), map()).prop_map(
        |(
            volume_id,
            publish_context,
            staging,
            target_path,
            volume_capability,
            readonly,
            secrets,
            context,
        )| {
            csi::NodePublishVolumeRequest {
                volume_id,
                publish_context,
                staging_target_path: staging,
                target_path,
                volume_capability,
                readonly,
                secrets,
                volume_context: context,
            }
        },
    )
}

fn check(request: csi::NodePublishVolumeRequest) {
    readers::stage(csi::NodeStageVolumeRequest {
        volume_id: request.volume_id.clone(),
        staging_target_path: request.staging_target_path.clone(),
        publish_context: request.publish_context.clone(),
        volume_capability: request.volume_capability.clone(),
        secrets: request.secrets.clone(),
        volume_context: request.volume_context.clone(),
    });
    readers::attach(csi::ControllerPublishVolumeRequest {
        volume_id: request.volume_id.clone(),
        node_id: request.target_path.clone(),
        volume_capability: request.volume_capability.clone(),
        volume_context: request.volume_context.clone(),
        ..csi::ControllerPublishVolumeRequest::default()
    });
    let _ = At::parse(request.volume_id.clone(), "target_path", &request.target_path);
    let _ = At::find(request.volume_id.clone(), &request.target_path);
    readers::publish(request);
}

proptest! {
    #[test]
    fn no_request_is_more_than_a_call(request in publish()) {
        check(request);
    }

    #[test]
    fn no_bytes_are_more_than_a_request(bytes in vec(any::<u8>(), 0..400), at in any::<prop::sample::Index>(), request in publish()) {
        for bytes in [bytes.clone(), spoiled(request.encode_to_vec(), &bytes, at)] {
            if let Ok(request) = csi::NodePublishVolumeRequest::decode(&*bytes) {
                check(request);
            }
        }
    }

    #[test]
    fn every_name_has_a_handle_and_every_handle_a_plain_name(name in any::<String>()) {
        let Some(Handle::Persistent(found)) = Handle::parse(&of_name(&name)) else { panic!("{name:?}") };
        prop_assert!(found == name || found.starts_with("fx1-"));
        let call = Call::Detach { volume: found, node: "n".into() };
        readers::is_callable(&call);
        let options = Options { volume_name: Some(name), ..Options::default() };
        prop_assert!(Options::parse(options.to_json()).is_ok());
    }
}

/// A good message with a few bytes of another in it.
fn spoiled(mut message: Vec<u8>, bytes: &[u8], at: prop::sample::Index) -> Vec<u8> {
    if !message.is_empty() {
        let at = at.index(message.len());
        message.splice(at..at, bytes.iter().take(8).copied());
    }
    message
}

//! What tenants, broken callers and broken drivers try.

use super::agent::Nodes;
use super::node::{Driver, Node, STRICT, capability, publish_at, refused};
use flexvol_cluster::wire::csi;
use flexvol_cluster::wire::csi::volume_capability::access_mode::Mode;
use std::os::unix::fs::symlink;
use tonic::Code;

const CANARY: &str = "canary-3f9a-s3cret";

fn strict(test: &str) -> Option<Node> {
    Node::serving(test, "example.com/strict", &Driver::Script(STRICT))
}

type Change = Box<dyn Fn(&mut csi::NodePublishVolumeRequest)>;

/// Nothing was made for a request that is refused.
fn untouched(node: &Node) {
    assert_eq!((node.called("mount"), node.called("unmount")), (0, 0), "{}", node.log());
    assert!(!node.target("1").exists());
    node.is_clean();
}

#[test]
fn a_bad_request_touches_nothing() {
    let Some(node) = strict("a_bad_request") else { return };
    let context = |key: &str, value: &str| {
        let (key, value) = (key.to_owned(), value.to_owned());
        Box::new(move |it: &mut csi::NodePublishVolumeRequest| {
            drop(it.volume_context.insert(key.clone(), value.clone()));
        }) as Change
    };
    let changes: Vec<Change> = vec![
        Box::new(|it| it.volume_id.clear()),
        Box::new(|it| it.target_path.clear()),
        Box::new(|it| it.volume_capability = None),
        Box::new(|it| it.target_path.push_str("/../../../../../etc")),
        Box::new(|it| it.target_path = "relative".into()),
        Box::new(|it| it.target_path = "/".into()),
        Box::new(|it| it.target_path.push('\0')),
        Box::new(|it| it.target_path.push_str(&"/a".repeat(4000))),
        Box::new(|it| it.volume_capability = Some(capability(Mode::Unknown, &[]))),
        Box::new(|it| it.volume_capability = Some(capability(Mode::SingleNodeWriter, &["a\nb"]))),
        Box::new(|it| drop(it.secrets.insert("../k".into(), "x".into()))),
        context("kubernetes.io/secret/k", "eA=="),
        context("kubernetes.io/readwrite", "rw"),
        context("a", &"x".repeat(200 << 10)),
    ];
    for change in changes {
        assert_eq!(refused(node.publish("1", |it| change(it))), Code::InvalidArgument, "{}", node.said());
        untouched(&node);
    }
    for id in ["vol-1", "fx1#../../etc", "fx1#-rf", "csi-0", &"x".repeat(900)] {
        assert_eq!(refused(node.publish("1", |it| it.volume_id = id.into())), Code::NotFound, "{id}");
        untouched(&node);
    }
}

/// A daemon's memory has Secrets in it, and so has that of what it starts.
#[test]
fn no_daemon_and_no_driver_leaves_a_core() {
    let body = STRICT.replace("init) ", "init) cat /proc/self/limits >\"$here/limits\"; ");
    let test = "no_daemon_and_no_driver";
    let Some(node) = Node::serving(test, "example.com/strict", &Driver::Script(&body)) else { return };
    let Some(nodes) = Nodes::new(test) else { return };
    let agent = nodes.start("a");
    let of = |child: &std::process::Child| format!("/proc/{}/limits", child.id()).into();
    let driver = node.driver().with_file_name("limits");
    for limits in [of(node.server()), of(agent.child.as_ref().unwrap()), driver] {
        let said = std::fs::read_to_string::<std::path::PathBuf>(limits).unwrap();
        let core = said.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().skip(4).collect::<Vec<_>>(), ["1", "1", "bytes"], "{core}");
    }
}

#[test]
fn a_symlink_is_never_followed() {
    let Some(node) = strict("a_symlink") else { return };
    let victim = node.home.path().join("victim");
    std::fs::create_dir_all(victim.join("mount")).unwrap();
    symlink(&victim, node.target("1")).unwrap();
    assert_eq!(refused(node.publish("1", |_| ())), Code::InvalidArgument);
    assert_eq!(refused(node.unpublish("1")), Code::InvalidArgument);
    std::fs::remove_file(node.target("1")).unwrap();
    // And above the target.
    let above = node.target("1").parent().unwrap().to_owned();
    std::fs::remove_dir(&above).unwrap();
    symlink(&victim, &above).unwrap();
    let publish = publish_at(&above.join("mount"));
    assert_eq!(
        refused(node.node(async move |mut it| it.node_publish_volume(publish).await)),
        Code::InvalidArgument
    );
    let unpublish = csi::NodeUnpublishVolumeRequest {
        volume_id: "fx1#pv-1".into(),
        target_path: above.join("mount").display().to_string(),
    };
    assert_eq!(
        refused(node.node(async move |mut it| it.node_unpublish_volume(unpublish).await)),
        Code::InvalidArgument
    );
    assert!(victim.join("mount").exists() && node.called("mount") == 0 && node.called("unmount") == 0);
}

#[test]
fn text_that_is_not_utf_8_is_the_callers_fault() {
    let Some(node) = strict("not_utf_8") else { return };
    let status = node.block_on(async {
        let mut client = tonic::client::Grpc::new(node.channel().await);
        client.ready().await.unwrap();
        let path = "/csi.v1.Node/NodePublishVolume".parse().unwrap();
        // Field 1, two bytes.
        client.unary(tonic::Request::new(vec![0x0a, 0x02, 0xff, 0xfe]), path, Raw).await.unwrap_err()
    });
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    untouched(&node);
}

#[test]
fn another_volume_s_directory_is_not_given_away() {
    let Some(node) = strict("another_volume") else { return };
    node.publish("1", |_| ()).unwrap();
    assert_eq!(refused(node.publish("1", |it| it.volume_id = "fx1#other".into())), Code::FailedPrecondition);
    node.unpublish("1").unwrap();
    node.is_clean();
}

#[test]
fn a_driver_that_talks_without_end_is_cut_off() {
    let body = STRICT.replace("mount) is", "mount) yes; is");
    let Some(node) = Node::serving("talks_without_end", "example.com/strict", &Driver::Script(&body)) else {
        return;
    };
    let status = node.publish("1", |_| ()).unwrap_err();
    assert!(status.code() == Code::Internal && status.message().contains("output without end"), "{status}");
    node.is_clean();
}

#[test]
fn a_driver_that_answers_nonsense_is_not_believed() {
    for (answer, code) in [
        ("exit 0", Code::Internal),
        ("echo nonsense; exit 0", Code::Internal),
        ("printf '{\"status\":\"Success\"}'; exit 3", Code::Internal),
        ("printf '{\"status\":\"Success\"}{}'; exit 0", Code::Internal),
        ("printf '{\"status\":\"Success\"}'; exit 0", Code::Internal),
        ("kill -9 $$", Code::Internal),
        ("printf '{\"status\":\"Not supported\"}'; exit 0", Code::Unimplemented),
        ("printf '\\377\\376'; exit 0", Code::Internal),
    ] {
        let body = STRICT.replace("mount) is", &format!("mount) {answer}; is"));
        let Some(node) = Node::serving("answers_nonsense", "example.com/strict", &Driver::Script(&body))
        else {
            return;
        };
        assert_eq!(refused(node.publish("1", |_| ())), code, "{answer}");
        node.is_clean();
    }
}

/// The secrets of a request reach the driver's options, and nothing else.
#[test]
fn a_secret_goes_to_the_driver_alone() {
    let body = STRICT.replace(
        "mount) is",
        "mount) case $2 in *pods/2*) fail \"the password 'canary-3f9a-s3cret' or Y2FuYXJ5LTNmOWEtczNjcmV0 is wrong\";; esac; is",
    );
    let Some(mut node) = Node::new("a_secret", "example.com/strict", &Driver::Script(&body)) else { return };
    node.start(&["--log-level", "debug"]);
    let secret =
        |it: &mut csi::NodePublishVolumeRequest| drop(it.secrets.insert("password".into(), CANARY.into()));
    node.publish("1", secret).unwrap();
    let status = node.publish("2", secret).unwrap_err();
    let encoded = "Y2FuYXJ5LTNmOWEtczNjcmV0";
    assert!(
        node.log().contains(&format!(r#""kubernetes.io/secret/password":"{encoded}""#)),
        "{}",
        node.log()
    );
    let mut seen = vec![node.said(), status.message().to_owned(), format!("{status:?}")];
    for file in walk(&node.state()) {
        seen.push(std::fs::read_to_string(file).unwrap());
    }
    for argument in ["cmdline", "environ"] {
        seen.push(
            String::from_utf8_lossy(
                &std::fs::read(format!("/proc/{}/{argument}", node.server().id())).unwrap(),
            )
            .into_owned(),
        );
    }
    for text in seen {
        assert!(!text.contains(CANARY) && !text.contains(encoded) && !text.contains("s3cret"), "{text}");
    }
    assert!(status.message().contains("***"), "{status}");
    node.unpublish("1").unwrap();
    node.is_clean();
}

fn walk(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// Bytes as they are.
#[derive(Clone, Default)]
struct Raw;

impl tonic::codec::Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl tonic::codec::Encoder for Raw {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn encode(
        &mut self,
        item: Vec<u8>,
        buffer: &mut tonic::codec::EncodeBuf<'_>,
    ) -> Result<(), tonic::Status> {
        prost::bytes::BufMut::put_slice(buffer, &item);
        Ok(())
    }
}

impl tonic::codec::Decoder for Raw {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn decode(&mut self, buffer: &mut tonic::codec::DecodeBuf<'_>) -> Result<Option<Vec<u8>>, tonic::Status> {
        use prost::bytes::Buf as _;
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        Ok(Some(bytes.to_vec()))
    }
}

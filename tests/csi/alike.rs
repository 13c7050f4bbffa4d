//! The same volume by FlexVolume, as kubelet brings it to a pod, and by CSI through the same
//! driver.

use super::node::{Driver, Node, capability};
use flexvol_cluster::wire::csi;
use flexvol_cluster::wire::csi::volume_capability::AccessType;
use flexvol_cluster::wire::csi::volume_capability::access_mode::Mode;
use flexvol_kubelet::by_kubelet::change_group;
use flexvol_kubelet::{Caller, PodVolume};
use flexvol_protocol::{Access, DriverName, FsGroup, FsGroupSpelling, Options};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// What a pod can see of a volume.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    owner: (u32, u32),
    mode: u32,
    flags: String,
    file_system: String,
    files: Vec<(String, u32, u32)>,
}

fn seen(path: &Path) -> Seen {
    let table = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let line = table.lines().rfind(|line| line.split(' ').nth(4) == path.to_str()).unwrap();
    let fields: Vec<_> = line.split(' ').collect();
    let after = fields.iter().position(|field| *field == "-").unwrap();
    let about = path.metadata().unwrap();
    let mut files: Vec<_> = std::fs::read_dir(path)
        .unwrap()
        .map(|entry| {
            let (entry, name) = entry.map(|entry| (entry.metadata().unwrap(), entry.file_name())).unwrap();
            (name.into_string().unwrap(), entry.mode(), entry.gid())
        })
        .collect();
    files.sort();
    Seen {
        owner: (about.uid(), about.gid()),
        mode: about.mode(),
        flags: fields[5].to_owned(),
        file_system: fields[after + 1..].join(" "),
        files,
    }
}

fn pod_volume(node: &Node, own: &[(&str, &str)], access: Access, group: Option<u32>) -> PodVolume {
    PodVolume {
        kubelet_root: node.kubelet(),
        pod_uid: "flex".into(),
        driver: node.name.parse::<DriverName>().unwrap(),
        name: "data".into(),
        options: Options {
            access: Some(access),
            fs_group: group.map(|gid| FsGroup { gid, spelling: FsGroupSpelling::Current }),
            own: own
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect::<BTreeMap<_, _>>(),
            ..Options::default()
        },
        capacity: None,
    }
}

/// Brings it up both ways; what each shows, or why it does not.
fn both(node: &Node, own: &[(&str, &str)], access: Access, group: Option<u32>) -> [Result<Seen, String>; 2] {
    let mut caller = Caller::new(node.driver());
    let capabilities = caller.init().1.unwrap();
    let volume = pod_volume(node, own, access, group);
    let up = volume.set_up(&mut caller, capabilities);
    let flex = match up.failure {
        Some(failure) => Err(failure.message()),
        None => Ok(seen(volume.target().unwrap().as_path())),
    };
    volume.tear_down(&mut caller);
    let mut able = capability(Mode::MultiNodeMultiWriter, &[]);
    if let Some(AccessType::Mount(mount)) = &mut able.access_type {
        // As kubelet sends it: to a driver that says it sees to the group itself.
        let told = group.filter(|_| !capabilities.fs_group);
        mount.volume_mount_group = told.map(|gid| gid.to_string()).unwrap_or_default();
    }
    let publish = |it: &mut csi::NodePublishVolumeRequest| {
        it.volume_capability = Some(able);
        it.readonly = access == Access::ReadOnly;
        it.volume_context = own.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    };
    let published = node.publish("1", publish).map_err(|status| status.message().to_owned()).map(|()| {
        if let Some(gid) = group.filter(|_| capabilities.fs_group && access == Access::ReadWrite) {
            change_group(&node.target("1"), gid).unwrap();
        }
        seen(&node.target("1"))
    });
    node.unpublish("1").unwrap();
    [flex, published]
}

#[test]
fn a_volume_is_the_same_both_ways() {
    let Some(node) = Node::serving("both_ways", "flexvol/tmpfs", &Driver::Ours("{}")) else { return };
    for (own, access, group) in [
        (&[][..], Access::ReadWrite, None),
        (&[("size", "3Mi"), ("mode", "0751"), ("uid", "7"), ("gid", "8")], Access::ReadWrite, None),
        (&[("size", "1Mi")], Access::ReadWrite, Some(2000)),
        (&[("size", "1Mi"), ("mountOptions", "noexec")], Access::ReadOnly, Some(2000)),
    ] {
        let [flex, csi] = both(&node, own, access, group);
        assert!(flex.is_ok(), "{flex:?}");
        assert_eq!(flex, csi, "{own:?}");
    }
    node.is_clean();
}

/// kubelet changes the group of what the driver leaves, in both worlds.
#[test]
fn a_group_that_kubelet_gives_is_the_same() {
    let images = super::node::IMAGES;
    let side_file = format!(r#"{{"policy":{{"bindRoots":["{images}"]}}}}"#);
    let Some(node) = Node::serving("a_group", "flexvol/bind", &Driver::Ours(&side_file)) else { return };
    let source = node.at_home(images);
    std::fs::create_dir(&source).unwrap();
    std::fs::write(Path::new(&source).join("file"), "text").unwrap();
    let [flex, csi] = both(&node, &[("source", &source)], Access::ReadWrite, Some(2000));
    assert!(flex.as_ref().is_ok_and(|seen| seen.files.len() == 1), "{flex:?}");
    assert_eq!(flex, csi);
    node.is_clean();
}

/// The pod's event has the same words.
#[test]
fn a_failure_says_the_same() {
    let Some(node) = Node::serving("says_the_same", "flexvol/tmpfs", &Driver::Ours("{}")) else { return };
    for own in
        [&[("size", "nonsense")][..], &[("mode", "9")], &[("unknown", "x")], &[("mountOptions", "suid")]]
    {
        let [flex, csi] = both(&node, own, Access::ReadWrite, None);
        assert!(
            flex.as_ref().is_err_and(|text| text.starts_with("mount command failed, status: Failure")),
            "{flex:?}"
        );
        assert_eq!(flex, csi);
    }
    node.is_clean();
}

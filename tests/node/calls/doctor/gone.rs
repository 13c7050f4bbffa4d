//! Pods that are gone: what says so, and what does not.

use super::{GOOD, Sick, tmpfs};
use crate::support::fuse::Silent;
use crate::support::namespace::mounts_at;
use nix::mount::MsFlags;
use std::fs;
use std::path::Path;

/// Control groups of these pods, and of no others.
fn control_groups(pods: &[&str]) {
    let root = Path::new("/sys/fs/cgroup");
    tmpfs(root, "size=1m", MsFlags::empty());
    for pod in pods {
        fs::create_dir_all(root.join(format!("systemd/kubepods/besteffort/pod{pod}"))).unwrap();
    }
}

/// As if nothing had been written there for an hour.
fn age(directory: &Path) {
    let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_hours(1);
    fs::File::open(directory).unwrap().set_modified(hour_ago).unwrap();
}

#[test]
fn the_directory_of_a_pod_that_is_gone() {
    let Some(node) = Sick::new("doctor::the_directory_of_a_pod_that_is_gone") else { return };
    node.site.driver("fstab~cifs", GOOD);
    let (mounted, bare) = (node.target("fstab~cifs", "data"), node.target("fstab~cifs", "other"));
    tmpfs(&mounted, "size=1m", MsFlags::empty());
    control_groups(&["8"]);
    assert!(!node.has("pod-orphaned"), "it may only just be starting");
    age(&node.site.path("kubelet/pods/7"));
    assert_eq!(node.first("is gone (", "unmount"), "pod-orphaned");
    fs::write(bare.join("precious"), "x").unwrap();
    let failed = node.doctor(&["--repair=now"]);
    assert!(failed.out.contains("move it away"), "{}", failed.out);
    assert_eq!(fs::read_to_string(bare.join("precious")).unwrap(), "x");
    assert_eq!(mounts_at(&mounted).len(), 0);
    fs::remove_file(bare.join("precious")).unwrap();
    age(&node.site.path("kubelet/pods/7"));
    node.doctor(&["--repair=now"]);
    assert!(!node.site.path("kubelet/pods/7").exists());
}

/// The name of its directory begins with the name of another pod that is gone.
#[test]
fn the_volume_of_a_pod_that_runs_is_not_left_out() {
    let Some(node) = Sick::new("doctor::gone::the_volume_of_a_pod_that_runs_is_not_left_out") else { return };
    node.target("fstab~cifs", "data");
    let running = node.site.path("kubelet/pods/70/volumes/fstab~cifs/data");
    fs::create_dir_all(&running).unwrap();
    let mut dead = Silent::mount(&running);
    dead.end();
    control_groups(&["8", "70"]);
    age(&node.site.path("kubelet/pods/7"));
    assert!(node.has("pod-orphaned") && node.has("volume-dead"));
}

/// A tenant writes in kubelet's log: a volume's options are repeated there.
#[test]
fn a_line_of_a_log_repairs_nothing() {
    let Some(node) = Sick::new("doctor::a_line_of_a_log_repairs_nothing") else { return };
    node.site.driver("fstab~cifs", GOOD);
    let target = node.target("fstab~cifs", "data");
    tmpfs(&target, "size=1m", MsFlags::empty());
    node.site.file(
        "kubelet.log",
        "E1 kubelet_volumes.go:245] err=\"orphaned pod \\\"7\\\" found, but volume paths are still present on disk\"\n",
    );
    age(&node.site.path("kubelet/pods/7"));
    // Without control groups of pods nothing is known of them; then it is known that the pod runs.
    for pods in [&[][..], &["7"]] {
        control_groups(pods);
        node.doctor(&["--repair=now"]);
        assert!(!node.has("pod-orphaned"), "{pods:?}");
        assert_eq!(mounts_at(&target).len(), 1, "{pods:?}");
    }
}

/// `flexvold` has a tree like kubelet's, of pods that have no control group.
#[test]
fn what_another_program_of_ours_keeps_is_its_own() {
    let Some(node) = Sick::new("doctor::what_another_program_of_ours_keeps_is_its_own") else { return };
    control_groups(&["8"]);
    let pod = node.site.path("state/csi/example~good/kubelet/pods/7");
    let volume = |name: &str| {
        let target = pod.join("volumes/example~good").join(name);
        fs::create_dir_all(&target).unwrap();
        target
    };
    let (live, dead) = (volume("live"), volume("dead"));
    tmpfs(&live, "size=1m", MsFlags::empty());
    let mut server = Silent::mount(&dead);
    server.end();
    age(&pod);
    let words = ["doctor", "--plugin-dir", "plugins", "--kubelet-log", "kubelet.log", "--check", "volumes"];
    let said = node.site.flexvol(&[&words[..], &["--repair=now"]].concat());
    assert!(said.out.contains("is dead"), "{}", said.out);
    assert!(!said.out.contains("repaired") && !said.out.contains("pod-orphaned"), "{}", said.out);
    assert_eq!((mounts_at(&live).len(), mounts_at(&dead).len()), (1, 1));
}

/// A publish that was cut short with `flexvold`, of a pod that was deleted then: kubelet never
/// unpublishes it, and logs its directory every two seconds.
#[test]
fn what_kubelet_forgot_to_unpublish_is_named_and_cleared() {
    let Some(node) = Sick::new("doctor::what_kubelet_forgot_to_unpublish") else { return };
    let served = Path::new("/var/lib/flexvol/csi");
    fs::create_dir_all("/var/lib/flexvol").unwrap();
    tmpfs(Path::new("/var/lib/flexvol"), "size=1m", MsFlags::empty());
    fs::create_dir_all(served.join("tmpfs.flexvol.example")).unwrap();
    control_groups(&["8"]);
    let pod = node.site.path("kubelet/pods/7");
    let volume = |driver: &str, name: &str| {
        let volume = pod.join("volumes/kubernetes.io~csi").join(name);
        fs::create_dir_all(volume.join("mount")).unwrap();
        fs::write(volume.join("vol_data.json"), format!(r#"{{"driverName":"{driver}"}}"#)).unwrap();
        volume
    };
    let ours = volume("tmpfs.flexvol.example", "data");
    age(&pod);
    assert_eq!(node.first("data of tmpfs.flexvol.example", "restart kubelet"), "pod-orphaned");
    // It is mounted meanwhile: whoever has mounted it ends that.
    tmpfs(&ours.join("mount"), "size=1m", MsFlags::empty());
    assert!(!node.has("pod-orphaned"));
    node.doctor(&["--repair=now"]);
    assert!(ours.join("vol_data.json").exists());
    super::unmount(&ours.join("mount"));
    // Another driver's is its own, a file in the way is nobody's to remove.
    let other = volume("ebs.csi.example", "other");
    fs::write(ours.join("mount/precious"), "x").unwrap();
    age(&pod);
    let failed = node.doctor(&["--repair=now"]);
    assert!(failed.out.contains("move it away") && ours.join("vol_data.json").exists(), "{}", failed.out);
    fs::remove_file(ours.join("mount/precious")).unwrap();
    age(&pod);
    node.doctor(&["--repair=now"]);
    assert!(!ours.exists() && other.join("vol_data.json").exists());
    fs::remove_dir_all(other).unwrap();
    let ours = volume("tmpfs.flexvol.example", "data");
    age(&pod);
    node.doctor(&["--repair=now"]);
    assert!(!ours.exists() && !pod.exists());
}

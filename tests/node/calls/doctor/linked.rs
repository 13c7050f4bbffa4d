//! kubelet's directory is a symlink: the mount table has other paths than kubelet.

use super::*;

/// The files of a daemon that serves a volume are named after the path that kubelet gave.
#[test]
fn what_serves_a_volume_is_no_leftover() {
    let Some(node) = Sick::new("doctor::linked::what_serves_a_volume_is_no_leftover") else { return };
    node.site.driver("example~good", GOOD);
    fs::rename(node.site.path("kubelet"), node.site.path("data")).unwrap();
    symlink("data", node.site.path("kubelet")).unwrap();
    record::prepare().unwrap();
    let homes = ["served", "left"].map(|name| {
        let target = node.target("example~good", name);
        let text = serde_json::json!({"driver": "tmpfs", "target": target, "asked": "", "since": 1});
        serde_json::from_value::<record::Record>(text).unwrap().write().unwrap();
        let home = home_of(&target);
        fs::create_dir_all(&home).unwrap();
        let long_ago = std::time::SystemTime::now() - std::time::Duration::from_hours(1);
        fs::File::open(&home).unwrap().set_modified(long_ago).unwrap();
        home
    });
    tmpfs(&node.target("example~good", "served"), "size=1m", MsFlags::empty());
    let done = node.doctor(&["--repair=now", "--check", "leftovers"]).good().out;
    assert_eq!(homes.map(|home| home.exists()), [true, false], "{done}");
}

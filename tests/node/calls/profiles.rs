//! Who chooses a dialect: the driver's directory and its side file, in every verb alike; and what
//! the dialects that attach do on a node.

use crate::support::Plugin;
use crate::support::namespace::enter;
use crate::support::wording::wording_of;

/// The one line a driver in this directory answers.
fn answer(directory: &str, side_file: Option<&str>, arguments: &[&str]) -> String {
    let name = directory.rsplit('~').next().unwrap();
    let run = Plugin::new(directory, name, side_file).call(arguments.iter().copied()).run();
    String::from_utf8(run.output).unwrap()
}

#[test]
fn a_slip_is_refused_in_the_words_of_the_volume() {
    let said = answer("fstab~cifs", None, &["mount", "/mnt", r#"{"networkPaht":"//h/s"}"#]);
    assert!(said.contains(r#"option \"networkPath\" is missing"#), "{said}");
    assert!(said.contains(r#"option \"networkPaht\" has no effect"#), "{said}");
    assert!(said.contains(r#"did you mean \"networkPath\"?"#), "{said}");
}

const VOLUME: &str =
    r#"{"kubernetes.io/pod.namespace":"ns","kubernetes.io/pvOrVolumeName":"v","volume-uid":"33"}"#;

#[test]
fn the_directory_chooses_in_init_and_mount_alike() {
    // If we are wrong, a directory of the node is mounted.
    if !enter("profiles::the_directory_chooses_in_init_and_mount_alike") {
        return;
    }
    let target = tempfile::tempdir().unwrap();
    let mount = ["mount", target.path().to_str().unwrap(), VOLUME];
    let refused = answer("ramax.com~local-storage", None, &mount);
    assert!(refused.contains(wording_of("not-below-allowed", ["/srv/local/ns/v"])), "{refused}");
    let asked = answer("acme~data", Some(r#"{"profile":"ramax.com/local-storage"}"#), &mount);
    assert_eq!(asked, refused);
    let own = answer("ramax.com~local-storage", Some(r#"{"profile":"none","driver":"bind"}"#), &mount);
    assert!(own.contains("unknown option"), "{own}");
    for (directory, side_file, attach) in [
        ("kvaps~loop", None, true),
        ("acme~disk", Some(r#"{"profile":"kvaps/loop"}"#), true),
        ("kvaps~loop", Some(r#"{"driver":"image","profile":"none"}"#), false),
        ("acme~image", None, false),
        ("ramax.com~local-storage", None, false),
    ] {
        let init = answer(directory, side_file, &["init"]);
        assert!(init.contains(&format!("\"attach\":{attach}")), "{directory} {side_file:?}: {init}");
        let waited = answer(directory, side_file, &["waitforattach", "", r#"{"file":"/a"}"#]);
        assert_eq!(waited.contains(r#""device":"/a""#), attach, "{directory}: {waited}");
        assert_eq!(waited.contains("Not supported"), !attach, "{directory}: {waited}");
    }
    for (directory, side_file, chown) in [
        ("k8s~nfs", "{}", true),
        ("k8s~nfs", r#"{"fsGroup":false}"#, false),
        ("fstab~cifs", r#"{"fsGroup":false}"#, false),
        ("juliohm~cifs", r#"{"fsGroup":true}"#, true),
        ("acme~nfs", r#"{"fsGroup":true}"#, true),
    ] {
        let init = answer(directory, Some(side_file), &["init"]);
        assert!(init.contains(&format!("\"fsGroup\":{chown}")), "{directory} {side_file}: {init}");
    }
    let wrong = answer("acme~disk", Some(r#"{"profile":"kvaps/lop"}"#), &["init"]);
    assert!(wrong.contains("Failure") && wrong.contains("kvaps/loop"), "{wrong}");
}

/// Else an image would be made on the node's disk, beneath the share that is not there.
#[test]
fn a_share_that_is_not_mounted_is_left_alone() {
    // If we are wrong, an image is mounted.
    if !enter("profiles::a_share_that_is_not_mounted_is_left_alone") {
        return;
    }
    let (target, share) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let target = target.path().to_str().unwrap();
    let mount = |share: &str| {
        let side_file = serde_json::json!({"policy": {"imageRoots": [share]}}).to_string();
        let volume = serde_json::json!({"share": share, "file": "a", "size": "1m"}).to_string();
        answer("kvaps~loop", Some(&side_file), &["mount", target, &volume])
    };
    let refused = mount(share.path().to_str().unwrap());
    assert!(refused.contains(wording_of("nothing-mounted-here", [])), "{refused}");
    assert_eq!(std::fs::read_dir(share.path()).unwrap().count(), 0);
    // Where something is mounted, and nobody can make a file.
    let refused = mount("/proc");
    assert!(
        refused.contains("Failure") && !refused.contains(wording_of("nothing-mounted-here", [])),
        "{refused}"
    );
}

/// All that kubelet and a controller-manager ask of one that is attached, mounted aside.
#[test]
fn the_stages_of_an_attached_volume_do_nothing() {
    if !enter("profiles::the_stages_of_an_attached_volume_do_nothing") {
        return;
    }
    let aside = tempfile::tempdir().unwrap();
    let aside = aside.path().to_str().unwrap();
    let json = r#"{"share":"/srv","file":"a"}"#;
    for (arguments, answered) in [
        (&["attach", json, "node"][..], r#"{"status":"Success","device":"/srv/a"}"#),
        (&["waitforattach", "", json], r#"{"status":"Success","device":"/srv/a"}"#),
        (&["isattached", json, "node"], r#"{"status":"Success","attached":true}"#),
        (&["mountdevice", aside, "/srv/a", json], r#"{"status":"Success"}"#),
        (&["detach", "v", "node"], r#"{"status":"Success"}"#),
        (&["getvolumename", json], r#"{"status":"Not supported"}"#),
    ] {
        assert_eq!(answer("kvaps~loop", None, arguments).trim_end(), answered);
    }
}

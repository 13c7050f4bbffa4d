//! Overlays: the layers stay apart, and what is written goes where it should.

use crate::support::wording::wording_of;
use crate::support::{isolated, mounts_at, sh, skip};
use crate::trust::{CAN_FAIL, FaultInjection, Role, play};
use nix::errno::Errno;
use nix::libc;
use serde_json::json;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

fn read(path: &std::path::Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn what_is_written_to_memory_is_gone() {
    isolated("layers::what_is_written_to_memory_is_gone", |node| {
        node.install("overlay", json!({}));
        // A comma, a colon is the separator, a blank: none ends an option.
        sh("cd /run/srv; mkdir 'a,b c' top; echo below >'a,b c/f'; echo both >'a,b c/g'; echo above >top/g");
        let target = node.volume("overlay", "p");
        let options = json!({"lower": "/run/srv/top:/run/srv/a,b c", "size": "1Mi", "kubernetes.io/mounterArgs.FsGroup": "3000"});
        node.mount("overlay", &target, &options).success();
        assert_eq!((read(&target.join("f")), read(&target.join("g"))), ("below\n".into(), "above\n".into()));
        let root = fs::metadata(&target).unwrap();
        assert_eq!((root.mode() & 0o7777, root.gid()), (0o2777, 3000));
        fs::write(target.join("f"), "changed").unwrap();
        fs::remove_file(target.join("g")).unwrap();
        assert_eq!(fs::write(target.join("much"), vec![1; 2 << 20]).unwrap_err().raw_os_error(), Some(28));
        assert_eq!(read("/run/srv/a,b c/f".as_ref()), "below\n");
        node.mount("overlay", &target, &options).success();
        assert_eq!(mounts_at(&target).len(), 1);
        node.unmount("overlay", &target).success();
        node.mount("overlay", &target, &options).success();
        assert_eq!((read(&target.join("f")), read(&target.join("g"))), ("below\n".into(), "above\n".into()));
        node.unmount("overlay", &target).success();
        node.assert_clean();
    });
}

#[test]
fn what_is_written_to_a_directory_is_kept() {
    isolated("layers::what_is_written_to_a_directory_is_kept", |node| {
        node.install("overlay", json!({}));
        sh("mkdir /run/srv/low /run/srv/mine; echo x >/run/srv/low/f");
        let target = node.volume("overlay", "p");
        let mut options = json!({"lower": "/run/srv/low", "upper": "/run/srv/mine"});
        node.mount("overlay", &target, &options).success();
        fs::write(target.join("new"), "kept").unwrap();
        let other = node.volume("overlay", "q");
        node.mount("overlay", &other, &options).failure(&[wording_of("upper-in-use", ["/run/srv/mine"])]);
        node.unmount("overlay", &target).success();
        assert_eq!(sh("cd /run/srv/mine; ls; cat upper/new"), "upper\nwork\nkept");
        options["kubernetes.io/readwrite"] = "ro".into();
        node.mount("overlay", &target, &options).success();
        assert_eq!(read(&target.join("new")), "kept");
        assert_eq!(fs::write(target.join("x"), "").unwrap_err().raw_os_error(), Some(30));
        node.unmount("overlay", &target).success();
        node.assert_clean();
    });
}

#[test]
fn no_layer_leads_out_of_what_is_allowed() {
    isolated("layers::no_layer_leads_out_of_what_is_allowed", |node| {
        node.install("overlay", json!({}));
        sh("mkdir -p /run/outside /run/srv/low; ln -s /run/outside /run/srv/link; touch /run/srv/file");
        let target = node.volume("overlay", "p");
        for options in [
            json!({"lower": "/run/srv/link"}),
            json!({"lower": "/run/srv/low", "upper": "/run/srv/link"}),
            json!({"lower": "/run/outside"}),
            json!({"lower": "/run/srv/../outside"}),
            json!({"lower": "/run/srv/file"}),
            json!({"lower": "/run/srv/none"}),
        ] {
            node.mount("overlay", &target, &options).failure(&[]);
            assert!(mounts_at(&target).is_empty(), "{options}");
        }
        assert_eq!(sh("ls -A /run/outside"), "");
        node.assert_clean();
    });
}

/// Where the layers are stacked nobody else is: whoever stayed there would mount for nobody, and
/// whoever may not return does not go.
#[test]
fn the_way_back_to_the_node_is_tried_again() {
    const NAME: &str = "layers::the_way_back_to_the_node_is_tried_again";
    if !CAN_FAIL {
        return skip(NAME, "only on x86_64 is known how to let a system call fail");
    }
    isolated(NAME, |node| {
        node.install("overlay", json!({}));
        sh("mkdir /run/srv/low; echo below >/run/srv/low/f");
        let target = node.volume("overlay", "p");
        let options = json!({"lower": "/run/srv/low", "size": "1Mi"});
        let mount = || node.command("overlay", "mount", &target, Some(&options));
        node.call(&mut mount()).success();
        node.unmount("overlay", &target).success();
        let calls = play(mount(), None, false, true).calls;
        node.unmount("overlay", &target).success();
        let worker = calls[&Role::Worker].iter().enumerate();
        let returns: Vec<_> =
            worker.filter(|(_, call)| **call == libc::SYS_setns).map(|(at, _)| at + 1).collect();
        let [asks, back] = returns[..] else { panic!("{returns:?}") };
        let played = play(mount(), Some(FaultInjection::failing(asks, Errno::EPERM)), false, true);
        assert!(played.struck && played.output.contains("CAP_SYS_CHROOT"), "{played:?}");
        assert!(mounts_at(&target).is_empty());
        for error in [Errno::ENOMEM, Errno::EMFILE] {
            let played = play(mount(), Some(FaultInjection::failing(back, error)), false, true);
            assert!(played.struck && played.output.contains("Success"), "{error}: {played:?}");
            assert_eq!((mounts_at(&target).len(), read(&target.join("f"))), (1, "below\n".into()));
            node.unmount("overlay", &target).success();
        }
    });
}

//! Volumes of other drivers, as their users wrote them, in the directories of those drivers.

use crate::node::{Node, PASSWORD, Server, alone, deadlines, mounts_at, sh};
use crate::sshd::base64;
use crate::stores::{STORE, store};
use crate::support::{Plugin, eventually, processes_with, with_loopback};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// A driver in place of another, with what the admin says of its options.
struct Installed {
    plugin: Plugin,
    name: &'static str,
}

impl Installed {
    fn new(name: &'static str, options: &Value) -> Self {
        let side_file = json!({"deadlines": deadlines(30, 40), "options": options});
        let side_file = with_loopback(&side_file);
        let (_, driver) = name.split_once('/').unwrap();
        let plugin = Plugin::new(name.replace('/', "~"), driver, Some(&side_file.to_string()));
        fs::set_permissions(plugin.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { plugin, name }
    }

    #[track_caller]
    fn mount(&self, uid: &str, options: &Value) -> PathBuf {
        let below = format!("pods/{uid}/volumes/{}/v", self.name.replace('/', "~"));
        let target = self.plugin.directory.path().join(below);
        fs::create_dir_all(&target).unwrap();
        self.plugin.call(["mount", target.to_str().unwrap(), &options.to_string()]).run().success();
        target
    }

    #[track_caller]
    fn unmount(&self, target: &Path) {
        self.plugin.call(["unmount", target.to_str().unwrap()]).run().success();
        assert_eq!(mounts_at(target), 0);
        eventually("its daemon ends", || processes_with(target.to_str().unwrap()).is_empty());
    }
}

#[test]
fn sshflex_with_a_password() {
    alone("peers::sshflex_with_a_password", &["sshfs", "rclone"], || {
        let driver = Installed::new("nect.com/sshflex", &json!({"hostKeyCheck": "off"}));
        let node = Node::new("sshfs");
        let directory = node.make("srv");
        let words =
            ["serve", "sftp", &directory, "--addr", "127.0.0.1:2022", "--user", "web", "--pass", PASSWORD];
        let _server = Server::start("rclone", &words, 2022);
        let options = json!({"host": "127.0.0.1", "port": "2022", "path": "/", "user": "web", "encrypt": "false",
            "kubernetes.io/secret/password": base64(PASSWORD), "kubernetes.io/fsType": ""});
        let target = driver.mount("1", &options);
        // The server itself has it on its command line.
        assert!(sh("grep -rlF 'w!o' /run/flexvol || true").is_empty());
        // As the user who logs in, whoever it is in the pod.
        let script = format!("printf x > {0}/file; chmod 0600 {0}/file; cat {0}/file", target.display());
        sh(&format!("setpriv --reuid 1000 --regid 1000 --clear-groups sh -ec '{script}'"));
        eventually("the file on the server", || {
            fs::read_to_string(format!("{directory}/file")).is_ok_and(|text| text == "x")
        });
        driver.unmount(&target);
    });
}

#[test]
fn buckets_of_ibm_and_alibaba() {
    const NAME: &str = "peers::buckets_of_ibm_and_alibaba";
    const KEY: &str = "secret/key+of=store";
    alone(NAME, &["s3fs", "curl"], || {
        let Some(_server) = store(NAME) else { return };
        let ibm = Installed::new("ibm/ibmc-s3fs", &json!({}));
        let mut options = json!({"bucket": "web", "object-store-endpoint": STORE, "object-store-storage-class": "us-east-1",
            "chunk-size-mb": "16", "parallel-count": "5", "multireq-max": "20", "stat-cache-size": "100000",
            "s3fs-fuse-retry-count": "2", "tls-cipher-suite": "default", "debug-level": "warn", "kernel-cache": "true",
            "add-mount-param": "max_stat_cache_size=1000 notsup_compat_dir",
            "kubernetes.io/mounterArgs.FsGroup": "2000", "kubernetes.io/secret/access-key": base64("AKIAEXAMPLE"),
            "kubernetes.io/secret/secret-key": base64(KEY)});
        let target = ibm.mount("1", &options);
        Node::keeps_secret("key+of=store");
        sh(&format!(
            "setpriv --reuid 2000 --regid 2000 --clear-groups sh -c 'echo x > {}/file'",
            target.display()
        ));
        let root = fs::metadata(&target).unwrap();
        assert_eq!((root.uid(), root.gid(), root.mode() & 0o7777), (2000, 2000, 0o775));
        ibm.unmount(&target);
        options["access-mode"] = "ReadOnlyMany".into();
        let target = ibm.mount("2", &options);
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "x\n");
        let refused = fs::write(target.join("other"), "x").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{refused}");
        ibm.unmount(&target);
        // On loopback there are no names for buckets.
        let oss = Installed::new("alicloud/oss", &json!({"pathStyle": "true"}));
        let options = json!({"bucket": "web", "url": STORE, "otherOpts": "-o max_stat_cache_size=0 -o allow_other",
            "akId": "", "akSecret": "", "kubernetes.io/mounterArgs.FsGroup": "3000",
            "kubernetes.io/secret/akId": base64("AKIAEXAMPLE"), "kubernetes.io/secret/akSecret": base64(KEY)});
        let target = oss.mount("1", &options);
        Node::keeps_secret("key+of=store");
        let script = format!("cat {0}/file; echo y > {0}/file", target.display());
        assert_eq!(sh(&format!("setpriv --reuid 1000 --regid 1000 --groups 3000 sh -ec '{script}'")), "x\n");
        oss.unmount(&target);
    });
}

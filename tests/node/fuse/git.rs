//! `git`, against git's own server, a web server with a password, and sshd.

use crate::dropped::Dropping;
use crate::node::{Node, PASSWORD, Server, alone, mount_table, mounts_at, sh};
use crate::sshd::{PORT, Sshd, base64};
use crate::stores::with;
use crate::support::pace::{deadline, slow_seconds};
use crate::support::wording::{wording, wording_of};
use crate::support::{children, eventually, is_alive, processes_with};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::fs::{Mode, OFlags, mkdirat, openat};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

/// What stands on the command lines of git when it is ours.
const CLONING: &str = "flexvol/scratch";

/// A repository with two commits, a tag on the first, a branch `other` on the second, and a hook.
pub(crate) struct Repository {
    directory: String,
    /// Of the commit that no branch or tag leads to.
    hidden: String,
}

impl Repository {
    pub(crate) fn make(node: &Node) -> Self {
        let directory = node.make("srv");
        let hidden = sh(&format!(
            "cd {directory}
            export HOME={directory} GIT_CONFIG_NOSYSTEM=1
            git config --global user.name web; git config --global user.email web@example.com
            git config --global init.defaultBranch main
            git init -q web; cd web
            mkdir -p docs; echo first >file; echo '#!/bin/sh' >run; chmod 755 run; echo text >docs/page; ln -s /etc/passwd link
            git add .; git commit -q -m first; git tag -a -m tag v1
            echo second >file; git commit -q -a -m second; git branch other
            echo third >file; git commit -q -a -m third; git rev-parse HEAD
            git reset -q --hard HEAD~1; cd ..
            git clone -q --bare web web.git; git -C web.git update-server-info
            rm .gitconfig"
        ));
        Self { directory, hidden: hidden.trim().to_owned() }
    }

    /// git's own server.
    pub(crate) fn serve(&self) -> Server {
        let base = format!("--base-path={}", self.directory);
        let words = ["-c", "safe.directory=*", "daemon", "--export-all", "--listen=127.0.0.1", &base];
        Server::start("git", &words, 9418)
    }
}

pub(crate) fn of_daemon() -> Value {
    json!({"repository": "git://127.0.0.1/web.git"})
}

fn content(target: &Path) -> String {
    fs::read_to_string(target.join("file")).unwrap()
}

/// Fails with these words and leaves nothing.
fn refuses(node: &Node, options: &Value, said: &str) {
    let target = node.pod("1");
    let failure = node.mount(&target, options).failure();
    assert!(failure.contains(said) && failure.contains("127.0.0.1"), "{failure}");
    assert_eq!(mounts_at(&target), 0);
    node.is_clean(&[CLONING]);
}

#[test]
fn each_pod_has_a_clone_of_its_own_at_any_revision() {
    alone("git::each_pod_has_a_clone_of_its_own_at_any_revision", &["git"], || {
        let node = Node::new("git");
        let repository = Repository::make(&node);
        let server = repository.serve();
        let (one, two, three) = (node.pod("1"), node.pod("2"), node.pod("3"));
        node.mount(&one, &of_daemon()).success();
        node.mount(&one, &of_daemon()).success();
        assert_eq!((mounts_at(&one), content(&one).as_str()), (1, "second\n"));
        let mode = |name: &str| fs::symlink_metadata(one.join(name)).unwrap().mode() & 0o7777;
        assert_eq!((mode("."), mode("file"), mode("run"), mode("docs")), (0o755, 0o644, 0o755, 0o755));
        assert_eq!(fs::read_link(one.join("link")).unwrap(), Path::new("/etc/passwd"));
        assert_eq!(fs::read_dir(one.join(".git/hooks")).into_iter().flatten().count(), 0);
        assert_eq!(
            sh(&format!("git -c safe.directory='*' -C {} rev-list --count HEAD", one.display())),
            "1\n"
        );
        let other = with(&of_daemon(), "revision", "v1");
        assert!(node.mount(&one, &other).failure().contains("other options"));
        fs::write(one.join("file"), "mine").unwrap();
        node.mount(&two, &with(&other, "kubernetes.io/readwrite", "ro")).success();
        assert_eq!(content(&two), "first\n");
        assert!(fs::write(two.join("file"), "x").is_err());
        node.unmount(&one).success();
        node.unmount(&one).success();
        for (revision, expected) in [
            ("other", "second\n"),
            ("refs/tags/v1", "first\n"),
            (&*repository.hidden, "third\n"),
            ("main", "second\n"),
        ] {
            let options = with(&with(&of_daemon(), "revision", revision), "depth", "0");
            node.mount(&three, &options).success();
            assert_eq!(content(&three), expected, "{revision}");
            node.unmount(&three).success();
        }
        node.mount(&three, &with(&of_daemon(), "subPath", "docs")).success();
        assert_eq!(fs::read_dir(&three).unwrap().count(), 1);
        // A clone that is there needs no server.
        drop(server);
        for target in [&two, &three] {
            node.unmount(target).success();
        }
        node.is_clean(&[CLONING]);
    });
}

#[test]
fn a_clone_in_memory_has_a_limit_and_no_other_place() {
    alone("git::a_clone_in_memory_has_a_limit_and_no_other_place", &["git"], || {
        let node = Node::new("git");
        let repository = Repository::make(&node);
        let _server = repository.serve();
        let target = node.pod("1");
        let small = with(&of_daemon(), "size", "4Mi");
        node.mount(&target, &small).success();
        assert_eq!(content(&target), "second\n");
        let table = mount_table();
        let line = table.lines().find(|line| line.contains("/pods/1/")).unwrap();
        assert!(line.contains("nosuid,nodev") && line.contains(" - tmpfs "), "{line}");
        assert!(fs::write(target.join("large"), vec![0; 5 << 20]).is_err());
        sh("! find /var/lib/flexvol/scratch -name file | grep .");
        node.unmount(&target).success();
        refuses(&node, &with(&of_daemon(), "size", "64Ki"), "No space left on device");
    });
}

#[test]
fn what_is_wrong_is_said_and_leaves_nothing() {
    alone("git::what_is_wrong_is_said_and_leaves_nothing", &["git"], || {
        let node = Node::new("git");
        let repository = Repository::make(&node);
        let _server = repository.serve();
        refuses(&node, &with(&of_daemon(), "revision", "none"), wording_of("no-revision", ["none"]));
        refuses(&node, &with(&of_daemon(), "subPath", "docs/none"), "has no directory docs/none");
        refuses(&node, &with(&of_daemon(), "subPath", "link"), "symlink");
        refuses(&node, &with(&of_daemon(), "repository", "git://127.0.0.1/none"), "repository not exported");
        refuses(&node, &with(&of_daemon(), "repository", "git://127.0.0.1:1/web.git"), "Connection refused");
    });
}

#[test]
fn a_password_of_any_characters_works_and_is_nowhere() {
    alone("git::a_password_of_any_characters_works_and_is_nowhere", &["git", "rclone"], || {
        let node = Node::new("git");
        let repository = Repository::make(&node);
        let _server = crate::stores::serve("webdav", &repository.directory, 8080);
        let options = json!({"repository": "http://127.0.0.1:8080/web.git", "depth": "0", "user": "web",
            "kubernetes.io/secret/password": base64(PASSWORD)});
        let target = node.pod("1");
        node.mount(&target, &options).success();
        assert_eq!(content(&target), "second\n");
        let found = sh(&format!("grep -rE 'w!o|w%21o' {} /run/flexvol || true", target.display()));
        assert_eq!(found, "");
        node.unmount(&target).success();
        refuses(
            &node,
            &with(&options, "kubernetes.io/secret/password", &base64("another")),
            "Authentication failed",
        );
        refuses(&node, &with(&options, "depth", "1"), wording("no-part-of-history"));
    });
}

#[test]
fn a_key_opens_an_ssh_server_that_is_who_it_is() {
    alone("git::a_key_opens_an_ssh_server_that_is_who_it_is", &["git", "sshd", "ssh-keygen"], || {
        let node = Node::new("git");
        let repository = Repository::make(&node);
        let sshd = Sshd::start(&node);
        let address = format!("ssh://root@127.0.0.1:{PORT}{}/web.git", repository.directory);
        let key = sshd.options()["kubernetes.io/secret/ssh-privatekey"].clone();
        let options = json!({"repository": address, "hostKey": sshd.host_key, "kubernetes.io/secret/ssh-privatekey": key});
        let target = node.pod("1");
        node.mount(&target, &options).success();
        assert_eq!(content(&target), "second\n");
        Node::keeps_secret(sshd.telling_line());
        assert_eq!(sh("find /run/flexvol -name key"), "");
        node.unmount(&target).success();
        let other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMDWRKAF0dxkFoKscRdqY+p4bOD9Kn0NWpbZfT92YcBa";
        refuses(&node, &with(&options, "hostKey", other), "Host key verification failed");
    });
}

/// Nothing of git is left, and no key; whatever the server does, and whoever is killed.
#[test]
fn a_silent_server_fails_the_mount_in_time() {
    alone("git::a_silent_server_fails_the_mount_in_time", &["git"], || {
        const MOUNT: u64 = 3;
        let node = Node::within("git", MOUNT, 20);
        {
            let _dropping = Dropping::at(9418);
            refuses(&node, &of_daemon(), &format!("deadline of {} s", slow_seconds(MOUNT)));
        }
        let _listener = std::net::TcpListener::bind("127.0.0.1:9418").unwrap();
        let target = node.pod("1");
        let run = node.mount(&target, &of_daemon());
        assert!(run.failure().contains("git://127.0.0.1/web.git"), "{}", run.failure());
        assert!(run.took < deadline(MOUNT + 15), "{:?}", run.took);
        node.is_clean(&[CLONING]);
        let target = node.pod("1");
        let call = node.start(&target, &of_daemon());
        let own = call.pid();
        eventually("git", || !processes_with("git\0").is_empty());
        for pid in children(own).into_iter().chain([own]) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        eventually("its end", || !is_alive(own));
        drop(call);
        node.unmount(&target).success();
        eventually("the end of git", || processes_with("git\0").is_empty());
        node.is_clean(&[CLONING]);
    });
}

/// A pod may make as deep a tree as it likes; its volume goes all the same.
#[test]
fn what_a_pod_wrote_is_removed_however_deep() {
    alone("git::what_a_pod_wrote_is_removed_however_deep", &["git"], || {
        let node = Node::new("git");
        let repository = Repository::make(&node);
        let _server = repository.serve();
        let target = node.pod("1");
        node.mount(&target, &of_daemon()).success();
        let mut bottom = fs::File::open(&target).unwrap();
        for _ in 0..3000 {
            mkdirat(&bottom, "d", Mode::RWXU).unwrap();
            bottom = openat(&bottom, "d", OFlags::DIRECTORY, Mode::empty()).unwrap().into();
        }
        drop(bottom);
        fs::create_dir(target.join("closed")).unwrap();
        fs::write(target.join("closed/x"), "x").unwrap();
        fs::set_permissions(target.join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
        node.unmount(&target).success();
        node.is_clean(&[CLONING]);
    });
}

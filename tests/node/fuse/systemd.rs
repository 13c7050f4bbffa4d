//! A daemon where systemd runs: in a scope of its own, which outlives kubelet's unit and ends with
//! the volume.
//!
//! systemd is process 1 of namespaces of its own here, in a control group of its own; kubelet is a
//! unit of it, so that what a call leaves in kubelet's control group is killed when the call has
//! ended, as by a restart of kubelet.

use crate::node::{Node, alone, sh};
use crate::sshd::Sshd;
use crate::support::{Run, eventually};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PROGRAMS: [&str; 7] = ["sshfs", "sshd", "ssh-keygen", "systemctl", "systemd-run", "nsenter", "xargs"];

/// Process 1, with the units `kubelet.service`, which makes the call in /run/words, and a target
/// that wants nothing.
const BOOT: &str = r"
    mount -t tmpfs -o mode=755 run /run
    mkdir -p /run/systemd/system
    umount -l /sys/fs/cgroup || true
    mount -t cgroup2 none /sys/fs/cgroup
    cd /run/systemd/system
    printf '[Unit]\nDefaultDependencies=no\n' >nothing.target
    cat >kubelet.service <<E
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/usr/bin/xargs -0 -a /run/words /usr/bin/env
StandardOutput=truncate:/run/answer
StandardError=inherit
E
    export container=flexvol
    exec /lib/systemd/systemd --system --unit=nothing.target --log-target=null";

/// kubelet's call: its words to the unit, and the unit's answer.
const CALL: &str = r#"printf '%s\0' "$@" >/run/words; systemctl start kubelet.service; cat /run/answer"#;

/// A systemd that runs, and ends with the test.
struct Systemd {
    unshare: Child,
    /// Process 1, as we number it.
    pid: String,
    group: PathBuf,
}

impl Systemd {
    fn boot() -> Self {
        sh("mkdir /run/groups; mount -t cgroup2 none /run/groups");
        let group = Path::new("/run/groups").join(format!("flexvol-test-{}", std::process::id()));
        fs::create_dir(&group).unwrap();
        let enter = format!(
            "echo $$ >{}/cgroup.procs; exec unshare -m -p -C --fork --kill-child --mount-proc --propagation private sh -ec \"$1\"",
            group.display()
        );
        let unshare = Command::new("sh")
            .args(["-ec", &enter, "boot", BOOT])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let children = format!("/proc/{0}/task/{0}/children", unshare.id());
        let mut pid = String::new();
        eventually("a child of unshare(1)", || {
            pid = fs::read_to_string(&children).unwrap_or_default().trim().to_owned();
            !pid.is_empty()
        });
        let systemd = Self { unshare, pid, group };
        eventually("systemd", || systemd.command(&["systemctl", "show"]).output().unwrap().status.success());
        systemd
    }

    /// The words that bring a program to it.
    fn wrapper(&self) -> [&str; 6] {
        ["nsenter", "-t", &self.pid, "-m", "-p", "-C"]
    }

    fn command(&self, words: &[&str]) -> Command {
        let wrapper = self.wrapper();
        let mut command = Command::new(wrapper[0]);
        command.args(&wrapper[1..]).args(words).stdin(Stdio::null());
        command
    }

    /// What a script there says, which must succeed.
    fn sh(&self, script: &str) -> String {
        let output = self.command(&["sh", "-ec", script]).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn call(&self, node: &Node, words: &[&str]) -> Run {
        node.through(&[self.wrapper().as_slice(), &["sh", "-c", CALL, "kubelet"]].concat(), words)
    }

    /// Our scopes, active or not.
    fn scopes(&self) -> String {
        self.sh("systemctl list-units --all --plain --no-legend 'flexvol-*' | cut -d' ' -f1")
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        // The kernel ends the rest; a group can be removed once it is empty.
        let groups = format!("find {} -depth -type d -exec rmdir {{}} +", self.group.display());
        eventually("an empty group", || {
            let _ = Command::new("sh").args(["-c", &groups]).stderr(Stdio::null()).status();
            !self.group.exists()
        });
    }
}

#[test]
fn a_daemon_outlives_kubelet_s_unit_and_ends_with_its_volume() {
    alone("systemd::a_daemon_outlives_kubelet_s_unit_and_ends_with_its_volume", &PROGRAMS, || {
        let node = Node::new("sshfs");
        let sshd = Sshd::start(&node);
        let systemd = Systemd::boot();
        let (target, options) = (node.pod("1"), sshd.options().to_string());
        let target = target.to_str().unwrap();
        let mount = || systemd.call(&node, &["mount", target, &options]).success();
        let unmount = || systemd.call(&node, &["unmount", target]).success();
        mount();
        // kubelet's unit has ended by now, and systemd has killed what was in it.
        assert_eq!(systemd.sh("systemctl show -p ActiveState kubelet.service"), "ActiveState=inactive");
        systemd.sh(&format!("echo written >{target}/file"));
        assert_eq!(fs::read_to_string(format!("{}/file", sshd.directory)).unwrap(), "written\n");
        let scope = systemd.scopes();
        assert!(scope.starts_with("flexvol-") && scope.lines().count() == 1, "{scope:?}");
        let memory = systemd.sh(&format!("systemctl show -p MemoryMax {scope}"));
        assert_eq!(memory, format!("MemoryMax={}", 2_u64 << 30));
        let members = systemd.sh(&format!("cat /sys/fs/cgroup/system.slice/{scope}/cgroup.procs"));
        assert!(!members.is_empty());
        unmount();
        assert_eq!(systemd.scopes(), "");
        assert_eq!(systemd.sh("ls -A /run/flexvol/daemons /run/flexvol/volumes | grep -v : || true"), "");
        // Killed with its scope, it holds up nobody.
        mount();
        systemd.sh(&format!("systemctl kill --signal KILL {}", systemd.scopes()));
        unmount();
        mount();
        systemd.sh(&format!("test \"$(cat {target}/file)\" = written"));
        unmount();
        assert_eq!(systemd.scopes(), "");
        assert_eq!(systemd.sh(&format!("grep -cF {target} /proc/self/mountinfo || true")), "0");
    });
}

//! Login as the user of an image, with the files that Ceph's own programs read for it: a
//! configuration and a keyring in memory, for root alone. They exist as long as a program needs to
//! read them.

use super::super::{Site, With};
use super::MONITORS;
use crate::executor::ceph;
use anyhow::{Context as _, Result, bail};
use flexvol_linux::block::block_status::Zeros;
use flexvol_linux::fs::openat_beneath;
use flexvol_linux::fs::opened::{self, OFlags};
use flexvol_linux::fs::private::Private;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::Invocation;
use flexvol_linux::proc::process;
use flexvol_model::paths;
use flexvol_model::plan::RbdImage;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::secret::Secret;
use serde::Deserialize;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

/// Limit for asking Ceph's own program which clients have the image open.
const STATUS: Duration = Duration::from_secs(10);

/// Size limit for a keyring, in bytes.
const LARGEST: u64 = 1 << 16;

/// Ceph's client that runs as a daemon.
pub(super) const DAEMON: &str = "rbd-nbd";

/// User's key for an image, and the monitor to log in to.
pub(super) struct Login<'a> {
    pub(super) image: &'a RbdImage,
    pub(super) monitor: String,
    pub(super) key: Secret,
}

/// Returns the directory of the files.
fn files(at: &Site<'_>) -> Private {
    Private::at(paths::run(paths::CLUSTERS).join(at.id.as_str()))
}

/// Removes the files that a killed call has left.
pub(super) fn forget(at: &Site<'_>) -> Result<()> {
    files(at).remove()
}

/// Returns the limit for asking the monitors, in seconds: the rest of the time is for the reply.
pub(super) fn patience(at: &Site<'_>) -> u64 {
    at.deadline.remaining().as_secs().saturating_sub(1).clamp(1, MONITORS)
}

impl<'a> Login<'a> {
    /// Returns a login with the first monitor that answers.
    pub(super) fn of(image: &'a RbdImage, at: &Site<'_>, with: &With<'_>) -> Result<Self> {
        let key = key(image, with)?;
        let monitor = ceph::reach(&image.cluster, with.policy, at.deadline)?.name;
        Ok(Self { image, monitor, key })
    }

    /// Runs one of Ceph's programs with a login; its files exist as long as `run` runs.
    pub(super) fn lend<T>(
        &self,
        program: &str,
        at: &Site<'_>,
        run: impl FnOnce(Invocation) -> Result<T>,
    ) -> Result<T> {
        at.runner.find(program)?;
        let private = files(at);
        private.make()?;
        let ran = self.told(Invocation::of(program), &private, at).and_then(run);
        private.remove()?;
        ran
    }

    fn told(&self, program: Invocation, private: &Private, at: &Site<'_>) -> Result<Invocation> {
        let user = &self.image.user;
        let keyring = [format!("[client.{user}]\nkey = ").as_bytes(), self.key.expose(), b"\n"].concat();
        private.write("keyring", Secret::new(keyring).expose())?;
        let config = configuration(self.image.mode.as_deref(), patience(at));
        private.write("ceph.conf", config.as_bytes())?;
        let (config, keyring) = (private.file("ceph.conf"), private.file("keyring"));
        Ok(program
            .args([Path::new("--conf"), &config, Path::new("--keyring"), &keyring])
            .args(["--id", user, "--mon-host", &self.address()])
            .mask([&self.key]))
    }

    /// Returns the monitor's address, with the version of the protocol if the volume names one.
    fn address(&self) -> String {
        match self.image.mode.as_deref() {
            None => self.monitor.clone(),
            Some("legacy") => format!("v1:{}", self.monitor),
            Some(_) => format!("v2:{}", self.monitor),
        }
    }

    /// Refuses an image that others have open, if Ceph's own program is there to tell. If that
    /// program does not answer, the volume is mounted anyway.
    pub(super) fn refuse_watched(&self, at: &Site<'_>) -> Result<()> {
        if !at.tools().has("rbd") {
            return Ok(());
        }
        let watchers = self.lend("rbd", at, |rbd| Ok(self.ask(rbd, at).unwrap_or_default()))?;
        let Some(first) = watchers.first() else { return Ok(()) };
        // The cluster drops the watch of a killed client, perhaps of this node, half a minute
        // later.
        let text = format!(
            "image {} is open elsewhere, {first}: unmount it there, or wait half a minute for one that was killed",
            self.image.spec()
        );
        Err(Failure::new(Code::Busy, text).into())
    }

    fn ask(&self, rbd: Invocation, at: &Site<'_>) -> Result<Vec<String>> {
        let image = self.image;
        let asked = rbd
            .args(["status", "--format", "json", "--pool", &image.pool])
            .args(image.namespace.iter().flat_map(|space| ["--namespace", space]))
            .args(["--image", &image.image])
            .answering();
        let deadline = Deadline::after(STATUS.min(at.deadline.remaining()));
        let outcome = at.tools().until(&deadline).run_to_success(asked)?;
        watchers(&outcome.answer)
    }

    /// Returns the ranges where the image has no objects, if Ceph's own program is there to tell.
    pub(super) fn zeros(&self, at: &Site<'_>) -> Result<Zeros> {
        let image = self.image;
        let snapshot = image.snapshot.as_deref();
        self.lend("rbd", at, |rbd| {
            let asked = rbd
                .args(["diff", "--whole-object", "--format", "json", "--pool", &image.pool])
                .args(image.namespace.iter().flat_map(|space| ["--namespace", space]))
                .args(["--image", &image.image])
                .args(snapshot.iter().flat_map(|snapshot| ["--snap", snapshot]))
                .answering();
            let outcome = at.tools().until(&at.share()).run_to_success(asked)?;
            between(&outcome.answer)
        })
    }

    /// Refuses a second daemon on this node: one with the same image and monitor in its command
    /// line, whichever process started it.
    pub(super) fn refuse_second_daemon(&self, read_only: bool) -> Result<()> {
        let spec = self.image.spec();
        let is_same = |pid: &i32| {
            process::command_line(*pid).is_some_and(|line| {
                line.split(' ').any(|word| word == spec) && !(read_only && line.contains(READ_ONLY))
            })
        };
        match process::running(DAEMON, &self.monitor).into_iter().find(is_same) {
            Some(pid) => Err(super::second(&format!("by process {pid}, rbd-nbd"))),
            None => Ok(()),
        }
    }
}

/// Argument of a daemon whose device is only read.
pub(super) const READ_ONLY: &str = "--read-only";

/// Returns the configuration: with the protocol's modes, without a log and without a socket.
fn configuration(mode: Option<&str>, patience: u64) -> String {
    let modes = match mode {
        Some("prefer-crc") => Some("crc secure"),
        Some("prefer-secure") => Some("secure crc"),
        mode => mode.filter(|mode| *mode != "legacy"),
    };
    let modes = modes.map(|modes| format!("ms_client_mode = {modes}\nms_mon_client_mode = {modes}\n"));
    let modes = modes.unwrap_or_default();
    format!(
        "[global]\nlog_file = /dev/null\nadmin_socket =\ncrash_dir =\nclient_mount_timeout = {patience}\n{modes}"
    )
}

fn key(image: &RbdImage, with: &With<'_>) -> Result<Secret> {
    match (&image.keyring, with.credentials.get("key")) {
        (Some(file), _) => key_in(image, file, with).with_context(|| format!("keyring {}", file.display())),
        (None, Some(key)) => Ok(key.clone()),
        (None, None) => bail!("the plan has no key"),
    }
}

fn key_in(image: &RbdImage, file: &Path, with: &With<'_>) -> Result<Secret> {
    let allowed = with.policy.keyring(file)?;
    let root = openat_beneath::open_root(&allowed.root)?;
    let opened = openat_beneath::open(root.as_fd(), &allowed.below, OFlags::RDONLY | OFlags::NONBLOCK)?;
    let text = Secret::new(opened::read(opened, LARGEST)?);
    let key = str::from_utf8(text.expose()).ok().and_then(|text| ceph::key_of(&image.user, text));
    key.ok_or_else(|| {
        let text = format!("it has no key of client.{}: name its user, or another file", image.user);
        Failure::new(Code::NotFound, text).into()
    })
}

/// Returns the addresses in the answer of `rbd status`.
fn watchers(answer: &str) -> Result<Vec<String>> {
    let answer: serde_json::Value = serde_json::from_str(answer).context("read what rbd says")?;
    let all = answer["watchers"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(all.iter().filter_map(|watcher| watcher["address"].as_str()).map(str::to_owned).collect())
}

/// Returns the ranges between the extents that `rbd diff` names. Fails if the answer was cut off.
fn between(answer: &str) -> Result<Zeros> {
    #[derive(Deserialize)]
    struct Extent {
        offset: u64,
        length: u64,
        exists: String,
    }
    let extents: Vec<Extent> = serde_json::from_str(answer).context("read what rbd says")?;
    let (mut zeros, mut at) = (Zeros::default(), 0);
    for extent in extents.iter().filter(|extent| extent.exists != "false") {
        anyhow::ensure!(extent.offset >= at && zeros.add(at..extent.offset), "extents that are out of order");
        at = extent.offset.saturating_add(extent.length);
    }
    zeros.add(at..u64::MAX);
    Ok(zeros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_objects_is_zero() {
        assert!(between("[]").unwrap().first_unknown(0..1 << 40).is_empty());
        let answer = r#"[{"offset":4194304,"length":4194304,"exists":"true"},
            {"offset":8388608,"length":4194304,"exists":"false"},{"offset":16777216,"length":512,"exists":"true"}]"#;
        let zeros = between(answer).unwrap();
        assert_eq!(zeros.first_unknown(0..1 << 40), 4_194_304..8_388_608);
        assert_eq!(zeros.first_unknown(8_388_608..1 << 40), 16_777_216..16_777_728);
        for wrong in [
            "",
            "{}",
            &answer[..60],
            r#"[{"offset":9,"length":1,"exists":"true"},{"offset":1,"length":1,"exists":"true"}]"#,
        ] {
            assert!(between(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn watchers_are_who_has_it_open() {
        let answer = r#"{"watchers":[{"address":"10.0.0.7:0/123","client":4123,"cookie":1}]}"#;
        assert_eq!(watchers(answer).unwrap(), ["10.0.0.7:0/123"]);
        assert!(watchers(r#"{"watchers":[]}"#).unwrap().is_empty());
        assert!(watchers("no json").is_err());
    }

    #[test]
    fn the_protocol_is_what_was_asked_for() {
        let modes = |mode| {
            let text = configuration(mode, 9);
            assert!(text.contains("client_mount_timeout = 9\n"), "{text}");
            text.lines().find_map(|line| line.strip_prefix("ms_client_mode = ").map(str::to_owned))
        };
        assert_eq!(modes(Some("prefer-secure")).unwrap(), "secure crc");
        assert_eq!(modes(Some("secure")).unwrap(), "secure");
        assert_eq!((modes(None), modes(Some("legacy"))), (None, None));
    }
}

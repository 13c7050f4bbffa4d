//! Images of a Ceph cluster by the kernel's own client.
//!
//! A device is found again by the name of the key that it was mapped with, which is made of the store's. One that
//! somebody else has mapped is not taken: whoever names it here has not shown a key for it.

use super::{Backend, Found, Site, TICK, With};
use crate::executor::ceph;
use crate::executor::record::STATE;
use crate::failure::{Code, Failure};
use crate::plan::RbdImage;
use crate::quantity::Quantity;
use crate::secret::Secret;
use crate::sys::deadline::Deadline;
use crate::sys::helper::Helper;
use crate::sys::private::Private;
use crate::sys::rbd::{self, Image, Key, Mapped};
use crate::sys::{below, kernel_module, users};
use anyhow::{Context, Result, bail};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a device may be busy that nobody has mounted: something of the node may be looking at it.
const LETTING_GO: Duration = Duration::from_secs(5);

/// How long another node may take to let go of the image, if it does: a crashed one is noticed after half a minute, and
/// kubelet comes again.
const LOCK_PATIENCE: u64 = 10;

/// How long the kernel may ask the monitors.
const MONITORS: u64 = 60;

/// How long Ceph's own program may be asked who has the image open.
const STATUS: Duration = Duration::from_secs(10);

/// No keyring is larger.
const LARGEST: u64 = 1 << 16;

impl Backend for RbdImage {
    fn find(&self, at: &Site<'_>) -> Result<Option<Found>> {
        let Some(mapped) = rbd::by_key(&key_name(at))? else { return Ok(None) };
        Ok(Some(Found { path: mapped.wait(at.deadline)?, held: None }))
    }

    fn attach(&self, at: &Site<'_>, with: &With<'_>) -> Result<Found> {
        kernel_module::load("rbd", Path::new(rbd::BUS), at.deadline)?;
        let key = self.key(with)?;
        let monitor = ceph::reach(&self.cluster, at.deadline)?.name;
        if !with.read_only {
            self.refuse_watched(at, &monitor, &key)?;
        }
        self.map(at, with, &monitor, &ceph::decode(&key)?)?;
        let mapped = rbd::by_key(&key_name(at))?.context("the kernel has mapped it, and it is gone")?;
        match refuse_second(&mapped).and_then(|()| mapped.wait(at.deadline)) {
            Ok(path) => Ok(Found { path, held: None }),
            Err(error) => match unmap(&mapped, at.deadline) {
                Ok(()) => Err(error),
                Err(left) => Err(Failure::from(error).with_residue(format!("a device ({left:#})")).into()),
            },
        }
    }

    fn detach(&self, at: &Site<'_>, _: Option<&Path>) -> Result<()> {
        rbd::by_key(&key_name(at))?.map_or(Ok(()), |mapped| unmap(&mapped, at.deadline))
    }

    /// The image is its cluster's to grow, which tells the kernel by itself; it is asked again all the same.
    fn grow(&self, at: &Site<'_>, _: &Path, size: u64) -> Result<()> {
        let mapped = rbd::by_key(&key_name(at))?.context("it is not mapped any more: mount it again")?;
        mapped.refresh()?;
        let is = mapped.size()?;
        if is >= size {
            return Ok(());
        }
        let (spec, is, wanted) = (self.spec(), Quantity(is), Quantity(size));
        let when = if self.exclusive && mapped.has_exclusive_lock()? {
            "unmount it everywhere (a volume with option exclusive: \"false\" need not be) and "
        } else {
            ""
        };
        let text = format!(
            "image {spec} has {is}: {when}grow it with rbd resize --size {wanted}, kubelet tries again"
        );
        Err(Failure::new(Code::Conflict, text).into())
    }
}

/// What the key is called that a store is mapped with.
fn key_name(at: &Site<'_>) -> String {
    format!("flexvol-{}", at.id.as_str())
}

impl RbdImage {
    fn key(&self, with: &With<'_>) -> Result<Secret> {
        match (&self.keyring, with.credentials.get("key")) {
            (Some(file), _) => self.key_in(file, with).with_context(|| format!("keyring {}", file.display())),
            (None, Some(key)) => Ok(key.clone()),
            (None, None) => bail!("the plan has no key"),
        }
    }

    fn key_in(&self, file: &Path, with: &With<'_>) -> Result<Secret> {
        let allowed = with.policy.keyring(file)?;
        let root = below::open_root(&allowed.root)?;
        let opened = below::open(root.as_fd(), &allowed.below, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let mut bytes = Vec::new();
        std::fs::File::from(opened).take(LARGEST).read_to_end(&mut bytes)?;
        let text = Secret::new(bytes);
        let key = str::from_utf8(text.expose()).ok().and_then(|text| ceph::key_of(&self.user, text));
        key.ok_or_else(|| {
            let text = format!("it has no key of client.{}: name its user, or another file", self.user);
            Failure::new(Code::NotFound, text).into()
        })
    }

    /// For writing it is claimed where the image can be: a kernel that cannot, or an image without that feature, says
    /// `INVAL`.
    fn map(&self, at: &Site<'_>, with: &With<'_>, monitor: &str, key: &Secret) -> Result<()> {
        let image = Image { pool: &self.pool, image: &self.image, snapshot: self.snapshot.as_deref() };
        let name = key_name(at);
        let key = Key { name: &name, bytes: key.expose() };
        let map = |access: &str| rbd::map(monitor, &self.options(at, access), &image, &key);
        let claim = format!("rw,exclusive,lock_timeout={LOCK_PATIENCE}");
        let mapped = match (with.read_only, self.exclusive) {
            (true, _) => map("ro"),
            (false, false) => map("rw"),
            (false, true) => match map(&claim) {
                Err(Errno::INVAL) => map("rw"),
                mapped => mapped,
            },
        };
        mapped.map_err(|errno| self.explain(errno, monitor, with.read_only).into())
    }

    fn options(&self, at: &Site<'_>, access: &str) -> String {
        // What is left is for the reply.
        let seconds = at.deadline.remaining().as_secs().saturating_sub(1).clamp(1, MONITORS);
        let namespace = self.namespace.as_ref().map(|space| format!(",_pool_ns={space}"));
        let mode = self.mode.as_ref().map(|mode| format!(",ms_mode={mode}"));
        let patience = Some(self.patience).filter(|patience| *patience > 0);
        let patience = patience.map(|patience| format!(",osd_request_timeout={patience}"));
        let further: String = [namespace, mode, patience].into_iter().flatten().collect();
        format!("name={},{access},mount_timeout={seconds}{further}", self.user)
    }

    fn explain(&self, errno: Errno, monitor: &str, read_only: bool) -> Failure {
        let spec = self.spec();
        let (code, text) = match errno {
            Errno::NOENT => (
                Code::NotFound,
                "the cluster has no such pool, image or snapshot: check pool, image and snapshot",
            ),
            Errno::ACCESS | Errno::PERM | Errno::NOKEY => (
                Code::Denied,
                "the cluster refuses user and key: check option user and the Secret's key, and what ceph auth get says of the user",
            ),
            Errno::ROFS => (Code::Busy, "another node has it mapped and keeps it: unmount it there"),
            Errno::TIMEDOUT if !read_only => (
                Code::Timeout,
                "the cluster does not answer, or another node has the image and does not let go: check both",
            ),
            Errno::TIMEDOUT => (Code::Timeout, "the cluster does not answer: check its monitors and disks"),
            Errno::NXIO => (
                Code::Conflict,
                "the image has a feature that this kernel lacks: take it off with rbd feature disable",
            ),
            Errno::INVAL => {
                (Code::BadOptions, "an option does not suit this kernel: check msMode and namespace")
            }
            _ => (Code::Internal, "the kernel's log says more: see dmesg"),
        };
        Failure::new(code, format!("map {spec} of {monitor}: {errno}: {text}"))
    }

    /// Others who have the image open, as far as Ceph's own program is there to tell. One that does not answer
    /// keeps nobody from the volume.
    fn refuse_watched(&self, at: &Site<'_>, monitor: &str, key: &Secret) -> Result<()> {
        let Ok(program) = Helper::find("rbd") else { return Ok(()) };
        let private = Private::at(Path::new(STATE).join("clusters").join(at.id.as_str()));
        private.make()?;
        let asked = self.ask(program, &private, monitor, key, at);
        private.remove()?;
        let watchers = asked.unwrap_or_default();
        let Some(first) = watchers.first() else { return Ok(()) };
        let text = format!("image {} is open on another node, {first}: unmount it there", self.spec());
        Err(Failure::new(Code::Busy, text).into())
    }

    fn ask(
        &self,
        program: Helper,
        private: &Private,
        monitor: &str,
        key: &Secret,
        at: &Site<'_>,
    ) -> Result<Vec<String>> {
        let keyring = [format!("[client.{}]\nkey = ", self.user).as_bytes(), key.expose(), b"\n"].concat();
        private.write("keyring", Secret::new(keyring).expose())?;
        let config = format!("[global]\nmon_host = {monitor}\nlog_file = /dev/null\nadmin_socket =\n");
        private.write("ceph.conf", config.as_bytes())?;
        let (config, keyring) = (private.file("ceph.conf"), private.file("keyring"));
        let outcome = program
            .args([Path::new("--conf"), &config, Path::new("--keyring"), &keyring])
            .args(["--id", &self.user, "status", "--format", "json", "--pool", &self.pool])
            .args(self.namespace.iter().flat_map(|space| ["--namespace", space]))
            .args(["--image", &self.image])
            .mask([key])
            .answering()
            .run_to_success(&Deadline::after(STATUS.min(at.deadline.remaining())))?;
        watchers(&outcome.answer)
    }
}

/// The addresses in the answer of `rbd status`.
fn watchers(answer: &str) -> Result<Vec<String>> {
    let answer: serde_json::Value = serde_json::from_str(answer).context("read what rbd says")?;
    let all = answer["watchers"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(all.iter().filter_map(|watcher| watcher["address"].as_str()).map(str::to_owned).collect())
}

/// Two devices of one image, of which one writes, destroy it; the kernel makes them.
fn refuse_second(mapped: &Mapped) -> Result<()> {
    let identity = mapped.identity()?;
    let is_same = |other: &Mapped| other != mapped && other.identity().is_ok_and(|other| other == identity);
    let clashes = |other: &Mapped| !(other.is_read_only() && mapped.is_read_only());
    match rbd::all()?.into_iter().find(|other| is_same(other) && clashes(other)) {
        Some(other) => {
            let path = other.path();
            let text = format!(
                "the image is mapped to {} already by others on this node: unmap that",
                path.display()
            );
            Err(Failure::new(Code::Busy, text).into())
        }
        None => Ok(()),
    }
}

fn unmap(mapped: &Mapped, deadline: &Deadline) -> Result<()> {
    let patience = Deadline::for_undo(LETTING_GO.min(deadline.remaining()));
    loop {
        match mapped.unmap() {
            Err(Errno::BUSY) if !patience.expired() => std::thread::sleep(TICK),
            Err(Errno::BUSY) => {
                let path: PathBuf = mapped.path();
                let text =
                    format!("{} is in use{}: end it, kubelet tries again", path.display(), users::of(&path));
                return Err(Failure::new(Code::Busy, text).into());
            }
            unmapped => return unmapped.with_context(|| format!("unmap {}", mapped.path().display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchers_are_who_has_it_open() {
        let answer = r#"{"watchers":[{"address":"10.0.0.7:0/123","client":4123,"cookie":1}]}"#;
        assert_eq!(watchers(answer).unwrap(), ["10.0.0.7:0/123"]);
        assert!(watchers(r#"{"watchers":[]}"#).unwrap().is_empty());
        assert!(watchers("no json").is_err());
    }
}

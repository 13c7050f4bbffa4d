//! Files of one driver in kubelet's directory: the registration of the pod with its programs, and
//! the socket.
//!
//! Two mount pods may claim the same files, while one replaces the other or by mistake. The last
//! one gets them, each file in one step. The other one then leaves them alone, also when it ends.
//! The lock of the directory prevents both from inspecting and writing at the same time.

use anyhow::{Context as _, Result, ensure};
use flexvol_linux::fs::directory::Directory;
use flexvol_linux::fs::files;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_model::mounter::{DIRECTORY, LARGEST, Registration};
use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// Wait for the lock of the directory, which another pod may hold.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Files of one driver that this pod has taken.
pub struct Place {
    directory: Directory,
    name: String,
    listener: UnixListener,
    /// Inode of the socket.
    inode: u64,
    /// True if another pod has the files now; logged once.
    lost: bool,
}

impl Place {
    /// Takes the files, from any pod that had them before.
    pub fn take(root: &Path, name: &str, pod: &Registration) -> Result<Self> {
        let path = root.join(DIRECTORY);
        files::make_directories(&path, 0o700).with_context(|| format!("make {}", path.display()))?;
        let directory = Directory::open_of_root(&path)?.context("it is gone")?;
        directory.lock(&Deadline::after(LOCK_WAIT))?;
        let before = read(&directory, name).ok().flatten().filter(|before| before.pod_uid != pod.pod_uid);
        if let Some(before) = before
            && super::answering(&directory.inside(&socket(name))).is_ok()
        {
            let other = format!("{}/{}", before.pod_namespace, before.pod_name);
            tracing::warn!(driver = name, pod = other, "taken over from a mount pod that still runs");
        }
        let (listener, inode) = listen(&directory, name)?;
        let place = Self { directory: unlocked(&path)?, name: name.to_owned(), listener, inode, lost: false };
        place.write(pod)?;
        Ok(place)
    }

    /// Returns the next connection, if there is one.
    pub fn accept(&self) -> io::Result<Option<UnixStream>> {
        match self.listener.accept() {
            Ok((stream, _)) => stream.set_nonblocking(false).map(|()| Some(stream)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns a descriptor that is readable when there is a connection.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Restores missing files. Leaves the files of another pod alone.
    pub fn look(&mut self, pod: &Registration) -> Result<()> {
        let _lock = self.lock()?;
        let found = read(&self.directory, &self.name);
        if let Ok(Some(other)) = &found
            && other.pod_uid != pod.pod_uid
        {
            if !std::mem::replace(&mut self.lost, true) {
                let other = format!("{}/{}", other.pod_namespace, other.pod_name);
                tracing::warn!(driver = self.name, pod = other, "another mount pod has registered");
            }
            return Ok(());
        }
        if self.inode() != Some(self.inode) {
            (self.listener, self.inode) = listen(&self.directory, &self.name)?;
            tracing::warn!(driver = self.name, "listening again");
        }
        if !matches!(&found, Ok(Some(ours)) if ours == pod) {
            self.write(pod)?;
            tracing::warn!(driver = self.name, "registered again");
        }
        self.lost = false;
        Ok(())
    }

    /// Removes the files that still belong to this pod.
    pub fn leave(&self, pod: &Registration) -> Result<()> {
        let _lock = self.lock()?;
        let found = read(&self.directory, &self.name);
        if matches!(&found, Ok(Some(ours)) if ours.pod_uid == pod.pod_uid) {
            self.directory.remove(file(&self.name))?;
        }
        if self.inode() == Some(self.inode) {
            self.directory.remove(socket(&self.name))?;
        }
        Ok(())
    }

    fn lock(&self) -> Result<Directory> {
        let directory = unlocked(self.directory.path())?;
        directory.lock(&Deadline::for_undo(LOCK_WAIT))?;
        Ok(directory)
    }

    fn write(&self, pod: &Registration) -> Result<()> {
        files::replace(&self.directory.path_of(file(&self.name)), &serde_json::to_vec(pod)?)
    }

    fn inode(&self) -> Option<u64> {
        Some(self.directory.path_of(socket(&self.name)).symlink_metadata().ok()?.ino())
    }
}

/// Opens the directory once more: a lock ends with the descriptor that has taken it.
fn unlocked(path: &Path) -> Result<Directory> {
    Directory::open_of_root(path)?.with_context(|| format!("{} is gone", path.display()))
}

/// Returns the name of a driver's socket.
pub fn socket(name: &str) -> String {
    format!("{name}.sock")
}

fn file(name: &str) -> String {
    format!("{name}.json")
}

/// Returns the registration for a driver, and its directory.
pub fn registered(root: &Path, name: &str) -> Result<(Directory, Option<Registration>)> {
    let directory = unlocked(&root.join(DIRECTORY))?;
    let found = read(&directory, name)?;
    Ok((directory, found))
}

fn read(directory: &Directory, name: &str) -> Result<Option<Registration>> {
    let Some(text) = directory.read_of_root(&file(name), LARGEST)? else { return Ok(None) };
    let parsed = Registration::parse(&text);
    parsed.map(Some).map_err(|why| anyhow::anyhow!("{}: {why}", directory.path_of(file(name)).display()))
}

/// Renames a new socket over the previous one, so that there is one at any time.
fn listen(directory: &Directory, name: &str) -> Result<(UnixListener, u64)> {
    let draft = format!(".{}", socket(name));
    directory.remove(&draft)?;
    let listener = UnixListener::bind(directory.inside(&draft));
    let listener = listener.with_context(|| format!("listen at {}", directory.path_of(&draft).display()))?;
    listener.set_nonblocking(true)?;
    let path = directory.path_of(&draft);
    std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    let inode = path.symlink_metadata()?.ino();
    directory.rename(&draft, directory, socket(name))?;
    ensure!(inode > 0, "{} has no inode", path.display());
    Ok((listener, inode))
}

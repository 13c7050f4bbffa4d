//! Directories above a volume's: they are kubelet's, and drivers have no use for them.

use crate::check::answer::Answer;
use crate::check::evidence::{Played, Stopped};
use crate::check::subject::Subject;
use flexvol_kubelet::PodVolume;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// State of one of them.
#[derive(PartialEq, Eq)]
struct Look {
    path: PathBuf,
    /// Owner and mode; `None` if it does not exist.
    owned: Option<Owned>,
}

#[derive(PartialEq, Eq)]
struct Owned {
    user: u32,
    group: u32,
    mode: u32,
}

pub(super) fn pod_directory(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let before = above(&volume)?;
    let answer = subject.mount(&volume)?.or_blocked("mount::works")?;
    are_unchanged(&answer, &before, &above(&volume)?)?;
    let answer = subject.unmount(&volume)?.or_blocked("unmount::works")?;
    are_unchanged(&answer, &before, &above(&volume)?)?;
    subject.put_away(&volume, &answer)
}

/// Returns the state of the directories above the volume's, up to the pod's.
fn above(volume: &PodVolume) -> Result<Vec<Look>, Stopped> {
    let target = volume.target()?;
    Ok(target.as_path().ancestors().skip(1).take(3).map(Look::at).collect::<io::Result<_>>()?)
}

fn are_unchanged(answer: &Answer, before: &[Look], now: &[Look]) -> Played {
    match before.iter().zip(now).find(|(before, now)| before != now) {
        None => Ok(()),
        Some((before, now)) => {
            Err(answer.fails(format!("{} was {before}, and is {now}", before.path.display())))
        }
    }
}

impl Look {
    fn at(path: &Path) -> io::Result<Self> {
        let owned = match fs::symlink_metadata(path) {
            Ok(found) => Some(Owned { user: found.uid(), group: found.gid(), mode: found.mode() & 0o7777 }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(Self { path: path.to_owned(), owned })
    }
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owned {
            None => f.write_str("not there"),
            Some(Owned { user, group, mode }) => {
                write!(f, "user {user}'s and group {group}'s with mode {mode:04o}")
            }
        }
    }
}

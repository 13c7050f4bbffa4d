//! Leftovers of calls that were killed together with everything that could have cleaned up:
//! `doctor` finds and fixes them.
//!
//! Everything is done under the target's lock, so no call is disturbed.

use super::home::Home;
use super::record::{self, Record};
use super::{daemon, locks, store};
use anyhow::{Context as _, Result};
use flexvol_linux::fs::lock::Lock;
use flexvol_linux::fs::{files, listing};
use flexvol_linux::mount::mount_table::Entry;
use flexvol_linux::mount::place::{Answer, Look, Place, Pulse};
use flexvol_linux::mount::{self, mount_health};
use flexvol_linux::proc::clock;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::Tools;
use flexvol_model::paths;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::ordered::filled;
use flexvol_protocol::{TargetPath, Verb};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

/// Limit for waiting for another call, and for a mount's answer.
const REPAIR_WAIT: Duration = Duration::from_secs(3);

/// Minimum age of leftovers: younger ones may belong to a running call.
const YOUNG: Duration = Duration::from_secs(30);

/// Limit for mounts on top of each other; no target has more.
const MOST_LAYERS: usize = 64;

/// Returns the names of private directories whose volume is not among the node's mounts. `mounts`
/// is the node's mount table, because our own may be a pod's.
pub fn homes(mounts: &[Entry]) -> Vec<String> {
    let mounted: BTreeSet<_> = filled(mounts.iter().map(|entry| record::file_name(&entry.target)));
    let all = paths::run(paths::DAEMONS);
    let is_old = |name: &OsString| files::age(&all.join(name)).is_some_and(|age| age > YOUNG);
    let old = listing::names(&all).unwrap_or_default().into_iter().filter(is_old);
    let names = old.filter_map(|name| name.into_string().ok());
    let locked = |name: &String| record::locks().join(name).exists();
    names.filter(|name| !mounted.contains(name) && !locked(name)).collect()
}

/// Returns the targets of records at which nothing is mounted. They were unmounted without us: by a
/// driver of an earlier version or by hand. Our own mount table may be a pod's, so both tables are
/// checked.
pub fn records(mounts: &[Entry]) -> Vec<TargetPath> {
    let mounted: BTreeSet<_> = filled(mounts.iter().map(|entry| entry.target.as_path()));
    let is_old = |record: &Record| record.since.saturating_add(YOUNG.as_secs()) < clock::seconds();
    let old = Record::all().into_iter().filter(is_old).map(|record| record.target);
    let left = old.filter(|target| !mounted.contains(target.as_path()));
    let left = left.filter_map(|target| TargetPath::parse(target.as_os_str()).ok());
    left.filter(|target| !record::lock_path(target).exists() && is_free(target).unwrap_or(false)).collect()
}

/// Forgets a target at which nothing is mounted by now, and removes all else that it had.
pub fn forget_record(target: &TargetPath, mounts: impl FnOnce() -> Result<Vec<Entry>>) -> Result<()> {
    record::prepare()?;
    let _lock = Lock::acquire(record::lock_path(target), &Deadline::for_undo(REPAIR_WAIT))?;
    let is_mounted = mounts()?.iter().any(|entry| entry.target == target.as_path());
    if is_mounted || !is_free(target)? { Ok(()) } else { forget(target) }
}

fn is_free(target: &TargetPath) -> Result<bool> {
    let Some(place) = Place::open(target)? else { return Ok(true) };
    Ok(matches!(place.look()?, Look::Missing | Look::Plain(_)))
}

/// Ends the processes of a private directory and removes all its files, unless its volume is
/// mounted by now. `mounts` reads the node's mount table.
pub fn remove_home(name: &str, mounts: impl FnOnce() -> Result<Vec<Entry>>) -> Result<()> {
    let is_plain = !name.starts_with('.') && !name.contains('/');
    anyhow::ensure!(is_plain, "{name:?} is no name of a volume's files");
    record::prepare()?;
    let lock = record::locks().join(name);
    let _lock = Lock::acquire(lock.clone(), &Deadline::for_undo(REPAIR_WAIT))?;
    let is_mounted = mounts()?.iter().any(|entry| record::file_name(&entry.target) == name);
    if is_mounted { Ok(()) } else { Home::named(name).end(REPAIR_WAIT) }
}

/// Unmounts dead mounts at a target, layer by layer; a mount that is or may be alive stays.
pub fn detach_dead(target: &TargetPath) -> Result<()> {
    let _lock = lock(target)?;
    let Some(place) = Place::open(target)? else { return Ok(()) };
    for _ in 0..MOST_LAYERS {
        match place.look()? {
            Look::Missing | Look::Plain(_) => return forget(target),
            Look::Dead(_) => {}
            Look::Mount(_) if is_dead(&place) => {}
            Look::Mount(_) => return Ok(()),
        }
        mount::unmount(&place, true).with_context(|| format!("detach {target}"))?;
    }
    Ok(())
}

/// Unmounts everything at a target whose pod is gone: dead mounts lazily, live mounts only if they
/// are not in use.
pub fn unmount(target: &TargetPath) -> Result<()> {
    detach_dead(target)?;
    let _lock = lock(target)?;
    let Some(place) = Place::open(target)? else { return Ok(()) };
    for _ in 0..MOST_LAYERS {
        match place.look()? {
            Look::Missing | Look::Plain(_) => return forget(target),
            Look::Dead(_) | Look::Mount(_) if place.ask(REPAIR_WAIT) == Answer::Silent => {
                let text = format!("{target} does not answer: bring its server back, or umount -f -l it");
                return Err(Failure::new(Code::Timeout, text).into());
            }
            _ => mount::unmount(&place, false).with_context(|| format!("unmount {target}"))?,
        }
    }
    Ok(())
}

fn is_dead(place: &Place) -> bool {
    let asked = || mount_health::of(&[place.path().to_owned()], REPAIR_WAIT);
    place.pulse(REPAIR_WAIT) == Pulse::Dead
        || matches!(asked().as_deref(), Ok([mount_health::Vitals::Dead(_)]))
}

/// Removes everything else of a target at which nothing is mounted any more.
fn forget(target: &TargetPath) -> Result<()> {
    record::forget(target);
    daemon::sweep(target)?;
    store::sweep(target, Tools::of_host(&Deadline::for_undo(REPAIR_WAIT)))
}

/// Returns the lock of a target; `None` on a node whose /run is full. Fails if another call holds
/// it.
fn lock(target: &TargetPath) -> Result<Option<Lock>> {
    Ok(locks::lock(record::lock_path(target), Verb::Unmount, &Deadline::for_undo(REPAIR_WAIT))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_linux::errno::to_failure;
    use flexvol_linux::proc::namespace;

    #[test]
    fn a_call_that_is_running_is_not_disturbed() {
        if namespace::enter().and_then(|()| namespace::cover_run()).is_err() {
            return println!(
                "SKIP a_call_that_is_running_is_not_disturbed: needs root for a mount namespace"
            );
        }
        let target = TargetPath::parse("/run/k/pods/7/volumes/a~b/v".as_ref()).unwrap();
        std::fs::create_dir_all(target.as_path()).unwrap();
        record::prepare().unwrap();
        let held = Lock::acquire(record::lock_path(&target), &Deadline::for_undo(REPAIR_WAIT)).unwrap();
        assert_eq!(to_failure(unmount(&target).unwrap_err()).code(), Code::Timeout);
        drop(held);
        unmount(&target).unwrap();
    }
}

//! Mounts that kubelet makes once for the node and then shows to pods: the devices of attached
//! volumes.
//!
//! kubelet identifies an attached volume by its driver and the name of its PV, or the name that a
//! pod gives it, and two volumes of two namespaces can have the same name. So the mount is compared
//! with what the options of each call name: a pod never sees another pod's volume.

use super::context::{Context, open_place};
use super::record::Record;
use super::undo::Undo;
use anyhow::{Context as _, Result};
use flexvol_linux::mount::mount_table::{self, Entry};
use flexvol_linux::mount::place::{Look, Mounted, Place};
use flexvol_linux::mount::{self, BindMount, Way};
use flexvol_model::plan::{Propagation, Source};
use flexvol_protocol::TargetPath;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::mount_options::MountFlags;
use std::os::fd::AsFd;

impl Context<'_> {
    /// Performs the step: fails if another volume is mounted there. A missing mount is no conflict.
    pub(super) fn expect_staged(&self, staged: &TargetPath, source: &Source) -> Result<()> {
        let Some(place) = Place::open(staged)? else { return Ok(()) };
        let Look::Mount(mounted) = place.look()? else { return Ok(()) };
        let Some(entry) = mount_table::by_id(mounted.id)? else { return Ok(()) };
        let is_it = match source {
            // If the store's daemon has died, only the record tells.
            Source::Store(store) => {
                self.shows_store(&entry, store)?
                    || (identity(staged, entry.id) == source.identity() && !self.is_here(store)?)
            }
            Source::Identity(name) => is_named(staged, mounted, name),
            _ => true,
        };
        if is_it { Ok(()) } else { Err(another(staged, &entry, source)) }
    }

    /// Shows the staged mount at the target. Never shows a directory of the node itself: the pod
    /// would write to the node's disk.
    pub(super) fn show_staged(
        &mut self,
        target: &TargetPath,
        staged: &TargetPath,
        flags: MountFlags,
    ) -> Result<Option<Undo>> {
        let missing = || {
            let text = format!("nothing is mounted at {staged}: kubelet calls mountdevice before mount");
            anyhow::Error::from(Failure::new(Code::NotFound, text))
        };
        let place = Place::open(staged)?.ok_or_else(missing)?;
        let Look::Mount(mounted) = place.look()? else { return Err(missing()) };
        let source = place.open_directory().with_context(|| format!("open {staged}"))?;
        if mount::identity(source.as_fd())? != mounted.root {
            return Err(missing());
        }
        // The first pod may have mounted it read-only.
        let entry = mount_table::by_id(mounted.id)?.filter(|entry| !entry.superblock_read_only);
        let lift = !flags.read_only && entry.is_some();
        let what = BindMount {
            source: source.as_fd(),
            recursive: false,
            flags,
            propagation: Propagation::Private,
            lift,
        };
        self.mount_id = Some(mount::bind(&what, &open_place(target)?, Way::Detached)?);
        Ok(Some(Undo::Unmount(target.clone())))
    }
}

/// Reports whether the mount was made for a volume of this name. A mount without a name does not
/// count as another volume's: an older version has made it, or its record is lost.
pub(super) fn is_named(target: &TargetPath, mounted: Mounted, name: &str) -> bool {
    identity(target, mounted.id).is_none_or(|identity| identity == name)
}

fn identity(target: &TargetPath, mount_id: u64) -> Option<String> {
    Record::read(target).filter(|record| record.mount_id == mount_id)?.identity
}

fn another(at: &TargetPath, entry: &Entry, wanted: &Source) -> anyhow::Error {
    let name = at.as_path().file_name().unwrap_or_default().to_string_lossy();
    let from = || format!("{} from {}", entry.file_system, entry.source.to_string_lossy());
    let shown = identity(at, entry.id).unwrap_or_else(from);
    let text = format!(
        "another volume {name:?} is on this node: {at} shows {shown}, but these options name {wanted}: give one of them another name, kubelet knows an attached volume by nothing else"
    );
    Failure::new(Code::Conflict, text).into()
}

//! Comparison of the mount that is already at a target with the wanted one.

use super::carry_out::TargetState;
use super::context::{Context, open_place};
use super::record::Record;
use super::{checkout, csi, image, staged, store};
use anyhow::Result;
use flexvol_linux::block::block_device::number_of;
use flexvol_linux::block::loop_device;
use flexvol_linux::mount;
use flexvol_linux::mount::mount_table::{self, Entry};
use flexvol_linux::mount::place::Mounted;
use flexvol_model::plan::{Source, View};
use flexvol_protocol::{Access, TargetPath};
use std::os::fd::AsFd;
use std::path::Path;

impl Context<'_> {
    /// Compares the mount that is already at the target with the wanted one.
    pub(super) fn compare(&self, target: &TargetPath, mounted: Mounted, view: &View) -> Result<TargetState> {
        let Some(entry) = mount_table::by_id(mounted.id)? else {
            return Ok(TargetState::Conflict(format!(
                "{target} is being mounted by another process: try again"
            )));
        };
        if !self.shows(target, &entry, mounted, view)? {
            if matches!(view.source, Source::Store(_)) && store::is_dead_at(&open_place(target)?, target)? {
                return Ok(TargetState::Open);
            }
            return Ok(TargetState::Conflict(format!(
                "{}, but {} is asked for: unmount it first",
                shown(target, &entry),
                wanted(view)
            )));
        }
        let read_only = view.access == Access::ReadOnly;
        // A CSI driver decides that itself: kubelet controls what containers may do.
        let is_told = !matches!(view.source, Source::Csi { .. });
        if is_told && entry.read_only != read_only {
            let other = if read_only { "read-write" } else { "read-only" };
            return Ok(TargetState::Conflict(format!("{} {other}: unmount it first", shown(target, &entry))));
        }
        let record = Record::read(target).filter(|record| record.mount_id == mounted.id);
        match (record, &self.asked) {
            (Some(record), Some(asked)) if !asked.is_in(&record) => Ok(TargetState::Conflict(format!(
                "{} with other options than now: unmount it first",
                shown(target, &entry)
            ))),
            _ => Ok(TargetState::Reached),
        }
    }

    fn shows(&self, target: &TargetPath, entry: &Entry, mounted: Mounted, view: &View) -> Result<bool> {
        if view.file_system.as_ref().is_some_and(|kinds| !kinds.include(&entry.file_system)) {
            return Ok(false);
        }
        match &view.source {
            Source::Any => Ok(true),
            Source::Clone { directory, .. } => {
                checkout::is_shown(target, directory.as_deref(), entry, mounted)
            }
            Source::Name(name) => Ok(entry.source == name.as_str()),
            Source::Share { source, servers } => {
                Ok(servers.iter().any(|server| entry.source == source.with(server).as_str()))
            }
            Source::Node(path) => Ok(mount::identity(self.open_source(path)?.0.as_fd())? == mounted.root),
            Source::Image(file) => {
                let backing = loop_device::backing_of(number_of(&entry.source))?;
                Ok(backing.is_some_and(|backing| image::is_file(&backing, file, self.settings)))
            }
            Source::Store(store) => self.shows_store(entry, store),
            Source::Identity(name) => Ok(staged::is_named(target, mounted, name)),
            // The mount itself does not tell: either the agent was asked for it here, or it is
            // another volume's.
            Source::Csi { .. } => {
                let is_it = csi::is_published(self, target);
                Ok(is_it && staged::is_named(target, mounted, &view.source.to_string()))
            }
        }
    }
}

fn shown(target: &TargetPath, entry: &Entry) -> String {
    let below =
        if entry.root == Path::new("/") { String::new() } else { format!(" {}", entry.root.display()) };
    format!("{target} already shows {} from {}{below}", entry.file_system, entry.source.to_string_lossy())
}

fn wanted(view: &View) -> String {
    let from = view.source.to_string();
    view.file_system.as_ref().map_or(from.clone(), |name| format!("{name} from {from}"))
}

//! State that the steps of one call share: settings, deadline, and what one step hands to the next.

use super::Task;
use super::disk::DeviceContext;
use super::record::Asked;
use anyhow::Result;
use flexvol_linux::fs::lock::SharedLock;
use flexvol_linux::mount::place::Place;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::{Runner, Tools};
use flexvol_model::settings::Settings;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::{Fields, TargetPath};
use std::path::Path;

/// View of the node for one call, and what its steps hand to each other.
pub(super) struct Context<'a> {
    pub(super) driver: &'a str,
    pub(super) directory: Option<&'a str>,
    pub(super) settings: &'a Settings,
    pub(super) deadline: Deadline,
    pub(super) runner: &'a dyn Runner,
    pub(super) asked: Option<Asked>,
    pub(super) disk: DeviceContext,
    pub(super) reached: Option<Reached>,
    pub(super) fields: Fields,
    pub(super) mount_id: Option<u64>,
    pub(super) unique_mount_id: Option<u64>,
    /// Device and inode of the mount's root.
    pub(super) mount_root: Option<(u64, u64)>,
    pub(super) sources: Option<SharedLock>,
}

/// Server that a call uses.
#[derive(Debug)]
pub(super) struct Reached {
    /// Name as the volume spells it.
    pub(super) name: String,
    pub(super) address: String,
    pub(super) client: String,
}

impl<'a> Context<'a> {
    /// Creates the view for one call. `asked` is what would be recorded; it distinguishes a
    /// repeated call from a contradicting one.
    pub(super) fn new(task: &Task<'a>, deadline: Deadline, asked: Option<Asked>) -> Self {
        Self {
            driver: task.driver,
            directory: task.directory,
            settings: task.settings,
            deadline,
            runner: task.runner,
            asked,
            disk: DeviceContext::default(),
            reached: None,
            fields: Fields::default(),
            mount_id: None,
            unique_mount_id: None,
            mount_root: None,
            sources: None,
        }
    }

    /// Returns access to the helper programs of this call.
    pub(super) fn tools(&self) -> Tools<'_> {
        Tools { runner: self.runner, deadline: &self.deadline }
    }

    /// Returns the ids of the mount that this call made: the id and, if the kernel has one, the id
    /// that is never used again.
    pub(super) fn mount_ids(&self) -> Option<(u64, Option<u64>)> {
        Some((self.mount_id?, self.unique_mount_id))
    }

    /// Returns the reply's fields besides the status.
    pub(super) fn into_fields(self) -> Fields {
        self.fields
    }
}

pub(super) fn open_place(target: &TargetPath) -> Result<Place> {
    Place::open(target)?.ok_or_else(|| {
        let parent = target.as_path().parent().unwrap_or(Path::new("/")).display();
        Failure::new(Code::NotFound, format!("{parent} does not exist: kubelet makes it before it calls"))
            .into()
    })
}

pub(super) fn denied(message: String) -> anyhow::Error {
    Failure::new(Code::Denied, message).into()
}

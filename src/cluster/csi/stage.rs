//! `NodeStageVolume` and `NodeUnstageVolume`, of a driver that attaches: the device is mounted once
//! for the node.

use super::codes::of_error;
use super::handle::Handle;
use super::layout;
use super::locks::Guard;
use super::program::{Answer, Budget};
use super::request::{At, Stage};
use super::served::Served;
use super::target::{self, Standing};
use flexvol_model::csi_journal::{Entry, Phase, Staged, key};
use flexvol_protocol::{Call, Options, TargetPath};
use tonic::Status;

impl Served {
    /// Mounts the device for the node.
    pub(super) fn stage(&self, request: &Stage, budget: Budget) -> Result<(), Status> {
        self.check_attaches()?;
        let options = self.ground.of_stage(request)?;
        let (id, staging) = (&request.volume.id, &request.staging);
        let global = self.global(id)?;
        let guard = self.lock(id, staging)?;
        self.check_owner(id, staging)?;
        let entry = self.journal.get(id).unwrap_or_default();
        self.check_same(&request.volume, &entry)?;
        let noted = entry.staged;
        if noted.as_ref().is_some_and(|staged| staged.path != key(staging)) {
            return Err(Status::failed_precondition(
                "the volume is staged at another path: unstage it there first",
            ));
        }
        match (target::look(&global)?, noted.map(|staged| staged.phase)) {
            (Standing::Directory, Some(Phase::Done)) if self.ground.habits.mountless => return Ok(()),
            (Standing::Mounted, Some(Phase::Done)) => return Ok(()),
            (Standing::Mounted, None) => {
                tracing::warn!(volume = id, "adopted a staged device that the journal lacks");
                return self.note_stage(request, request.device.as_deref().unwrap_or_default(), Phase::Done);
            }
            // An earlier call was interrupted.
            (Standing::Mounted | Standing::Dead(_), _) => self.unmount_device(&global, &guard, budget)?,
            (Standing::Missing | Standing::Directory, _) => {}
        }
        let noted = self.note_stage(request, "", Phase::Begun);
        let staged = noted.and_then(|()| self.stage_device(request, options, &global, &guard, budget));
        staged.inspect_err(|_| self.undo_stage(id, &global, &guard, budget))
    }

    fn check_attaches(&self) -> Result<(), Status> {
        if self.capabilities()?.attach {
            return Ok(());
        }
        Err(Status::unimplemented("the driver has no devices to stage"))
    }

    fn stage_device(
        &self,
        request: &Stage,
        options: Options,
        global: &TargetPath,
        guard: &Guard,
        budget: Budget,
    ) -> Result<(), Status> {
        layout::make(global)?;
        let device = request.device.clone().unwrap_or_default();
        let plain = Options { secrets: std::collections::BTreeMap::new(), ..options.clone() };
        let call = Call::WaitForAttach { device: device.clone(), options: plain };
        let device = match self.program.call(&call, guard, budget)? {
            // kubelet treats an omitted device as none; with CSI the device that attach named is
            // kept.
            Answer::Done(status) if !status.device.is_empty() => status.device,
            Answer::Done(_) | Answer::NotSupported => device,
        };
        let target = global.clone();
        self.mount_device(Call::MountDevice { target, device: device.clone(), options }, guard, budget)?;
        self.note_stage(request, &device, Phase::Done)
    }

    fn mount_device(&self, mut call: Call, guard: &Guard, budget: Budget) -> Result<(), Status> {
        let answer = self.program.call(&call, guard, budget)?;
        call.forget_secrets();
        match answer {
            Answer::Done(_) => Ok(()),
            // Such a driver does everything in `mount`, as with kubelet.
            Answer::NotSupported if has_no_device(&call) => Ok(()),
            Answer::NotSupported => self.by_kubelet.call(&call, guard, budget).map(drop),
        }
    }

    fn note_stage(&self, request: &Stage, device: &str, phase: Phase) -> Result<(), Status> {
        let read_only = request.volume.capability.is_read_only();
        let options = self.ground.of_device(&request.volume, read_only)?.to_json();
        self.note(&request.volume.id, |entry| {
            entry.options = options;
            entry.identity = request.volume.identity();
            let path = key(&request.staging);
            entry.staged = Some(Staged { path, device: device.to_owned(), phase });
        })
    }

    fn unmount_device(&self, global: &TargetPath, guard: &Guard, budget: Budget) -> Result<(), Status> {
        if matches!(target::look(global)?, Standing::Mounted | Standing::Dead(_)) {
            self.unmount(&Call::UnmountDevice { target: global.clone() }, guard, budget)?;
        }
        target::remove(global).map_err(|error| of_error(&error))
    }

    fn undo_stage(&self, id: &str, global: &TargetPath, guard: &Guard, budget: Budget) {
        if guard.is_stuck() {
            return;
        }
        let undone = self.unmount_device(global, guard, Self::moment(budget));
        match undone {
            Ok(()) => self.journal.forget(id, |entry| entry.staged = None),
            Err(status) => {
                tracing::warn!(volume = id, reason = status.message(), "a failed stage could not be undone");
            }
        }
    }

    /// Unmounts the device from the node.
    pub(super) fn unstage(&self, request: &At, budget: Budget) -> Result<(), Status> {
        self.check_attaches()?;
        let At { id, path } = request;
        let guard = self.lock(id, path)?;
        let entry = self.journal.get(id).unwrap_or_default();
        check_unused(&entry)?;
        if Handle::parse(id).is_some() {
            self.unmount_device(&self.global(id)?, &guard, budget)?;
        }
        if entry.is_staged_at(path) {
            self.journal.forget(id, |entry| entry.staged = None);
        }
        Ok(())
    }
}

fn has_no_device(call: &Call) -> bool {
    matches!(call, Call::MountDevice { device, .. } if device.is_empty())
}

fn check_unused(entry: &Entry) -> Result<(), Status> {
    match entry.targets.keys().next() {
        Some(path) => {
            Err(Status::failed_precondition(format!("the volume is published at {path}: unpublish it first")))
        }
        None => Ok(()),
    }
}

//! `NodePublishVolume` and `NodeUnpublishVolume`: validate, lock, look, journal, call, verify,
//! commit.
//!
//! What needs much room on the stack and is over before the driver runs is not inlined: a driver
//! that hangs keeps its thread, and a thousand may hang.

use super::by_kubelet;
use super::capability::invalid;
use super::codes::of_error;
use super::layout;
use super::locks::Guard;
use super::program::{Answer, Budget};
use super::request::{At, Publish, Volume};
use super::served::Served;
use super::target::{self, Standing};
use flexvol_model::csi_journal::{Entry, Phase, Target, key};
use flexvol_protocol::{Call, Options, TargetPath};
use tonic::Status;

/// Work that is needed for a request, after a look.
enum Todo {
    /// Nothing: it is published exactly as requested.
    Nothing,
    /// Adopt a mount that the journal does not know: it is taken for the volume's, as kubelet does.
    Adopt,
    /// Undo an earlier call that was interrupted, and mount.
    Undo,
    /// Mount.
    Mount,
}

/// Volume that is about to be mounted.
struct Begun {
    guard: Guard,
    options: Box<Options>,
    attaches: bool,
}

impl Served {
    /// Publishes the volume to a pod.
    pub(super) fn publish(&self, request: &Publish, budget: Budget) -> Result<(), Status> {
        let Some(Begun { guard, options, attaches }) = self.begin(request, budget)? else { return Ok(()) };
        let target = &request.target;
        let is_inside = attaches || self.ground.habits.own_tree || layout::is_flex_volume(target);
        let mounted = if is_inside {
            self.mount_inside(request, options, attaches, &guard, budget)
        } else {
            self.mount(target, options, &guard, budget)
        };
        let done = mounted.and_then(|()| self.write(request, Phase::Done));
        done.inspect_err(|_| self.roll_back(request, &guard, budget))
    }

    /// Does all that comes before the driver mounts; `None` if nothing is left to do.
    #[inline(never)]
    fn begin(&self, request: &Publish, budget: Budget) -> Result<Option<Begun>, Status> {
        let attaches = self.capabilities()?.attach;
        let options = Box::new(self.ground.of_mount(request)?);
        if request.volume.inline && attaches {
            return Err(invalid(
                "the driver attaches its volumes, which no pod can have inline: use a PersistentVolume",
            ));
        }
        let (id, target) = (&request.volume.id, &request.target);
        let guard = self.lock(id, target)?;
        match self.todo(request, &guard, budget)? {
            Todo::Nothing => return Ok(None),
            Todo::Adopt => {
                tracing::warn!(volume = id, %target, "adopted a mount that the journal lacks");
                self.write(request, Phase::Done)?;
                return Ok(None);
            }
            Todo::Undo => self.undo(id, target, &guard, budget)?,
            Todo::Mount => {}
        }
        if attaches {
            self.check_staged(request)?;
        }
        self.write(request, Phase::Begun)?;
        Ok(Some(Begun { guard, options, attaches }))
    }

    fn check_staged(&self, request: &Publish) -> Result<(), Status> {
        let missing = |text: &str| Status::failed_precondition(format!("the volume is not staged: {text}"));
        let staging = request.staging.as_ref().ok_or_else(|| missing("no staging_target_path"))?;
        let noted = self.journal.get(&request.volume.id).and_then(|entry| entry.staged);
        let is_done = noted.is_some_and(|staged| staged.phase == Phase::Done && staged.path == key(staging));
        if is_done || target::look(&self.global(&request.volume.id)?)? == Standing::Mounted {
            return Ok(());
        }
        Err(missing("call NodeStageVolume first"))
    }

    fn todo(&self, request: &Publish, guard: &Guard, budget: Budget) -> Result<Todo, Status> {
        let Publish { volume, target, .. } = request;
        self.check_owner(&volume.id, target)?;
        let entry = self.journal.get(&volume.id).unwrap_or_default();
        self.check_same(volume, &entry)?;
        self.check_exclusive(request, &entry, guard, budget)?;
        let noted = entry.target(target);
        match (target::look(target)?, noted) {
            (Standing::Dead(errno), _) => {
                let text = format!("the mount at {target} does not answer ({errno}): delete the pod");
                Err(Status::internal(text))
            }
            (_, Some(Target { phase: Phase::Begun, .. })) => Ok(Todo::Undo),
            (Standing::Mounted, Some(noted)) if noted.read_only != request.read_only => {
                Err(Status::already_exists(format!("{target} is published with another readonly")))
            }
            (Standing::Mounted, Some(_)) => self.check_alive(target, guard, budget).map(|()| Todo::Nothing),
            (Standing::Mounted, None) if request.read_only && target::is_writable(target)? => {
                let text = format!("{target} is mounted, but can be written: delete the pod");
                Err(Status::already_exists(text))
            }
            (Standing::Mounted, None) => self.check_alive(target, guard, budget).map(|()| Todo::Adopt),
            (Standing::Directory, _) if self.ground.habits.empty_directory => {
                let empty = target::is_empty(target).map_err(|error| of_error(&error))?;
                let text =
                    format!("{target} is not empty, and the driver would hide or delete what is in it");
                if empty { Ok(Todo::Mount) } else { Err(Status::failed_precondition(text)) }
            }
            (Standing::Directory | Standing::Missing, _) => Ok(Todo::Mount),
        }
    }

    /// Fails if a program served the mount and has ended.
    fn check_alive(&self, target: &TargetPath, guard: &Guard, budget: Budget) -> Result<(), Status> {
        if target::is_served(target)? {
            self.by_kubelet.ask(by_kubelet::PULSE, target, guard, budget)?;
        }
        Ok(())
    }

    /// Fails if a directory belongs to another volume.
    pub(super) fn check_owner(&self, id: &str, path: &TargetPath) -> Result<(), Status> {
        match self.journal.owner_of(path).filter(|owner| owner != id) {
            Some(owner) => {
                let text = format!("{path} belongs to volume {owner}: unpublish that first");
                Err(Status::failed_precondition(text))
            }
            None => Ok(()),
        }
    }

    /// Fails if the volume is here with other options. They identify the data: two
    /// volumes of Kubernetes may have the same id.
    pub(super) fn check_same(&self, volume: &Volume, entry: &Entry) -> Result<(), Status> {
        if entry.identity.is_empty() || entry.identity == volume.identity() || !self.is_here(entry)? {
            return Ok(());
        }
        Err(Status::failed_precondition(
            "the volume is here with other options: another PersistentVolume has the same volumeHandle: give one of \
             them another one, and end the pods that use it",
        ))
    }

    /// Reports whether anything of a volume is mounted: a pod that is gone since the last boot was
    /// never unpublished.
    fn is_here(&self, entry: &Entry) -> Result<bool, Status> {
        if entry.staged.is_some() && is_mounted(target::look(&self.global(&entry.id)?)?) {
            return Ok(true);
        }
        for path in entry.targets.keys() {
            let Ok(path) = TargetPath::parse(path.as_ref()) else { continue };
            if self.is_in_use(&entry.id, &path)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Fails if another pod uses the volume, and only one may. A note in the journal is only a
    /// reason to look: a pod that is gone may never have been unpublished, if its publish was
    /// interrupted or if the node has rebooted since. A publish that was only begun is undone.
    fn check_exclusive(
        &self,
        request: &Publish,
        entry: &Entry,
        guard: &Guard,
        budget: Budget,
    ) -> Result<(), Status> {
        let (id, own) = (&request.volume.id, key(&request.target));
        let exclusive = request.volume.capability.is_exclusive();
        for (path, noted) in entry.targets.iter().filter(|(path, _)| **path != own) {
            let Ok(other) = TargetPath::parse(path.as_ref()) else { continue };
            if !exclusive && !noted.exclusive {
                continue;
            }
            if noted.phase == Phase::Begun {
                self.undo(id, &other, guard, budget)?;
            } else if self.is_in_use(id, &other)? {
                let text = format!("the volume is published at {path}, and only one pod may have it");
                return Err(Status::failed_precondition(text));
            }
        }
        Ok(())
    }

    /// Reports whether a published volume is still there. For a driver that mounts nothing, the
    /// journal is the only evidence.
    fn is_in_use(&self, id: &str, path: &TargetPath) -> Result<bool, Status> {
        let inner = self.inner_in_use(id, path)?;
        let inner_is_mounted =
            || inner.map_or(Ok(false), |inner| target::look(&inner.target).map(is_mounted));
        Ok(self.ground.habits.mountless || is_mounted(target::look(path)?) || inner_is_mounted()?)
    }

    fn write(&self, request: &Publish, phase: Phase) -> Result<(), Status> {
        let options = self.ground.of_device(&request.volume, request.read_only)?.to_json();
        let exclusive = request.volume.capability.is_exclusive();
        let target = Target { phase, read_only: request.read_only, exclusive };
        self.note(&request.volume.id, |entry| {
            entry.options = options;
            entry.identity = request.volume.identity();
            entry.publish(&request.target, target);
        })
    }

    /// Mounts at the target itself.
    fn mount(
        &self,
        target: &TargetPath,
        options: Box<Options>,
        guard: &Guard,
        budget: Budget,
    ) -> Result<(), Status> {
        target::make(target).map_err(|error| of_error(&error))?;
        match self.call_mount(target, options, guard, budget)? {
            Answer::Done(_) => Ok(()),
            Answer::NotSupported => Err(no_mount()),
        }
    }

    /// Mounts in our own tree, and shows that at the target. If a driver that attaches has no
    /// `mount`, the staged device is shown.
    #[inline(never)]
    fn mount_inside(
        &self,
        request: &Publish,
        options: Box<Options>,
        attaches: bool,
        guard: &Guard,
        budget: Budget,
    ) -> Result<(), Status> {
        let Publish { volume, target, .. } = request;
        let inner = self.inner(&volume.id, target).ok_or_else(|| Status::not_found("no such volume"))?;
        let access = options.access();
        layout::make(&inner.target)?;
        let shown = match self.call_mount(&inner.target, options, guard, budget)? {
            Answer::Done(_) => inner.target,
            Answer::NotSupported => {
                inner.remove()?;
                if !attaches {
                    return Err(no_mount());
                }
                self.global(&volume.id)?
            }
        };
        if target::look(&shown)? != Standing::Mounted && !self.ground.habits.mountless {
            let text = "nothing is staged: the driver has neither mount nor mountdevice, and no device";
            return Err(Status::failed_precondition(text));
        }
        target::make(target).map_err(|error| of_error(&error))?;
        let options = Options { access: Some(access), ..Options::default() };
        let call = Call::Mount { target: target.clone(), device: Some(key(&shown)), options };
        self.by_kubelet.call(&call, guard, budget).map(drop)
    }

    fn call_mount(
        &self,
        at: &TargetPath,
        options: Box<Options>,
        guard: &Guard,
        budget: Budget,
    ) -> Result<Answer, Status> {
        let mut call = Call::Mount { target: at.clone(), device: None, options: *options };
        let answer = self.program.call(&call, guard, budget);
        call.forget_secrets();
        let answer = answer?;
        let done = matches!(answer, Answer::Done(_));
        if done && !self.ground.habits.mountless && target::look(at)? != Standing::Mounted {
            return Err(Status::internal(format!(
                "mount succeeded, but nothing is mounted at {at}: a driver that only writes files needs the habit mountless"
            )));
        }
        if done {
            self.check_alive(at, guard, budget)?;
        }
        Ok(answer)
    }

    /// Undoes a half-finished publish after a failure, if the driver's process is gone. A failed
    /// undo leaves the volume in the journal.
    #[inline(never)]
    fn roll_back(&self, request: &Publish, guard: &Guard, budget: Budget) {
        if guard.is_stuck() {
            return;
        }
        let (id, path) = (&request.volume.id, &request.target);
        if let Err(status) = self.undo(id, path, guard, budget) {
            tracing::warn!(volume = id, target = %path, reason = status.message(), "a failed publish could not be undone");
        }
    }

    /// Undoes the work that an earlier call has begun.
    pub(super) fn undo(
        &self,
        id: &str,
        path: &TargetPath,
        guard: &Guard,
        budget: Budget,
    ) -> Result<(), Status> {
        self.take_down(id, path, guard, Self::moment(budget))
    }

    /// Unpublishes the volume from a pod.
    pub(super) fn unpublish(&self, request: &At, budget: Budget) -> Result<(), Status> {
        let At { id, path } = request;
        let guard = self.lock(id, path)?;
        self.check_owner(id, path)?;
        self.take_down(id, path, &guard, budget)
    }

    fn take_down(&self, id: &str, path: &TargetPath, guard: &Guard, budget: Budget) -> Result<(), Status> {
        let noted = self.journal.get(id).and_then(|entry| entry.target(path));
        let unmount = |path: &TargetPath| match noted.map(|noted| noted.phase) {
            Some(Phase::Begun) => self.unmount_half(path, guard, budget),
            phase => self.unmount_by_driver(path, phase.is_some(), guard, budget),
        };
        if let Some(inner) = self.inner_in_use(id, path)? {
            if is_mounted(target::look(path)?) {
                self.unmount_as_kubelet(path, guard, budget)?;
            }
            unmount(&inner.target)?;
            inner.remove()?;
        } else {
            unmount(path)?;
        }
        target::remove(path).map_err(|error| of_error(&error))?;
        self.journal.forget(id, |entry| entry.forget(path));
        Ok(())
    }

    fn unmount_by_driver(
        &self,
        path: &TargetPath,
        is_known: bool,
        guard: &Guard,
        budget: Budget,
    ) -> Result<(), Status> {
        let found = target::look(path)?;
        if is_mounted(found) || is_known && self.is_called_unmounted(found) {
            let unmounted = self.unmount(&Call::Unmount { target: path.clone() }, guard, budget);
            return self.forgive(unmounted, is_mounted(found), guard);
        }
        Ok(())
    }

    /// Unmounts what an interrupted `mount` has left. The driver may not know it as a volume,
    /// because it was killed before it could record that. No pod has ever seen it.
    fn unmount_half(&self, path: &TargetPath, guard: &Guard, budget: Budget) -> Result<(), Status> {
        match self.unmount_by_driver(path, self.ground.habits.mountless, guard, budget) {
            Err(status) if !guard.is_stuck() && is_mounted(target::look(path)?) => {
                tracing::warn!(target = %path, reason = status.message(), "unmounting without the driver");
                self.unmount_as_kubelet(path, guard, budget)
            }
            unmounted => unmounted,
        }
    }

    /// Reports whether `unmount` is called for a volume that is published and not mounted: after a
    /// reboot, or because the driver mounts nothing.
    fn is_called_unmounted(&self, found: Standing) -> bool {
        let habits = &self.ground.habits;
        habits.mountless || found == Standing::Directory && !habits.unmount_needs_mount
    }

    /// Ignores a failed `unmount` without a mount: some drivers report that as a failure.
    fn forgive(&self, unmounted: Result<(), Status>, mounted: bool, guard: &Guard) -> Result<(), Status> {
        match unmounted {
            Err(status) if !mounted && !self.ground.habits.mountless && !guard.is_stuck() => {
                tracing::info!(reason = status.message(), "unmount failed where nothing was mounted");
                Ok(())
            }
            unmounted => unmounted,
        }
    }
}

fn no_mount() -> Status {
    Status::unimplemented("mount is not supported, and only a driver that attaches can leave it to kubelet")
}

fn is_mounted(standing: Standing) -> bool {
    matches!(standing, Standing::Mounted | Standing::Dead(_))
}

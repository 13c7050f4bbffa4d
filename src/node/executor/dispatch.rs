//! Dispatch of each step to the function that performs it, and of each undo.

use super::bind::Binding;
use super::carry_out::{Node, TargetState};
use super::context::{Context, open_place};
use super::disk::DeviceContext;
use super::files::Content;
use super::store::lost::Lost;
use super::target::restore_directory;
use super::undo::Undo;
use super::{ceph, checkout, csi, daemon, hold, image, run, store, unmount};
use anyhow::Result;
use flexvol_linux::fs::openat_beneath;
use flexvol_linux::mount::Parameter;
use flexvol_linux::mount::mount_table;
use flexvol_linux::mount::place::{Answer, Look, Mounted, Place};
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::process;
use flexvol_model::plan::{Goal, Step};
use flexvol_protocol::TargetPath;
use flexvol_protocol::failure::{Code, Failure};
use std::os::fd::AsFd;
use std::time::Duration;

/// Limit for a mount's answer; a silent mount is not dead.
const ANSWER_WAIT: Duration = Duration::from_secs(3);

/// Limit for the rollback, in addition to the time that the call itself took.
const UNDO_TIME: Duration = Duration::from_secs(8);

/// Reports whether the program that served a mount has ended. The kernel caches the mount's root,
/// so a look does not tell.
fn has_ended(place: &Place, mounted: Mounted) -> Result<bool> {
    let entry = mount_table::by_id(mounted.id)?;
    let is_served = entry.is_some_and(|entry| entry.is_served());
    Ok(is_served && place.ask(ANSWER_WAIT) == Answer::Gone)
}

impl Node for Context<'_> {
    type Undo = Undo;

    fn look(&mut self, goal: &Goal) -> Result<TargetState> {
        match goal {
            Goal::Performed => Ok(TargetState::Open),
            Goal::Mounted { target, view } => {
                self.refuse_another_s(target)?;
                let Some(place) = Place::open(target)? else { return Ok(TargetState::Open) };
                match place.look()? {
                    Look::Mount(mounted) => match self.compare(target, mounted, view)? {
                        TargetState::Reached if has_ended(&place, mounted)? => {
                            let text = format!("{target} is a dead mount: unmount it first");
                            Ok(TargetState::Conflict(text))
                        }
                        state => Ok(state),
                    },
                    Look::Dead(errno) => Ok(TargetState::Conflict(format!(
                        "{target} is a dead mount ({errno}): unmount it first"
                    ))),
                    _ => Ok(TargetState::Open),
                }
            }
            Goal::Ended { target } if daemon::is_left(target) || store::is_left(self, target)? => {
                Ok(TargetState::Open)
            }
            Goal::Ended { target } if csi::is_published(self, target) => Ok(TargetState::Open),
            Goal::Unmounted { target } | Goal::Ended { target }
                if !self.settings.agent.is_empty() && hold::is_held(target) =>
            {
                Ok(TargetState::Open)
            }
            Goal::Unmounted { target } | Goal::Ended { target } => unmount::standing(target),
        }
    }

    fn perform(&mut self, step: &Step) -> Result<Option<Undo>> {
        // A worker without a supervisor must not mount or unmount unnoticed while kubelet's next
        // call runs.
        self.deadline.check_signals("carrying out the call")?;
        match step {
            Step::PrepareTarget { target } => self.prepare_target(target),
            Step::MakeDirectory { path, owner } => self.make_directory(path, *owner),
            Step::ExpectMount { path } => image::expect_mount(path).map(|()| None),
            Step::CreateImage { file, size, allocation } => self.create_image(file, *size, *allocation),
            Step::AttachLoop { file, region, direct_io, read_only } => {
                self.attach_loop(file, *region, *direct_io, *read_only).map(|()| Some(Undo::ReleaseDevice))
            }
            Step::Store(step) => self.perform_on_store(step),
            Step::Answer { device } => {
                self.fields.device = Some(device.clone());
                Ok(None)
            }
            Step::ExpectStaged { staged, source } => self.expect_staged(staged, source).map(|()| None),
            Step::ShowStaged { target, staged, flags } => self.show_staged(target, staged, *flags),
            Step::Format { file_system, options } => self.format(*file_system, options).map(|()| None),
            Step::CheckFileSystem { file_system } => self.check_file_system(*file_system).map(|()| None),
            Step::Mount { target, file_system, from, flags, options } => {
                let options: Vec<_> = options.iter().map(Parameter::from).collect();
                self.mount_from(target, (file_system.as_deref(), from), *flags, &options)
            }
            Step::Reach(reach) => self.reach(reach).map(|()| None),
            Step::MakeDirectoryOnShare { share, missing } => {
                self.make_unless_mountable(share, missing).map(|()| None)
            }
            Step::ReachCluster(cluster) => {
                self.reached = Some(ceph::reach(cluster, &self.settings.policy, &self.deadline)?);
                Ok(None)
            }
            Step::MountShare { target, share, missing, otherwise } => {
                self.mount_share(target, share, missing.as_deref(), otherwise.as_deref())
            }
            Step::MountOverlay { target, overlay } => self.mount_overlay(target, overlay),
            Step::MountFiles { target, source, options, flags, files, owner } => {
                self.mount_files(target, (source, options, *flags), &Content { files, owner: *owner })
            }
            Step::Bind { target, source, recursive, flags, propagation } => {
                let binding = Binding { recursive: *recursive, flags: *flags, propagation: *propagation };
                self.bind(target, source, &binding)
            }
            Step::Hold { .. }
            | Step::Release { .. }
            | Step::CsiPublish { .. }
            | Step::CsiUnpublish { .. }
            | Step::CsiExpand { .. } => self.perform_by_agent(step),
            Step::Run(run) => run::run(self, run),
            Step::Checkout(checkout) => checkout::checkout(self, checkout),
            Step::Serve(daemon) => daemon::serve(self, daemon),
            Step::EndDaemon { target, patience, traces } => {
                daemon::unmount(self, target, *patience, traces).map(|()| None)
            }
            Step::Unmount { target } => self.unmount(target).map(|()| None),
            Step::GrowImage { size, allocation } => self.grow_image(*size, *allocation).map(|()| None),
            Step::GrowFileSystem { target } => self.grow_file_system(target).map(|()| None),
        }
    }

    /// Compares the id with that of the mount that was made, which costs the same on a node with
    /// ten thousand mounts. A mount that a foreign command made has to be recognised in the mount
    /// table.
    fn confirm(&mut self, goal: &Goal) -> Result<()> {
        let Goal::Mounted { target, .. } = goal else { return Ok(()) };
        let place = open_place(target)?;
        self.unique_mount_id = place.unique_mount_id();
        let found = place.look()?;
        if let Look::Mount(mounted) = &found {
            self.mount_root = Some(mounted.root);
        }
        match (found, self.mount_id) {
            (Look::Mount(mounted), Some(id)) if mounted.id == id => Ok(()),
            (Look::Mount(mounted), None) => match self.look(goal)? {
                TargetState::Reached => {
                    self.mount_id = Some(mounted.id);
                    Ok(())
                }
                TargetState::Conflict(by) => Err(Failure::new(Code::Conflict, by).into()),
                TargetState::Open => Err(nothing_mounted(target)),
            },
            _ => Err(nothing_mounted(target)),
        }
    }

    /// Processes left by a command could repeat the mount that is undone, or keep it busy.
    fn begin_undo(&mut self) {
        process::end_children();
        self.deadline = Deadline::for_undo(UNDO_TIME);
    }

    fn undo(&mut self, undo: &Undo) -> Result<()> {
        match undo {
            Undo::RemoveTarget(target) => open_place(target)?.remove_directory(),
            Undo::RestoreTarget(target) => {
                unmount::take_off(&open_place(target)?)?;
                restore_directory(&open_place(target)?)
            }
            Undo::Unmount(target) => unmount::take_off(&open_place(target)?),
            Undo::EndDaemon(target) => daemon::undo(target),
            Undo::RemoveDirectories(root, made) => {
                openat_beneath::remove_directories(openat_beneath::open_root(root)?.as_fd(), made)
            }
            Undo::RemoveImage(file, made) => self.remove_image(file, made),
            Undo::ReleaseDevice => {
                self.disk.release();
                Ok(())
            }
            Undo::Release(socket, target) => {
                hold::release(socket, target);
                Ok(())
            }
            Undo::Unpublish(socket, target) => csi::undo(socket, target),
            Undo::DetachStore(target) => {
                self.disk = DeviceContext::default();
                store::detach(self, target)
            }
        }
    }
}

impl Context<'_> {
    /// Performs a step by asking the node's agent.
    fn perform_by_agent(&mut self, step: &Step) -> Result<Option<Undo>> {
        match step {
            Step::Hold { socket, hold } => return hold::hold(self, socket, hold),
            Step::CsiPublish { socket, target, volume, secrets } => {
                return self.publish(socket, target, volume, secrets);
            }
            Step::Release { socket, target } => hold::release(socket, target),
            Step::CsiUnpublish { socket, target } => self.unpublish(socket, target)?,
            Step::CsiExpand { socket, volume, size } => self.expand(socket, volume, *size)?,
            _ => {}
        }
        Ok(None)
    }

    fn unmount(&self, target: &TargetPath) -> Result<()> {
        let lost = Lost::at(self.driver, target)?;
        unmount::unmount(self, target)?;
        lost.map_or(Ok(()), |lost| lost.let_go(self.tools()))
    }
}

fn nothing_mounted(target: &TargetPath) -> anyhow::Error {
    Failure::new(Code::Internal, format!("nothing is mounted at {target} although every step succeeded"))
        .into()
}

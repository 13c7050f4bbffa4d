//! Execution of plans on this node.
//!
//! ```text
//! execute ─▶ locks ─▶ carry_out: look, perform each step, look again, undo  ─▶ record
//!                        │
//!                     dispatch ─▶ one file for each kind of step, all on one Context
//! ```
//!
//! A file imports only what is to its right or below it in this picture.

mod bind;
pub mod carry_out;
mod ceph;
mod checkout;
mod clean_up;
mod context;
mod csi;
mod daemon;
mod disk;
mod dispatch;
mod file_system;
mod files;
mod hold;
mod home;
mod image;
mod layers;
pub mod leftovers;
mod locks;
pub mod mount_pod;
mod network;
mod ownership;
pub mod record;
mod run;
mod staged;
mod store;
mod target;
mod target_state;
mod tools_root;
mod undo;
mod unmount;

pub use clean_up::{Left, Worker, clean_up};
pub use ownership::is_volume_of;
pub use unmount::mount_at;

use crate::hints::to_failure;
use carry_out::{Applied, apply};
use context::Context;
use flexvol_linux::fs::lock::{Lock, SharedLock};
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::Runner;
use flexvol_model::plan::{Goal, Plan};
use flexvol_model::settings::Settings;
use flexvol_protocol::failure::Result;
use flexvol_protocol::{Call, Fields};
use locks::{lock, lock_path};
use record::{Asked, Record};

/// Call and its plan, which the policy has allowed.
pub struct Task<'a> {
    /// Name of the driver.
    pub driver: &'a str,
    /// Name of its directory, `vendor~driver`, if it has one: it may touch only volumes of that
    /// name.
    pub directory: Option<&'a str>,
    /// Policy and deadlines.
    pub settings: &'a Settings,
    /// Call from kubelet.
    pub call: &'a Call,
    /// Steps to carry out.
    pub plan: &'a Plan,
    /// Runner of helper programs.
    pub runner: &'a dyn Runner,
}

/// Carries out a plan on this node, one call at a time for each target, and for each volume that is
/// attached to a node. Returns the reply's fields besides the status.
pub fn execute(task: &Task<'_>, deadline: Deadline) -> Result<Fields> {
    let Task { call, plan, .. } = task;
    let lock = lock_path(call, plan).map(|path| lock(path, call.verb(), &deadline)).transpose()?.flatten();
    if let Call::Mount { target, .. } | Call::MountDevice { target, .. } = call
        && lock.as_ref().is_some_and(Lock::is_after_a_killed_one)
    {
        clean_up::take_off_dead(target).map_err(to_failure)?;
    }
    if matches!(call, Call::Unmount { .. }) && !task.settings.policy.bind_roots.is_empty() {
        // A killed mount may have left such locks, and perhaps no later call uses their root.
        record::root_lock_paths().for_each(SharedLock::sweep);
    }
    let record = Record::of(task.driver, call);
    let mut context = Context::new(task, deadline, Asked::by(call));
    let applied = apply(&mut context, plan)?;
    remember(&plan.goal, applied, record, &context);
    Ok(context.into_fields())
}

/// Writes or removes the record. Records may be lost at any time, so an error is ignored.
fn remember(goal: &Goal, applied: Applied, record: Option<Record>, context: &Context<'_>) {
    match (goal, record, context.mount_ids()) {
        (Goal::Unmounted { target } | Goal::Ended { target }, ..) => record::forget(target),
        (Goal::Mounted { view, .. }, Some(record), Some((id, unique))) if applied == Applied::Now => {
            let identity = view.source.identity();
            let root = context.mount_root;
            let _ = Record { root, identity, ..record.with_mount(id, unique) }.write();
        }
        _ => {}
    }
}

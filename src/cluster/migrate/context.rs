//! Running migration: everything that is needed for each write.

use super::decide::Goal;
use super::exclusive::Exclusive;
use super::journal::Journal;
use super::plan::Plan;
use crate::controllers::blocking::Answer;
use crate::kubectl::session::Session;
use anyhow::Result;
use serde_json::Value;
use std::time::Duration;

/// Pause between two looks at the work of others.
pub const AGAIN: Duration = Duration::from_millis(300);

/// Running migration.
#[derive(Debug)]
pub struct Run<'a> {
    /// Session with the cluster.
    pub session: &'a Session,
    /// Plan to carry out.
    pub plan: &'a Plan,
    /// Direction of the migration.
    pub goal: Goal,
    /// Journal of the steps.
    pub journal: &'a Journal,
    /// Lease that excludes other runs.
    pub exclusive: &'a Exclusive,
    /// Deadline for pods to end.
    pub stop_wait: Duration,
    /// Deadline for pods to be ready again; zero does not wait.
    pub ready_wait: Duration,
}

impl Run<'_> {
    /// Sends a write after it is in the journal, if the lease is still ours.
    pub(super) fn write(
        &self,
        object: &str,
        step: &str,
        ask: (&'static str, &str, Option<Value>),
    ) -> Result<Answer> {
        self.journal.note(object, step)?;
        self.exclusive.check()?;
        let (method, path, body) = ask;
        Ok(self.session.ask(method, path, body))
    }
}

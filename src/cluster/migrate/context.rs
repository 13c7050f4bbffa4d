//! A migration on its way: what it needs for each write.

use super::decide::Goal;
use super::exclusive::Exclusive;
use super::journal::Journal;
use super::plan::Plan;
use crate::controllers::blocking::Answer;
use crate::kubectl::session::Session;
use anyhow::Result;
use serde_json::Value;
use std::time::Duration;

/// Between two looks at what others do.
pub const AGAIN: Duration = Duration::from_millis(300);

/// A migration on its way.
#[derive(Debug)]
pub struct Run<'a> {
    /// The cluster.
    pub session: &'a Session,
    /// What is to be done.
    pub plan: &'a Plan,
    /// Which way.
    pub goal: Goal,
    /// What is done, as it is done.
    pub journal: &'a Journal,
    /// No other run.
    pub exclusive: &'a Exclusive,
    /// How long pods may take to end.
    pub stop_wait: Duration,
    /// How long they may take to be ready again; zero does not wait.
    pub ready_wait: Duration,
}

impl Run<'_> {
    /// Writes, if the lease is ours, and the journal has it.
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

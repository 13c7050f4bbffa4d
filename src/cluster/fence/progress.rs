//! How far a node has come that detaches storage by force. Pure.

use flexvol_protocol::text::one_line;
use serde_json::{Value, json};

/// No task has more steps.
pub const STEPS: usize = 16;

/// No message is longer.
const LONGEST: usize = 1024;

/// How things stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A step is under way.
    Running,
    /// All steps were tried, and something is left: it is tried again.
    Stuck,
    /// Nothing is left, and the storage is released.
    Done,
}

impl Phase {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Running, Self::Stuck, Self::Done];

    /// Its name in tasks.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Stuck => "Stuck",
            Self::Done => "Done",
        }
    }
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It goes on.
    Running,
    /// It succeeded.
    Done,
    /// It did not: the next one is tried.
    Failed,
    /// Its process cannot be ended.
    Stuck,
}

impl Outcome {
    /// Its name in tasks.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Done => "Done",
            Self::Failed => "Failed",
            Self::Stuck => "Stuck",
        }
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What was tried, in a few words.
    pub name: &'static str,
    /// What came of it.
    pub outcome: Outcome,
    /// Why it failed.
    pub message: String,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How things stand.
    pub phase: Phase,
    /// What was tried, in this order.
    pub steps: Vec<Step>,
    /// What is left, and what ends that.
    pub message: String,
}

impl Progress {
    /// As the status of a task has it.
    pub fn to_json(&self) -> Value {
        let steps = self.steps.iter().take(STEPS).map(|step| {
            json!({"step": step.name, "outcome": step.outcome.name(), "message": one_line(&step.message, LONGEST)})
        });
        json!({
            "phase": self.phase.name(),
            "message": one_line(&self.message, LONGEST),
            "steps": steps.collect::<Vec<_>>(),
        })
    }
}

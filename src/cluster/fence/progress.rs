//! Progress of a node that detaches storage by force. Pure.

use flexvol_protocol::text::one_line;
use serde_json::{Value, json};

/// Limit for the steps of a task.
pub const STEPS: usize = 16;

/// Limit for a message, in bytes.
const LONGEST: usize = 1024;

/// Current phase of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A step is under way.
    Running,
    /// All steps were tried, and something is left: the steps are retried.
    Stuck,
    /// Nothing is left, and the storage is released.
    Done,
}

impl Phase {
    /// All phases.
    pub const ALL: [Self; 3] = [Self::Running, Self::Stuck, Self::Done];

    /// Returns the name in tasks.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Stuck => "Stuck",
            Self::Done => "Done",
        }
    }
}

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The step is under way.
    Running,
    /// The step succeeded.
    Done,
    /// The step failed: the next one is tried.
    Failed,
    /// The step's process cannot be ended.
    Stuck,
}

impl Outcome {
    /// Returns the name in tasks.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Done => "Done",
            Self::Failed => "Failed",
            Self::Stuck => "Stuck",
        }
    }
}

/// Step of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Action of the step, in a few words.
    pub name: &'static str,
    /// Outcome of the step.
    pub outcome: Outcome,
    /// Reason for a failure.
    pub message: String,
}

/// Progress of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Current phase.
    pub phase: Phase,
    /// Steps that were tried, in this order.
    pub steps: Vec<Step>,
    /// Remaining problem, and how to fix it.
    pub message: String,
}

impl Progress {
    /// Returns the JSON form for the status of a task.
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

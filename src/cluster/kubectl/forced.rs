//! What is unmounted by force: which holds, what their nodes are asked, and what came of it. Pure.

use super::held::{Held, State};
use super::objects::{Objects, Volume};
use crate::fence::decide::{Cause, Task};
use crate::fence::progress::Phase;
use crate::fence::store::kubernetes::object_of_task;
use serde_json::{Value, json};

/// How things stand to one hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its node cannot be asked; why.
    Refused(String),
    /// Its node is to be asked.
    Planned,
    /// It has been, and has not said anything.
    Asked,
    /// It works at it.
    Running,
    /// Something is left; what.
    Stuck(String),
    /// It is unmounted and released.
    Done,
}

/// One hold that is to be ended.
#[derive(Clone, Debug)]
pub struct Forced {
    /// Of the lock, and of the task.
    pub namespace: String,
    /// What its node is asked.
    pub task: Task,
    /// What is held.
    pub storage: String,
    /// Namespace and name.
    pub pod: String,
    /// Where, and how that node is.
    pub node: String,
    /// The name of the volume whose directory it is.
    pub volume: String,
    /// The PersistentVolume that it certainly is, where those were asked for.
    pub persistent: Option<Volume>,
    /// How things stand.
    pub standing: Standing,
    /// What was tried: each step and what came of it.
    pub steps: Vec<[String; 3]>,
}

impl Forced {
    /// Of a hold, whose lock is in this namespace.
    pub fn of(held: &Held<'_>, namespace: &str, objects: &Objects) -> Self {
        let standing = match held.node {
            State::Ready | State::Marked => Standing::Planned,
            _ => Standing::Refused(held.advice()),
        };
        Self {
            namespace: namespace.to_owned(),
            task: Task { holder: held.holder.clone(), reason: Cause::Forced },
            storage: held.record.handle.clone(),
            pod: held.pod(),
            node: held.node(),
            volume: held.volume().to_owned(),
            persistent: held.persistent(objects).cloned(),
            standing,
            steps: Vec::new(),
        }
    }

    /// The object that asks its node.
    pub fn object(&self) -> Value {
        object_of_task(&self.task)
    }

    /// Whether an object is the one that asks its node.
    pub fn is_asked_by(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        metadata["namespace"] == *self.namespace && metadata["name"] == *self.task.name()
    }

    /// What the node says in that object.
    pub fn hear(&mut self, object: &Value) {
        let status = &object["status"];
        let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        if let Some(steps) = status["steps"].as_array() {
            self.steps =
                steps.iter().map(|step| ["step", "outcome", "message"].map(|key| text(step, key))).collect();
        }
        let phase = text(status, "phase");
        self.standing = match Phase::ALL.into_iter().find(|known| known.name() == phase) {
            None => Standing::Asked,
            Some(Phase::Running) => Standing::Running,
            Some(Phase::Stuck) => Standing::Stuck(text(status, "message")),
            Some(Phase::Done) => Standing::Done,
        };
    }

    /// The object is gone, which a node removes when it is done.
    pub fn gone(&mut self) {
        if self.is_asked() {
            self.standing = Standing::Done;
        }
    }

    /// Whether its node was asked.
    pub fn is_asked(&self) -> bool {
        !matches!(self.standing, Standing::Refused(_) | Standing::Planned)
    }

    /// Whether there is nothing to wait for: what is stuck ends only by somebody's doing.
    pub fn is_decided(&self) -> bool {
        !matches!(self.standing, Standing::Asked | Standing::Running)
    }

    /// For a table.
    pub fn result(&self) -> String {
        let last = self.steps.last();
        let step = last.map_or_else(String::new, |[step, ..]| format!(": {step}"));
        match &self.standing {
            Standing::Refused(why) => format!("not asked: {why}"),
            Standing::Planned => "to be unmounted".to_owned(),
            Standing::Asked => "its agent has not begun".to_owned(),
            Standing::Running => format!("goes on{step}"),
            Standing::Stuck(why) => format!("stuck: {why}"),
            Standing::Done => format!("released{step}"),
        }
    }

    /// In one word, for programs.
    fn word(&self) -> &'static str {
        match self.standing {
            Standing::Refused(_) => "refused",
            Standing::Planned => "planned",
            Standing::Asked => "asked",
            Standing::Running => "running",
            Standing::Stuck(_) => "stuck",
            Standing::Done => "released",
        }
    }

    /// For programs.
    pub fn as_json(&self) -> Value {
        let steps = self
            .steps
            .iter()
            .map(|[step, outcome, message]| json!({"step": step, "outcome": outcome, "message": message}));
        json!({
            "storage": self.storage,
            "pod": self.pod,
            "node": self.task.holder.node.name,
            "volume": self.volume,
            "result": self.word(),
            "message": self.result(),
            "task": format!("{}/{}", self.namespace, self.task.name()),
            "steps": steps.collect::<Vec<_>>(),
        })
    }
}

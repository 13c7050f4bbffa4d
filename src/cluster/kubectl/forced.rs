//! Holds that are ended by force, the tasks of their nodes, and the results. Pure.

use super::held::{Held, State};
use super::objects::{Objects, Volume};
use crate::fence::decide::{Cause, Task};
use crate::fence::progress::Phase;
use crate::fence::store::kubernetes::object_of_task;
use serde_json::{Value, json};

/// States of one hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its node cannot be asked; with the reason.
    Refused(String),
    /// Its node has yet to be asked.
    Planned,
    /// Its node was asked, and has not reported anything.
    Asked,
    /// Its node works on it.
    Running,
    /// Something is left; with a description.
    Stuck(String),
    /// It is unmounted and released.
    Done,
}

/// Hold that is to be ended by force.
#[derive(Clone, Debug)]
pub struct Forced {
    /// Namespace of the lock and of the task.
    pub namespace: String,
    /// Task for its node.
    pub task: Task,
    /// Storage that is held.
    pub storage: String,
    /// Namespace and name of the pod.
    pub pod: String,
    /// Node of the holder, with its state.
    pub node: String,
    /// Name of the volume that the directory belongs to.
    pub volume: String,
    /// PersistentVolume that it certainly is, if those were read.
    pub persistent: Option<Volume>,
    /// Current state.
    pub standing: Standing,
    /// Steps that were tried: name, outcome and message of each.
    pub steps: Vec<[String; 3]>,
}

impl Forced {
    /// Plans the end of a hold whose lock is in this namespace.
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

    /// Returns the object with the task for its node.
    pub fn object(&self) -> Value {
        object_of_task(&self.task)
    }

    /// Reports whether an object is that task.
    pub fn is_asked_by(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        metadata["namespace"] == *self.namespace && metadata["name"] == *self.task.name()
    }

    /// Reads the report of the node in that object.
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

    /// Takes note that the object is gone: a node removes it when it is done.
    pub fn gone(&mut self) {
        if self.is_asked() {
            self.standing = Standing::Done;
        }
    }

    /// Reports whether its node was asked.
    pub fn is_asked(&self) -> bool {
        !matches!(self.standing, Standing::Refused(_) | Standing::Planned)
    }

    /// Reports whether there is nothing to wait for: a stuck hold ends only when a person acts.
    pub fn is_decided(&self) -> bool {
        !matches!(self.standing, Standing::Asked | Standing::Running)
    }

    /// Returns the text for a table.
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

    /// Returns the state in one word, for programs.
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

    /// Returns the JSON form.
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

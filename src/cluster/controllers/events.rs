//! Events on the objects of a controller, as upstream's sidecars write them.
//!
//! The same message on the same object is one Event with a count. An Event is sent once, and a
//! failure is not retried: the objects hold everything that matters. Events are written as `v1`,
//! with the permission that upstream's sidecars have. kube's own recorder is not used: it counts by
//! reason, and shows the first message when the second one is different.

use super::api;
use flexvol_protocol::text::one_line;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;

/// Longest message that Kubernetes accepts, in bytes.
pub const MESSAGE_LIMIT: usize = 1024;

/// Limit for the part of an Event's name before its number.
const NAME_LIMIT: usize = 230;

/// Limit for messages that are remembered to be counted.
const REMEMBERED: usize = 1024;

/// Limit for messages that wait: two for each volume when a thousand are made at once.
const WAITING: usize = 2048;

/// Type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Something has happened.
    Normal,
    /// Something is wrong.
    Warning,
}

/// Identity of a sentence: uid of the object, reason and message.
type Id = (String, String, String);

/// Name of the Event of a sentence, and its count.
type Said = (String, i32);

/// One sentence about an object.
#[derive(Debug)]
struct Sentence {
    about: ObjectReference,
    kind: Kind,
    reason: String,
    message: String,
}

/// Events of a controller. Most are written some time later, one after the other: no work waits for
/// them, and they do not compete with it for the API server.
#[expect(missing_debug_implementations, reason = "a client of the API server has none")]
pub struct Events {
    writer: Arc<Writer>,
    lane: mpsc::Sender<Sentence>,
}

impl Events {
    /// Creates the Events of a controller with this name. Must be called within a runtime.
    pub fn new(client: Client, source: String) -> Self {
        let writer = Arc::new(Writer { client, source, said: Mutex::default() });
        let (lane, mut waiting) = mpsc::channel::<Sentence>(WAITING);
        let in_lane = Arc::clone(&writer);
        tokio::spawn(async move {
            while let Some(sentence) = waiting.recv().await {
                in_lane.write(&sentence).await;
            }
        });
        Self { writer, lane }
    }

    /// Queues an Event about an object. Drops it if too many Events wait.
    pub fn tell(&self, about: &ObjectReference, kind: Kind, reason: &str, message: &str) {
        if self.lane.try_send(Sentence::new(about, kind, reason, message)).is_err() {
            tracing::warn!(reason, "too many Events wait: one is left out");
        }
    }

    /// Writes an Event about an object now. Returns true on success.
    pub async fn tell_now(&self, about: &ObjectReference, kind: Kind, reason: &str, message: &str) -> bool {
        self.writer.write(&Sentence::new(about, kind, reason, message)).await
    }
}

impl Sentence {
    fn new(about: &ObjectReference, kind: Kind, reason: &str, message: &str) -> Self {
        let message = one_line(message, MESSAGE_LIMIT);
        Self { about: about.clone(), kind, reason: reason.to_owned(), message }
    }
}

/// Writer of Events, which counts repeated ones.
struct Writer {
    client: Client,
    source: String,
    said: Mutex<HashMap<Id, Said>>,
}

impl Writer {
    async fn write(&self, sentence: &Sentence) -> bool {
        let about = &sentence.about;
        let id = (about.uid.clone().unwrap_or_default(), sentence.reason.clone(), sentence.message.clone());
        let namespace = about.namespace.as_deref().unwrap_or("default");
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let before = self.said().get(&id).cloned();
        let told = match before {
            Some(said) => count(&api, said).await,
            None => Ok(None),
        };
        let told = match told {
            Ok(None) => self.begin(&api, sentence).await.map(Some),
            told => told,
        };
        match told {
            Ok(said) => {
                self.remember(id, said);
                true
            }
            Err(error) => {
                tracing::warn!(reason = api::reason(&error), "cannot write an Event");
                false
            }
        }
    }

    fn said(&self) -> std::sync::MutexGuard<'_, HashMap<Id, Said>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, id: Id, said: Option<Said>) {
        let mut known = self.said();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.extend(said.map(|said| (id, said)));
    }

    async fn begin(&self, api: &Api<Event>, sentence: &Sentence) -> kube::Result<Said> {
        let about = &sentence.about;
        let now = Timestamp::now();
        let name = name(about.name.as_deref().unwrap_or_default(), now);
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(about.namespace.clone().unwrap_or_else(|| "default".to_owned())),
                ..ObjectMeta::default()
            },
            involved_object: about.clone(),
            reason: Some(sentence.reason.clone()),
            message: Some(sentence.message.clone()),
            type_: Some(format!("{:?}", sentence.kind)),
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            source: Some(EventSource { component: Some(self.source.clone()), host: None }),
            reporting_component: Some(self.source.clone()),
            ..Event::default()
        };
        api.create(&PostParams::default(), &event).await.map(|_| (name, 1))
    }
}

/// Increases the count of an Event; `None` if it was removed meanwhile, as happens after an hour.
async fn count(api: &Api<Event>, (name, count): Said) -> kube::Result<Option<Said>> {
    let count = count.saturating_add(1);
    let patch = Patch::Merge(json!({ "count": count, "lastTimestamp": Time(Timestamp::now()) }));
    match api.patch(&name, &PatchParams::default(), &patch).await {
        Ok(_) => Ok(Some((name, count))),
        Err(error) if api::is(&error, 404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns a name that no other Event has.
fn name(object: &str, now: Timestamp) -> String {
    let short: String = object.chars().take(NAME_LIMIT).collect();
    format!("{}.{:x}", short.trim_end_matches(['.', '-']), now.as_nanosecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_and_differ() {
        let (first, second) =
            (Timestamp::from_nanosecond(16).unwrap(), Timestamp::from_nanosecond(17).unwrap());
        assert_eq!(
            (name("data-0", first), name("data-0", second)),
            ("data-0.10".to_owned(), "data-0.11".to_owned())
        );
        let long = "a".repeat(NAME_LIMIT - 1) + "-.b";
        assert_eq!(name(&long, first), format!("{}.10", "a".repeat(NAME_LIMIT - 1)));
    }
}

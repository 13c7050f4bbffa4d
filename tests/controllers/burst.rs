//! Speed of controllers beside upstream's sidecars: bursts of claims and attachments, and the time
//! until a second process takes over. Both talk to the API server directly, and upstream's client
//! side rate limit is lifted.
//!
//! `tests/bench controllers` prints the tables.

use super::api_server::{ApiServer, patience};
use super::driver::Can;
use super::figures::{all, processor};
use super::subject::{Kind, Subject, Whose, Work};
use super::with_server;
use futures_util::TryStreamExt as _;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt as _};
use nix::sys::signal::Signal;
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Claims, and then attachments.
const MANY: usize = 500;

/// Rounds of each program, in turns.
const ROUNDS: usize = 5;

/// The node that all volumes are attached to.
const NODE: &str = "node";

/// Figures of each round: objects per second, p50 and p99 in milliseconds, and CPU milliseconds per
/// object.
type Rounds = BTreeMap<(&'static str, &'static str), Vec<[f64; 4]>>;

/// Objects of a kind as they come.
struct Coming<'a, K> {
    subject: &'a Subject,
    api: Api<K>,
    /// Up to where they were seen.
    version: String,
    processor: u64,
}

impl<'a, K: Kind> Coming<'a, K> {
    /// From now on.
    async fn begin(subject: &'a Subject) -> Self {
        let api: Api<K> = Api::all(subject.client.clone());
        let list = api.list_metadata(&ListParams::default().limit(1)).await.unwrap();
        Self { subject, api, version: list.metadata.resource_version.unwrap(), processor: processor(subject) }
    }

    /// Returns when each object appeared: `is_there` is true for a change that creates one.
    async fn see(&mut self, is_there: impl Fn(&WatchEvent<K>) -> bool) -> HashMap<String, Instant> {
        let mut there = HashMap::new();
        // The API server ends a watch that is not read fast enough.
        while there.len() < MANY {
            let changes = self.api.watch(&WatchParams::default(), &self.version).await.unwrap();
            let mut changes = pin!(changes);
            while there.len() < MANY
                && let Some(change) = timeout(patience(), changes.try_next()).await.unwrap().unwrap()
            {
                let object = object(&change);
                self.version = object.resource_version().unwrap();
                if is_there(&change) {
                    there.entry(object.name_any()).or_insert_with(Instant::now);
                }
            }
        }
        there
    }

    fn note(
        self,
        what: &'static str,
        asked: &[(String, Instant)],
        there: &HashMap<String, Instant>,
        rounds: &mut Rounds,
    ) {
        let processor = processor(self.subject) - self.processor;
        rounds.entry((what, self.subject.program())).or_default().push(figures(asked, there, processor));
    }
}

/// Asks for many objects, and sees them come: `ask` returns the name of one.
async fn many<K: Kind>(
    subject: &Subject,
    what: &'static str,
    rounds: &mut Rounds,
    ask: impl AsyncFn(usize) -> String,
    is_there: impl Fn(&WatchEvent<K>) -> bool,
) {
    let mut coming = Coming::begin(subject).await;
    let asking = all(MANY, async |number| {
        let begun = Instant::now();
        (ask(number).await, begun)
    });
    let (asked, there) = tokio::join!(asking, coming.see(is_there));
    coming.note(what, &asked, &there, rounds);
}

fn figures(asked: &[(String, Instant)], there: &HashMap<String, Instant>, processor: u64) -> [f64; 4] {
    let milliseconds = |time: Duration| time.as_secs_f64() * 1000.0;
    let whole = *there.values().max().unwrap() - *there.values().min().unwrap();
    let mut each: Vec<_> = asked.iter().map(|(name, asked)| there[name].duration_since(*asked)).collect();
    each.sort_unstable();
    let at = |percent: usize| milliseconds(each[MANY * percent / 100]);
    let number = f64::from(u32::try_from(MANY).unwrap());
    // The processor's time is in hundredths of a second.
    let processor = Duration::from_millis(processor * 10);
    [number / whole.as_secs_f64(), at(50), at(99), milliseconds(processor) / number]
}

/// The middle of all rounds.
fn print(rounds: &Rounds) {
    println!("| {MANY} volumes | program | a second | half within | 99 of 100 within | processor for one |");
    println!("|---|---|---|---|---|---|");
    for ((what, program), rounds) in rounds {
        let [rate, half, most, processor] = [0, 1, 2, 3].map(|column| {
            let mut column: Vec<_> = rounds.iter().map(|round| round[column]).collect();
            column.sort_by(f64::total_cmp);
            column[column.len() / 2]
        });
        println!("| {what} | {program} | {rate:.0} | {half:.0} ms | {most:.0} ms | {processor:.2} ms |");
    }
}

fn added<K>(change: &WatchEvent<K>) -> bool {
    matches!(change, WatchEvent::Added(_))
}

fn deleted<K>(change: &WatchEvent<K>) -> bool {
    matches!(change, WatchEvent::Deleted(_))
}

fn attached(change: &WatchEvent<VolumeAttachment>) -> bool {
    object(change).status.as_ref().is_some_and(|status| status.attached)
}

fn object<K: Kind>(change: &WatchEvent<K>) -> &K {
    match change {
        WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => object,
        other => panic!("{other:?}"),
    }
}

/// A program begins to work when claims wait already. Returns the names of their volumes.
async fn begins(subject: &mut Subject, round: usize, rounds: &mut Rounds) -> Vec<String> {
    let class = subject.named("class");
    let claim = async |number| subject.claim(&claim(subject, round, number), &class, json!({})).await;
    let volumes = all(MANY, claim).await;
    subject.begin();
    let begun = Instant::now();
    let mut coming = Coming::<PersistentVolume>::begin(subject).await;
    let there = coming.see(added).await;
    let asked: Vec<_> = volumes.iter().map(|volume| (volume.clone(), begun)).collect();
    coming.note("provisioned at the start", &asked, &there, rounds);
    volumes
}

fn claim(subject: &Subject, round: usize, number: usize) -> String {
    subject.named(&format!("{}-{round}-{number}", subject.program()))
}

/// Volumes are attached, detached and deleted.
async fn live(subject: &Subject, round: usize, volumes: &[String], rounds: &mut Rounds) {
    let ask = async |number: usize| {
        subject.attach(&volumes[number], json!({"spec": {"nodeName": NODE}})).await;
        volumes[number].clone()
    };
    many(subject, "attached", rounds, ask, attached).await;
    let ask = async |number: usize| {
        subject.delete::<VolumeAttachment>(&volumes[number]).await;
        volumes[number].clone()
    };
    many::<VolumeAttachment>(subject, "detached", rounds, ask, deleted).await;
    all(MANY, async |number| {
        subject.unclaim(&claim(subject, round, number)).await;
        subject.phase(&volumes[number], "Bound").await;
    })
    .await;
    let ask = async |number: usize| {
        subject.phase(&volumes[number], "Released").await;
        volumes[number].clone()
    };
    many::<PersistentVolume>(subject, "deleted", rounds, ask, deleted).await;
}

/// The driver and its class, a node, and a program that asks the API server itself.
async fn subject(server: &ApiServer, driver: &str) -> Subject {
    server.has_namespaces().await;
    let can = Can { publish: true, provision: true, ..Can::default() };
    let mut subject = Subject::new(server, Whose::Ours, Work::All, driver, can).await;
    subject.ask_directly(server);
    subject.class(&subject.named("class"), json!({})).await;
    subject.node(NODE).await;
    subject
}

#[test]
#[ignore = "figures"]
fn many_volumes_live() {
    with_server("burst::many_volumes_live", async |server| {
        let mut subject = subject(&server, "burst.example.com").await;
        let mut rounds = Rounds::new();
        for round in 0..ROUNDS {
            for whose in [Whose::Ours, Whose::Upstream] {
                subject.is_now(whose);
                let volumes = begins(&mut subject, round, &mut rounds).await;
                live(&subject, round, &volumes, &mut rounds).await;
                let class = subject.named("class");
                let claim = |number| claim(&subject, ROUNDS + round, number);
                let ask = async |number| subject.claim(&claim(number), &class, json!({})).await;
                many::<PersistentVolume>(&subject, "provisioned", &mut rounds, ask, added).await;
                subject.kill().await;
            }
        }
        print(&rounds);
    });
}

/// Makes a claim; returns the time until its volume exists.
async fn is_provisioned(subject: &Subject, name: &str) -> Duration {
    let begun = Instant::now();
    let name = subject.named(&name.to_lowercase());
    let volume = subject.claim(&name, &subject.named("class"), json!({})).await;
    subject.becomes::<PersistentVolume>(&volume, |object| !object.is_null()).await;
    begun.elapsed()
}

#[test]
#[ignore = "figures"]
fn another_process_takes_over() {
    with_server("burst::another_process_takes_over", async |server| {
        let mut subject = subject(&server, "taken.example.com").await;
        println!("| flexvold ends by | a claim made then has its volume after |");
        println!("|---|---|");
        for (signal, limit) in [(Signal::SIGTERM, 1.0), (Signal::SIGKILL, 16.0)] {
            subject.begin();
            is_provisioned(&subject, &format!("before-{signal}")).await;
            let leader = subject.begin_another();
            // Long enough for it to wait for the lease.
            tokio::time::sleep(Duration::from_secs(3)).await;
            for mut process in leader {
                process.ends_by(signal);
            }
            let waited = is_provisioned(&subject, &format!("after-{signal}")).await.as_secs_f64();
            println!("| {signal} | {waited:.1} s |");
            assert!(waited <= limit, "{waited}");
            subject.kill().await;
        }
    });
}

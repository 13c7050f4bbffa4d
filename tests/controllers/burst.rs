//! How fast controllers are, beside upstream's sidecars: many claims and many attachments at once,
//! and a process that takes over from another one. Both talk to the API server itself, and
//! upstream's may ask as often as they like.
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

/// What was measured in each round: objects a second, milliseconds in which half of them were
/// there, and 99 of 100, and what one cost of the processor.
type Rounds = BTreeMap<(&'static str, &'static str), Vec<[f64; 4]>>;

/// Asks for many objects, and sees them come: `ask` returns the name of one, `is_there` the name of
/// one that a change brings about.
async fn many<K: Kind>(
    subject: &Subject,
    what: &'static str,
    rounds: &mut Rounds,
    ask: impl AsyncFn(usize) -> String,
    is_there: impl Fn(&WatchEvent<K>) -> Option<String>,
) -> Vec<String> {
    let api: Api<K> = Api::all(subject.client.clone());
    let version = api.list_metadata(&ListParams::default().limit(1)).await.unwrap().metadata.resource_version;
    let changes = api.watch(&WatchParams::default().timeout(290), &version.unwrap()).await.unwrap();
    let before = processor(subject);
    let asking = all(MANY, async |number| {
        let begun = Instant::now();
        (ask(number).await, begun)
    });
    let seeing = async {
        let (mut changes, mut there) = (pin!(changes), HashMap::new());
        while there.len() < MANY {
            let change = timeout(patience(), changes.try_next()).await;
            let change = change.unwrap_or_else(|_| panic!("{} are {what}: {}", there.len(), subject.said()));
            if let Some(name) = is_there(&change.unwrap().unwrap()) {
                there.entry(name).or_insert_with(Instant::now);
            }
        }
        there
    };
    let (asked, there) = tokio::join!(asking, seeing);
    let processor = processor(subject) - before;
    rounds.entry((what, subject.program())).or_default().push(figures(&asked, &there, processor));
    asked.into_iter().map(|(name, _)| name).collect()
}

fn figures(asked: &[(String, Instant)], there: &HashMap<String, Instant>, processor: u64) -> [f64; 4] {
    let milliseconds = |time: Duration| time.as_secs_f64() * 1000.0;
    let whole = *there.values().max().unwrap() - asked[0].1;
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

fn added<K: Kind>(change: &WatchEvent<K>) -> Option<String> {
    matches!(change, WatchEvent::Added(_)).then(|| name(change))
}

fn deleted<K: Kind>(change: &WatchEvent<K>) -> Option<String> {
    matches!(change, WatchEvent::Deleted(_)).then(|| name(change))
}

fn attached(change: &WatchEvent<VolumeAttachment>) -> Option<String> {
    let WatchEvent::Modified(object) = change else { return None };
    object.status.as_ref().is_some_and(|status| status.attached).then(|| name(change))
}

fn name<K: Kind>(change: &WatchEvent<K>) -> String {
    match change {
        WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
            object.name_any()
        }
        other => panic!("{other:?}"),
    }
}

/// Volumes that are made, attached, detached and deleted.
async fn lives(subject: &Subject, round: usize, rounds: &mut Rounds) {
    let class = subject.named("class");
    let claim = |number: usize| subject.named(&format!("{}-{round}-{number}", subject.program()));
    let ask = async |number| subject.claim(&claim(number), &class, json!({})).await;
    let volumes = many::<PersistentVolume>(subject, "provisioned", rounds, ask, added).await;
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
        subject.unclaim(&claim(number)).await;
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
                subject.begin();
                is_provisioned(&subject, &format!("first-{round}")).await;
                lives(&subject, round, &mut rounds).await;
                subject.kill().await;
            }
        }
        print(&rounds);
    });
}

/// How long a claim waits for its volume.
async fn is_provisioned(subject: &Subject, name: &str) -> Duration {
    let begun = Instant::now();
    let name = subject.named(&format!("{}-{name}", subject.program()));
    let volume = subject.claim(&name, &subject.named("class"), json!({})).await;
    subject.becomes::<PersistentVolume>(&volume, |object| !object.is_null()).await;
    begun.elapsed()
}

#[test]
#[ignore = "figures"]
fn another_process_takes_over() {
    with_server("burst::another_process_takes_over", async |server| {
        let mut subject = subject(&server, "taken.example.com").await;
        println!("| a process ends by | program | a claim made then has its volume after |");
        println!("|---|---|---|");
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            for whose in [Whose::Ours, Whose::Upstream] {
                subject.is_now(whose);
                subject.begin();
                is_provisioned(&subject, &format!("before-{signal}")).await;
                let leader = subject.begin_another();
                tokio::time::sleep(Duration::from_secs(3)).await;
                for mut process in leader {
                    process.ends_by(signal);
                }
                let waited = is_provisioned(&subject, &format!("after-{signal}")).await;
                println!("| {signal} | {} | {:.1} s |", subject.program(), waited.as_secs_f64());
                subject.kill().await;
            }
        }
    });
}

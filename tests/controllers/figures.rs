//! What working for a driver costs: requests of a claim, capacity of a thousand places, memory. The
//! last two are not part of the gate, because other work on the machine changes them:
//!
//! ```text
//! FLEXVOL_RELEASE=<binary> FLEXVOL_CLUSTER_PROGRAMS=<directory> \
//!     cargo test -p flexvol-cluster --test controllers figures -- --ignored --nocapture --test-threads=1
//! ```

use super::api_server::{ApiServer, patience};
use super::bound_claims::{Claims, SIZE_BEFORE};
use super::capacity::{CAN, Told};
use super::driver::{Can, Says, ZONE};
use super::pace::deadline;
use super::proxy::Right;
use super::subject::{Subject, Whose, Work};
use super::with_server;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Claims, and volumes that are there.
const MANY: usize = 1000;

/// VolumeAttachments that change.
const ATTACHED: usize = 200;

/// How many of them are asked for at the same time.
const AT_ONCE: usize = 16;

/// What a process may have, in KiB.
const LIMIT: u64 = 25 * 1024;

async fn subject(server: &ApiServer, whose: Whose, work: Work, name: &str) -> Subject {
    server.has_namespaces().await;
    let all = work == Work::All;
    let can = match work {
        Work::Everything => Can { publish: true, topology: false, expand: true, says: Says::OfEach, ..CAN },
        _ => Can { publish: all, provision: true, expand: all, ..Can::default() },
    };
    let subject = Subject::new(server, whose, work, &format!("{name}.example.com"), can).await;
    subject.class(&subject.named("class"), json!({"allowVolumeExpansion": true})).await;
    subject
}

/// Does something for many.
pub(crate) async fn all<T>(number: usize, each: impl AsyncFn(usize) -> T) -> Vec<T> {
    futures_util::stream::iter(0..number).map(|number| each(number)).buffered(AT_ONCE).collect().await
}

async fn claims(subject: &Subject, number: usize) -> Vec<String> {
    all(number, async |number| {
        let class = subject.named("class");
        subject.claim(&subject.named(&format!("claim-{number}")), &class, json!({})).await
    })
    .await
}

async fn count(subject: &Subject) -> usize {
    let api: Api<PersistentVolume> = Api::all(subject.client.clone());
    let mut params = ListParams::default().limit(500);
    let mut count = 0;
    loop {
        let page = api.list_metadata(&params).await.unwrap();
        count += page.items.len();
        match page.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => params.continue_token = Some(next),
            None => return count,
        }
    }
}

/// Until there are so many volumes.
async fn are(subject: &Subject, number: usize) {
    let start = Instant::now();
    while count(subject).await != number {
        assert!(start.elapsed() < patience() * 5, "{}: {}", count(subject).await, subject.said().len());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn delete(subject: &Subject, volumes: &[String]) {
    all(volumes.len(), async |number| {
        subject.unclaim(&subject.named(&format!("claim-{number}"))).await;
        subject.phase(&volumes[number], "Bound").await;
        subject.phase(&volumes[number], "Released").await;
    })
    .await;
    are(subject, 0).await;
}

/// Requests that are made for objects, not to hear of them or to lead.
fn requests(subject: &Subject) -> Vec<(Right, usize)> {
    let counts = |right: &Right| right.resource != "leases" && right.verb != "list" && right.verb != "watch";
    subject.proxy.allowed().into_iter().filter(|(right, _)| counts(right)).collect()
}

/// Events come late, of upstream's especially, which sends few a second.
async fn when_quiet(subject: &Subject) -> Vec<(Right, usize)> {
    let mut before = Vec::new();
    loop {
        tokio::time::sleep(deadline(3)).await;
        let requests = requests(subject);
        if requests == before {
            return requests;
        }
        before = requests;
    }
}

/// Grown by its controller and a node, attached and detached.
async fn is_used(subject: &Subject, volume: &str, claim: &str) {
    let claims = Claims::of(subject).await;
    subject.bind(claim, volume).await;
    let pending =
        |claim: &Value| claim["status"]["allocatedResourceStatuses"]["storage"] == "NodeResizePending";
    claims.becomes(claim, pending).await;
    claims.kubelet_grows_volume(claim, volume).await;
    let forgotten = |volume: &Value| volume["metadata"]["annotations"][SIZE_BEFORE].is_null();
    subject.becomes::<PersistentVolume>(volume, forgotten).await;
    subject.attach(volume, json!({})).await;
    let attached = |object: &Value| object["status"]["attached"] == true;
    subject.becomes::<VolumeAttachment>(volume, attached).await;
    subject.delete::<VolumeAttachment>(volume).await;
    subject.becomes::<VolumeAttachment>(volume, Value::is_null).await;
}

/// What many claims cost, with the Events; not more than upstream's.
async fn compare(server: &ApiServer, work: Work) {
    let number = 20;
    let mut totals = Vec::new();
    for (whose, name) in [(Whose::Ours, "ours"), (Whose::Upstream, "upstream")] {
        let mut subject = subject(server, whose, work, name).await;
        if work == Work::All {
            subject.node(&subject.driver.name).await;
        }
        subject.begin();
        let volumes = claims(&subject, number).await;
        are(&subject, number).await;
        if work == Work::All {
            all(number, async |number| {
                is_used(&subject, &volumes[number], &subject.named(&format!("claim-{number}"))).await;
            })
            .await;
        }
        delete(&subject, &volumes).await;
        let requests = when_quiet(&subject).await;
        let total: usize = requests.iter().map(|(_, count)| count).sum();
        println!("{total} requests of {name} for {number} claims:");
        for (Right { verb, resource, .. }, count) in requests {
            println!("  {count} {verb} {resource}");
        }
        totals.push(total);
    }
    assert!(totals[0] <= totals[1], "{totals:?}");
}

/// Provisioned and deleted.
#[test]
fn a_claim_costs_no_more_requests_than_upstream() {
    with_server("figures::a_claim_costs_no_more_requests_than_upstream", async |server| {
        compare(&server, Work::Provision).await;
    });
}

/// And meanwhile grown, attached and detached: all works together.
#[test]
fn a_life_costs_no_more_requests_than_upstream() {
    with_server("figures::a_life_costs_no_more_requests_than_upstream", async |server| {
        compare(&server, Work::All).await;
    });
}

/// The most that its processes had, in KiB.
pub(crate) fn memory(subject: &Subject) -> u64 {
    let of = |name: &str| -> u64 {
        let each = subject.pids().into_iter().map(|pid| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        });
        each.sum()
    };
    println!("memory: {} KiB, at most {} KiB", of("VmRSS:"), of("VmHWM:"));
    of("VmHWM:")
}

/// Capacity is told of as many places as there are nodes, and nothing is written after that.
#[test]
#[ignore = "figures"]
fn a_thousand_places() {
    with_server("figures::a_thousand_places", async |server| {
        server.has_namespaces().await;
        let mut subject = Subject::new(&server, Whose::Ours, Work::Capacity, "places.example.com", CAN).await;
        let told = Told::of(&subject);
        told.pod().await;
        told.class("first", json!({})).await;
        told.class("second", json!({})).await;
        all(MANY, async |number| {
            let zone = format!("zone-{number}");
            told.node(&zone, Some(&zone), Some(&[ZONE])).await;
        })
        .await;
        subject.begin();
        let start = Instant::now();
        let (told, mut seen) = (Told::of(&subject), Vec::new());
        told.note("told", |all| all.len() == 2 * MANY, &mut seen).await;
        println!("{} objects in {:?}", 2 * MANY, start.elapsed());
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (before, asked) = (processor(&subject), subject.driver.calls("zone-1").len());
        subject.proxy.requests();
        tokio::time::sleep(Duration::from_secs(30)).await;
        let asked = subject.driver.calls("zone-1").len() - asked;
        let ticks = processor(&subject) - before;
        println!("each asked for {asked} times in 30 s: {ticks} hundredths of a second of the processor");
        assert_eq!(subject.proxy.requests(), [""; 0]);
        assert!(memory(&subject) <= LIMIT);
    });
}

/// What its processes have had of the processor, in hundredths of a second.
pub(crate) fn processor(subject: &Subject) -> u64 {
    let each = subject.pids().into_iter().map(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum::<u64>()
    });
    each.sum()
}

/// All that there is to do in one process, with many volumes that it has made and asks the driver
/// about, while some are attached and detached all the time.
#[test]
#[ignore = "figures"]
fn memory_with_many_volumes() {
    with_server("figures::memory_with_many_volumes", async |server| {
        let mut subject = subject(&server, Whose::Ours, Work::Everything, "memory").await;
        subject.node(&subject.driver.name).await;
        let told = Told::of(&subject);
        told.pod().await;
        told.node("a", None, Some(&[])).await;
        told.class("waits", json!({})).await;
        subject.begin();
        Told::of(&subject).note("told", |all| all.len() == 1, &mut Vec::new()).await;
        let volumes = claims(&subject, MANY).await;
        are(&subject, MANY).await;
        for volume in &volumes {
            subject.driver.says_of(volume, "");
        }
        memory(&subject);
        for _ in 0..3 {
            all(ATTACHED, async |number| {
                subject.attach(&volumes[number], json!({})).await;
                let attached = |object: &Value| object["status"]["attached"] == true;
                subject.becomes::<VolumeAttachment>(&volumes[number], attached).await;
            })
            .await;
            memory(&subject);
            all(ATTACHED, async |number| {
                subject.delete::<VolumeAttachment>(&volumes[number]).await;
                subject.becomes::<VolumeAttachment>(&volumes[number], Value::is_null).await;
            })
            .await;
            memory(&subject);
        }
        assert!(memory(&subject) <= LIMIT);
        // One that begins when all that is there.
        subject.kill().await;
        subject.begin();
        all(ATTACHED, async |number| {
            subject.attach(&volumes[number], json!({})).await;
            let attached = |object: &Value| object["status"]["attached"] == true;
            subject.becomes::<VolumeAttachment>(&volumes[number], attached).await;
        })
        .await;
        assert!(memory(&subject) <= LIMIT);
    });
}

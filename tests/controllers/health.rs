//! Volumes that a driver says are not well: what is told of their claims, in each way in which a
//! driver can say it.

use super::driver::{Can, Fault, Says};
use super::pace::deadline;
use super::proxy::Right;
use super::rights::{grant, of_a_provisioner};
use super::subject::{Subject, Whose, Work};
use super::with_server;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tonic::Code;

const ABNORMAL: &str = "VolumeConditionAbnormal";
const NORMAL: &str = "VolumeConditionNormal";

fn can(says: Says) -> Can {
    Can { says, ..Can::default() }
}

/// A volume that a claim of the same name has.
async fn bound(subject: &Subject, name: &str, change: Value) {
    let claim = json!({"kind": "PersistentVolumeClaim", "namespace": "default", "name": name, "uid": format!("uid-of-{name}")});
    let mut volume = json!({"spec": {"claimRef": claim}});
    super::subject::merge(&mut volume, change);
    subject.volume(name, volume).await;
    subject.phase(name, "Bound").await;
    subject.driver.says_of(name, "");
}

/// So many Events of a reason were told of a claim, and so often.
async fn told(subject: &Subject, name: &str, reason: &str, events: usize, times: i32) {
    let what = format!("{name} {reason} {events} {times}");
    subject.soon(&what, async || has(subject, name, reason).await == (events, times)).await;
}

async fn has(subject: &Subject, name: &str, reason: &str) -> (usize, i32) {
    let mut all = subject.events(name).await;
    all.retain(|(is, _)| is == reason);
    (all.len(), all.iter().map(|(_, count)| count).sum())
}

/// As often as the driver is asked meanwhile.
async fn a_while() {
    tokio::time::sleep(Duration::from_millis(2500)).await;
}

async fn tells(subject: &mut Subject) {
    let [ill, well, free, other] = ["ill", "well", "free", "other"].map(|name| subject.named(name));
    bound(subject, &ill, json!({})).await;
    bound(subject, &well, json!({})).await;
    bound(subject, &free, json!({})).await;
    subject.phase(&free, "Released").await;
    bound(subject, &other, json!({"spec": {"csi": {"driver": "other.example.com"}}})).await;
    for volume in [&ill, &free, &other] {
        subject.driver.says_of(volume, "the disk is failing");
    }
    subject.begin();
    told(subject, &ill, ABNORMAL, 1, 1).await;
    a_while().await;
    for (name, expected) in [(&ill, (1, 1)), (&well, (0, 0)), (&free, (0, 0)), (&other, (0, 0))] {
        assert_eq!(has(subject, name, ABNORMAL).await, expected, "{name}");
        assert_eq!(has(subject, name, NORMAL).await, (0, 0), "{name}");
    }
    subject.driver.says_of(&ill, "the disk has failed");
    told(subject, &ill, ABNORMAL, 2, 2).await;
    subject.driver.fails("health", "", &[Fault::Refused(Code::Internal); 2]);
    subject.driver.fails("health", &ill, &[Fault::Refused(Code::Internal); 2]);
    a_while().await;
    assert_eq!(has(subject, &ill, NORMAL).await, (0, 0), "an error is no condition");
    subject.driver.says_of(&ill, "");
    told(subject, &ill, NORMAL, 1, 1).await;
    subject.driver.says_of(&ill, "the disk has failed");
    told(subject, &ill, ABNORMAL, 2, 3).await;
    a_while().await;
    assert_eq!(has(subject, &ill, NORMAL).await, (1, 1));
}

/// Killed while a volume is not well; it is well when the next process begins.
async fn is_killed(subject: &mut Subject) {
    let ill = subject.named("ill");
    subject.kill().await;
    subject.begin();
    a_while().await;
    a_while().await;
    assert_eq!(has(subject, &ill, ABNORMAL).await, (2, 3), "it was told");
    subject.kill().await;
    subject.driver.says_of(&ill, "");
    subject.begin();
    told(subject, &ill, NORMAL, 2, 2).await;
}

#[test]
fn what_a_driver_says_is_told_once() {
    with_server("health::what_a_driver_says_is_told_once", async |server| {
        server.has_namespaces().await;
        for says in [Says::OfAll, Says::OfEach, Says::OfTheIll] {
            let name = format!("{says:?}.example.com").to_lowercase();
            let mut subject = Subject::new(&server, Whose::Ours, Work::Health, &name, can(says)).await;
            tells(&mut subject).await;
            if says == Says::OfAll {
                is_killed(&mut subject).await;
            }
            subject.kill().await;
        }
    });
}

/// A list without an end, one without a volume, no list at all.
#[test]
fn whatever_a_driver_says() {
    with_server("health::whatever_a_driver_says", async |server| {
        server.has_namespaces().await;
        let name = "strange.example.com";
        let mut subject = Subject::new(&server, Whose::Ours, Work::Health, name, can(Says::OfAll)).await;
        let ill = subject.named("ill");
        bound(&subject, &ill, json!({})).await;
        subject.driver.says_of(&ill, &"a long story ".repeat(1000));
        subject.begin();
        told(&subject, &ill, ABNORMAL, 1, 1).await;
        subject.driver.never_ends(true);
        subject.soon("it ends", async || subject.said().contains("has no end")).await;
        subject.driver.forgets(&ill);
        subject.driver.never_ends(false);
        a_while().await;
        assert_eq!(has(&subject, &ill, NORMAL).await, (0, 0), "nothing is known of it");
        subject.driver.says_of(&ill, "");
        told(&subject, &ill, NORMAL, 1, 1).await;
    });
}

/// What docs/csi.md says that an account needs, but for its lease.
fn rights() -> Vec<Right> {
    let of = |resource: &str, verbs: &[&str]| -> Vec<Right> {
        let (group, resource) = (String::new(), resource.to_owned());
        let right = |verb: &&str| Right {
            group: group.clone(),
            resource: resource.clone(),
            verb: (*verb).to_owned(),
        };
        verbs.iter().map(right).collect()
    };
    [of("persistentvolumes", &["list", "watch"]), of("events", &["list", "create", "patch"])].concat()
}

/// Whether something was refused that is needed.
async fn is_refused(subject: &mut Subject) -> bool {
    let ill = subject.named("ill");
    bound(subject, &ill, json!({})).await;
    subject.begin();
    for (condition, reason, times) in
        [("ill", ABNORMAL, 1), ("", NORMAL, 1), ("ill", ABNORMAL, 2), ("", NORMAL, 2)]
    {
        subject.driver.says_of(&ill, condition);
        let start = Instant::now();
        while has(subject, &ill, reason).await != (1, times) && start.elapsed() < deadline(10) {
            if !subject.proxy.refused().is_empty() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    !subject.proxy.refused().is_empty()
}

#[test]
fn rights_are_the_least() {
    with_server("health::rights_are_the_least", async |server| {
        server.has_namespaces().await;
        let server = &server;
        let trial = |number: usize, without: Option<Right>| async move {
            let name = format!("health-{number}.example.com");
            let mut subject = Subject::new(server, Whose::Ours, Work::Health, &name, can(Says::OfAll)).await;
            let [_, leases] = of_a_provisioner();
            grant(&subject, &[rights(), leases], without.as_ref()).await;
            let refused = is_refused(&mut subject).await;
            let told = has(&subject, &subject.named("ill"), NORMAL).await;
            (without, refused, told, subject.said())
        };
        let (_, refused, told, said) = trial(0, None).await;
        assert!(!refused && told == (1, 2), "{told:?}: {said}");
        let trials = rights().into_iter().enumerate().map(|(number, right)| trial(number + 1, Some(right)));
        let trials: Vec<_> = futures_util::stream::iter(trials).buffer_unordered(5).collect().await;
        for (right, refused, _, said) in trials {
            assert!(refused, "{right:?} is needless: {said}");
        }
    });
}

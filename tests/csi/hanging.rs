//! Volumes that hang, twice as many as there are places: who has nothing to do with them waits for
//! none of them.

use super::figures::memory;
use super::node::{Driver, Node, STRICT, publish_at, within};
use super::pace::deadline;
use flexvol_cluster::wire::csi;
use flexvol_cluster::wire::csi::node_client::NodeClient;
use std::fs;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tonic::Status;

/// Calls of a kind that have common places.
const PLACES: usize = 128;

const HANGS: &str = "mount) case $3 in *hangs*) exec sleep 982;; esac; is";

/// Publishes so many volumes that hang, of so many pods; comes back when no more begin.
async fn crowd(node: &Node, volumes: usize, pods: usize) -> JoinSet<Result<(), Status>> {
    let (channel, mut tasks) = (node.channel().await, JoinSet::new());
    for number in 0..volumes {
        let volume = format!("pods/crowd-{}/volumes/kubernetes.io~csi/hangs-{number}", number % pods);
        let volume = node.kubelet().join(volume);
        fs::create_dir_all(&volume).unwrap();
        let mut request = publish_at(&volume.join("mount"));
        request.volume_id = format!("fx1#hangs-{number}");
        request.volume_context.insert("this".into(), "hangs".into());
        let (mut client, request) = (NodeClient::new(channel.clone()), within(request, deadline(100)));
        tasks.spawn(async move { client.node_publish_volume(request).await.map(drop) });
    }
    while node.called("mount") < volumes.min(PLACES + pods) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tasks
}

#[test]
fn a_crowd_of_one_pod_keeps_no_other_waiting() {
    let body = STRICT.replace("mount) is", HANGS);
    let Some(node) = Node::serving("a_crowd_of_one_pod", "example.com/strict", &Driver::Script(&body)) else {
        return;
    };
    node.publish("1", |_| ()).unwrap();
    let mut hanging = node.block_on(crowd(&node, 2 * PLACES, 1));
    // None of the crowd has been given up meanwhile, so nobody has waited for it.
    node.publish("2", |_| ()).unwrap();
    node.stats("2").unwrap();
    node.identity(async |mut it| it.probe(csi::ProbeRequest {}).await).unwrap();
    node.unpublish("1").unwrap();
    node.unpublish("2").unwrap();
    assert!(node.block_on(async { hanging.try_join_next() }).is_none());
    hanging.abort_all();
}

/// Median times of a pod's publish, stats, probe and unpublish, in this order.
fn times(node: &Node) -> [Duration; 4] {
    let stopwatch = |call: &dyn Fn()| {
        let start = Instant::now();
        call();
        start.elapsed()
    };
    let calls: [&dyn Fn(); 4] = [
        &|| node.publish("1", |_| ()).unwrap(),
        &|| drop(node.stats("1").unwrap()),
        &|| assert!(node.identity(async |mut it| it.probe(csi::ProbeRequest {}).await).is_ok()),
        &|| node.unpublish("1").unwrap(),
    ];
    let rounds: Vec<_> = (0..21).map(|_| calls.map(stopwatch)).collect();
    std::array::from_fn(|call| {
        let mut all: Vec<_> = rounds.iter().map(|round| round[call]).collect();
        all.sort_unstable();
        all[all.len() / 2]
    })
}

/// Its command is that of `figures`, with `hanging` in its place.
#[test]
#[ignore = "figures"]
fn among_a_thousand_that_hang() {
    let body = STRICT.replace("mount) is", HANGS);
    let Some(node) = Node::serving("among_a_thousand", "example.com/strict", &Driver::Script(&body)) else {
        return;
    };
    let (alone, rest) = (times(&node), memory(node.server().id()));
    let mut hanging = node.block_on(crowd(&node, 1000, 1000));
    let (among, full) = (times(&node), memory(node.server().id()));
    assert!(node.block_on(async { hanging.try_join_next() }).is_none());
    println!("| call | alone | among 1,000 volumes that hang | ratio |\n|---|---|---|---|");
    for (call, (alone, among)) in
        ["publish", "stats", "probe", "unpublish"].iter().zip(alone.iter().zip(&among))
    {
        let ratio = among.as_secs_f64() / alone.as_secs_f64();
        println!("| {call} | {alone:.1?} | {among:.1?} | {ratio:.2} |");
    }
    println!("memory: {rest} kB, then {full} kB");
    hanging.abort_all();
}

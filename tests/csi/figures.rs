//! What serving a driver costs, over calling it. Not part of the gate: other work on the machine
//! changes it, and so does a client that is not optimised:
//!
//! ```text
//! CARGO_PROFILE_RELEASE_LTO=off FLEXVOL_RELEASE=<binary> \
//!     cargo test --release -p flexvol-cluster --test csi figures -- --ignored --nocapture --test-threads=1
//! ```

use super::node::{Driver, Node};
use flexvol_cluster::wire::csi;
use flexvol_cluster::wire::csi::node_client::NodeClient;
use flexvol_kubelet::{Caller, Verdict};
use flexvol_protocol::{Call, Options, TargetPath};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Volumes at once.
const CROWD: usize = 200;
const ROUNDS: usize = 300;

fn served(test: &str) -> Option<Node> {
    Node::serving(test, "flexvol/tmpfs", &Driver::Ours("{}"))
}

fn request(node: &Node, number: usize) -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: format!("fx1#pv-{number}"),
        ..node.publish_request(&format!("csi-{number}"))
    }
}

fn unpublish(request: &csi::NodePublishVolumeRequest) -> csi::NodeUnpublishVolumeRequest {
    let (volume_id, target_path) = (request.volume_id.clone(), request.target_path.clone());
    csi::NodeUnpublishVolumeRequest { volume_id, target_path }
}

/// How long the driver's own `mount` takes, as kubelet calls it.
fn mount(driver: &Path, target: &Path) -> Duration {
    std::fs::create_dir_all(target).unwrap();
    let target = TargetPath::parse(target.as_os_str()).unwrap();
    let start = Instant::now();
    let exchange = Caller::new(driver).call(&Call::Mount {
        target: target.clone(),
        device: None,
        options: Options::default(),
    });
    let took = start.elapsed();
    assert!(matches!(exchange.verdict, Verdict::Success(_)), "{}", exchange.verdict);
    took
}

fn unmount(driver: &Path, target: &Path) {
    let target = TargetPath::parse(target.as_os_str()).unwrap();
    assert!(Caller::new(driver).call(&Call::Unmount { target }).verdict.is_success());
}

fn at(mut times: Vec<Duration>, share: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() - 1) * share / 100]
}

/// Of a process, in KiB.
pub(crate) fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
#[ignore = "figures"]
fn overhead_of_a_publish() {
    let Some(node) = served("overhead") else { return };
    let direct = node.home.path().join("direct");
    let (mut own, mut over, mut difference) = (Vec::new(), Vec::new(), Vec::new());
    node.block_on(async {
        let mut client = NodeClient::new(node.channel().await);
        let request = request(&node, 0);
        for _ in 0..ROUNDS {
            let one = mount(&node.driver(), &direct);
            unmount(&node.driver(), &direct);
            let start = Instant::now();
            client.node_publish_volume(request.clone()).await.unwrap();
            let other = start.elapsed();
            client.node_unpublish_volume(unpublish(&request)).await.unwrap();
            own.push(one);
            over.push(other);
            difference.push(other.saturating_sub(one));
        }
    });
    println!(
        "NodePublishVolume: {:?}, mount alone {:?}, overhead {:?} (medians of {ROUNDS} pairs)",
        at(over, 50),
        at(own, 50),
        at(difference, 50)
    );
}

#[test]
#[ignore = "figures"]
fn many_volumes_at_once() {
    let Some(node) = served("many_volumes") else { return };
    let (mut direct, mut over) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        direct.extend(crowd_of_calls(&node));
        over.extend(crowd_of_requests(&node));
    }
    let (own, served) = (at(direct, 99), at(over, 99));
    let ratio = served.as_secs_f64() / own.as_secs_f64();
    println!("{CROWD} at once: p99 {served:?}, of the driver alone {own:?}, ratio {ratio:.2}");
    println!("memory after that: {} kB", memory(node.server().id()));
}

fn crowd_of_calls(node: &Node) -> Vec<Duration> {
    let targets: Vec<PathBuf> =
        (0..CROWD).map(|number| node.home.path().join(format!("direct-{number}"))).collect();
    let driver = node.driver();
    let start = Instant::now();
    let times = std::thread::scope(|scope| {
        let calls: Vec<_> = targets
            .iter()
            .map(|target| {
                let driver = &driver;
                scope.spawn(move || {
                    mount(driver, target);
                    start.elapsed()
                })
            })
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    for target in &targets {
        unmount(&driver, target);
    }
    times
}

fn crowd_of_requests(node: &Node) -> Vec<Duration> {
    let requests: Vec<_> = (0..CROWD).map(|number| request(node, number)).collect();
    node.block_on(async {
        let channel = node.channel().await;
        let mut tasks = tokio::task::JoinSet::new();
        let start = Instant::now();
        for request in requests.clone() {
            let mut client = NodeClient::new(channel.clone());
            tasks.spawn(async move {
                client.node_publish_volume(request).await.unwrap();
                start.elapsed()
            });
        }
        let times = tasks.join_all().await;
        let mut client = NodeClient::new(channel);
        for request in &requests {
            client.node_unpublish_volume(unpublish(request)).await.unwrap();
        }
        times
    })
}

#[test]
#[ignore = "figures"]
fn memory_at_rest() {
    let Some(node) = served("memory") else { return };
    std::thread::sleep(Duration::from_secs(1));
    let fresh = memory(node.server().id());
    node.publish("1", |_| ()).unwrap();
    node.unpublish("1").unwrap();
    std::thread::sleep(Duration::from_secs(4));
    println!("memory at rest: {fresh} kB, and {} kB after a volume", memory(node.server().id()));
}

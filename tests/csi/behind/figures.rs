//! What it costs to have a CSI driver behind FlexVolume, over what the CSI driver itself takes. Not
//! part of the gate, as [`crate::figures`], which has the command: `behind::figures`.

use super::{Scene, options};
use std::time::{Duration, Instant};

const ROUNDS: usize = 200;

/// Issue 24: the median of a call, without the CSI driver's own time.
const MOST: Duration = Duration::from_millis(5);

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
#[ignore = "figures"]
fn overhead_of_a_volume() {
    let Some((scene, stub, _served)) = Scene::with_stub("behind::figures::overhead_of_a_volume", true) else {
        return;
    };
    let (mut mounts, mut unmounts, mut own) = (Vec::new(), Vec::new(), Vec::new());
    stub.took();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        assert_eq!(scene.mount("1", &options(&[])), "");
        let (took, its) = (start.elapsed(), stub.took());
        mounts.push(took.saturating_sub(its));
        let start = Instant::now();
        assert_eq!(scene.unmount("1"), "");
        let (took, more) = (start.elapsed(), stub.took());
        unmounts.push(took.saturating_sub(more));
        own.push(its + more);
    }
    let (mount, unmount) = (median(mounts), median(unmounts));
    println!(
        "over the CSI driver's own RPCs: mount with staging {mount:?}, unmount with unstaging {unmount:?}; \
         the driver itself {:?} (medians of {ROUNDS})",
        median(own)
    );
    assert!(mount <= MOST && unmount <= MOST, "{mount:?} {unmount:?}");
}

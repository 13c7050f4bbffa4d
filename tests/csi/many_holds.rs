//! An agent that holds the storage of many volumes.

use super::agent::{Nodes, hold_of};
use super::figures::memory;
use super::node::flexvold;
use super::skip;
use serde_json::json;
use std::path::Path;

/// An agent on ten thousand nodes has to be small: 12 MiB at rest.
#[test]
fn five_hundred_volumes_take_little_memory() {
    let name = "many_holds::five_hundred_volumes_take_little_memory";
    if flexvold() == Path::new(env!("CARGO_BIN_EXE_flexvold")) {
        return skip(name, "a debug build needs more: set FLEXVOL_RELEASE");
    }
    let Some(nodes) = Nodes::new(name) else { return };
    let agent = nodes.start("a");
    for at in 0..500 {
        let mut hold = hold_of(&format!("pod-{at}"));
        hold["handle"] = json!(format!("rbd:f/pool/{at}"));
        let answer = agent.request("hold", &hold).unwrap();
        assert_eq!(answer["ok"]["epoch"], json!(0), "{answer}");
    }
    assert_eq!(agent.holds(), 500);
    let memory = memory(agent.child.as_ref().unwrap().id());
    println!("500 volumes held: {memory} KiB");
    assert!(memory <= 12 << 10, "{memory} KiB");
}

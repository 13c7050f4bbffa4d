//! `flexvold csi` as Kubernetes sees it: csi-sanity, a pod's life, kills, hostile requests; and
//! `flexvold agent` as drivers see it. Needs no Kubernetes; root, because drivers mount.
#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "kubelet's side: programs are started plainly")]

mod agent;
mod alike;
mod attack;
mod behind;
mod calls;
mod corpus;
mod deadlines;
mod exhausted;
mod fencing;
mod figures;
mod forced;
mod habits;
mod hanging;
mod hostile;
#[path = "../support/inputs.rs"]
mod inputs;
mod killed;
mod life;
mod many_holds;
mod mounter;
#[path = "../support/namespace.rs"]
mod namespace;
mod node;
mod observed;
#[path = "../support/pace.rs"]
mod pace;
#[path = "../support/ports.rs"]
mod ports;
mod printed;
#[path = "../../fuzz/src/cluster.rs"]
#[allow(unreachable_pub, reason = "the readers are a library for fuzzers")]
mod readers;
mod registration;
mod sanity;
mod shared;
#[path = "../support/trust/lines.rs"]
mod trust_lines;
#[path = "../support/wording.rs"]
mod wording;

/// Says why a test could not run; CI counts these lines.
fn skip(name: &str, reason: &str) {
    println!("SKIP {name}: {reason}");
}

//! Facts about a holder from Node and Pod objects. Pure.
//!
//! A fact that breaks a lock has to stay true, because a write may arrive late: the record may
//! still be the same while the nodes have changed. Three facts stay true.
//!
//! * *A boot is over.* An agent holds nothing before its Node object shows the boot that it runs in
//!   ([`RecordStore::admits`](crate::fence::store::RecordStore::admits)). So a Node object that is
//!   read after the record never shows an earlier boot than the holder's, and a different boot is a
//!   later one.
//! * *A boot was off when an administrator said so.* The taint counts only while the node does not
//!   report: a node that is ready is on, in spite of the taint, and an agent that starts under a
//!   taint holds nothing until the taint is gone.
//! * *A Node object is gone.* No new object ever gets the same uid. Only the administrator can say
//!   that the machine is off, too.
//!
//! A pod is gone if its object is missing, or if another object has its name. Clocks of two
//! machines are never compared: the time for which a node has been gone is measured here, from the
//! moment at which it was first missed.

use crate::fence::evidence::{Fence, NodeState, PodState, Sight, Usage};
use crate::fence::record::{Holder, Node, Pod};
use crate::fence::store::kubernetes::is_name;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// State of a Node object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenNode {
    /// Uid of the object.
    pub uid: String,
    /// Boot id that its kubelet reported; empty before the first report.
    pub boot: String,
    /// True if its kubelet has lately reported that it is ready.
    pub ready: bool,
    /// True if an administrator has declared that it is off.
    pub out_of_service: bool,
}

/// State of a Pod object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenPod {
    /// Uid of the object.
    pub uid: String,
    /// Uid of the static pod that this object only mirrors: a kubelet runs it from a file of its
    /// own.
    pub shows: String,
    /// True if it is being deleted.
    pub ending: bool,
}

/// Missing Node objects by name and uid, each with the time at which it was first missed.
#[derive(Debug, Default)]
pub struct Missing(Mutex<HashMap<(String, String), Instant>>);

impl Missing {
    /// Returns how long this node, which is missing now, has been missing.
    pub fn since(&self, node: &Node) -> Duration {
        let mut missing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        missing.entry((node.name.clone(), node.uid.clone())).or_insert_with(Instant::now).elapsed()
    }

    /// Removes a node from the missing ones: it exists, and an earlier check did not know it yet.
    fn found(&self, node: &Node) {
        let mut missing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        missing.remove(&(node.name.clone(), node.uid.clone()));
    }

    /// Forgets the nodes that are not needed any more.
    pub fn keep(&self, needed: impl Fn(&str, &str) -> bool) {
        let mut missing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        missing.retain(|(name, uid), _| needed(name, uid));
    }
}

/// Returns the facts about a holder.
pub fn sight(holder: &Holder, node: Option<&SeenNode>, pod: PodState, missing: &Missing) -> Sight {
    Sight { node: state_of(&holder.node, node, missing), pod, usage: Usage::Unknown, fence: Fence::NotTried }
}

/// Returns the state of a holder's node.
pub fn state_of(held: &Node, node: Option<&SeenNode>, missing: &Missing) -> NodeState {
    let Some(node) = node else { return NodeState::Gone(missing.since(held)) };
    let same_boot = !node.boot.is_empty() && node.boot == held.boot;
    if held.uid != node.uid && !same_boot {
        return NodeState::Gone(missing.since(held));
    }
    missing.found(held);
    match (node.ready, node.out_of_service, same_boot) {
        (false, true, _) => NodeState::OutOfService,
        _ if held.boot.is_empty() || node.boot.is_empty() => NodeState::Suspect,
        (_, _, false) => NodeState::Rebooted,
        (true, _, true) => NodeState::Alive,
        (false, _, true) => NodeState::Suspect,
    }
}

/// Returns the state of a holder's pod.
pub fn state_of_pod(held: &Pod, pod: Option<&SeenPod>) -> PodState {
    match pod {
        Some(pod) if pod.uid != held.uid && pod.shows != held.uid => PodState::Gone,
        Some(SeenPod { ending: true, .. }) => PodState::Terminating,
        Some(_) => PodState::Present,
        None => PodState::Gone,
    }
}

/// Reports whether a pod can have this namespace and name: in a record they are as the driver
/// received them.
pub fn is_named(pod: &Pod) -> bool {
    is_name(&pod.namespace) && is_name(&pod.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::contract::holder;

    fn node(uid: &str, boot: &str, ready: bool, out_of_service: bool) -> SeenNode {
        SeenNode { uid: uid.to_owned(), boot: boot.to_owned(), ready, out_of_service }
    }

    #[test]
    fn what_a_node_object_says() {
        let gone = |state| matches!(state, NodeState::Gone(_));
        let of =
            |node: Option<SeenNode>| state_of(&holder("a", "1").node, node.as_ref(), &Missing::default());
        let same = |boot, ready, taint| of(Some(node("uid-a", boot, ready, taint)));
        assert_eq!(same("boot-a", true, false), NodeState::Alive);
        assert_eq!(same("boot-a", false, false), NodeState::Suspect);
        assert_eq!(same("boot-a", false, true), NodeState::OutOfService);
        // It reports: the taint is wrong, or was meant for an earlier boot.
        assert_eq!(same("boot-a", true, true), NodeState::Alive);
        assert_eq!(same("later", true, false), NodeState::Rebooted);
        assert_eq!(same("later", false, false), NodeState::Rebooted);
        assert_eq!(same("later", true, true), NodeState::Rebooted);
        assert_eq!(same("later", false, true), NodeState::OutOfService);
        // Its kubelet has not reported its boot yet.
        assert_eq!(same("", true, false), NodeState::Suspect);
        assert_eq!(same("", false, true), NodeState::OutOfService);
        assert!(gone(of(None)));
        // Another machine has its name, or the same machine has another object.
        assert!(gone(of(Some(node("other", "later", true, false)))));
        assert!(gone(of(Some(node("other", "later", false, true)))));
        assert!(gone(of(Some(node("other", "", true, false)))));
        assert_eq!(of(Some(node("other", "boot-a", true, false))), NodeState::Alive);
        assert_eq!(of(Some(node("other", "boot-a", false, false))), NodeState::Suspect);
    }

    #[test]
    fn what_a_pod_object_says() {
        let held = holder("a", "1").pod;
        let pod = |uid: &str, shows: &str, ending| {
            Some(SeenPod { uid: uid.to_owned(), shows: shows.to_owned(), ending })
        };
        let of = |pod: Option<SeenPod>| state_of_pod(&held, pod.as_ref());
        assert_eq!(of(pod("1", "", false)), PodState::Present);
        assert_eq!(of(pod("1", "", true)), PodState::Terminating);
        assert_eq!(of(pod("2", "", false)), PodState::Gone);
        assert_eq!(of(pod("2", "1", false)), PodState::Present);
        assert_eq!(of(None), PodState::Gone);
    }

    /// A record contains text of the user who made the volume: it must not lead to another object.
    #[test]
    fn a_pod_is_not_asked_for_by_what_is_no_name() {
        let pod = |namespace: &str, name: &str| Pod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: "1".to_owned(),
        };
        assert!(is_named(&pod("default", "db-0.x")));
        let long = "a".repeat(254);
        for text in ["", "..", ".", "../../secrets", "a/b", "a?watch=true", "a%2f", "a b", "ä", "a#", &long]
        {
            assert!(!is_named(&pod(text, "db-0")) && !is_named(&pod("default", text)), "{text:?}");
        }
    }

    #[test]
    fn it_is_missing_since_it_was_missed() {
        let (missing, node) = (Missing::default(), holder("a", "1").node);
        let first = missing.since(&node);
        std::thread::sleep(Duration::from_millis(2));
        assert!(missing.since(&node) > first);
        missing.keep(|name, uid| (name, uid) == ("a", "uid-a"));
        assert!(missing.since(&node) > first + Duration::from_millis(1));
        let missed = missing.0.lock().unwrap().values().copied().next().unwrap();
        missing.keep(|_, _| false);
        missing.since(&node);
        assert!(missing.0.lock().unwrap().values().all(|since| *since > missed));
    }

    /// A Node that was just made may not be known yet. Once it is known, it counts as never
    /// missing.
    #[test]
    fn what_was_known_too_late_was_never_missing() {
        let (missing, held) = (Missing::default(), holder("a", "1").node);
        assert!(matches!(state_of(&held, None, &missing), NodeState::Gone(_)));
        state_of(&held, Some(&node("uid-a", "boot-a", true, false)), &missing);
        assert!(missing.0.lock().unwrap().is_empty());
    }
}

//! What Node and Pod objects say about a holder. Pure.
//!
//! What breaks a hold has to stay true, because a write may arrive late: the record may be as it
//! was, and the world not. Three things do.
//!
//! * *A boot is over.* An agent holds nothing before its Node object shows the boot that it runs in
//!   ([`RecordStore::admits`](crate::fence::store::RecordStore::admits)). So a Node object, asked
//!   for after the record was read, never shows an earlier boot than the holder's, and one that
//!   shows another shows a later one.
//! * *A boot was off when an administrator said so.* The taint counts only while the node does not
//!   report as well: one that is ready is on, whatever was said of it, and an agent that starts
//!   under a taint holds nothing until it is gone.
//! * *A Node object is gone.* None is ever made again with the same uid. That its machine is off,
//!   too, is for the administrator to say.
//!
//! That a pod is gone is said by its own object, or by another one of its name. No clock of
//! anybody's is compared with another's: how long a node is gone is measured here, from when it was
//! first missed.

use crate::fence::evidence::{Fence, NodeState, PodState, Sight, Usage};
use crate::fence::record::{Holder, Node, Pod};
use crate::fence::store::kubernetes::is_name;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a Node object says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenNode {
    /// Of the object.
    pub uid: String,
    /// As its kubelet has told it; empty before.
    pub boot: String,
    /// Whether its kubelet reports that it is well, and has lately.
    pub ready: bool,
    /// Whether an administrator has said that it is off.
    pub out_of_service: bool,
}

/// What a Pod object says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenPod {
    /// Of the object.
    pub uid: String,
    /// Of the pod that a kubelet runs by a file of its own, and that this object only shows.
    pub shows: String,
    /// Whether it is to be deleted.
    pub ending: bool,
}

/// How long Node objects have been missing: by name and uid, from when they were first missed.
#[derive(Debug, Default)]
pub struct Missing(Mutex<HashMap<(String, String), Instant>>);

impl Missing {
    /// How long this one has been, if it is missing now.
    pub fn since(&self, node: &Node) -> Duration {
        let mut missing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        missing.entry((node.name.clone(), node.uid.clone())).or_insert_with(Instant::now).elapsed()
    }

    /// It is there: whoever missed it knew of it too late.
    fn found(&self, node: &Node) {
        let mut missing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        missing.remove(&(node.name.clone(), node.uid.clone()));
    }

    /// Forgets those of which nothing holds any more.
    pub fn keep(&self, needed: impl Fn(&str, &str) -> bool) {
        let mut missing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        missing.retain(|(name, uid), _| needed(name, uid));
    }
}

/// What is known of a holder.
pub fn sight(holder: &Holder, node: Option<&SeenNode>, pod: PodState, missing: &Missing) -> Sight {
    Sight { node: state_of(&holder.node, node, missing), pod, usage: Usage::Unknown, fence: Fence::NotTried }
}

/// What is known of a holder's node.
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

/// What is known of a holder's pod.
pub fn state_of_pod(held: &Pod, pod: Option<&SeenPod>) -> PodState {
    match pod {
        Some(pod) if pod.uid != held.uid && pod.shows != held.uid => PodState::Gone,
        Some(SeenPod { ending: true, .. }) => PodState::Terminating,
        Some(_) => PodState::Present,
        None => PodState::Gone,
    }
}

/// Whether a pod can have this namespace and name: a holder's are what its driver was told.
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
        // It reports: whoever has said that it is off was wrong, or means an earlier boot.
        assert_eq!(same("boot-a", true, true), NodeState::Alive);
        assert_eq!(same("later", true, false), NodeState::Rebooted);
        assert_eq!(same("later", false, false), NodeState::Rebooted);
        assert_eq!(same("later", true, true), NodeState::Rebooted);
        assert_eq!(same("later", false, true), NodeState::OutOfService);
        // Its kubelet has not told its boot yet.
        assert_eq!(same("", true, false), NodeState::Suspect);
        assert_eq!(same("", false, true), NodeState::OutOfService);
        assert!(gone(of(None)));
        // Another machine has its name; or the same one has another object.
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

    /// What stands in a record was told by whoever made the volume: it leads to no other object.
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

    /// A Node that was made a moment ago may not be known yet: from then on it was not missing.
    #[test]
    fn what_was_known_too_late_was_never_missing() {
        let (missing, held) = (Missing::default(), holder("a", "1").node);
        assert!(matches!(state_of(&held, None, &missing), NodeState::Gone(_)));
        state_of(&held, Some(&node("uid-a", "boot-a", true, false)), &missing);
        assert!(missing.0.lock().unwrap().is_empty());
    }
}

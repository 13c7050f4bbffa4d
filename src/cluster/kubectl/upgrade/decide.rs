//! Next step of an upgrade, derived from the current state of the node: so a new run continues
//! where a killed run, or a parallel one, was. Pure.

use super::mark::Mark;
use super::node::Seen;
use super::users::users;
use crate::kubectl::mount_pods::{MountPod, Owner};

/// Steps of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Stop: the taint was removed, and the old pod is there.
    Cancelled,
    /// Stop: these pods use its volumes, and would keep them.
    Stays(Vec<String>),
    /// Wait until these pods have gone.
    Leave(Vec<String>),
    /// Ask the pod whether it still serves something, and delete it if it does not.
    Ask(MountPod),
    /// Wait until this pod has ended.
    End(MountPod),
    /// Wait until there is a new pod.
    Make,
    /// Wait until this pod is registered and answers.
    Answer(MountPod),
    /// Remove the taint: this new pod is ready.
    Free(MountPod),
}

impl Next {
    /// Reports whether nothing has been broken yet and the old pod still runs.
    pub fn is_before(&self) -> bool {
        matches!(self, Self::Cancelled | Self::Stays(_) | Self::Leave(_) | Self::Ask(_))
    }
}

/// Returns the next step. `owner` is the DaemonSet that makes the new pod.
pub fn next(seen: &Seen, mark: &Mark, owner: &Owner) -> Next {
    let old = seen.mount_pods.iter().find(|pod| pod.uid == mark.pod);
    match old {
        Some(old) if !old.is_ending => before(seen, old),
        Some(old) => Next::End(old.clone()),
        None => after(seen, owner),
    }
}

fn before(seen: &Seen, old: &MountPod) -> Next {
    if !seen.marked.is_of(&old.uid) {
        return Next::Cancelled;
    }
    let users = users(&seen.pods, &old.plugins, &old.uid);
    let staying: Vec<_> = users.iter().filter(|user| user.stays).map(|user| user.pod.clone()).collect();
    match (&*staying, &*users) {
        ([], []) => Next::Ask(old.clone()),
        ([], _) => Next::Leave(users.into_iter().map(|user| user.pod).collect()),
        _ => Next::Stays(staying),
    }
}

fn after(seen: &Seen, owner: &Owner) -> Next {
    let is_new = |pod: &&MountPod| pod.lacks.is_none() && pod.owner.as_ref() == Some(owner);
    let new: Vec<_> = seen.mount_pods.iter().filter(is_new).collect();
    if let Some(ending) = new.iter().find(|pod| pod.is_ending) {
        return Next::End((*ending).clone());
    }
    match (new.iter().find(|pod| !pod.is_ready), &*new) {
        (_, []) => Next::Make,
        (Some(waiting), _) => Next::Answer((*waiting).clone()),
        (None, [first, ..]) => Next::Free((*first).clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::mark::Marked;
    use super::super::users::{Driver, Pod};
    use super::*;
    use serde_json::{Value, json};

    fn owner(name: &str) -> Owner {
        Owner { namespace: "n".to_owned(), name: name.to_owned(), uid: name.to_owned() }
    }

    fn mark() -> Mark {
        Mark { pod: "old".to_owned(), owner: Some(owner("set")) }
    }

    fn mount_pod(uid: &str) -> MountPod {
        MountPod {
            uid: uid.to_owned(),
            owner: Some(owner("set")),
            plugins: vec!["v/sshfs".to_owned()],
            is_ready: true,
            is_running: true,
            ..MountPod::default()
        }
    }

    fn user(shown: &str, spec: Value) -> Pod {
        Pod { shown: shown.to_owned(), drivers: vec![Driver::Flex("v/sshfs".to_owned())], spec }
    }

    fn with(marked: Marked, mount_pods: Vec<MountPod>, pods: Vec<Pod>) -> Next {
        let seen = Seen { object: Value::Null, marked, pods, mount_pods };
        next(&seen, &mark(), &owner("set"))
    }

    #[test]
    fn the_old_one_goes_once_nobody_uses_it() {
        let marked = || Marked::By(mark());
        let old = || mount_pod("old");
        assert_eq!(with(marked(), vec![old()], vec![]), Next::Ask(old()));
        let (web, stays) =
            (user("s/web", json!({})), user("s/stays", json!({"tolerations": [{"operator": "Exists"}]})));
        assert_eq!(with(marked(), vec![old()], vec![web.clone()]), Next::Leave(vec!["s/web".to_owned()]));
        assert_eq!(with(marked(), vec![old()], vec![web, stays]), Next::Stays(vec!["s/stays".to_owned()]));
        let other = Mark { pod: "other".to_owned(), owner: None };
        for marked in [Marked::No, Marked::Foreign("old".to_owned()), Marked::By(other)] {
            assert_eq!(with(marked, vec![old()], vec![]), Next::Cancelled);
        }
        // The pod has begun to end, whoever deleted it: the wait for its users is over.
        let ending = MountPod { is_ending: true, ..old() };
        for marked in [Marked::No, marked()] {
            let next = with(marked, vec![ending.clone()], vec![user("s/web", json!({}))]);
            assert_eq!(next, Next::End(ending.clone()));
            assert!(!next.is_before());
        }
    }

    /// Only a pod of the same DaemonSet is the new one, also if the old one is not known any more.
    #[test]
    fn the_node_is_free_once_the_new_one_answers() {
        let marked = || Marked::By(mark());
        let new = || mount_pod("new");
        assert_eq!(with(marked(), vec![], vec![]), Next::Make);
        for foreign in [
            MountPod { owner: Some(owner("other")), ..new() },
            MountPod { owner: None, ..new() },
            MountPod { lacks: Some("everything"), ..new() },
        ] {
            assert_eq!(with(marked(), vec![foreign.clone()], vec![]), Next::Make);
            assert_eq!(with(marked(), vec![foreign, new()], vec![]), Next::Free(new()));
        }
        let silent = MountPod { is_ready: false, ..new() };
        assert_eq!(with(marked(), vec![silent.clone()], vec![]), Next::Answer(silent));
        let ending = MountPod { is_ending: true, ..mount_pod("older") };
        assert_eq!(with(marked(), vec![new(), ending.clone()], vec![]), Next::End(ending));
        assert_eq!(with(Marked::No, vec![new()], vec![]), Next::Free(new()));
    }
}

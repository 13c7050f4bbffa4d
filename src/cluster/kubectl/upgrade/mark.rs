//! Mark on a node for the upgrade of a mount pod that has begun. Pure.
//!
//! The mark is a taint, whose value is the uid of the pod that is replaced, and an annotation with
//! the DaemonSet that makes the next one. One request writes both and one request removes both. The
//! API server refuses it if the node was changed meanwhile: of two upgrades at once only one
//! begins, and no upgrade removes the taint of another one.

use crate::fence::store::kubernetes::is_name;
use crate::kubectl::mount_pods::{Owner, entries, text};
use serde_json::{Value, json};

/// Key of the taint and of the annotation.
pub const MARK: &str = "flexvol.dev/mounter-upgrade";

/// Effect of the taint: it evicts pods.
const EFFECT: &str = "NoExecute";

/// Upgrade that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Uid of the pod that is replaced.
    pub pod: String,
    /// DaemonSet that makes the next pod; `None` if the annotation does not name one.
    pub owner: Option<Owner>,
}

/// Result of reading the mark of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Marked {
    /// The node has no mark.
    No,
    /// The node has this mark.
    By(Mark),
    /// The node has a taint with that key which no upgrade has written; its value.
    Foreign(String),
}

impl Marked {
    /// Reads a node's object. A taint with another effect evicts no pod and is ignored.
    pub fn of(node: &Value) -> Self {
        let Some(taint) = entries(&node["spec"]["taints"]).find(|taint| is_ours(taint)) else {
            return Self::No;
        };
        let pod = text(taint, "value");
        if !is_uid(&pod) {
            return Self::Foreign(pod);
        }
        let said = node["metadata"]["annotations"][MARK].as_str().unwrap_or_default();
        let owner = said.split('/').collect::<Vec<_>>();
        let owner = match *owner {
            [of, namespace, name, uid]
                if of == pod && is_uid(uid) && [namespace, name].into_iter().all(is_name) =>
            {
                let [namespace, name, uid] = [namespace, name, uid].map(str::to_owned);
                Some(Owner { namespace, name, uid })
            }
            _ => None,
        };
        Self::By(Mark { pod, owner })
    }

    /// Reports whether it is the upgrade of this pod.
    pub fn is_of(&self, pod: &str) -> bool {
        matches!(self, Self::By(mark) if mark.pod == pod)
    }
}

/// Returns the change of the node that begins an upgrade.
pub fn begun(node: &Value, pod: &str, owner: &Owner) -> Value {
    let Owner { namespace, name, uid } = owner;
    let ours = json!({"key": MARK, "value": pod, "effect": EFFECT});
    changed(node, Some(ours), &json!(format!("{pod}/{namespace}/{name}/{uid}")))
}

/// Returns the change of the node that ends an upgrade.
pub fn ended(node: &Value) -> Value {
    changed(node, None, &Value::Null)
}

fn changed(node: &Value, ours: Option<Value>, said: &Value) -> Value {
    let others = entries(&node["spec"]["taints"]).filter(|taint| !is_ours(taint)).cloned();
    let taints: Vec<_> = others.chain(ours).collect();
    let version = &node["metadata"]["resourceVersion"];
    json!({"metadata": {"resourceVersion": version, "annotations": {MARK: said}}, "spec": {"taints": taints}})
}

fn is_ours(taint: &Value) -> bool {
    taint["key"] == MARK && taint["effect"] == EFFECT
}

fn is_uid(text: &str) -> bool {
    let is_right = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(is_right)
}

/// Reports whether a pod with this spec stays on a node with the taint, for ever. If several
/// tolerations match a taint, the first one sets the time.
pub fn stays(spec: &Value, pod: &str) -> bool {
    let tolerates = |toleration: &&Value| {
        let is =
            |key: &str, expected: &[&str]| expected.contains(&toleration[key].as_str().unwrap_or_default());
        let matches = if is("operator", &["Exists"]) {
            is("key", &["", MARK])
        } else {
            is("operator", &["", "Equal"]) && is("key", &[MARK]) && is("value", &[pod])
        };
        matches && is("effect", &["", EFFECT])
    };
    let first = entries(&spec["tolerations"]).find(tolerates);
    first.is_some_and(|toleration| toleration["tolerationSeconds"].is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "6a0ad5c6-0000-4000-8000-000000000001";
    const SET: &str = "6a0ad5c6-0000-4000-8000-00000000000f";

    fn owner() -> Owner {
        let [namespace, name, uid] = ["storage", "tools", SET].map(str::to_owned);
        Owner { namespace, name, uid }
    }

    /// Applies the changed fields of a merge patch, as the API server does.
    fn patched(node: &Value, change: &Value) -> Value {
        let mut node = node.clone();
        node["spec"]["taints"] = change["spec"]["taints"].clone();
        match &change["metadata"]["annotations"][MARK] {
            Value::Null => drop(node["metadata"]["annotations"].as_object_mut().unwrap().remove(MARK)),
            said => node["metadata"]["annotations"][MARK] = said.clone(),
        }
        node
    }

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let other = json!({"key": "a", "value": "b", "effect": "NoSchedule"});
        let of_key = json!({"key": MARK, "value": POD, "effect": "NoSchedule"});
        let node = json!({"metadata": {"resourceVersion": "7", "annotations": {"x": "y"}},
            "spec": {"taints": [other, of_key]}});
        assert_eq!(Marked::of(&node), Marked::No);
        assert_eq!(Marked::of(&json!({})), Marked::No);
        let change = begun(&node, POD, &owner());
        assert_eq!(change["metadata"]["resourceVersion"], "7");
        let marked = patched(&node, &change);
        assert_eq!(Marked::of(&marked), Marked::By(Mark { pod: POD.to_owned(), owner: Some(owner()) }));
        assert!(Marked::of(&marked).is_of(POD) && !Marked::of(&marked).is_of(SET));
        assert_eq!(patched(&marked, &ended(&marked)), node);
    }

    /// A mark that others have written is not trusted.
    #[test]
    fn a_mark_that_no_upgrade_has_written() {
        let of = |value: &str, note: &str| {
            Marked::of(&json!({"metadata": {"annotations": {MARK: note}},
                "spec": {"taints": [{"key": MARK, "value": value, "effect": "NoExecute"}]}}))
        };
        for value in ["", "true", &POD[1..], &POD.replace('-', "0"), &POD.replace('6', "g")] {
            assert_eq!(of(value, ""), Marked::Foreign(value.to_owned()));
        }
        for note in [
            "",
            "x",
            &format!("{SET}/storage/tools/{SET}"),
            &format!("{POD}/storage/tools/7"),
            &format!("{POD}/../tools/{SET}"),
            &format!("{POD}/storage/to ols/{SET}"),
        ] {
            assert_eq!(of(POD, note), Marked::By(Mark { pod: POD.to_owned(), owner: None }), "{note}");
        }
    }

    #[test]
    fn who_stays_tolerates_the_taint_for_ever() {
        let is = |toleration: Value| stays(&json!({"tolerations": [toleration]}), "u");
        assert!(is(json!({"operator": "Exists"})));
        assert!(is(json!({"operator": "Exists", "effect": "NoExecute", "key": MARK})));
        assert!(is(json!({"key": MARK, "value": "u"})));
        for toleration in [
            json!({"operator": "Exists", "effect": "NoSchedule"}),
            json!({"operator": "Exists", "key": "node.kubernetes.io/not-ready"}),
            json!({"operator": "Exists", "tolerationSeconds": 300}),
            json!({"key": MARK, "value": "other"}),
            json!({"key": MARK, "value": "u", "operator": "Lt"}),
        ] {
            assert!(!is(toleration.clone()), "{toleration}");
        }
        assert!(!stays(&json!({}), "u"));
        let (ends, stays_on) = (
            json!({"key": MARK, "operator": "Exists", "tolerationSeconds": 60}),
            json!({"operator": "Exists"}),
        );
        assert!(!stays(&json!({"tolerations": [ends, stays_on]}), "u"));
        assert!(stays(&json!({"tolerations": [stays_on, ends]}), "u"));
    }
}

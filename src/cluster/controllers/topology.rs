//! Topology, as CSI has it: where a volume must be reachable, and where it is. Pure.
//!
//! A segment consists of keys that the driver has registered for a node (its `CSINode`), and of the
//! values in the labels of the same Node. A node describes only itself, so a compromised node
//! cannot invent a place that attracts the volumes of other nodes.
//!
//! | claim | requisite | preferred |
//! |---|---|---|
//! | waits for its first pod | `allowedTopologies`, else all segments with the keys of the selected node | the same, from the node's own on |
//! | the same, with `--strict-topology` | the node's own, if `allowedTopologies` has it | the same |
//! | immediate | `allowedTopologies`, else all segments of the driver | the same, from one on that follows from the claim's name |
//! | the same, with `--immediate-topology=false` | `allowedTopologies`, else nothing is asked | |
//!
//! **The `StatefulSet` rule**: of a claim `data-web-3`, the name `web` is hashed and 3 is added. So
//! the replicas are spread over the segments in turn, and the claims of one replica are together.

use super::kinds::Node;
use crate::wire::csi::{Topology, TopologyRequirement};
use flexvol_protocol::ordered::filled;
use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, TopologySelectorTerm, VolumeNodeAffinity,
};
use k8s_openapi::api::storage::v1::CSINode;
use kube::ResourceExt as _;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// One segment: keys and their values, sorted.
pub type Segment = BTreeMap<String, String>;

/// The nodes of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    /// Nodes, with their labels.
    pub nodes: Vec<Arc<Node>>,
    /// `CSINodes`, with the keys that drivers have registered.
    pub csi_nodes: Vec<Arc<CSINode>>,
}

/// Reason why there is no requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The selected node is not known: another one has to be selected.
    Node(String),
    /// Something is missing that may still appear.
    Yet(String),
}

/// Request for a location.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The driver's name.
    pub driver: &'a str,
    /// The claim's name.
    pub claim: &'a str,
    /// `allowedTopologies` of the StorageClass.
    pub allowed: &'a [TopologySelectorTerm],
    /// The node of the claim's first pod.
    pub node: Option<&'a str>,
    /// True if a selected node is the only place: `--strict-topology`.
    pub strict: bool,
    /// True if all places are named when none is requested: `--immediate-topology`.
    pub everywhere: bool,
}

/// Returns the topology requirement for `CreateVolume`.
///
/// # Errors
///
/// Fails if there is no segment yet, or none for the selected node.
pub fn requirement(wanted: Wanted<'_>, nodes: &Nodes) -> Result<Option<TopologyRequirement>, Missing> {
    let selected = wanted.node.map(|name| nodes.selected(wanted.driver, name)).transpose()?;
    let allowed = distribute(wanted.allowed);
    let is_allowed = |own: &Segment| wanted.allowed.is_empty() || allowed.iter().any(|one| is_part(one, own));
    let mut requisite = match (&selected, allowed.clone()) {
        (Some((_, own)), _) if wanted.strict && is_allowed(own) => vec![own.clone()],
        (None, _) if !wanted.everywhere && wanted.allowed.is_empty() => return Ok(None),
        (_, allowed) if !wanted.allowed.is_empty() => allowed,
        (Some((keys, _)), _) => nodes.segments(wanted.driver, [keys.clone()].into()),
        (None, _) => nodes.segments(wanted.driver, nodes.key_sets(wanted.driver)),
    };
    if requisite.is_empty() && !wanted.allowed.is_empty() {
        return Ok(None);
    }
    requisite.sort_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
    requisite.dedup();
    if requisite.is_empty() {
        let driver = wanted.driver;
        return Err(Missing::Yet(format!(
            "driver {driver} has registered no topology on any node: it is waited for"
        )));
    }
    let first = match selected {
        None => usize::try_from(spread(wanted.claim)).unwrap_or_default() % requisite.len(),
        Some((_, own)) => requisite.iter().position(|segment| is_part(segment, &own)).ok_or_else(|| {
            Missing::Yet(format!("the selected node is in {own:?}, which is not among {requisite:?}"))
        })?,
    };
    let mut preferred = requisite.clone();
    preferred.rotate_left(first);
    Ok(Some(TopologyRequirement { requisite: topologies(requisite), preferred: topologies(preferred) }))
}

fn topologies(segments: Vec<Segment>) -> Vec<Topology> {
    segments.into_iter().map(|segment| Topology { segments: segment.into_iter().collect() }).collect()
}

fn is_part(segment: &Segment, of: &Segment) -> bool {
    segment.iter().all(|(key, value)| of.get(key) == Some(value))
}

impl Nodes {
    /// Returns the keys of the selected node, and its segment.
    fn selected(&self, driver: &str, name: &str) -> Result<(BTreeSet<String>, Segment), Missing> {
        let node = self.csi_nodes.iter().find(|node| node.name_any() == name);
        let node =
            node.ok_or_else(|| Missing::Node(format!("csinode {name:?} not found: another node is needed")))?;
        let keys = keys(node, driver);
        if keys.is_empty() {
            return Err(Missing::Yet(format!("driver {driver} has registered no topology on node {name}")));
        }
        let labelled = self.nodes.iter().find(|node| node.name_any() == name);
        let segment = labelled.and_then(|node| segment(node, &keys));
        let missing =
            || Missing::Yet(format!("node {name} has not all labels that driver {driver} names: {keys:?}"));
        Ok((keys.clone(), segment.ok_or_else(missing)?))
    }

    /// Returns each set of keys that the driver has registered on a node.
    fn key_sets(&self, driver: &str) -> BTreeSet<BTreeSet<String>> {
        filled(self.csi_nodes.iter().map(|node| keys(node, driver)).filter(|keys| !keys.is_empty()))
    }

    /// Returns the segments with these sets of keys, of nodes on which the driver has registered
    /// them.
    fn segments(&self, driver: &str, key_sets: BTreeSet<BTreeSet<String>>) -> Vec<Segment> {
        let registered: HashMap<String, BTreeSet<String>> =
            self.csi_nodes.iter().map(|node| (node.name_any(), keys(node, driver))).collect();
        let of_nodes = |wanted: BTreeSet<String>| {
            let has = |node: &&Arc<Node>| {
                registered.get(&node.name_any()).is_some_and(|keys| keys.is_superset(&wanted))
            };
            let segments: Vec<_> =
                self.nodes.iter().filter(has).filter_map(|node| segment(node, &wanted)).collect();
            segments
        };
        key_sets.into_iter().flat_map(of_nodes).collect()
    }
}

/// Returns the segments of a driver's nodes. A driver without keys has a single, empty segment.
pub fn segments(driver: &str, nodes: &Nodes) -> BTreeSet<Segment> {
    let labelled: HashMap<_, _> = nodes.nodes.iter().map(|node| (node.name_any(), node)).collect();
    let of_node = |csi_node: &Arc<CSINode>| {
        let keys = registered(csi_node, driver)?;
        segment(labelled.get(&csi_node.name_any())?, &keys)
    };
    filled(nodes.csi_nodes.iter().filter_map(of_node))
}

/// Returns the segments from which a volume can be reached, out of the result of [`affinity`].
pub fn places(affinity: Option<&VolumeNodeAffinity>) -> BTreeSet<Segment> {
    let terms = affinity.and_then(|affinity| affinity.required.as_ref());
    let terms = terms.map(|required| required.node_selector_terms.as_slice()).unwrap_or_default();
    let of_term = |term: &NodeSelectorTerm| {
        let labels = term.match_expressions.iter().flatten();
        filled(labels.filter_map(|label| Some((label.key.clone(), label.values.as_ref()?.first()?.clone()))))
    };
    filled(terms.iter().map(of_term))
}

/// Returns the keys that a driver has registered on a node; `None` if the driver is not there.
pub fn registered(node: &CSINode, driver: &str) -> Option<BTreeSet<String>> {
    let driver = node.spec.drivers.iter().find(|each| each.name == driver)?;
    Some(filled(driver.topology_keys.iter().flatten().cloned()))
}

fn keys(node: &CSINode, driver: &str) -> BTreeSet<String> {
    registered(node, driver).unwrap_or_default()
}

fn segment(node: &Node, keys: &BTreeSet<String>) -> Option<Segment> {
    let labels = node.labels();
    let found: Option<Vec<_>> =
        keys.iter().map(|key| Some((key.clone(), labels.get(key)?.clone()))).collect();
    found.map(filled)
}

/// Expands `allowedTopologies`: it has lists of values in lists of keys in a list of terms. A
/// segment of the result has one value for each key.
fn distribute(terms: &[TopologySelectorTerm]) -> Vec<Segment> {
    let of_term = |term: &TopologySelectorTerm| {
        let keys = term.match_label_expressions.iter().flatten();
        keys.fold(Vec::new(), |segments: Vec<Segment>, key| {
            let before = if segments.is_empty() { vec![Segment::new()] } else { segments };
            let with = |value: &String| {
                let with_value = |segment: &Segment| {
                    let mut segment = segment.clone();
                    segment.insert(key.key.clone(), value.clone());
                    segment
                };
                before.iter().map(with_value).collect::<Vec<_>>()
            };
            key.values.iter().flat_map(with).collect()
        })
    };
    terms.iter().flat_map(of_term).collect()
}

/// Derives a number from a claim's name, by the `StatefulSet` rule if the name looks like one's.
fn spread(claim: &str) -> u32 {
    let replica = claim.rsplit_once('-').and_then(|(name, number)| Some((name, number.parse::<u32>().ok()?)));
    let Some((name, replica)) = replica else { return fnv(claim) };
    let set = name.rsplit_once('-').map_or(name, |(_, set)| set);
    fnv(set).wrapping_add(replica)
}

/// Computes FNV-1 as Go does: the multiplication comes first.
fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}

/// Returns the affinity that tells the scheduler from which nodes a volume can be reached.
pub fn affinity(accessible: &[Topology]) -> Option<VolumeNodeAffinity> {
    let terms: Vec<_> =
        accessible.iter().filter(|topology| !topology.segments.is_empty()).map(term).collect();
    if terms.is_empty() {
        return None;
    }
    Some(VolumeNodeAffinity { required: Some(NodeSelector { node_selector_terms: terms }) })
}

fn term(topology: &Topology) -> NodeSelectorTerm {
    let sorted: BTreeMap<_, _> = filled(&topology.segments);
    let expressions = sorted.into_iter().map(|(key, value)| NodeSelectorRequirement {
        key: key.clone(),
        operator: "In".to_owned(),
        values: Some(vec![value.clone()]),
    });
    NodeSelectorTerm { match_expressions: Some(expressions.collect()), ..NodeSelectorTerm::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const DRIVER: &str = "d.example.com";

    /// Name of a node, the keys that the driver has registered for it, and its labels.
    type Described<'a> = (&'a str, &'a [&'a str], &'a [(&'a str, &'a str)]);

    fn nodes(all: &[Described<'_>]) -> Nodes {
        let csi = |(name, keys, _): &Described<'_>| {
            let drivers = json!([{ "name": "other", "nodeID": "o", "topologyKeys": ["invented"] },
                { "name": DRIVER, "nodeID": name, "topologyKeys": keys }]);
            Arc::new(
                serde_json::from_value(
                    json!({ "metadata": { "name": name }, "spec": { "drivers": drivers } }),
                )
                .unwrap(),
            )
        };
        let node = |(name, _, labels): &Described<'_>| {
            let labels: BTreeMap<_, _> = labels.iter().copied().collect();
            Arc::new(
                serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } })).unwrap(),
            )
        };
        Nodes { nodes: all.iter().map(node).collect(), csi_nodes: all.iter().map(csi).collect() }
    }

    fn three() -> Nodes {
        nodes(&[
            ("c", &["zone"], &[("zone", "z3"), ("rack", "r")]),
            ("a", &["zone"], &[("zone", "z1")]),
            ("b", &["zone"], &[("zone", "z2")]),
        ])
    }

    fn allowed(terms: serde_json::Value) -> Vec<TopologySelectorTerm> {
        serde_json::from_value(terms).unwrap()
    }

    fn wanted<'a>(claim: &'a str, node: Option<&'a str>, allowed: &'a [TopologySelectorTerm]) -> Wanted<'a> {
        Wanted { driver: DRIVER, claim, allowed, node, strict: false, everywhere: true }
    }

    fn text(topologies: &[Topology]) -> String {
        let one = |topology: &Topology| {
            let sorted: BTreeMap<_, _> = topology.segments.iter().collect();
            sorted.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join("+")
        };
        topologies.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    fn asked(
        claim: &str,
        node: Option<&str>,
        terms: &[TopologySelectorTerm],
        nodes: &Nodes,
    ) -> Result<Option<(String, String)>, Missing> {
        let found = requirement(wanted(claim, node, terms), nodes)?;
        Ok(found.map(|found| (text(&found.requisite), text(&found.preferred))))
    }

    /// Checks the effect of upstream's topology flags.
    #[test]
    fn a_selected_node_is_the_only_place_and_no_place_is_named() {
        let asked = |node: Option<&str>, terms: &[TopologySelectorTerm], strict, everywhere| {
            let found = requirement(Wanted { strict, everywhere, ..wanted("x", node, terms) }, &three());
            found.map(|found| found.map(|found| (text(&found.requisite), text(&found.preferred))))
        };
        let of = |zone: &str| Ok(Some((format!("zone={zone}"), format!("zone={zone}"))));
        assert_eq!(asked(Some("b"), &[], true, true), of("z2"));
        let terms =
            |zones: &[&str]| allowed(json!([{"matchLabelExpressions": [{"key": "zone", "values": zones}]}]));
        assert_eq!(asked(Some("b"), &terms(&["z1", "z2"]), true, true), of("z2"));
        assert!(matches!(asked(Some("b"), &terms(&["z1"]), true, true), Err(Missing::Yet(_))));
        assert_eq!(asked(None, &[], false, false), Ok(None));
        assert_eq!(asked(None, &terms(&["z1"]), false, false), of("z1"));
        assert!(asked(Some("b"), &[], false, false).unwrap().unwrap().0.contains("zone=z3"));
    }

    #[test]
    fn a_selected_node_comes_first() {
        for (node, preferred) in [("a", "zone=z1 zone=z2 zone=z3"), ("b", "zone=z2 zone=z3 zone=z1")] {
            let (requisite, first) = asked("x", Some(node), &[], &three()).unwrap().unwrap();
            assert_eq!((requisite.as_str(), first.as_str()), ("zone=z1 zone=z2 zone=z3", preferred));
        }
    }

    #[test]
    fn replicas_go_round_and_claims_of_one_are_together() {
        let first = |claim: &str| {
            let (_, preferred) = asked(claim, None, &[], &three()).unwrap().unwrap();
            preferred.split(' ').next().unwrap().to_owned()
        };
        let round: Vec<_> = (0..4).map(|replica| first(&format!("data-web-{replica}"))).collect();
        assert_eq!(round.iter().collect::<BTreeSet<_>>().len(), 3);
        assert_eq!(round[0], round[3]);
        for replica in 0..3 {
            assert_eq!(first(&format!("data-web-{replica}")), first(&format!("log-web-{replica}")));
        }
    }

    /// The expected numbers are FNV-1 of Go's hash/fnv, plus the number of the replica.
    #[test]
    fn numbers_are_those_of_kubernetes() {
        assert_eq!((fnv(""), fnv("a"), fnv("foobar")), (0x811c_9dc5, 0x050c_5d7e, 0x31f0_b262));
        for (claim, hashed, added) in [
            ("data-web-3", "web", 3),
            ("web-3", "web", 3),
            ("data-my-web-12", "web", 12),
            ("plain", "plain", 0),
            ("with-dash", "with-dash", 0),
            ("a-99999999999", "a-99999999999", 0),
        ] {
            assert_eq!(spread(claim), fnv(hashed).wrapping_add(added), "{claim}");
        }
    }

    #[test]
    fn a_node_speaks_for_itself_alone() {
        // A label that the driver has not registered for the node, and a key without a label.
        let found = nodes(&[
            ("good", &["zone"], &[("zone", "z1")]),
            ("labelled", &[], &[("zone", "invented")]),
            ("keyed", &["zone"], &[]),
            ("other", &["rack"], &[("rack", "r1"), ("zone", "invented")]),
        ]);
        let (requisite, _) = asked("x", None, &[], &found).unwrap().unwrap();
        assert_eq!(requisite, "rack=r1 zone=z1");
        let (requisite, _) = asked("x", Some("good"), &[], &found).unwrap().unwrap();
        assert_eq!(requisite, "zone=z1");
    }

    #[test]
    fn coarse_and_fine_keys_stand_side_by_side() {
        let found = nodes(&[
            ("a", &["zone"], &[("zone", "z1"), ("rack", "r9")]),
            ("b", &["zone", "rack"], &[("zone", "z1"), ("rack", "r1")]),
        ]);
        let (requisite, _) = asked("x", None, &[], &found).unwrap().unwrap();
        assert_eq!(requisite, "zone=z1 rack=r1+zone=z1");
        let (requisite, _) = asked("x", Some("b"), &[], &found).unwrap().unwrap();
        assert_eq!(requisite, "rack=r1+zone=z1");
    }

    #[test]
    fn what_the_class_allows_is_distributed() {
        let terms = allowed(json!([{ "matchLabelExpressions": [
            { "key": "zone", "values": ["z2", "z1"] }, { "key": "rack", "values": ["r1", "r2"] } ] },
            { "matchLabelExpressions": [{ "key": "zone", "values": ["z3"] }] }]));
        let (requisite, _) = asked("x", None, &terms, &three()).unwrap().unwrap();
        let all = "zone=z3 rack=r1+zone=z1 rack=r1+zone=z2 rack=r2+zone=z1 rack=r2+zone=z2";
        assert_eq!(requisite, all);
        let zone = allowed(json!([{ "matchLabelExpressions": [{ "key": "zone", "values": ["z1", "z2"] }] }]));
        let (requisite, preferred) = asked("x", Some("b"), &zone, &three()).unwrap().unwrap();
        assert_eq!((requisite.as_str(), preferred.as_str()), ("zone=z1 zone=z2", "zone=z2 zone=z1"));
        assert!(matches!(asked("x", Some("c"), &zone, &three()), Err(Missing::Yet(_))));
        assert_eq!(asked("x", None, &allowed(json!([{}])), &three()), Ok(None));
    }

    #[test]
    fn what_is_missing() {
        assert!(matches!(asked("x", Some("gone"), &[], &three()), Err(Missing::Node(_))));
        for (keys, labels) in [(&[][..], &[("zone", "z1")][..]), (&["zone"], &[])] {
            let found = nodes(&[("a", keys, labels)]);
            assert!(matches!(asked("x", Some("a"), &[], &found), Err(Missing::Yet(_))));
            assert!(matches!(asked("x", None, &[], &found), Err(Missing::Yet(_))));
        }
    }

    #[test]
    fn a_volume_has_the_affinity_of_where_it_is() {
        let topology = |pairs: &[(&str, &str)]| Topology {
            segments: pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
        };
        assert_eq!(affinity(&[]), None);
        assert_eq!(affinity(&[topology(&[])]), None);
        let found = affinity(&[topology(&[("zone", "z1"), ("rack", "r1")]), topology(&[("zone", "z2")])]);
        let expression = |key, value| json!({ "key": key, "operator": "In", "values": [value] });
        let terms = json!([{ "matchExpressions": [expression("rack", "r1"), expression("zone", "z1")] },
            { "matchExpressions": [expression("zone", "z2")] }]);
        assert_eq!(
            serde_json::to_value(found).unwrap(),
            json!({ "required": { "nodeSelectorTerms": terms } })
        );
    }
}

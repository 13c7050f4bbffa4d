//! Labels of the nodes that can reach a volume. In-tree plugins used labels that every node has;
//! CSI drivers use labels of their own.

use crate::translate::Reason;
use serde_json::{Value, json};

/// Kubernetes' labels for zones, the current one first.
pub(in crate::translate) const ZONES: [&str; 2] =
    ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"];
const REGION: &str = "topology.kubernetes.io/region";
const REGION_BEFORE: &str = "failure-domain.beta.kubernetes.io/region";
/// Separator of the zones in a label.
const BETWEEN: &str = "__";

/// Labels of the driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Topology {
    pub(super) zone: &'static str,
    pub(super) region: &'static str,
}

impl Topology {
    /// Returns the labels of a driver without its own label for regions, which uses Kubernetes'.
    pub(super) const fn by_zone(zone: &'static str) -> Self {
        Self { zone, region: REGION }
    }

    /// Returns `nodeAffinity` with the driver's labels, if that changes it. An existing affinity
    /// takes precedence over the zones in a label of the volume.
    pub(super) fn of(&self, object: &Value) -> Result<Option<Value>, Reason> {
        let before = object.pointer("/spec/nodeAffinity").cloned().unwrap_or_default();
        let mut affinity = before.clone();
        let renamed = ZONES.map(|was| rename(&mut affinity, was, self.zone));
        if !renamed.contains(&true) {
            let zones = zones(object);
            if !zones.is_empty() {
                add(&mut affinity, self.zone, &zones)?;
            }
        }
        rename(&mut affinity, REGION_BEFORE, self.region);
        rename(&mut affinity, REGION, self.region);
        Ok((affinity != before).then_some(affinity))
    }
}

/// Returns the zones in the label of a volume.
pub(super) fn zones(object: &Value) -> Vec<String> {
    let label = |key: &str| object.pointer("/metadata/labels")?.get(key)?.as_str();
    let text = ZONES.into_iter().find_map(label).unwrap_or_default();
    let mut zones: Vec<_> = text.split(BETWEEN).filter(|zone| !zone.is_empty()).map(str::to_owned).collect();
    zones.sort_unstable();
    zones.dedup();
    zones
}

fn terms(affinity: &mut Value) -> Option<&mut Vec<Value>> {
    affinity.pointer_mut("/required/nodeSelectorTerms")?.as_array_mut()
}

/// Renames a label. Reports whether it was there.
fn rename(affinity: &mut Value, was: &str, is: &str) -> bool {
    let mut found = false;
    for term in terms(affinity).into_iter().flatten() {
        let all = term.get_mut("matchExpressions").and_then(Value::as_array_mut);
        for expression in all.into_iter().flatten() {
            if was != is && expression["key"] == was {
                expression["key"] = is.into();
                found = true;
            }
        }
    }
    found
}

/// Adds the zones to each term, because a node needs to match only one term.
fn add(affinity: &mut Value, key: &str, zones: &[String]) -> Result<(), Reason> {
    let expression = json!({"key": key, "operator": "In", "values": zones});
    if terms(affinity).is_none_or(|terms| terms.is_empty()) {
        *affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}});
        return Ok(());
    }
    for term in terms(affinity).into_iter().flatten() {
        let no_list = || Reason::Field("spec.nodeAffinity".into(), "terms with matchExpressions");
        let fields = term.as_object_mut().ok_or_else(no_list)?;
        let all = fields.entry("matchExpressions").or_insert_with(|| json!([]));
        all.as_array_mut().ok_or_else(no_list)?.push(expression.clone());
    }
    Ok(())
}

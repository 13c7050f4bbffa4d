//! Which pods of a node use what a mount pod serves. Pure.

use super::mark::stays;
use crate::fence::store::kubernetes::is_name;
use crate::kubectl::mount_pods::{entries, text};
use flexvol_model::csi::name::of_driver;
use flexvol_protocol::DriverName;
use serde_json::Value;

/// By which name a volume has its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Driver {
    /// `vendor/driver`.
    Flex(String),
    /// A name of CSI.
    Csi(String),
}

impl Driver {
    /// Of a volume that stands in a pod, or of the `spec` of a PersistentVolume.
    pub fn of(source: &Value) -> Option<Self> {
        let name = |kind: &str| source[kind]["driver"].as_str().map(str::to_owned);
        name("flexVolume").map(Self::Flex).or_else(|| name("csi").map(Self::Csi))
    }

    /// Whether it is that of a mount pod, called so or as `flexvold csi` calls it by default.
    pub fn is(&self, plugin: &str) -> bool {
        match self {
            Self::Flex(name) => name == plugin,
            Self::Csi(name) => DriverName::parse(plugin).is_ok_and(|plugin| of_driver(&plugin) == *name),
        }
    }
}

/// What a pod uses, by its object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// Of volumes that stand in it.
    pub drivers: Vec<Driver>,
    /// Of its namespace.
    pub claims: Vec<String>,
}

impl Uses {
    /// Of one that has not ended.
    pub fn of(pod: &Value) -> Self {
        let volumes = || entries(&pod["spec"]["volumes"]);
        let name = text(&pod["metadata"], "name");
        let claim = |volume: &Value| {
            // The API server takes a pod with any text in place of a claim's name: no claim is
            // called so, and what leads to it would lead elsewhere.
            let said = volume["persistentVolumeClaim"]["claimName"].as_str().filter(|name| is_name(name));
            // What Kubernetes calls the claim that it makes for it.
            let own = volume["ephemeral"].is_object().then(|| format!("{name}-{}", text(volume, "name")));
            said.map(str::to_owned).or(own)
        };
        Self {
            drivers: volumes().filter_map(Driver::of).collect(),
            claims: volumes().filter_map(claim).collect(),
        }
    }
}

/// A pod of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    /// Namespace and name.
    pub shown: String,
    /// The drivers of all that it uses.
    pub drivers: Vec<Driver>,
    /// Its object's.
    pub spec: Value,
}

/// A pod that uses what a mount pod serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    /// Namespace and name.
    pub pod: String,
    /// The taint does not evict it.
    pub stays: bool,
}

/// Those with a volume of one of these drivers. `taint` is its value.
pub fn users(pods: &[Pod], plugins: &[String], taint: &str) -> Vec<User> {
    let is_user = |pod: &&Pod| pod.drivers.iter().any(|driver| plugins.iter().any(|it| driver.is(it)));
    let of = |pod: &Pod| User { pod: pod.shown.clone(), stays: stays(&pod.spec, taint) };
    let mut users: Vec<_> = pods.iter().filter(is_user).map(of).collect();
    users.sort();
    users
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_uses_what_stands_in_it_and_its_claims() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"volumes": [
            {"name": "a", "flexVolume": {"driver": "v/sshfs"}}, {"name": "b", "csi": {"driver": "c"}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "d", "ephemeral": {"volumeClaimTemplate": {}}}, {"name": "e", "emptyDir": {}},
            {"name": "f", "persistentVolumeClaim": {"claimName": "../pods/p/proxy"}},
            {"name": "g", "persistentVolumeClaim": {"claimName": "a b"}}]}});
        let uses = Uses::of(&pod);
        assert_eq!(uses.drivers, [Driver::Flex("v/sshfs".to_owned()), Driver::Csi("c".to_owned())]);
        assert_eq!(uses.claims, ["data", "p-d"]);
        assert_eq!(Uses::of(&json!({})), Uses::default());
    }

    #[test]
    fn users_are_those_with_a_volume_of_its_drivers() {
        let pod = |shown: &str, drivers: &[Driver], spec: Value| Pod {
            shown: shown.to_owned(),
            drivers: drivers.to_vec(),
            spec,
        };
        let flex = |name: &str| Driver::Flex(name.to_owned());
        let csi = |name: &str| Driver::Csi(name.to_owned());
        let tolerant = json!({"tolerations": [{"operator": "Exists"}]});
        let pods = [
            pod("s/flex", &[flex("v/nfs"), flex("v/sshfs")], Value::Null),
            pod("s/csi", &[csi("sshfs.v.flex.flexvol.dev")], Value::Null),
            pod("s/others", &[flex("v/nfs"), csi("v/sshfs"), flex("sshfs.v.flex.flexvol.dev")], Value::Null),
            pod("s/tolerant", &[flex("v/sshfs")], tolerant),
        ];
        let found = users(&pods, &["v/sshfs".to_owned(), "/".to_owned()], "u");
        let found: Vec<_> = found.iter().map(|user| (&*user.pod, user.stays)).collect();
        assert_eq!(found, [("s/csi", false), ("s/flex", false), ("s/tolerant", true)]);
    }
}

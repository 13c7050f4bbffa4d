//! Pods of a node that use volumes of a mount pod. Pure.

use super::mark::stays;
use crate::fence::store::kubernetes::is_name;
use crate::kubectl::mount_pods::{entries, text};
use flexvol_model::csi::name::of_driver;
use flexvol_protocol::{DriverName, ordered};
use serde_json::Value;

/// Name by which a volume refers to its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Driver {
    /// FlexVolume name, `vendor/driver`.
    Flex(String),
    /// CSI name.
    Csi(String),
}

impl Driver {
    /// Returns the driver of a volume inside a pod, or of the `spec` of a PersistentVolume.
    pub fn of(source: &Value) -> Option<Self> {
        let name = |kind: &str| source[kind]["driver"].as_str().map(str::to_owned);
        name("flexVolume").map(Self::Flex).or_else(|| name("csi").map(Self::Csi))
    }

    /// Reports whether it is this driver of a mount pod, by that name or by the default of
    /// `flexvold csi`.
    pub fn is(&self, plugin: &str) -> bool {
        match self {
            Self::Flex(name) => name == plugin,
            Self::Csi(name) => DriverName::parse(plugin).is_ok_and(|plugin| of_driver(&plugin) == *name),
        }
    }
}

/// Volumes that a pod uses, from its object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// Drivers of the volumes inside the pod.
    pub drivers: Vec<Driver>,
    /// Claims of its namespace.
    pub claims: Vec<String>,
}

impl Uses {
    /// Reads the object of a pod that has not ended.
    pub fn of(pod: &Value) -> Self {
        let volumes = || entries(&pod["spec"]["volumes"]);
        let name = text(&pod["metadata"], "name");
        let claim = |volume: &Value| {
            // The API server accepts any text as the name of a claim in a pod. No claim has such a
            // name, and a path with that text would lead elsewhere.
            let said = volume["persistentVolumeClaim"]["claimName"].as_str().filter(|name| is_name(name));
            // Name that Kubernetes gives to the claim of an ephemeral volume.
            let own = volume["ephemeral"].is_object().then(|| format!("{name}-{}", text(volume, "name")));
            said.map(str::to_owned).or(own)
        };
        Self {
            drivers: volumes().filter_map(Driver::of).collect(),
            claims: volumes().filter_map(claim).collect(),
        }
    }
}

/// Pod of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    /// Namespace and name.
    pub shown: String,
    /// Drivers of all volumes that it uses.
    pub drivers: Vec<Driver>,
    /// The `spec` of its object.
    pub spec: Value,
}

/// Pod that uses volumes of a mount pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    /// Namespace and name.
    pub pod: String,
    /// True if the taint does not evict it.
    pub stays: bool,
}

/// Returns the pods with a volume of one of these drivers. `taint` is the value of the taint.
pub fn users(pods: &[Pod], plugins: &[String], taint: &str) -> Vec<User> {
    let is_user = |pod: &&Pod| pod.drivers.iter().any(|driver| plugins.iter().any(|it| driver.is(it)));
    let of = |pod: &Pod| User { pod: pod.shown.clone(), stays: stays(&pod.spec, taint) };
    let mut users: Vec<_> = pods.iter().filter(is_user).map(of).collect();
    ordered::sort(&mut users, User::clone);
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

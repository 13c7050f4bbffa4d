//! Storage classes. The expected results are those of csi-translation-lib 0.37 for the parameters.

use super::*;

fn class(provisioner: &str, parameters: &Value) -> Value {
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"},
        "provisioner": provisioner, "parameters": parameters, "reclaimPolicy": "Delete"})
}

fn with_topologies(mut class: Value, topologies: Value) -> Value {
    class["allowedTopologies"] = topologies;
    class
}

fn terms(key: &str, values: &[&str]) -> Value {
    json!([{"matchLabelExpressions": [{"key": key, "values": values}]}])
}

/// Translates there and back; returns parameters, topologies and warnings.
fn gone(class: &Value, to: &str) -> (Value, Value, Vec<&'static str>) {
    let done = to_csi(class, To::Driver(to)).unwrap_or_else(|refusal| panic!("{refusal}")).unwrap();
    let back = to_flex(&done.object).unwrap().unwrap();
    assert_eq!((&back.object, ids(&back.warnings)), (class, vec![]));
    assert_eq!((&done.object["provisioner"], &done.object["reclaimPolicy"]), (&json!(to), &json!("Delete")));
    let topologies = done.object.get("allowedTopologies").cloned().unwrap_or_default();
    (done.object["parameters"].clone(), topologies, ids(&done.warnings))
}

#[test]
fn each_provisioner_has_its_class() {
    let none = Value::Null;
    let ebs = json!({"fsType": "ext3", "iopsPerGB": "100", "zones": "a, b", "type": "gp2"});
    let expected = json!({"csi.storage.k8s.io/fstype": "ext3", "iopsPerGB": "100", "allowautoiopspergbincrease": "true", "type": "gp2"});
    let zones = terms("topology.ebs.csi.aws.com/zone", &["a", "b"]);
    assert_eq!(gone(&class("kubernetes.io/aws-ebs", &ebs), "ebs.csi.aws.com"), (expected, zones, vec![]));

    let disk = json!({"type": "pd-ssd", "replication-type": "none", "zone": "a"});
    let expected = json!({"type": "pd-ssd", "replication-type": "none"});
    let zones = terms("topology.gke.io/zone", &["a"]);
    assert_eq!(
        gone(&class("kubernetes.io/gce-pd", &disk), "pd.csi.storage.gke.io"),
        (expected, zones, vec![])
    );

    let azure = class("kubernetes.io/azure-disk", &json!({"fsType": "xfs", "kind": "Managed"}));
    let azure = with_topologies(azure, terms("failure-domain.beta.kubernetes.io/zone", &["0", "westus-1"]));
    let zones = terms("topology.disk.csi.azure.com/zone", &["", "westus-1"]);
    let expected = json!({"fsType": "xfs", "kind": "Managed"});
    assert_eq!(gone(&azure, "disk.csi.azure.com"), (expected, zones, vec![]));

    let file = json!({"skuName": "Standard_LRS"});
    assert_eq!(
        gone(&class("kubernetes.io/azure-file", &file), "file.csi.azure.com"),
        (file, none.clone(), vec![])
    );
    let cinder = class("kubernetes.io/cinder", &json!({"availability": "nova", "fsType": "xfs"}));
    let cinder = with_topologies(cinder, terms("topology.kubernetes.io/zone", &["nova"]));
    let expected = json!({"availability": "nova", "csi.storage.k8s.io/fstype": "xfs"});
    let zones = terms("topology.cinder.csi.openstack.org/zone", &["nova"]);
    assert_eq!(gone(&cinder, "cinder.csi.openstack.org"), (expected, zones, vec![]));

    let vsphere =
        json!({"storagepolicyname": "p", "datastore": "d", "diskFormat": "thin", "unknownparam": "v"});
    let expected = json!({"storagepolicyname": "p", "datastore-migrationparam": "d", "diskformat-migrationparam": "thin", "csimigration": "true"});
    assert_eq!(
        gone(&class("kubernetes.io/vsphere-volume", &vsphere), "csi.vsphere.vmware.com"),
        (expected, none.clone(), vec!["ignored"])
    );
    let portworx = json!({"repl": "1", "openstorage.io/auth-secret-name": "s", "openstorage.io/auth-secret-namespace": "n"});
    let (parameters, _, _) = gone(&class("kubernetes.io/portworx-volume", &portworx), "pxd.portworx.com");
    assert_eq!(parameters.as_object().unwrap().len(), 13);
    assert_eq!(parameters["csi.storage.k8s.io/node-expand-secret-namespace"], "n");
}

#[test]
fn a_class_of_rook_has_its_pools() {
    let rook = json!({"blockPool": "replicapool", "dataBlockPool": "ec", "clusterNamespace": "rook-ceph", "fstype": "xfs"});
    let (parameters, _, _) = gone(&class("ceph.rook.io/block", &rook), "rook-ceph.rbd.csi.ceph.com");
    assert_eq!(
        parameters,
        json!({
            "clusterID": "rook-ceph", "pool": "replicapool", "dataPool": "ec", "imageFeatures": "layering", "imageFormat": "2",
            "csi.storage.k8s.io/fstype": "xfs",
            "csi.storage.k8s.io/provisioner-secret-name": "rook-csi-rbd-provisioner",
            "csi.storage.k8s.io/provisioner-secret-namespace": "rook-ceph",
            "csi.storage.k8s.io/controller-expand-secret-name": "rook-csi-rbd-provisioner",
            "csi.storage.k8s.io/controller-expand-secret-namespace": "rook-ceph",
            "csi.storage.k8s.io/node-stage-secret-name": "rook-csi-rbd-node",
            "csi.storage.k8s.io/node-stage-secret-namespace": "rook-ceph",
        })
    );
}

#[test]
fn what_is_no_class_of_the_driver_is_left_or_refused() {
    let ebs = |parameters: Value| class("kubernetes.io/aws-ebs", &parameters);
    assert_eq!(to_csi(&ebs(json!({})), To::Flexvold), Ok(None));
    assert_eq!(to_csi(&ebs(json!({})), To::Driver("pd.csi.storage.gke.io")), Ok(None));
    for (object, to, id) in [
        (ebs(json!({"fstype": "a", "fsType": "b"})), "ebs.csi.aws.com", "option-twice"),
        (ebs(json!({"zone": "a", "zones": "b"})), "ebs.csi.aws.com", "option-twice"),
        (ebs(json!({"password": "hunter2"})), "ebs.csi.aws.com", "credential-in-option"),
        (ebs(json!({"encrypted": true})), "ebs.csi.aws.com", "field"),
        (ebs(json!("hunter2")), "ebs.csi.aws.com", "field"),
        (with_topologies(ebs(json!({"zone": "a"})), terms("x", &["y"])), "ebs.csi.aws.com", "field"),
        (
            class("rook.io/block", &json!({"pool": "p", "x": "y"})),
            "rook-ceph.rbd.csi.ceph.com",
            "option-unknown",
        ),
        (
            class("rook.io/block", &json!({"pool": "p", "blockPool": "q"})),
            "rook-ceph.rbd.csi.ceph.com",
            "option-twice",
        ),
    ] {
        let refusal = to_csi(&object, To::Driver(to)).unwrap_err();
        assert_eq!(refusal.reason.id(), id, "{object}");
        assert!(!refusal.to_string().contains("hunter2"), "{refusal}");
    }
    for parameters in [json!({"blockPool": "p"}), json!({"clusterNamespace": "n"})] {
        let refusal = to_csi(&class("rook.io/block", &parameters), To::Driver("rook-ceph.rbd.csi.ceph.com"));
        assert_eq!(refusal.unwrap_err().reason.id(), "option-missing");
    }
    let mut done =
        to_csi(&ebs(json!({"type": "gp2"})), To::Driver("ebs.csi.aws.com")).unwrap().unwrap().object;
    done["parameters"]["type"] = "gp3".into();
    assert_eq!(ids(&to_flex(&done).unwrap().unwrap().warnings), ["drift"]);
    done["provisioner"] = "smb.csi.k8s.io".into();
    assert_eq!(to_flex(&done).unwrap_err().reason.id(), "original-foreign");
}

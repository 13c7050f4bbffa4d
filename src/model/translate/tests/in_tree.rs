//! Volumes of Kubernetes' own plugins. The expected results are those of its library
//! (csi-translation-lib 0.37), with the exceptions that the module lists.

use super::*;
use crate::translate::in_tree::PLUGINS;
use proptest::prelude::*;
use proptest::sample::select;

fn of(name: &str, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain"},
    });
    for (key, value) in spec.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    object
}

fn labelled(mut object: Value, key: &str, value: &str) -> Value {
    object["metadata"]["labels"][key] = value.into();
    object
}

/// Translates there and back; returns the translated object and its warnings.
fn gone(volume: &Value, to: &str) -> (Value, Vec<&'static str>) {
    let done = to_csi(volume, To::Driver(to)).unwrap_or_else(|refusal| panic!("{refusal}")).unwrap();
    let back = to_flex(&done.object).unwrap().unwrap();
    assert_eq!((&back.object, ids(&back.warnings)), (volume, vec![]));
    assert_eq!(done.object["spec"]["csi"]["driver"], to);
    // Without --to, or with --to for another driver, the volume stays as it is.
    assert_eq!(
        (to_csi(volume, To::Flexvold), to_csi(volume, To::Driver("smb.csi.k8s.io"))),
        (Ok(None), Ok(None))
    );
    (done.object, ids(&done.warnings))
}

fn csi(volume: &Value, to: &str) -> Value {
    let mut csi = gone(volume, to).0["spec"]["csi"].clone();
    csi.as_object_mut().unwrap().remove("driver");
    csi
}

fn refused(volume: &Value, to: &str) -> &'static str {
    to_csi(volume, To::Driver(to)).unwrap_err().reason.id()
}

#[test]
fn each_plugin_has_its_volume() {
    let ebs = json!({"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-02399", "fsType": "ext3", "partition": 1, "readOnly": true}});
    let expected = json!({"volumeHandle": "vol-02399", "fsType": "ext3", "readOnly": true, "volumeAttributes": {"partition": "1"}});
    assert_eq!(csi(&of("a", &ebs), "ebs.csi.aws.com"), expected);
    let bare = json!({"awsElasticBlockStore": {"volumeID": "vol-1a"}});
    let expected = json!({"volumeHandle": "vol-1a", "volumeAttributes": {"partition": "0"}});
    assert_eq!(csi(&of("a", &bare), "ebs.csi.aws.com"), expected);

    let disk = json!({"azureDisk": {"diskName": "d", "diskURI": "/subscriptions/s/disks/d", "cachingMode": "None", "fsType": "xfs", "kind": "managed"}});
    let expected = json!({"volumeHandle": "/subscriptions/s/disks/d", "fsType": "xfs",
        "volumeAttributes": {"cachingmode": "None", "fstype": "xfs", "kind": "Managed"}});
    assert_eq!(csi(&of("a", &disk), "disk.csi.azure.com"), expected);

    let mut file = of(
        "file",
        &json!({"azureFile": {"secretName": "azure-storage-account-acc-secret", "shareName": "s"}, "claimRef": {"namespace": "shop", "name": "c", "uid": "u"}}),
    );
    let expected = |handle: &str, secret: &str| {
        json!({"volumeHandle": handle, "volumeAttributes": {"sharename": "s"},
        "nodeStageSecretRef": {"name": secret, "namespace": "shop"}})
    };
    let to = "file.csi.azure.com";
    assert_eq!(csi(&file, to), expected("#acc#s#file#shop", "azure-storage-account-acc-secret"));
    file["metadata"]["annotations"] = json!({"kubernetes.io/azure-file-resource-group": "rg"});
    file["spec"]["azureFile"]["secretName"] = "login".into();
    assert_eq!(csi(&file, to), expected("rg#login#s#file#shop", "login"));
    file["spec"]["azureFile"]["secretNamespace"] = "other".into();
    assert_eq!(csi(&file, to)["volumeHandle"], "rg#login#s#file#other");

    let cinder = of("a", &json!({"cinder": {"volumeID": "v", "fsType": "ext4", "secretRef": {"name": "x"}}}));
    assert_eq!(csi(&cinder, "cinder.csi.openstack.org"), json!({"volumeHandle": "v", "fsType": "ext4"}));
    assert_eq!(gone(&cinder, "cinder.csi.openstack.org").1, ["ignored"]);

    let path = "[store] kubevols/x.vmdk";
    let vsphere = of(
        "a",
        &json!({"vsphereVolume": {"volumePath": path, "fsType": "ext4", "storagePolicyName": "gold"}}),
    );
    let expected =
        json!({"volumeHandle": path, "fsType": "ext4", "volumeAttributes": {"storagepolicyname": "gold"}});
    assert_eq!(csi(&vsphere, "csi.vsphere.vmware.com"), expected);
}

#[test]
fn portworx_stays_read_only_and_has_its_login() {
    let mut volume = of("a", &json!({"portworxVolume": {"volumeID": "v", "readOnly": true}}));
    assert_eq!(csi(&volume, "pxd.portworx.com"), json!({"volumeHandle": "v", "readOnly": true}));
    volume["metadata"]["annotations"] =
        json!({"openstorage.io/auth-secret-name": "s", "openstorage.io/auth-secret-namespace": "n"});
    let csi = csi(&volume, "pxd.portworx.com");
    for call in ["controllerPublish", "nodeStage", "nodePublish", "controllerExpand", "nodeExpand"] {
        assert_eq!(csi[format!("{call}SecretRef")], json!({"name": "s", "namespace": "n"}));
    }
}

#[test]
fn a_persistent_disk_is_where_its_label_says() {
    let to = "pd.csi.storage.gke.io";
    let disk = of(
        "a",
        &json!({"gcePersistentDisk": {"pdName": "d", "partition": 2}, "accessModes": ["ReadWriteMany"]}),
    );
    let (object, warnings) = gone(&disk, to);
    assert_eq!(object["spec"]["csi"]["volumeHandle"], "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d");
    assert_eq!(object["spec"]["csi"]["volumeAttributes"], json!({"partition": "2"}));
    assert_eq!((&object["spec"]["accessModes"], warnings), (&json!(["ReadWriteOnce"]), vec!["one-writer"]));
    for (label, place) in [("us-a1-b", "zones/us-a1-b"), ("us-a1-b__us-a1-c", "regions/us-a1")] {
        for key in ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"] {
            let (object, _) = gone(&labelled(disk.clone(), key, label), to);
            assert_eq!(
                object["spec"]["csi"]["volumeHandle"],
                format!("projects/UNSPECIFIED/{place}/disks/d")
            );
            let zones: Vec<_> = label.split("__").collect();
            assert_eq!(
                object["spec"]["nodeAffinity"],
                json!({"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "topology.gke.io/zone", "operator": "In", "values": zones}]}]}})
            );
        }
    }
    let torn = labelled(disk.clone(), "topology.kubernetes.io/zone", "us-a1-b__eu-a1-c");
    assert_eq!(refused(&torn, to), "zones");
    let reader = of("a", &json!({"gcePersistentDisk": {"pdName": "d"}, "accessModes": ["ReadOnlyMany"]}));
    assert_eq!(gone(&reader, to).0["spec"]["accessModes"], json!(["ReadOnlyMany"]));
}

#[test]
fn an_affinity_counts_before_a_label() {
    let expression = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let terms = |terms: &[Vec<Value>]| {
        let terms: Vec<_> = terms.iter().map(|all| json!({"matchExpressions": all})).collect();
        json!({"required": {"nodeSelectorTerms": terms}})
    };
    let ebs = |affinity: Value| {
        of("a", &json!({"awsElasticBlockStore": {"volumeID": "vol-1"}, "nodeAffinity": affinity}))
    };
    let before = terms(&[
        vec![
            expression("failure-domain.beta.kubernetes.io/zone", "a"),
            expression("failure-domain.beta.kubernetes.io/region", "r"),
        ],
        vec![expression("failure-domain.beta.kubernetes.io/zone", "b")],
    ]);
    let after = terms(&[
        vec![
            expression("topology.ebs.csi.aws.com/zone", "a"),
            expression("topology.kubernetes.io/region", "r"),
        ],
        vec![expression("topology.ebs.csi.aws.com/zone", "b")],
    ]);
    let volume = labelled(ebs(before.clone()), "topology.kubernetes.io/zone", "z");
    assert_eq!(gone(&volume, "ebs.csi.aws.com").0["spec"]["nodeAffinity"], after);
    let other = labelled(ebs(terms(&[vec![expression("disk", "ssd")]])), "topology.kubernetes.io/zone", "z");
    let after = terms(&[vec![expression("disk", "ssd"), expression("topology.ebs.csi.aws.com/zone", "z")]]);
    assert_eq!(gone(&other, "ebs.csi.aws.com").0["spec"]["nodeAffinity"], after);
    let mut vsphere = of("a", &json!({"vsphereVolume": {"volumePath": "[s] x"}}));
    vsphere["spec"]["nodeAffinity"] = before;
    let after = gone(&vsphere, "csi.vsphere.vmware.com").0["spec"]["nodeAffinity"].to_string();
    assert!(after.contains("topology.csi.vmware.com/region") && !after.contains("beta"), "{after}");
}

#[test]
fn block_devices_mount_options_and_policy_stay_with_the_volume() {
    let spec = json!({"awsElasticBlockStore": {"volumeID": "vol-1"}, "volumeMode": "Block", "mountOptions": ["noatime"], "persistentVolumeReclaimPolicy": "Delete"});
    let done = to_csi(&of("a", &spec), To::Driver("ebs.csi.aws.com")).unwrap().unwrap();
    assert_eq!(done.object["spec"]["volumeMode"], "Block");
    assert_eq!(done.object["spec"]["mountOptions"], json!(["noatime"]));
    assert_eq!(done.object["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    assert_eq!(ids(&done.warnings), ["retained"]);
}

#[test]
fn what_is_no_volume_of_a_plugin_is_refused() {
    let flex = json!({"driver": "a/b"});
    for (spec, to, id) in [
        (json!({"awsElasticBlockStore": {"volumeID": "vol-1/../x"}}), "ebs.csi.aws.com", "field"),
        (json!({"awsElasticBlockStore": {"volumeID": "aws://vol-1"}}), "ebs.csi.aws.com", "field"),
        (json!({"awsElasticBlockStore": {}}), "ebs.csi.aws.com", "option-missing"),
        (json!({"awsElasticBlockStore": {"volumeID": "vol-1", "zone": "a"}}), "ebs.csi.aws.com", "field"),
        (
            json!({"awsElasticBlockStore": {"volumeID": "vol-1", "readOnly": "yes"}}),
            "ebs.csi.aws.com",
            "field",
        ),
        (
            json!({"awsElasticBlockStore": {"volumeID": "vol-1"}, "flexVolume": flex}),
            "ebs.csi.aws.com",
            "two-sources",
        ),
        (
            json!({"awsElasticBlockStore": {"volumeID": "vol-1"}, "csi": {"driver": "x"}}),
            "ebs.csi.aws.com",
            "two-sources",
        ),
        (json!({"gcePersistentDisk": {"pdName": "a/../b"}}), "pd.csi.storage.gke.io", "field"),
        (
            json!({"azureDisk": {"diskName": "d", "diskURI": "https://x", "kind": "Dedicated"}}),
            "disk.csi.azure.com",
            "field",
        ),
        (
            json!({"azureFile": {"secretName": "s", "shareName": "x"}}),
            "file.csi.azure.com",
            "secret-namespace",
        ),
        (
            json!({"azureFile": {"secretName": "s", "shareName": "x#y", "secretNamespace": "n"}}),
            "file.csi.azure.com",
            "field",
        ),
        (json!({"vsphereVolume": {"volumePath": "a\nb"}}), "csi.vsphere.vmware.com", "field"),
        (json!({"cinder": "hunter2"}), "cinder.csi.openstack.org", "field"),
    ] {
        let refusal = to_csi(&of("a", &spec), To::Driver(to)).unwrap_err();
        assert_eq!(refusal.reason.id(), id, "{spec}: {refusal}");
        assert!(!refusal.to_string().contains("hunter2"));
    }
}

proptest! {
    /// Any content of the fields comes back, or is refused.
    #[test]
    fn the_way_back_is_exact(
        at in 0..PLUGINS.len(),
        keys in prop::collection::vec(select(vec![
            "volumeID", "pdName", "diskURI", "diskName", "secretName", "shareName", "volumePath", "secretNamespace",
            "fsType", "partition", "readOnly", "kind", "cachingMode", "storagePolicyName", "secretRef",
        ]), 1..9),
        values in prop::collection::vec(select(vec![
            json!("vol-1f"), json!("aws://a/vol-2/"), json!("x"), json!("a#b"), json!(""), json!(null), json!(3),
            json!(true), json!("managed"), json!({"name": "s"}), json!("\u{202e}ä \t"),
        ]), 9),
        zone in select(vec!["", "a-b", "a-b__a-c", "a-b__c-d", "__"]),
    ) {
        let plugin = &PLUGINS[at];
        let fields: serde_json::Map<_, _> = keys.iter().map(|key| (*key).to_owned()).zip(values).collect();
        let volume = labelled(of("a", &json!({plugin.source: fields})), "topology.kubernetes.io/zone", zone);
        if let Ok(done) = to_csi(&volume, To::Driver(plugin.to)) {
            let done = done.unwrap();
            prop_assert_eq!(&done.object["spec"]["csi"]["driver"], plugin.to);
            prop_assert!(done.object["spec"].get(plugin.source).is_none());
            prop_assert_eq!(to_flex(&done.object).unwrap().unwrap().object, volume);
        }
    }
}

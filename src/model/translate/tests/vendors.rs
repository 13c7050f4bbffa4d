//! Volumes for CSI drivers of the vendors that made the FlexVolume drivers.

use super::rows::of;
use super::*;

const IMAGE: To<'_> = To::Driver("rook-ceph.rbd.csi.ceph.com");
const DIRECTORY: To<'_> = To::Driver("rook-ceph.cephfs.csi.ceph.com");
const BLOB: To<'_> = To::Driver("blob.csi.azure.com");
const OCI: To<'_> = To::Driver("blockvolume.csi.oraclecloud.com");
const DISK: To<'_> = To::Driver("diskplugin.csi.alibabacloud.com");
const NAS: To<'_> = To::Driver("nasplugin.csi.alibabacloud.com");
const OSS: To<'_> = To::Driver("ossplugin.csi.alibabacloud.com");
const LINSTOR: To<'_> = To::Driver("linstor.csi.linbit.com");

fn with(mut volume: Value, field: &str, value: Value) -> Value {
    volume["spec"]["flexVolume"][field] = value;
    volume
}

/// Translates there and back; returns `csi` without its driver, the mount options, and the warnings
/// without `differs`.
fn gone(volume: &Value, to: To<'_>) -> (Value, Value, Vec<&'static str>) {
    let done = to_csi(volume, to).unwrap_or_else(|refusal| panic!("{refusal}")).unwrap();
    let back = to_flex(&done.object).unwrap().unwrap();
    assert_eq!((&back.object, ids(&back.warnings)), (volume, vec![]));
    let spec = &done.object["spec"];
    let mut csi = spec["csi"].clone();
    let driver = csi.as_object_mut().unwrap().remove("driver").unwrap();
    assert_eq!(To::Driver(driver.as_str().unwrap()), to);
    let mut warnings = ids(&done.warnings);
    warnings.retain(|id| *id != "differs");
    (csi, spec.get("mountOptions").cloned().unwrap_or_default(), warnings)
}

fn refused(volume: &Value, to: To<'_>) -> &'static str {
    to_csi(volume, to).unwrap_err().reason.id()
}

#[test]
fn an_image_of_rook_keeps_its_name() {
    let options = json!({"image": "pvc-1", "blockPool": "replicapool", "clusterNamespace": "rook-two",
        "dataBlockPool": "ec", "storageClass": "rook-block"});
    let expected = json!({
        "volumeHandle": "pvc-1", "fsType": "xfs",
        "nodeStageSecretRef": {"name": "rook-csi-rbd-node", "namespace": "rook-two"},
        "volumeAttributes": {"clusterID": "rook-two", "imageFeatures": "layering", "pool": "replicapool",
            "staticVolume": "true"},
    });
    for driver in ["ceph.rook.io/rook", "ceph.rook.io/rook-ceph-system", "rook.io/rook"] {
        let volume = with(of(driver, &options), "fsType", "xfs".into());
        let (csi, words, warnings) = gone(&volume, IMAGE);
        assert_eq!(
            (csi, words, warnings),
            (expected.clone(), json!(null), vec!["ignored", "ignored", "secret-to-make"])
        );
        assert_eq!(refused(&volume, DIRECTORY), "fs-type");
    }
    let default = gone(&of("ceph.rook.io/rook", &json!({"image": "i", "pool": "p"})), IMAGE).0;
    assert_eq!(default["volumeAttributes"]["clusterID"], "rook-ceph");
    let twice = json!({"image": "i", "pool": "p", "blockPool": "q"});
    assert_eq!(refused(&of("ceph.rook.io/rook", &twice), IMAGE), "option-twice");
    for (options, id) in [
        (json!({"image": "i"}), "option-missing"),
        (json!({"pool": "p"}), "option-missing"),
        (json!({"image": "a/b", "pool": "p"}), "option-form"),
        (json!({"image": "a#b", "pool": "p"}), "option-form"),
        (json!({"image": "i", "pool": "p", "clusterName": "rook"}), "option-refused"),
    ] {
        assert_eq!(refused(&of("ceph.rook.io/rook", &options), IMAGE), id, "{options}");
    }
    // The CSI driver uses a Secret of its own.
    let secret = json!({"name": "login", "namespace": "shop"});
    let volume = with(of("ceph.rook.io/rook", &json!({"image": "i", "pool": "p"})), "secretRef", secret);
    assert_eq!(refused(&volume, IMAGE), "no-secret");
    // A longer vendor name belongs to another vendor.
    let other = of("myrook.io/rook", &json!({"image": "i", "pool": "p"}));
    assert_eq!(ids(&to_csi(&other, IMAGE).unwrap().unwrap().warnings), ["left"]);
}

#[test]
fn a_directory_of_rook_gets_a_secret() {
    let options =
        json!({"fsName": "myfs", "path": "jupyter/", "clusterNamespace": "rook-ceph", "mountUser": "u"});
    let volume = with(of("ceph.rook.io/rook", &options), "fsType", "ceph".into());
    let (csi, _, warnings) = gone(&volume, DIRECTORY);
    assert_eq!(
        csi,
        json!({
            "volumeHandle": "flexmig-web",
            "nodeStageSecretRef": {"name": "rook-csi-cephfs-static", "namespace": "rook-ceph"},
            "volumeAttributes": {"clusterID": "rook-ceph", "fsName": "myfs", "rootPath": "/jupyter",
                "staticVolume": "true"},
        })
    );
    assert_eq!(warnings, ["ignored", "secret-to-make"]);
    assert_eq!(refused(&volume, IMAGE), "fs-type");
    assert_eq!(refused(&of("ceph.rook.io/rook", &options), DIRECTORY), "fs-type");
}

#[test]
fn a_container_s_secret_is_a_copy_with_other_keys() {
    let options = json!({"container": "web", "tmppath": "/mnt/blobfuse", "driverpath": "blobfuse",
        "mountoptions": "-o allow_other --file-cache-timeout-in-seconds=120 -oattr_timeout=240,umask=0022 \
            --tmp-path=/x --log-level=LOG_DEBUG"});
    let secret = json!({"name": "login", "namespace": "shop"});
    let volume = with(of("azure/blobfuse", &options), "secretRef", secret);
    let (csi, words, warnings) = gone(&volume, BLOB);
    assert_eq!(
        csi,
        json!({
            "volumeHandle": "flexmig-web",
            "nodeStageSecretRef": {"name": "login-csi", "namespace": "shop"},
            "volumeAttributes": {"containerName": "web", "protocol": "fuse"},
        })
    );
    assert_eq!(
        words,
        json!([
            "-o allow_other",
            "--file-cache-timeout-in-seconds=120",
            "-o attr_timeout=240",
            "-o umask=0022",
            "--log-level=LOG_DEBUG"
        ])
    );
    assert_eq!(warnings, ["ignored", "ignored", "ignored", "secret-to-make"]);
    let warnings = to_csi(&volume, BLOB).unwrap().unwrap().warnings;
    let said = warnings.iter().map(ToString::to_string).collect::<String>();
    assert!(said.contains("shop/login-csi") && said.contains("azurestorageaccountkey"), "{said}");
    for words in ["-d", "-o suid", "--config-file=/etc/x", "/etc", "-o", "--", "-oallow_other,dev"] {
        let volume = of("azure/blobfuse", &json!({"container": "web", "mountoptions": words}));
        let expected = if words == "-o" { None } else { Some("mount-option") };
        assert_eq!(to_csi(&volume, BLOB).err().map(|refusal| refusal.reason.id()), expected, "{words}");
    }
}

#[test]
fn clouds_know_their_volumes_by_name() {
    let ocid = "ocid1.volume.oc1.eu-frankfurt-1.abtheljt7xyz";
    let mut volume = with(of("oracle/oci", &json!({})), "fsType", "ext4".into());
    assert_eq!(refused(&volume, OCI), "identity");
    volume["metadata"]["annotations"]["ociVolumeID"] = "ocid1/../x".into();
    assert_eq!(refused(&volume, OCI), "identity");
    volume["metadata"]["annotations"]["ociVolumeID"] = ocid.into();
    assert_eq!(gone(&volume, OCI).0, json!({"volumeHandle": ocid, "fsType": "ext4"}));

    let disk = with(of("alicloud/disk", &json!({"VolumeId": "d-2ze4"})), "fsType", "ext4".into());
    assert_eq!(gone(&disk, DISK).0, json!({"volumeHandle": "d-2ze4", "fsType": "ext4"}));

    let nas = of(
        "alicloud/nas",
        &json!({"server": "a.nas.aliyuncs.com", "path": "/k8s", "vers": "4.0",
        "options": "nolock,tcp,noresvport"}),
    );
    let (csi, words, _) = gone(&nas, NAS);
    assert_eq!(
        csi,
        json!({"volumeHandle": "web", "volumeAttributes": {
        "server": "a.nas.aliyuncs.com", "path": "/k8s", "vers": "4.0"}})
    );
    assert_eq!(words, json!(["nolock", "tcp", "noresvport"]));

    let secret = json!({"name": "oss", "namespace": "shop"});
    let options =
        json!({"bucket": "b", "url": "oss-cn-x.aliyuncs.com", "otherOpts": "-o allow_other -o umask=022"});
    let oss = with(of("alicloud/oss", &options), "secretRef", secret.clone());
    assert_eq!(
        gone(&oss, OSS).0,
        json!({"volumeHandle": "web", "nodePublishSecretRef": secret,
        "volumeAttributes": {"bucket": "b", "url": "oss-cn-x.aliyuncs.com",
            "otherOpts": "-o allow_other -o umask=022"}})
    );
    let plain = of("alicloud/oss", &json!({"bucket": "b", "url": "u", "akId": "x", "akSecret": "y"}));
    assert_eq!(refused(&plain, OSS), "credential-in-option");
    let hostile =
        of("alicloud/oss", &json!({"bucket": "b", "url": "u", "otherOpts": "-o passwd_file=/etc/shadow"}));
    assert_eq!(refused(&hostile, OSS), "mount-option");

    let resource =
        of("linbit/linstor-flexvolume", &json!({"resource": "r0", "autoPlace": "2", "mountOpts": "noatime"}));
    let (csi, words, warnings) = gone(&resource, LINSTOR);
    assert_eq!((csi, words, warnings), (json!({"volumeHandle": "r0"}), json!(["noatime"]), vec!["ignored"]));
    assert_eq!(gone(&of("linbit/linstor-flexvolume", &json!({})), LINSTOR).0, json!({"volumeHandle": "web"}));
    let long = format!("{}.{}", "a".repeat(63), "b".repeat(70));
    let mut volume = of("linbit/linstor-flexvolume", &json!({}));
    volume["metadata"]["name"] = long.into();
    assert_eq!(refused(&volume, LINSTOR), "name");
}

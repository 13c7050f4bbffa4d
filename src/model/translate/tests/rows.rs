//! Volumes for other vendors' CSI drivers.

use super::pods::{pod, volume_in, workloads};
use super::*;

const SMB: To<'_> = To::Driver("smb.csi.k8s.io");
/// Drivers for which flexvol has no driver of its own.
const OTHERS: &[&str] =
    &["ceph.rook.io/", "rook.io/", "oracle/oci", "alicloud/disk", "linbit/linstor-flexvolume"];

const NFS: To<'_> = To::Driver("nfs.csi.k8s.io");

pub(super) fn of(driver: &str, options: &Value) -> Value {
    let mut volume = web();
    volume["spec"]["flexVolume"] = json!({"driver": driver, "options": options});
    volume
}

/// Translates there and back; returns attributes, mount options and warnings.
fn csi_of(volume: &Value, to: To<'_>) -> (Value, Value, Vec<&'static str>) {
    let done = to_csi(volume, to).unwrap_or_else(|refusal| panic!("{refusal}")).unwrap();
    let back = to_flex(&done.object).unwrap().unwrap();
    assert_eq!((&back.object, ids(&back.warnings)), (volume, vec![]));
    let spec = &done.object["spec"];
    assert_eq!(spec["csi"]["volumeHandle"], "flexmig-web");
    let mut warnings = ids(&done.warnings);
    warnings.retain(|id| *id != "differs");
    (spec["csi"]["volumeAttributes"].clone(), spec.get("mountOptions").cloned().unwrap_or_default(), warnings)
}

/// Driver, target, options; attributes, mount options and warnings without `differs`.
type Row = (&'static str, To<'static>, Value, Value, Value, &'static [&'static str]);

fn shares() -> Vec<Row> {
    vec![
        (
            "fstab/cifs",
            SMB,
            json!({"networkPath": r"\\server\share", "mountOptions": "vers=3.0, dir_mode=0777,noperm,intr"}),
            json!({"source": "//server/share"}),
            json!(["vers=3.0", "dir_mode=0777", "noperm"]),
            &["ignored"],
        ),
        (
            "openshift.io/cifs",
            SMB,
            json!({"source": "//server/share/dir", "mountOptions": ""}),
            json!({"source": "//server/share/dir"}),
            json!(null),
            &[],
        ),
        (
            "microsoft.com/smb",
            SMB,
            json!({"source": "//a.file.core.windows.net/x", "mountoptions": "vers=3.0,uid=1000"}),
            json!({"source": "//a.file.core.windows.net/x"}),
            json!(["vers=3.0", "uid=1000"]),
            &[],
        ),
        (
            "juliohm/cifs",
            SMB,
            json!({"Server": "host", "share": "/apps$/I", "opts": "sec=ntlm,gid=5", "passwdMethod": "env"}),
            json!({"source": "//host/apps$/I"}),
            json!(["gid=5"]),
            &["ignored", "ignored"],
        ),
    ]
}

fn exports() -> Vec<Row> {
    vec![
        (
            "k8s/nfs",
            NFS,
            json!({"server": "10.0.0.1", "share": "exports/web", "protocol": "udp", "atime": "1", "readonly": "true"}),
            json!({"server": "10.0.0.1", "share": "/exports/web"}),
            json!(["tcp", "soft", "timeo=10", "noatime"]),
            &["ignored", "ignored", "ignored"],
        ),
        (
            "bestgopher/nfs",
            NFS,
            json!({"server": "[fd00::1]", "path": "/e", "protocol": "tcp"}),
            json!({"server": "[fd00::1]", "share": "/e"}),
            json!(["noatime", "proto=tcp"]),
            &[],
        ),
        (
            "cds/nas",
            NFS,
            json!({"Server": "nas", "vers": "4.0", "options": "noresvport,none", "mode": "755"}),
            json!({"server": "nas", "share": "/nfsshare"}),
            json!(["vers=4.0", "noresvport"]),
            &["ignored", "ignored"],
        ),
    ]
}

#[test]
fn each_row_has_its_volume() {
    for (driver, to, options, attributes, mount_options, warnings) in shares().into_iter().chain(exports()) {
        let volume = of(driver, &options);
        let (own, words, said) = csi_of(&volume, to);
        let sorted = |words: &Value| {
            let mut all: Vec<_> = words.as_array().into_iter().flatten().map(Value::to_string).collect();
            all.sort();
            all
        };
        assert_eq!(
            (own, sorted(&words), said),
            (attributes, sorted(&mount_options), warnings.to_vec()),
            "{driver}"
        );
    }
    let rows: Vec<_> = TARGETS.iter().flat_map(|row| row.from).collect();
    assert!(
        rows.iter().all(|name| crate::profiles::find(name).is_some() || OTHERS.contains(name)),
        "each is a driver of a profile, or known otherwise: {rows:?}"
    );
}

#[test]
fn a_secret_is_that_of_the_node_or_a_refusal() {
    let mut volume = web();
    let done = to_csi(&volume, SMB).unwrap().unwrap();
    assert_eq!(
        done.object["spec"]["csi"]["nodeStageSecretRef"],
        json!({"name": "login", "namespace": "shop"})
    );
    volume["spec"]["flexVolume"]["driver"] = "k8s/nfs".into();
    assert_eq!(to_csi(&volume, NFS).unwrap_err().reason.id(), "no-secret");
}

#[test]
fn what_a_driver_has_nothing_for_is_refused() {
    for (driver, to, options, id) in [
        ("fstab/cifs", SMB, json!({"networkPath": "//s/x", "zz": "1"}), "option-unknown"),
        ("fstab/cifs", SMB, json!({"mountOptions": "ro"}), "option-missing"),
        ("fstab/cifs", SMB, json!({"networkPath": "//s/x", "source": "//s/y"}), "option-twice"),
        ("fstab/cifs", SMB, json!({"networkPath": "//s/../x"}), "option-form"),
        ("fstab/cifs", SMB, json!({"networkPath": "//s/${pvc.metadata.name}"}), "option-form"),
        ("fstab/cifs", SMB, json!({"networkPath": "//-s/x"}), "option-form"),
        ("fstab/cifs", SMB, json!({"networkPath": "//s/x", "mountOptions": "suid"}), "mount-option"),
        ("fstab/cifs", SMB, json!({"networkPath": "//s/x", "mountOptions": "dev"}), "mount-option"),
        ("fstab/cifs", SMB, json!({"networkPath": "//s/x", "mountOptions": "ip=10.0.0.1"}), "mount-option"),
        ("fstab/cifs", SMB, json!({"networkPath": "//s/x", "mountOptions": "uid=$(id)"}), "mount-option"),
        ("fstab/cifs", SMB, json!({"networkPath": "//s/x", "mountOptions": "-o"}), "mount-option"),
        (
            "fstab/cifs",
            SMB,
            json!({"networkPath": "//s/x", "mountOptions": "credentials=/etc/shadow"}),
            "credential-in-option",
        ),
        ("juliohm/cifs", SMB, json!({"server": "a", "Server": "b", "share": "/c"}), "option-twice"),
        ("juliohm/cifs", SMB, json!({"server": "a/b", "share": "/c"}), "option-form"),
        ("juliohm/cifs", SMB, json!({"share": "/c"}), "option-missing"),
        ("k8s/nfs", NFS, json!({"server": "s"}), "option-missing"),
        ("k8s/nfs", NFS, json!({"server": "s", "share": "/a/../../etc"}), "option-form"),
        ("bestgopher/nfs", NFS, json!({"server": "s", "path": "/e", "readonly": "true"}), "option-refused"),
        ("bestgopher/nfs", NFS, json!({"server": "s", "path": "/e", "protocol": "icmp"}), "option-form"),
        ("cds/nas", NFS, json!({"server": "s", "options": "nfsvers=4,addr=1"}), "mount-option"),
    ] {
        let refusal = to_csi(&of(driver, &options), to).unwrap_err();
        assert_eq!(refusal.reason.id(), id, "{driver} {options}: {refusal}");
        assert!(
            !refusal.to_string().contains("$(id)") && !refusal.to_string().contains("shadow"),
            "{refusal}"
        );
    }
}

#[test]
fn what_has_no_way_there_stays_what_it_is() {
    let volume = of("x/y", &json!({"a": "b"}));
    let done = to_csi(&volume, SMB).unwrap().unwrap();
    assert_eq!((&done.object, ids(&done.warnings)), (&volume, vec!["left"]));
    // Every driver can also be translated for the CSI name under which flexvold csi serves it.
    let served = to_csi(&web(), To::Driver("cifs.fstab.flex.flexvol.dev")).unwrap().unwrap();
    assert_eq!(served.object, translated(&web()).object);
}

#[test]
fn pods_go_there_too_where_the_driver_lets_them() {
    for object in workloads(&pod()) {
        let done = to_csi(&object, SMB).unwrap().unwrap();
        let expected = json!({"driver": "smb.csi.k8s.io", "readOnly": true, "volumeAttributes": {"secretName": "login", "source": "//a/b"}});
        assert_eq!(volume_in(&done.object, "web")["csi"], expected);
        let back = to_flex(&done.object).unwrap().unwrap();
        assert_eq!((back.object, back.warnings), (object, vec![]));
    }
    let mut pod = pod();
    pod["volumes"][1]["flexVolume"] = json!({"driver": "k8s/nfs", "options": {"server": "a", "share": "/b"}});
    let object = &workloads(&pod)[0];
    assert_eq!(to_csi(object, NFS).unwrap_err().reason.id(), "no-inline");
    assert_eq!(ids(&to_csi(object, SMB).unwrap().unwrap().warnings), ["left"]);
}

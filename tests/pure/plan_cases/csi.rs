//! Volumes of CSI drivers.

use super::{Case, case};

const ALLOWED: &str = r#"{"policy":{"csiDrivers":["smb.csi.k8s.io"]}}"#;

pub(super) const CASES: &[Case] = &[
    case(
        "csi-defaults",
        "csi",
        ALLOWED,
        &["mount", "@", r#"{"driver":"smb.csi.k8s.io","volumeHandle":"share-1"}"#],
    ),
    case(
        "csi-all",
        "csi",
        r#"{"policy":{"csiDrivers":"*","allowSuid":true},"agent":{"socket":"/run/other.sock"}}"#,
        &[
            "mount",
            "@",
            r#"{"driver":"disk.csi.example.com","volumeHandle":"vol#1","accessMode":"ReadWriteMany","attributes":"{\"a\":\"1\",\"b\":\"2\"}","attr.b":"3","mountFlags":"noatime, suid","podInfo":"true","topology.topology.kubernetes.io/zone":"a","kubernetes.io/fsType":"xfs","kubernetes.io/readwrite":"ro","kubernetes.io/mounterArgs.FsGroup":"1000","kubernetes.io/pod.name":"web-0","kubernetes.io/pod.namespace":"shop","kubernetes.io/pod.uid":"7","kubernetes.io/serviceAccount.name":"web","kubernetes.io/secret/password":"aHVudGVyMg=="}"#,
        ],
    ),
    case(
        "csi-through",
        "csi",
        r#"{"throughCsi":"smb.csi.k8s.io","profile":"fstab/cifs","policy":{"csiDrivers":["smb.csi.k8s.io"]}}"#,
        &[
            "mount",
            "@",
            r#"{"networkPath":"//nas/web","mountOptions":"vers=3.0","kubernetes.io/fsType":"cifs"}"#,
        ],
    ),
    case("csi-unmount", "csi", ALLOWED, &["unmount", "@"]),
    case(
        "csi-expandfs",
        "csi",
        ALLOWED,
        &[
            "expandfs",
            r#"{"driver":"smb.csi.k8s.io","volumeHandle":"share-1"}"#,
            "",
            "@",
            "2147483648",
            "1073741824",
        ],
    ),
];

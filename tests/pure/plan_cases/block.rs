//! Volumes on block devices from elsewhere.

use super::{Case, case};

/// What the volumes say that are staged.
const IMAGE: &str = r#"{"file":"web.qcow2","size":"1Gi"}"#;

/// What those say that a Secret opens: kubelet hands it to `mount` alone.
const RBD: &str = r#"{"monitors":"10.0.0.2,10.0.0.1:6789","image":"web"}"#;
/// What a file of the node opens.
const KEYRING: &str = r#"{"monitors":"10.0.0.1","image":"web","keyring":"/etc/ceph/web.keyring"}"#;
/// Where a volume is mounted once for the node.
const STAGED: &str = "/k/plugins/kubernetes.io/flexvolume/example/qcow2/mounts/v";
/// A server's disk.
const EXPORT: &str = r#"{"server":"nbd.example.com","export":"web"}"#;

/// A target's unit, and one that asks for a password.
const UNIT: &str = r#"{"targetPortal":"10.0.0.7:3260","iqn":"iqn.2020-01.com.example:web","lun":"1"}"#;
const CHAP: &str = r#"{"targetPortal":"10.0.0.7:3260","iqn":"iqn.2020-01.com.example:web","lun":"1","chapAuthSession":"true"}"#;

/// What the admin says where volumes are mounted once for the node.
const ATTACHED: &str = r#"{"attach":true}"#;

/// The group of LVM that the cases have.
const GROUP: &str = r#"{"policy":{"volumeGroups":["data"]}}"#;
const GROUP_ATTACHED: &str = r#"{"attach":true,"policy":{"volumeGroups":["data"]}}"#;

pub(super) const CASES: &[Case] = &[
    case("qcow2-attach", "qcow2", "{}", &["attach", IMAGE, "node-1"]),
    case(
        "qcow2-waitforattach",
        "qcow2",
        "{}",
        &["waitforattach", "qcow2:/var/lib/flexvol/images/web.qcow2", IMAGE],
    ),
    case("qcow2-detach", "qcow2", "{}", &["detach", "pv1", "node-1"]),
    case("qcow2-mountdevice", "qcow2", ATTACHED, &["mountdevice", "@", "", IMAGE]),
    case("qcow2-unmountdevice", "qcow2", "{}", &["unmountdevice", "@"]),
    case("qcow2-mount-staged", "qcow2", ATTACHED, &["mount", "@", IMAGE]),
    case("qcow2-unmount", "qcow2", ATTACHED, &["unmount", "@"]),
    case("qcow2-expandfs", "qcow2", "{}", &["expandfs", IMAGE, "", "@", "2147483648", "1073741824"]),
    case(
        "qcow2-all",
        "qcow2",
        r#"{"attach":true,"policy":{"imageRoots":["/srv/images"],"maxSize":"10Gi"}}"#,
        &[
            "mountdevice",
            "@",
            "",
            r#"{"file":"/srv/images/a/web.qcow2","size":"10Gi","fsType":"xfs","format":"ifBlank","mkfsOptions":"-m reflink=0","fsck":"false","discard":"true","mountOptions":"noatime,logbufs=8","kubernetes.io/readwrite":"rw"}"#,
        ],
    ),
    case(
        "qcow2-read-only",
        "qcow2",
        ATTACHED,
        &[
            "mountdevice",
            "@",
            "",
            r#"{"file":"web.qcow2","fsType":"squashfs","kubernetes.io/readwrite":"ro"}"#,
        ],
    ),
    case(
        "qcow2-encrypted-mountdevice",
        "qcow2",
        ATTACHED,
        &["mountdevice", "@", "", r#"{"file":"web.qcow2","luks":"true"}"#],
    ),
    case(
        "qcow2-encrypted",
        "qcow2",
        "{}",
        &[
            "mount",
            "@",
            r#"{"file":"web.qcow2","luks":"true","kubernetes.io/secret/passphrase":"aHVudGVyMg=="}"#,
        ],
    ),
    case("lvm-attach", "lvm", "{}", &["attach", r#"{"volumeGroup":"data","volume":"web"}"#, "node-1"]),
    case(
        "lvm-mountdevice",
        "lvm",
        GROUP_ATTACHED,
        &["mountdevice", "@", "", r#"{"volumeGroup":"data","volume":"web"}"#],
    ),
    case("lvm-unmountdevice", "lvm", "{}", &["unmountdevice", "@"]),
    case("lvm-mount-staged", "lvm", GROUP_ATTACHED, &["mount", "@", r#"{"vg":"data","lv":"web"}"#]),
    case(
        "lvm-expandfs",
        "lvm",
        GROUP,
        &["expandfs", r#"{"volumegroup":"data","volumeID":"web"}"#, "", "@", "2147483648", "1073741824"],
    ),
    case(
        "lvm-all",
        "lvm",
        r#"{"attach":true,"policy":{"volumeGroups":["data","kube_vg"],"maxSize":"10Gi"}}"#,
        &[
            "mountdevice",
            "@",
            "",
            r#"{"volumegroup":"kube_vg","volumeId":"web-1","size":"10g","thinpool":"pool.0","fsType":"xfs","mkfsOptions":"-m reflink=0","fsck":"false","discard":"true","mountOptions":"noatime","kubernetes.io/readwrite":"rw"}"#,
        ],
    ),
    case(
        "lvm-encrypted",
        "lvm",
        GROUP,
        &[
            "mount",
            "@",
            r#"{"volumeGroup":"data","volume":"web","luks":"true","kubernetes.io/secret/passphrase":"aHVudGVyMg=="}"#,
        ],
    ),
    case(
        "lvm-encrypted-expandfs-before-mount",
        "lvm",
        GROUP,
        &[
            "expandfs",
            r#"{"volumeGroup":"data","volume":"web","luks":"true"}"#,
            "",
            "/k/plugins/kubernetes.io/flexvolume/example/lvm/mounts/v",
            "2147483648",
            "1073741824",
        ],
    ),
    case("lvm-waitforattach", "lvm", "{}", &["waitforattach", "lvm:data/web", r#"{"vg":"data","lv":"web"}"#]),
    case("lvm-detach", "lvm", "{}", &["detach", "pv1", "node-1"]),
    case("lvm-unmount", "lvm", ATTACHED, &["unmount", "@"]),
    case("rbd-attach", "rbd", "{}", &["attach", RBD, "node-1"]),
    case("rbd-mountdevice", "rbd", ATTACHED, &["mountdevice", "@", "", RBD]),
    case(
        "rbd-mount",
        "rbd",
        "{}",
        &[
            "mount",
            "@",
            r#"{"monitors":"10.0.0.2,10.0.0.1:6789","image":"web","kubernetes.io/secret/key":"aHVudGVyMg=="}"#,
        ],
    ),
    case(
        "rbd-all",
        "rbd",
        r#"{"attach":true,"policy":{"keyringRoots":["/srv/keys"],"servers":["*.ceph.test","10.96.0.10"]}}"#,
        &[
            "mountdevice",
            "@",
            "",
            r#"{"monitors":"[\"a.ceph.test:3300\",\"b.ceph.test:3300\"]","blockPool":"fast","namespace":"web","image":"data","snapshot":"monday","user":"web","keyring":"/srv/keys/web.keyring","nameserver":"10.96.0.10","connectTimeout":"2","requestTimeout":"60","fsType":"xfs","mountOptions":"noatime","kubernetes.io/readwrite":"ro"}"#,
        ],
    ),
    case(
        "rbd-daemon",
        "rbd",
        r#"{"attach":true,"policy":{"keyringRoots":["/etc/ceph"]}}"#,
        &[
            "mountdevice",
            "@",
            "",
            r#"{"monitors":"10.0.0.1","image":"web","keyring":"/etc/ceph/web.keyring","mounter":"rbd-nbd"}"#,
        ],
    ),
    case(
        "rbd-waitforattach",
        "rbd",
        "{}",
        &["waitforattach", "rbd:10.0.0.1:6789,10.0.0.2:6789/rbd/web", RBD],
    ),
    case("rbd-detach", "rbd", "{}", &["detach", "pv1", "node-1"]),
    case("rbd-unmountdevice", "rbd", "{}", &["unmountdevice", "@"]),
    case("rbd-unmount", "rbd", ATTACHED, &["unmount", "@"]),
    case("rbd-expandfs", "rbd", "{}", &["expandfs", RBD, "", "@", "2147483648", "1073741824"]),
    case("nbd-attach", "nbd", "{}", &["attach", EXPORT, "node-1"]),
    case("nbd-mountdevice", "nbd", ATTACHED, &["mountdevice", "@", "", EXPORT]),
    case(
        "nbd-all",
        "nbd",
        r#"{"attach":true,"policy":{"servers":["*.example.com","10.96.0.10"]}}"#,
        &[
            "mountdevice",
            "@",
            "",
            r#"{"host":"nbd.example.com","port":"10810","name":"a b","nameserver":"10.96.0.10","connectTimeout":"2","timeout":"60","fsType":"xfs","kubernetes.io/readwrite":"ro"}"#,
        ],
    ),
    case("nbd-ipv6", "nbd", "{}", &["attach", r#"{"server":"fd00::7"}"#, "node-1"]),
    case(
        "nbd-image",
        "nbd",
        ATTACHED,
        &["mountdevice", "@", "", r#"{"file":"web.img","imageFormat":"raw","size":"1Gi"}"#],
    ),
    case("nbd-image-attach", "nbd", "{}", &["attach", r#"{"file":"web.qcow2"}"#, "node-1"]),
    case("nbd-waitforattach", "nbd", "{}", &["waitforattach", "nbd://nbd.example.com:10809/web", EXPORT]),
    case("nbd-detach", "nbd", "{}", &["detach", "pv1", "node-1"]),
    case("nbd-unmountdevice", "nbd", "{}", &["unmountdevice", "@"]),
    case("nbd-unmount", "nbd", ATTACHED, &["unmount", "@"]),
    case("nbd-mount-staged", "nbd", ATTACHED, &["mount", "@", EXPORT]),
    case("nbd-expandfs", "nbd", "{}", &["expandfs", EXPORT, "", "@", "2147483648", "1073741824"]),
    case("iscsi-attach", "iscsi", "{}", &["attach", UNIT, "node-1"]),
    case(
        "iscsi-waitforattach",
        "iscsi",
        "{}",
        &["waitforattach", "iscsi:iqn.2020-01.com.example:web:1", UNIT],
    ),
    case("iscsi-detach", "iscsi", "{}", &["detach", "pv1", "node-1"]),
    case("iscsi-mountdevice", "iscsi", ATTACHED, &["mountdevice", "@", "", UNIT]),
    case("iscsi-unmountdevice", "iscsi", "{}", &["unmountdevice", "@"]),
    case("iscsi-mount-staged", "iscsi", ATTACHED, &["mount", "@", UNIT]),
    case("iscsi-unmount", "iscsi", ATTACHED, &["unmount", "@"]),
    case("iscsi-expandfs", "iscsi", "{}", &["expandfs", UNIT, "", "@", "2147483648", "1073741824"]),
    case("iscsi-chap-mountdevice", "iscsi", ATTACHED, &["mountdevice", "@", "", CHAP]),
    case(
        "iscsi-all",
        "iscsi",
        r#"{"policy":{"servers":["10.0.0.7","10.0.0.8","[fd00::7]"]}}"#,
        &[
            "mount",
            "@",
            r#"{"targetPortal":"10.0.0.7:3261","portals":"[\"10.0.0.8\",\"[fd00::7]:3260\"]","iqn":"iqn.2020-01.com.example:web","lun":"3","iscsiInterface":"eth1","initiatorName":"iqn.2020-01.com.example:us","discovery":"true","chapAuthDiscovery":"true","chapAuthSession":"true","connectTimeout":"2","timeout":"60","kubernetes.io/secret/node.session.auth.username":"aHVudGVyMg==","kubernetes.io/secret/node.session.auth.password":"aHVudGVyMg==","kubernetes.io/secret/node.session.auth.username_in":"aHVudGVyMg==","kubernetes.io/secret/node.session.auth.password_in":"aHVudGVyMg==","kubernetes.io/secret/discovery.sendtargets.auth.username":"aHVudGVyMg==","kubernetes.io/secret/discovery.sendtargets.auth.password":"aHVudGVyMg=="}"#,
        ],
    ),
    case("qcow2-mount", "qcow2", "{}", &["mount", "@", IMAGE]),
    case("qcow2-mount-unmount", "qcow2", "{}", &["unmount", "@"]),
    // What a kubelet asks that has not heard yet that nothing is attached any more.
    case("qcow2-mount-mountdevice", "qcow2", "{}", &["mountdevice", "@", "", IMAGE]),
    case("qcow2-mount-unmountdevice", "qcow2", "{}", &["unmountdevice", STAGED]),
    case(
        "qcow2-mount-expandfs-staged",
        "qcow2",
        "{}",
        &["expandfs", IMAGE, "", STAGED, "2147483648", "1073741824"],
    ),
    case("lvm-mount", "lvm", GROUP, &["mount", "@", r#"{"volumeGroup":"data","volume":"web"}"#]),
    case("lvm-mount-unmount", "lvm", "{}", &["unmount", "@"]),
    case(
        "rbd-mount-keyring",
        "rbd",
        r#"{"policy":{"keyringRoots":["/etc/ceph"]}}"#,
        &["mount", "@", KEYRING],
    ),
    case("rbd-mount-unmount", "rbd", "{}", &["unmount", "@"]),
    case("nbd-mount", "nbd", "{}", &["mount", "@", EXPORT]),
    case("nbd-mount-unmount", "nbd", "{}", &["unmount", "@"]),
    case("iscsi-mount", "iscsi", "{}", &["mount", "@", UNIT]),
    case("iscsi-mount-unmount", "iscsi", "{}", &["unmount", "@"]),
];

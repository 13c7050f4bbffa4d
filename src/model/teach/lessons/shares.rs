//! What the kernel's numbers mean when a share cannot be mounted.

use super::super::Lesson;
use super::super::Share::{Ceph, Nfs, Smb};
use super::super::Sign::Number;
use super::{DOCTOR, LOGS, STATUS, VALIDATE};

pub(super) const ALL: &[Lesson] = &[
    Lesson {
        id: "smb-denied",
        sign: Number(&[Smb], &[13]),
        cause: "the server refuses user and password",
        mend: "check the Secret's username, password and domain, and that the user may use the share",
        next: VALIDATE,
    },
    Lesson {
        id: "nfs-denied",
        sign: Number(&[Nfs], &[1, 13]),
        cause: "the server does not export it to this node",
        mend: "look at /etc/exports there, or at the address it sees",
        next: LOGS,
    },
    Lesson {
        id: "ceph-denied",
        sign: Number(&[Ceph], &[1, 13, 126]),
        cause: "the cluster refuses user and key, or the user may not use that directory",
        mend: "check option user, the Secret's key, and what ceph auth get says of the user",
        next: LOGS,
    },
    Lesson {
        id: "ceph-unserved",
        sign: Number(&[Ceph], &[113]),
        cause: "no metadata server serves that file system, or the cluster refuses user and key",
        mend: "check fsName, user, the Secret's key, and ceph fs status",
        next: LOGS,
    },
    Lesson {
        id: "smb-no-share",
        sign: Number(&[Smb], &[2]),
        cause: "there is no such share or directory on the server",
        mend: "check source, share and subDir",
        next: VALIDATE,
    },
    Lesson {
        id: "nfs-no-export",
        sign: Number(&[Nfs], &[2]),
        cause: "the server exports no such directory",
        mend: "see its exports with showmount -e, or check path and subDir",
        next: VALIDATE,
    },
    Lesson {
        id: "ceph-no-directory",
        sign: Number(&[Ceph], &[2]),
        cause: "there is no such directory",
        mend: "check path and fsName",
        next: VALIDATE,
    },
    Lesson {
        id: "share-version",
        sign: Number(&[Smb, Nfs], &[93]),
        cause: "the server does not speak that version",
        mend: "leave option version out, or name one that it has",
        next: VALIDATE,
    },
    Lesson {
        id: "smb-version",
        sign: Number(&[Smb], &[95]),
        cause: "the server does not speak that version, or wants encryption",
        mend: "check option version (vers= of another's driver)",
        next: VALIDATE,
    },
    Lesson {
        id: "share-option",
        sign: Number(&[Smb, Nfs], &[22]),
        cause: "an option does not suit this kernel",
        mend: "check mountOptions, version and sec: newer kernels have neither SMB 1.0 nor ntlm any more, and of SMB a share with links of DFS may need mountOptions: nodfs",
        next: VALIDATE,
    },
    Lesson {
        id: "ceph-option",
        sign: Number(&[Ceph], &[22]),
        cause: "an option does not suit this kernel",
        mend: "check mountOptions and msMode",
        next: VALIDATE,
    },
    Lesson {
        id: "smb-closed",
        sign: Number(&[Smb], &[112]),
        cause: "the server ended the connection",
        mend: "it may only speak SMB 1, which is unsafe, or none of the versions asked for: check option version, or update the server",
        next: DOCTOR,
    },
    Lesson {
        id: "smb-in-progress",
        sign: Number(&[Smb], &[115]),
        cause: "the server did not take the connection in time",
        mend: "check that it runs, its address and port (445), and the network and firewalls between it and this node",
        next: DOCTOR,
    },
    Lesson {
        id: "share-key",
        sign: Number(&[Smb, Nfs], &[126, 127, 128, 129]),
        cause: "a key is missing",
        mend: "install keyutils and cifs-utils, and look at the node's keytab",
        next: DOCTOR,
    },
    Lesson {
        id: "share-refused",
        sign: Number(&[Smb, Nfs], &[111]),
        cause: "the server refuses the connection",
        mend: "its service may be stopped, or rpcbind be missing (give port and mountPort)",
        next: DOCTOR,
    },
    Lesson {
        id: "share-silent",
        sign: Number(&[Smb, Nfs], &[110]),
        cause: "the server does not answer",
        mend: "check it, the network and the firewalls",
        next: DOCTOR,
    },
    Lesson {
        id: "ceph-silent",
        sign: Number(&[Ceph], &[5, 110]),
        cause: "the cluster does not answer",
        mend: "check its monitors and metadata servers",
        next: DOCTOR,
    },
    Lesson {
        id: "share-stale",
        sign: Number(&[Smb, Nfs], &[116]),
        cause: "the export was made anew on the server",
        mend: "unmount it everywhere and mount it again",
        next: STATUS,
    },
    Lesson {
        id: "share-no-way",
        sign: Number(&[Smb, Nfs], &[101, 113]),
        cause: "no way leads from this node to the server",
        mend: "check the server's address, and the network and firewalls between it and this node",
        next: DOCTOR,
    },
];

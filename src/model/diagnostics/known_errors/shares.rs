//! Meanings of the kernel's numbers when a share cannot be mounted.

use super::super::KnownError;
use super::super::Share::{Ceph, Nfs, Smb};
use super::super::Sign::Number;
use super::{DOCTOR, LOGS, STATUS, VALIDATE};

pub(super) const ALL: &[KnownError] = &[
    KnownError {
        id: "smb-denied",
        sign: Number(&[Smb], &[13]),
        cause: "the server refuses user and password",
        fix: "check the Secret's username, password and domain, and that the user may use the share",
        next: VALIDATE,
    },
    KnownError {
        id: "nfs-denied",
        sign: Number(&[Nfs], &[1, 13]),
        cause: "the server does not export it to this node",
        fix: "look at /etc/exports there, or at the address it sees",
        next: LOGS,
    },
    KnownError {
        id: "ceph-denied",
        sign: Number(&[Ceph], &[1, 13, 126]),
        cause: "the cluster refuses user and key, or the user may not use that directory",
        fix: "check option user, the Secret's key, and what ceph auth get says of the user",
        next: LOGS,
    },
    KnownError {
        id: "ceph-unserved",
        sign: Number(&[Ceph], &[113]),
        cause: "no metadata server serves that file system, or the cluster refuses user and key",
        fix: "check fsName, user, the Secret's key, and ceph fs status",
        next: LOGS,
    },
    KnownError {
        id: "smb-no-share",
        sign: Number(&[Smb], &[2]),
        cause: "there is no such share or directory on the server",
        fix: "check source, share and subDir",
        next: VALIDATE,
    },
    KnownError {
        id: "nfs-no-export",
        sign: Number(&[Nfs], &[2]),
        cause: "the server exports no such directory",
        fix: "see its exports with showmount -e, or check path and subDir",
        next: VALIDATE,
    },
    KnownError {
        id: "ceph-no-directory",
        sign: Number(&[Ceph], &[2]),
        cause: "there is no such directory",
        fix: "check path and fsName",
        next: VALIDATE,
    },
    KnownError {
        id: "share-version",
        sign: Number(&[Smb, Nfs], &[93]),
        cause: "the server does not speak that version",
        fix: "leave option version out, or name one that it has",
        next: VALIDATE,
    },
    KnownError {
        id: "smb-version",
        sign: Number(&[Smb], &[95]),
        cause: "the server does not speak that version, or wants encryption",
        fix: "check option version (vers= of another's driver)",
        next: VALIDATE,
    },
    KnownError {
        id: "share-option",
        sign: Number(&[Smb, Nfs], &[22]),
        cause: "an option does not suit this kernel",
        fix: "check mountOptions, version and sec: newer kernels have neither SMB 1.0 nor ntlm any more, and of SMB a share with links of DFS may need mountOptions: nodfs",
        next: VALIDATE,
    },
    KnownError {
        id: "ceph-option",
        sign: Number(&[Ceph], &[22]),
        cause: "an option does not suit this kernel",
        fix: "check mountOptions and msMode",
        next: VALIDATE,
    },
    KnownError {
        id: "smb-closed",
        sign: Number(&[Smb], &[112]),
        cause: "the server ended the connection",
        fix: "it may only speak SMB 1, which is unsafe, or none of the versions asked for: check option version, or update the server",
        next: DOCTOR,
    },
    KnownError {
        id: "smb-in-progress",
        sign: Number(&[Smb], &[115]),
        cause: "the server did not take the connection in time",
        fix: "check that it runs, its address and port (445), and the network and firewalls between it and this node",
        next: DOCTOR,
    },
    KnownError {
        id: "share-key",
        sign: Number(&[Smb, Nfs], &[126, 127, 128, 129]),
        cause: "a key is missing",
        fix: "install keyutils and cifs-utils, and look at the node's keytab and for denials of SELinux",
        next: DOCTOR,
    },
    KnownError {
        id: "share-refused",
        sign: Number(&[Smb, Nfs], &[111]),
        cause: "the server refuses the connection",
        fix: "its service may be stopped, or rpcbind be missing (give port and mountPort)",
        next: DOCTOR,
    },
    KnownError {
        id: "share-silent",
        sign: Number(&[Smb, Nfs], &[110]),
        cause: "the server does not answer",
        fix: "check it, the network and the firewalls",
        next: DOCTOR,
    },
    KnownError {
        id: "ceph-silent",
        sign: Number(&[Ceph], &[5, 110]),
        cause: "the cluster does not answer",
        fix: "check its monitors and metadata servers",
        next: DOCTOR,
    },
    KnownError {
        id: "share-stale",
        sign: Number(&[Smb, Nfs], &[116]),
        cause: "the export was made again on the server",
        fix: "unmount it everywhere and mount it again",
        next: STATUS,
    },
    KnownError {
        id: "share-no-way",
        sign: Number(&[Smb, Nfs], &[101, 113]),
        cause: "no way leads from this node to the server",
        fix: "check the server's address, and the network and firewalls between it and this node",
        next: DOCTOR,
    },
];

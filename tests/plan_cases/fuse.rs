//! Those of the drivers whose mounts are served by a program.

use super::{Case, case};

/// `hunter2` and `s3cr3t` as kubelet sends them are among the secrets no plan may show.
pub(super) const CASES: &[Case] = &[
    case(
        "sshfs-key",
        "sshfs",
        "{}",
        &[
            "mount",
            "@",
            r#"{"server":"files.example.com","hostKey":"ssh-ed25519 AAAAC3Nz root@files","kubernetes.io/secret/ssh-privatekey":"aHVudGVyMg=="}"#,
        ],
    ),
    case(
        "sshfs-all",
        "sshfs",
        "{}",
        &[
            "mount",
            "@",
            r#"{"server":"[fe80::1]","port":"2222","path":"/srv/a, b","user":"web@corp","hostKey":"ssh-rsa AAAA,ecdsa-sha2-nistp256 BBBB","uid":"1000","gid":"1001","umask":"0027","idmap":"user","compression":"yes","mountOptions":"noexec,noatime,dir_cache=no,dcache_timeout=5,max_conns=2","kubernetes.io/secret/ssh-privatekey":"aHVudGVyMg=="}"#,
        ],
    ),
    case(
        "sshfs-password-ro-and-fs-group",
        "sshfs",
        "{}",
        &[
            "mount",
            "@",
            r#"{"host":"10.0.0.1","share":"data","username":"web","hostKeyCheck":"off","kubernetes.io/readwrite":"ro","mountoptions":"rw","kubernetes.io/mounterArgs.FsGroup":"3000","kubernetes.io/secret/password":"czNjcjN0Cg=="}"#,
        ],
    ),
    case(
        "sshfs-known-hosts-of-the-secret",
        "sshfs",
        r#"{"options":{"server":"files.example.com"}}"#,
        &[
            "mount",
            "@",
            r#"{"kubernetes.io/secret/known_hosts":"czNjcjN0","kubernetes.io/secret/privateKey":"aHVudGVyMg=="}"#,
        ],
    ),
    case(
        "sshfs-known-hosts",
        "sshfs",
        r#"{"options":{"knownHosts":"files.example.com ssh-ed25519 AAAA"},"policy":{"allowSuid":true}}"#,
        &[
            "mount",
            "@",
            r#"{"server":"files.example.com","mountOptions":"suid","kubernetes.io/secret/passwd":"aHVudGVyMg=="}"#,
        ],
    ),
    case("sshfs-unmount", "sshfs", "{}", &["unmount", "@"]),
];

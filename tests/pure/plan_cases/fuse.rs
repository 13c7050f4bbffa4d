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
            r#"{"server":"[fd00::9]","port":"2222","path":"/srv/a, b","user":"web@corp","hostKey":"ssh-rsa AAAA,ecdsa-sha2-nistp256 BBBB","uid":"1000","gid":"1001","umask":"0027","idmap":"user","compression":"yes","mountOptions":"noexec,noatime,dir_cache=no,dcache_timeout=5,max_conns=2","kubernetes.io/secret/ssh-privatekey":"aHVudGVyMg=="}"#,
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
    case(
        "s3-s3fs",
        "s3",
        "{}",
        &[
            "mount",
            "@",
            r#"{"bucket":"web","endpoint":"https://s3.example.com","kubernetes.io/secret/accessKeyID":"czNjcjN0","kubernetes.io/secret/secretAccessKey":"aHVudGVyMg=="}"#,
        ],
    ),
    case(
        "s3-s3fs-all",
        "s3",
        "{}",
        &[
            "mount",
            "@",
            r#"{"bucket":"web","objectPath":"/a/b/","url":"oss.example.com","region":"eu-1","pathStyle":"false","uid":"1000","umask":"0022","mountOptions":"noexec,multireq_max=5,retries=9","kubernetes.io/readwrite":"ro","kubernetes.io/fsGroup":"3000","kubernetes.io/secret/access-key":"czNjcjN0","kubernetes.io/secret/secret-key":"aHVudGVyMg=="}"#,
        ],
    ),
    case("s3-public", "s3", "{}", &["mount", "@", r#"{"bucket":"web","public":"true"}"#]),
    case(
        "s3-rclone",
        "s3",
        "{}",
        &[
            "mount",
            "@",
            r#"{"bucket":"web","prefix":"a","mounter":"rclone","region":"eu-1","kubernetes.io/secret/akId":"czNjcjN0","kubernetes.io/secret/akSecret":"aHVudGVyMg=="}"#,
        ],
    ),
    case("s3-unmount", "s3", "{}", &["unmount", "@"]),
    case(
        "rclone-webdav",
        "rclone",
        "{}",
        &[
            "mount",
            "@",
            r#"{"remote":"webdav","path":"a b","backend.url":"https://dav.example.com:8443/x","backend.user":"web","kubernetes.io/secret/pass":"aHVudGVyMg=="}"#,
        ],
    ),
    case(
        "rclone-sftp-all",
        "rclone",
        "{}",
        &[
            "mount",
            "@",
            r#"{"type":"sftp","path":"/srv","backend.host":"files.example.com","uid":"1000","umask":"0077","mountOptions":"vfs-cache-mode=full,vfs-cache-max-size=1G,no-modtime,noexec","kubernetes.io/readwrite":"ro","kubernetes.io/fsGroup":"3000","kubernetes.io/secret/known_hosts":"czNjcjN0","kubernetes.io/secret/key_pem":"aHVudGVyMgpodW50ZXIyCg=="}"#,
        ],
    ),
    case("rclone-unmount", "rclone", "{}", &["unmount", "@"]),
    case(
        "webdav-all",
        "webdav",
        "{}",
        &[
            "mount",
            "@",
            r#"{"url":"https://files.example.com/web","locks":"true","uid":"1000","kubernetes.io/fsGroup":"3000","mountOptions":"noexec","kubernetes.io/secret/username":"czNjcjN0","kubernetes.io/secret/password":"aHVudGVyMg=="}"#,
        ],
    ),
    case(
        "webdav-anonymous",
        "webdav",
        "{}",
        &["mount", "@", r#"{"server":"http://10.0.0.1","kubernetes.io/readwrite":"ro"}"#],
    ),
    case("webdav-unmount", "webdav", "{}", &["unmount", "@"]),
    case(
        "glusterfs-all",
        "glusterfs",
        "{}",
        &[
            "mount",
            "@",
            r#"{"servers":"g1.example.com, fd00::7","volume":"web","subDir":"/a/b/","mountOptions":"noexec,acl,direct-io-mode=disable","kubernetes.io/readwrite":"ro"}"#,
        ],
    ),
    case("glusterfs-defaults", "glusterfs", "{}", &["mount", "@", r#"{"server":"g1","path":"web"}"#]),
    case("glusterfs-unmount", "glusterfs", "{}", &["unmount", "@"]),
    case(
        "cephfs-all",
        "cephfs",
        "{}",
        &[
            "mount",
            "@",
            r#"{"monitors":"10.0.0.1:6789,[fd00::7]","path":"/jupyter/","fsName":"myfs","mountUser":"web","mountOptions":"noexec","kubernetes.io/readwrite":"ro","kubernetes.io/secret/key":"aHVudGVyMg=="}"#,
        ],
    ),
    case(
        "cephfs-fuse",
        "cephfs",
        "{}",
        &[
            "mount",
            "@",
            r#"{"monitors":"10.0.0.1:6789,[fd00::7]","path":"/jupyter/","fsName":"myfs","mountUser":"web","mounter":"fuse","mountOptions":"noexec","kubernetes.io/readwrite":"ro","kubernetes.io/secret/key":"aHVudGVyMg=="}"#,
        ],
    ),
    case(
        "cephfs-kernel",
        "cephfs",
        r#"{"deadlines":{"mount":20},"policy":{"servers":["*.ceph.test","10.96.0.10"]}}"#,
        &[
            "mount",
            "@",
            r#"{"monitors":"a.ceph.test:3300,b.ceph.test:3300","mdsNamespace":"web","user":"web","mounter":"kernel","nameserver":"10.96.0.10","connectTimeout":"2","mountOptions":"noatime,recover_session=clean","kubernetes.io/secret/key":"aHVudGVyMg=="}"#,
        ],
    ),
    case("cephfs-unmount", "cephfs", "{}", &["unmount", "@"]),
    case(
        "blobfuse-key",
        "blobfuse",
        "{}",
        &[
            "mount",
            "@",
            r#"{"container":"web","cacheTimeout":"60","mountOptions":"noexec,attr_timeout=5","kubernetes.io/fsGroup":"3000","kubernetes.io/secret/accountname":"czNjcjN0","kubernetes.io/secret/accountkey":"aHVudGVyMg=="}"#,
        ],
    ),
    case(
        "blobfuse-token",
        "blobfuse",
        "{}",
        &[
            "mount",
            "@",
            r#"{"container":"web","account":"store","endpoint":"https://store.example.com","kubernetes.io/readwrite":"ro","kubernetes.io/secret/accountsastoken":"aHVudGVyMg=="}"#,
        ],
    ),
    case("blobfuse-unmount", "blobfuse", "{}", &["unmount", "@"]),
    case(
        "lizardfs-all",
        "lizardfs",
        "{}",
        &[
            "mount",
            "@",
            r#"{"host":"mfsmaster","port":"9421","mfssubfolder":"/base/subfolder","mountOptions":"noatime,mfsioretries=5","kubernetes.io/secret/mfspassword":"aHVudGVyMg=="}"#,
        ],
    ),
    case("lizardfs-unmount", "lizardfs", "{}", &["unmount", "@"]),
    case("git-defaults", "git", "{}", &["mount", "@", r#"{"repository":"https://git.example.com/web.git"}"#]),
    case(
        "git-web-all",
        "git",
        r#"{"policy":{"servers":["git.example.com"],"maxSize":"1Gi"}}"#,
        &[
            "mount",
            "@",
            r#"{"repo":"https://git.example.com:8443/a/web.git","branch":"release/1.2","depth":"0","subDir":"/docs/html/","size":"64Mi","mountOptions":"noexec,noatime","kubernetes.io/readwrite":"ro","kubernetes.io/secret/username":"czNjcjN0","kubernetes.io/secret/token":"aHVudGVyMg==","kubernetes.io/secret/ca.crt":"aHVudGVyMg=="}"#,
        ],
    ),
    case(
        "git-ssh",
        "git",
        "{}",
        &[
            "mount",
            "@",
            r#"{"url":"git@git.example.com:a/web.git","commit":"0123456789012345678901234567890123456789","hostKey":"ssh-ed25519 AAAA","kubernetes.io/secret/ssh-privatekey":"aHVudGVyMg=="}"#,
        ],
    ),
    case("git-unmount", "git", "{}", &["unmount", "@"]),
];

//! The calls whose plans are golden.

mod block;
mod csi;
mod fuse;

/// A call of a driver: its side file, the verb and the arguments. `@` among these is the target.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) driver: &'static str,
    pub(crate) settings: &'static str,
    pub(crate) argv: &'static [&'static str],
}

/// All of them.
pub(crate) fn cases() -> impl Iterator<Item = &'static Case> {
    CASES.iter().chain(fuse::CASES).chain(block::CASES).chain(csi::CASES)
}

/// The table row: name, driver, side file, verb and arguments.
const fn case(
    name: &'static str,
    driver: &'static str,
    settings: &'static str,
    argv: &'static [&'static str],
) -> Case {
    Case { name, driver, settings, argv }
}

pub(crate) const SRV: &str = r#"{"policy":{"bindRoots":["/srv","/data"]}}"#;

const SHARED: &str = r#"{"policy":{"bindRoots":["/srv","/data"],"allowShared":true}}"#;

pub(crate) const SHARE: &str = r#"{"exec":{"commands":{
    "mount":["/opt/share","--from={option.server}:{option.port?}","{option.port?}","{option.user?}@{option.server}",
        "-o","{access},uid={option.uid?}","{target}","{volume}","{fsType?}","{fsGroup?}","{pod.namespace}/{pod.name}",
        "{pod.uid}","{serviceAccount?}","{secret.password}","--key={secret.tls.key?}","--ca={secret.ca?}","literal"],
    "unmount":["/opt/unshare","{target}"],
    "expandfs":["/opt/grow","{target}","{newBytes}","{option.server}"],
    "attach":["/opt/attach","{node}","{option.server?}"],
    "detach":["/opt/detach","{volume}","{node}"],
    "waitforattach":["/opt/wait","{device?}"],
    "isattached":["/opt/attached","{node}"],
    "mountdevice":["/opt/mountdevice","{target}","{device?}","{access}"],
    "unmountdevice":["/opt/unmountdevice","{target}"],
    "getvolumename":["/opt/name","{volume}"],
    "expandvolume":["/opt/expand","{target}","{newBytes}","{oldBytes}"]
    },"options":["server","port","user","uid"],"secretsOnStdin":true,"fileSystem":"fuse.share",
    "capabilities":{"attach":true,"requiresFSResize":true}}}"#;

pub(crate) const PLAIN: &str = r#"{"exec":{"commands":{"mount":["/opt/m","{target}"]}}}"#;

const CASES: &[Case] = &[
    case(
        "nfs-defaults",
        "nfs",
        "{}",
        &["mount", "@", r#"{"server":"nas.example.com","path":"/exports/web"}"#],
    ),
    case(
        "nfs-all",
        "nfs",
        r#"{"policy":{"servers":["*.example.com","[fd00::7]","10.96.0.10"]}}"#,
        &[
            "mount",
            "@",
            r#"{"server":"nas.example.com, fd00::7","path":"/exports","subDir":"/a/b/","createSubDir":"true","mode":"0750","version":"4.1","port":"12049","nameserver":"10.96.0.10","connectTimeout":"2","sec":"sys","mountOptions":"noexec,softerr,timeo=50,nconnect=4,nolock"}"#,
        ],
    ),
    case(
        "nfs-three",
        "nfs",
        "{}",
        &[
            "mount",
            "@",
            r#"{"host":"10.0.0.1","share":"/","vers":"3","proto":"udp","mountPort":"20048","kubernetes.io/readwrite":"ro"}"#,
        ],
    ),
    case(
        "nfs-kerberos",
        "nfs",
        r#"{"policy":{"allowKerberos":true}}"#,
        &["mount", "@", r#"{"server":"nas","path":"/x y","sec":"krb5p","mountOptions":"noatime"}"#],
    ),
    case(
        "cifs-defaults",
        "cifs",
        "{}",
        &[
            "mount",
            "@",
            r#"{"source":"//files.example.com/web","kubernetes.io/secret/username":"YW5uYQ==","kubernetes.io/secret/password":"aHVudGVyMg=="}"#,
        ],
    ),
    case(
        "cifs-no-password",
        "cifs",
        "{}",
        &["mount", "@", r#"{"source":"//files/web","kubernetes.io/secret/username":"YW5uYQ=="}"#],
    ),
    case(
        "cifs-all",
        "cifs",
        "{}",
        &[
            "mount",
            "@",
            r#"{"server":"a,b","share":"apps$\\intern","subDir":"x","createSubDir":"yes","version":"3.1.1","uid":"33","gid":"34","fileMode":"0640","dirMode":"0750","port":"1445","nameserver":"fd00::a","connectTimeout":"0","sec":"ntlmsspi","mountOptions":"seal,ro,actimeo=30","kubernetes.io/secret/user":"YW5uYQ==","kubernetes.io/secret/passwd":"aHVudGVyMgo=","kubernetes.io/secret/domain":"RE9NQUlO"}"#,
        ],
    ),
    case(
        "cifs-guest-and-group",
        "cifs",
        "{}",
        &[
            "mount",
            "@",
            r#"{"networkPath":"\\\\10.0.0.5\\public\\a b","guest":"true","kubernetes.io/mounterArgs.FsGroup":"3000"}"#,
        ],
    ),
    case(
        "cifs-kerberos",
        "cifs",
        r#"{"policy":{"allowKerberos":true}}"#,
        &["mount", "@", r#"{"source":"//files/web","sec":"krb5","cruid":"1000","domain":"EXAMPLE"}"#],
    ),
    case(
        "secretfiles-defaults",
        "secretfiles",
        "{}",
        &[
            "mount",
            "@",
            r#"{"kubernetes.io/secret/tls.key":"aHVudGVyMg==","kubernetes.io/secret/tls.crt":"YQ=="}"#,
        ],
    ),
    case(
        "secretfiles-all",
        "secretfiles",
        "{}",
        &[
            "mount",
            "@",
            r#"{"keys":"tls.key","mode":"0440","uid":"1000","noswap":"true","kubernetes.io/mounterArgs.FsGroup":"3000","kubernetes.io/secret/tls.key":"aHVudGVyMg==","kubernetes.io/secret/tls.crt":"YQ=="}"#,
        ],
    ),
    case("secretfiles-unmount", "secretfiles", "{}", &["unmount", "@"]),
    case(
        "overlay-memory",
        "overlay",
        r#"{"policy":{"bindRoots":["/srv"],"maxSize":"64Mi"}}"#,
        &[
            "mount",
            "@",
            r#"{"lower":"/srv/b:/srv/a","size":"64Mi","kubernetes.io/mounterArgs.FsGroup":"3000"}"#,
        ],
    ),
    case(
        "overlay-directory",
        "overlay",
        SRV,
        &[
            "mount",
            "@",
            r#"{"lowerdir":"/srv/a b,c","upper":"/data/u","mode":"0750","uid":"7","gid":"8","mountOptions":"noexec","kubernetes.io/readwrite":"ro"}"#,
        ],
    ),
    case("overlay-unmount", "overlay", "{}", &["unmount", "@"]),
    case("nfs-unmount", "nfs", "{}", &["unmount", "@"]),
    case("cifs-unmount", "cifs", "{}", &["unmount", "@"]),
    case("tmpfs-defaults", "tmpfs", "{}", &["mount", "@", "{}"]),
    case(
        "tmpfs-kubelet",
        "tmpfs",
        "{}",
        &[
            "mount",
            "@",
            r#"{"kubernetes.io/fsType":"","kubernetes.io/readwrite":"rw","kubernetes.io/pvOrVolumeName":"data","kubernetes.io/pod.name":"../p","kubernetes.io/pod.namespace":"n","kubernetes.io/pod.uid":"7","kubernetes.io/serviceAccount.name":"","kubernetes.io/new":"x","example.com/owner":"me","":"y"}"#,
        ],
    ),
    case(
        "tmpfs-all",
        "tmpfs",
        r#"{"policy":{"maxSize":"64Mi"}}"#,
        &[
            "mount",
            "@",
            r#"{"size":"64Mi","nrInodes":"1000","mode":"0750","uid":"1000","gid":"2000","noswap":"true","huge":"within_size","mountOptions":"noexec, noatime,,nodiratime,sync,lazytime,ro"}"#,
        ],
    ),
    case(
        "tmpfs-aliases",
        "tmpfs",
        "{}",
        &[
            "mount",
            "@",
            r#"{"nr_inodes":"1k","mountoptions":"strictatime,dirsync,defaults,rw","size":"25%","noswap":"off"}"#,
        ],
    ),
    case(
        "tmpfs-ro",
        "tmpfs",
        "{}",
        &["mount", "@", r#"{"kubernetes.io/readwrite":"ro","mountOptions":"rw"}"#],
    ),
    case("tmpfs-fs-group", "tmpfs", "{}", &["mount", "@", r#"{"kubernetes.io/mounterArgs.FsGroup":"3000"}"#]),
    case(
        "tmpfs-fs-group-legacy-and-mode",
        "tmpfs",
        "{}",
        &["mount", "@", r#"{"kubernetes.io/fsGroup":"0","mode":"700"}"#],
    ),
    case(
        "tmpfs-fs-group-and-gid",
        "tmpfs",
        "{}",
        &["mount", "@", r#"{"kubernetes.io/mounterArgs.FsGroup":"3000","gid":"5","mode":"1777"}"#],
    ),
    case(
        "tmpfs-side-file",
        "tmpfs",
        r#"{"options":{"size":"16Mi","mode":"0700","mountOptions":"noexec"},"policy":{"maxSize":"32Mi"}}"#,
        &["mount", "@", r#"{"mode":"0711","size":""}"#],
    ),
    case(
        "tmpfs-side-file-other-spelling",
        "tmpfs",
        r#"{"options":{"nr_inodes":"5","mountoptions":"noexec"}}"#,
        &["mount", "@", r#"{"nrInodes":"9","mountOptions":"noatime"}"#],
    ),
    case(
        "tmpfs-policy-allows",
        "tmpfs",
        r#"{"policy":{"allowSuid":true,"allowDev":true}}"#,
        &["mount", "@", r#"{"mountOptions":"suid,dev,noexec,exec,noatime,relatime"}"#],
    ),
    case("tmpfs-before-1.6", "tmpfs", "{}", &["mount", "@", "", "{}"]),
    case("tmpfs-unmount", "tmpfs", "{}", &["unmount", "@"]),
    case("bind-defaults", "bind", SRV, &["mount", "@", r#"{"source":"/srv/web"}"#]),
    case(
        "bind-all",
        "bind",
        SHARED,
        &[
            "mount",
            "@",
            r#"{"source":"/data/web","subPath":"a b/ü","create":"yes","mode":"2770","uid":"10","gid":"20","recursive":"1","propagation":"rshared","mountOptions":"noexec,noatime"}"#,
        ],
    ),
    case(
        "bind-aliases",
        "bind",
        SRV,
        &[
            "mount",
            "@",
            r#"{"hostPath":"/srv/./web//x/","propagation":"HostToContainer","mountoptions":"ro"}"#,
        ],
    ),
    case(
        "bind-ro",
        "bind",
        SHARED,
        &[
            "mount",
            "@",
            r#"{"path":"/srv","kubernetes.io/readwrite":"ro","propagation":"Bidirectional","mountOptions":"rw"}"#,
        ],
    ),
    case(
        "bind-fs-group",
        "bind",
        SRV,
        &["mount", "@", r#"{"path":"/srv/a","create":"true","kubernetes.io/fsGroup":"3000"}"#],
    ),
    case(
        "bind-side-file",
        "bind",
        r#"{"policy":{"bindRoots":["/srv"],"allowDev":true},"options":{"path":"/srv/default","create":"true","propagation":"rslave"}}"#,
        &["mount", "@", r#"{"subPath":"x","mountOptions":"dev","propagation":"None"}"#],
    ),
    case(
        "bind-side-file-other-spelling",
        "bind",
        r#"{"policy":{"bindRoots":["/srv"]},"options":{"hostPath":"/srv/default"}}"#,
        &["mount", "@", r#"{"source":"/srv/other"}"#],
    ),
    case("bind-braces-mean-nothing", "bind", SRV, &["mount", "@", r#"{"source":"/srv/{target}$HOME`id`"}"#]),
    case("bind-unmount", "bind", SRV, &["unmount", "@"]),
    case(
        "image-held",
        "image",
        r#"{"agent":{"fence":"pod"}}"#,
        &[
            "mount",
            "@",
            r#"{"file":"web.img","kubernetes.io/pod.name":"web-0","kubernetes.io/pod.uid":"u1"}"#,
        ],
    ),
    case(
        "image-released",
        "image",
        r#"{"agent":{"fence":"node","socket":"/run/a.sock"}}"#,
        &["unmount", "@"],
    ),
    case("image-defaults", "image", "{}", &["mount", "@", r#"{"file":"web.img"}"#]),
    case(
        "image-all",
        "image",
        r#"{"policy":{"imageRoots":["/srv/images","/img"],"maxSize":"1Gi","allowSuid":true}}"#,
        &[
            "mount",
            "@",
            r#"{"file":"a/web.img","size":"1Gi","fsType":"ext4","format":"ifBlank","mkfsOptions":" -m 0  -O ^has_journal ","fsck":"false","offset":"1Mi","discard":"true","directIO":"true","allocation":"full","mountOptions":"noatime,commit=5,data=ordered,errors=remount-ro,suid"}"#,
        ],
    ),
    case(
        "image-aliases",
        "image",
        "{}",
        &[
            "mount",
            "@",
            r#"{"file":"/var/lib/flexvol/images/b.img","size":"64M","directIo":"on","allocate":"full","mount_options":"noexec","kubernetes.io/fsType":"xfs"}"#,
        ],
    ),
    case(
        "image-ro",
        "image",
        "{}",
        &[
            "mount",
            "@",
            r#"{"file":"a","size":"1Gi","kubernetes.io/readwrite":"ro","kubernetes.io/fsType":"btrfs","mountOptions":"compress=zstd:3"}"#,
        ],
    ),
    case(
        "image-squashfs",
        "image",
        "{}",
        &[
            "mount",
            "@",
            r#"{"file":"a.sqfs","kubernetes.io/fsType":"squashfs","kubernetes.io/readwrite":"ro"}"#,
        ],
    ),
    case(
        "image-mount-point",
        "image",
        r#"{"policy":{"imageRoots":["/srv"]}}"#,
        &["mount", "@", r#"{"file":"/srv/share/a.img","mountPoint":"/srv/share"}"#],
    ),
    case(
        "image-partition",
        "image",
        "{}",
        &["mount", "@", r#"{"file":"disk.img","partition":"2","fsType":"ext4","mountOptions":"ro"}"#],
    ),
    case(
        "image-format-never",
        "image",
        "{}",
        &["mount", "@", r#"{"file":"a","size":"1Gi","format":"never"}"#],
    ),
    case("image-format-without-size", "image", "{}", &["mount", "@", r#"{"file":"a","format":"ifBlank"}"#]),
    case(
        "image-same-type-twice",
        "image",
        "{}",
        &[
            "mount",
            "@",
            r#"{"file":"a","fsType":"xfs","kubernetes.io/fsType":"xfs","mountOptions":"nouuid,logbsize=256k"}"#,
        ],
    ),
    case(
        "image-side-file",
        "image",
        r#"{"options":{"fsType":"xfs","size":"512Mi","mountOptions":"noatime"}}"#,
        &["mount", "@", r#"{"file":"a","kubernetes.io/fsType":""}"#],
    ),
    case(
        "image-side-file-other-type",
        "image",
        r#"{"options":{"fsType":"xfs"}}"#,
        &["mount", "@", r#"{"file":"a","kubernetes.io/fsType":"ext4"}"#],
    ),
    case("image-unmount", "image", "{}", &["unmount", "@"]),
    case(
        "image-expandfs",
        "image",
        "{}",
        &["expandfs", r#"{"file":"a","size":"1Gi"}"#, "", "@", "2147483648", "1073741824"],
    ),
    case(
        "image-expandfs-same-size",
        "image",
        r#"{"policy":{"maxSize":"2Gi"}}"#,
        &[
            "expandfs",
            r#"{"file":"a","kubernetes.io/fsType":"xfs","directIO":"true"}"#,
            "/dev/x",
            "@",
            "2147483648",
            "2147483648",
        ],
    ),
    case(
        "exec-all",
        "exec",
        SHARE,
        &[
            "mount",
            "@",
            r#"{"server":"a.example","port":"99","user":"bob","uid":"7","kubernetes.io/readwrite":"ro","kubernetes.io/fsType":"share","kubernetes.io/pvOrVolumeName":"pv-1","kubernetes.io/mounterArgs.FsGroup":"3000","kubernetes.io/pod.name":"p","kubernetes.io/pod.namespace":"n","kubernetes.io/pod.uid":"u-1","kubernetes.io/serviceAccount.name":"sa","kubernetes.io/secret/password":"aHVudGVyMg==","kubernetes.io/secret/tls.key":"czNjcjN0AA==","kubernetes.io/secret/ca":"aHVudGVyMg=="}"#,
        ],
    ),
    case(
        "exec-optional-ones-left-out",
        "exec",
        SHARE,
        &[
            "mount",
            "@",
            r#"{"server":"a","port":"","kubernetes.io/pvOrVolumeName":"v","kubernetes.io/fsType":"","kubernetes.io/pod.name":"p","kubernetes.io/pod.namespace":"n","kubernetes.io/pod.uid":"u","kubernetes.io/serviceAccount.name":"","kubernetes.io/secret/password":"aHVudGVyMg=="}"#,
        ],
    ),
    case(
        "exec-braces-mean-nothing",
        "exec",
        SHARE,
        &[
            "mount",
            "@",
            r#"{"server":"{secret.password}","user":"{target}","port":"}{","uid":"{option.server}","kubernetes.io/pvOrVolumeName":"{secret.tls.key}","kubernetes.io/pod.name":"{node}","kubernetes.io/pod.namespace":"$(id)","kubernetes.io/pod.uid":"a b","kubernetes.io/secret/password":"aHVudGVyMg==","kubernetes.io/secret/tls.key":"czNjcjN0"}"#,
        ],
    ),
    case(
        "exec-side-file",
        "exec",
        r#"{"options":{"server":"default","port":"1"},"exec":{"commands":{"mount":["/m","{option.server}","{option.port}"]},"options":["port","server"]}}"#,
        &["mount", "@", r#"{"port":"2","server":"","example.com/x":"y"}"#],
    ),
    case("exec-unmount", "exec", SHARE, &["unmount", "@"]),
    case("exec-unmount-without-command", "exec", PLAIN, &["unmount", "@"]),
    case("exec-unmount-without-anything", "exec", "{}", &["unmount", "@"]),
    case("exec-expandfs", "exec", SHARE, &["expandfs", r#"{"server":"a"}"#, "", "@", "2", "1"]),
    case("exec-attach", "exec", SHARE, &["attach", r#"{"server":"a"}"#, "node-1"]),
    case("exec-detach", "exec", SHARE, &["detach", "pv-1", "node-1"]),
    case("exec-waitforattach", "exec", SHARE, &["waitforattach", "/dev/sdb", "{}"]),
    case("exec-isattached", "exec", SHARE, &["isattached", "{}", "node-1"]),
    case("exec-mountdevice", "exec", SHARE, &["mountdevice", "@", "", r#"{"kubernetes.io/readwrite":"ro"}"#]),
    case("exec-unmountdevice", "exec", SHARE, &["unmountdevice", "@"]),
    case(
        "exec-getvolumename",
        "exec",
        SHARE,
        &["getvolumename", r#"{"kubernetes.io/pvOrVolumeName":"pv-1"}"#],
    ),
    case("exec-expandvolume", "exec", SHARE, &["expandvolume", "{}", "v/d/mounts/x", "2", "1"]),
];

//! Mounts that are missing, doubled or of something else, and failed mounts that leave something.

use super::Fault;
use super::Reference::{Keeper, Tmpfs};

const MOUNTED_ALREADY: &str = r#""$source") ;;"#;
const ELSEWHERE: &str =
    r#"*) fail "$dir is mounted already, from elsewhere or with other options: unmount it first" ;;"#;
const MAKE: &str = r#"[ -d "$dir" ] || { mkdir -m 0750 "$dir" && made=yes; } || fail"#;
const PLAIN: &str = r#"case $dir/ in */../* | */./* | *//*) fail "$dir is no plain path" ;; esac"#;
const LINK: &str = r#"[ ! -L "$dir" ] || fail "$dir is a symbolic link""#;
const NOT_OURS: &str = r#"*) fail "$dir is no directory of kubelet for a volume" ;;"#;
const COUNT: &str = r#"[ $# = 2 ] || fail "mount takes a directory and the options""#;
const READ_ONLY: &str = r#"[ "$2" = rw ] || mount -n -c -i -o remount,bind,ro"#;
const FAILED: &str = r#""$source" "$dir" ||"#;

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "fake-success",
        what: "says Success whatever mount said: the dummy driver of the Kubernetes examples",
        of: Tmpfs,
        change: &[("mount -n -c -i -t tmpfs", "true")],
        fails: &["mount::works", "left::files"],
    },
    Fault {
        name: "no-room",
        what: "says Success before there is room for more than a file",
        of: Keeper,
        change: &[("mode=0777,size=16M", "mode=0777,size=16M,nr_inodes=2")],
        fails: &["mount::usable_at_once"],
    },
    Fault {
        name: "init-cleans-up",
        what: "takes all its mounts for left over when it is asked for its capabilities",
        of: Tmpfs,
        change: &[(
            "init)\n",
            "init)\n    sleep 0.3\n    for dir in $(findmnt -nr -t tmpfs -o TARGET); do [ \"$(mounted)\" = tmpfs.sh:8Mi:rw ] && umount \"$dir\"; done\n",
        )],
        fails: &["mount::stays", "sequence::restart_alive", "storm::replaced", "sequence::probe_storm"],
    },
    Fault {
        name: "missing-is-mounted",
        what: "says Success if there is no directory to mount on",
        of: Tmpfs,
        change: &[(MAKE, r#"[ -e "$dir" ] || succeed; [ -d "$dir" ] || fail"#)],
        fails: &["mount::makes_directory"],
    },
    Fault {
        name: "lock-beside",
        what: "keeps a lock file beside the volume",
        of: Tmpfs,
        change: &[(r#"exec 9<"${dir%/*}""#, r#"exec 9>"$dir.lock""#)],
        fails: &["left::files", "mount::failure_leaves_nothing", "mount::nothing_beside", "sequence::pod"],
    },
    Fault {
        name: "private",
        what: "makes kubelet's mount private, so that containers do not see its own",
        of: Tmpfs,
        change: &[(
            "\"\") undo=yes\n",
            "\"\") undo=yes\n        mount --make-private \"$(findmnt -nro TARGET -T \"${dir%/*}\")\"\n",
        )],
        fails: &["mount::propagates"],
    },
    Fault {
        name: "options-in-the-wrong-place",
        what: "says Success to arguments it does not understand",
        of: Tmpfs,
        change: &[(COUNT, r"[ $# = 2 ] || succeed")],
        fails: &["mount::old_call", "verbs::argument_count", "verbs::surplus_arguments"],
    },
    Fault {
        name: "double-mount",
        what: "mounts again what is mounted",
        of: Tmpfs,
        change: &[("case $(mounted) in", "case \"\" in")],
        fails: &["mount::twice", "storm::same_directory"],
    },
    Fault {
        name: "mounts-anew",
        what: "unmounts and mounts again what is mounted",
        of: Tmpfs,
        change: &[("case $(mounted) in", "umount -n \"$dir\"\n    case $(mounted) in")],
        fails: &["mount::twice"],
    },
    Fault {
        name: "mounted-is-a-failure",
        what: "fails if the volume is mounted already: fstab/cifs",
        of: Tmpfs,
        change: &[(MOUNTED_ALREADY, "\"$source\") fail \"$dir is mounted already\" ;;")],
        fails: &["mount::twice", "storm::same_directory"],
    },
    Fault {
        name: "mounted-is-no-answer",
        what: "ends without an answer if the volume is mounted already: fq/lizardfs",
        of: Tmpfs,
        change: &[(MOUNTED_ALREADY, "\"$source\") answer= && exit ;;")],
        fails: &["mount::twice", "output::one_object", "storm::same_directory"],
    },
    Fault {
        name: "counts-mounts",
        what: "counts mounts, and unmounts when it was called as often",
        of: Tmpfs,
        change: &[
            (MOUNTED_ALREADY, "\"$source\") printf x >>/run/tmpfs.sh ;;"),
            (
                "    while mounted; do",
                "    [ ! -s /run/tmpfs.sh ] || { truncate -s -1 /run/tmpfs.sh; succeed; }\n    while mounted; do",
            ),
        ],
        fails: &["mount::many_times", "mount::twice", "storm::same_directory"],
    },
    Fault {
        name: "any-mount-will-do",
        what: "says Success if anything is mounted in the directory",
        of: Tmpfs,
        change: &[(ELSEWHERE, "*) ;;")],
        fails: &["mount::other_source"],
    },
    Fault {
        name: "any-access-will-do",
        what: "says Success if the volume is mounted, read-only or not",
        of: Tmpfs,
        change: &[
            ("source=tmpfs.sh:$1:$2", "source=tmpfs.sh:$1"),
            (MOUNTED_ALREADY, "\"$source\") succeed ;;"),
        ],
        fails: &["mount::other_access"],
    },
    Fault {
        name: "failure-leaves-mount",
        what: "leaves the mount when a later step fails: juliohm/cifs, ceph",
        of: Tmpfs,
        change: &[(r#"[ -z "$undo" ] || umount -n "$dir""#, ":")],
        fails: &[
            "mount::failure_leaves_nothing",
            "mount::failure_leaves_directory",
            "crash::terminated_mount",
        ],
    },
    Fault {
        name: "failure-leaves-options",
        what: "leaves a file with the options in /tmp when it fails",
        of: Tmpfs,
        change: &[
            (COUNT, "[ $# = 2 ] || fail \"mount takes two arguments\"\n    printf %s \"$2\" >\"/tmp/$$\""),
            ("    succeed\n}\n\n# Nothing", "    rm -f \"/tmp/$$\"\n    succeed\n}\n\n# Nothing"),
        ],
        fails: &["left::files", "mount::failure_leaves_nothing"],
    },
    Fault {
        name: "failure-leaves-a-note",
        what: "writes the reason of a failure into the directory",
        of: Tmpfs,
        change: &[(
            r#"[ -z "$made" ] || rmdir "$dir""#,
            r#"[ -z "$undo" ] || echo "$reason" >"$dir/failed""#,
        )],
        fails: &["mount::failure_leaves_directory", "crash::terminated_mount"],
    },
    Fault {
        name: "exit-status-32",
        what: "takes mount's exit status 32 for a success: juliohm/cifs",
        of: Tmpfs,
        change: &[(FAILED, r#""$source" "$dir" || [ $? = 32 ] ||"#)],
        fails: &["mount::failure_leaves_directory", "mount::tools_that_fail"],
    },
    Fault {
        name: "read-only-if-it-works",
        what: "says Success although the remount with ro failed",
        of: Tmpfs,
        change: &[(r#"|| fail "cannot make $dir read-only""#, "|| true")],
        fails: &["mount::tools_that_fail"],
    },
    Fault {
        name: "empties-the-directory",
        what: "deletes what it finds in the directory before it mounts",
        of: Tmpfs,
        change: &[(
            MAKE,
            r#"[ ! -d "$dir" ] || mounted || rm -rf "$dir"; [ -d "$dir" ] || { mkdir -m 0750 "$dir" && made=yes; } || fail"#,
        )],
        fails: &["mount::leftover_files"],
    },
    Fault {
        name: "replaces-a-file",
        what: "deletes a file that is where the directory should be",
        of: Tmpfs,
        change: &[(
            MAKE,
            r#"[ ! -f "$dir" ] || rm "$dir"; [ -d "$dir" ] || { mkdir -m 0750 "$dir" && made=yes; } || fail"#,
        )],
        fails: &["mount::file"],
    },
    Fault {
        name: "follows-links",
        what: "mounts on what a symbolic link leads to",
        of: Tmpfs,
        change: &[(LINK, ":")],
        fails: &["mount::symlink"],
    },
    Fault {
        name: "relative-to-its-own",
        what: "takes a relative path for one below a directory of its own",
        of: Tmpfs,
        change: &[(
            "    dir=$1\n",
            "    dir=$1\n    case $dir in /* | \"\" | .*) ;; *) dir=/srv/$dir && mkdir -p \"${dir%/*}\" ;; esac\n",
        )],
        fails: &["mount::relative"],
    },
    Fault {
        name: "cleans-the-path",
        what: "cleans a path with .. in it, and mounts where it leads then",
        of: Tmpfs,
        change: &[
            (PLAIN, ":"),
            (LINK, r#"dir=$(realpath -ms "$dir"); [ ! -L "$dir" ] || fail "$dir is a symbolic link""#),
        ],
        fails: &["mount::dot_dot"],
    },
    Fault {
        name: "mounts-where-it-does-not-unmount",
        what: "mounts on any directory, and unmounts only kubelet's",
        of: Tmpfs,
        change: &[(
            NOT_OURS,
            r#"*) [ "$verb" = mount ] || fail "$dir is no directory of kubelet for a volume" ;;"#,
        )],
        fails: &["mount::outside"],
    },
    Fault {
        name: "kubelet-s-usual-root",
        what: "knows only /var/lib/kubelet: many",
        of: Tmpfs,
        change: &[("case $dir in /*/pods/", "case $dir in /var/lib/kubelet/pods/")],
        fails: &["mount::awkward_root", "mount::other_root"],
    },
    Fault {
        name: "no-quotes",
        what: "does not quote the directory when it looks whether it is mounted: everybody once",
        of: Tmpfs,
        change: &[(r#"--mountpoint "$dir"; }"#, "--mountpoint $dir; }")],
        fails: &["mount::awkward_root"],
    },
    Fault {
        name: "unmounts-the-source",
        what: "unmounts whatever has the same source, the volumes of other pods too",
        of: Tmpfs,
        change: &[(
            "    while mounted; do",
            "    sleep 0.1\n    for other in $(findmnt -nr -S \"$sources\" -o TARGET); do umount -n \"$other\"; done\n    while mounted; do",
        )],
        fails: &["mount::two_pods", "sequence::two_pods", "unmount::others_stay", "storm::mount_a_unmount_b"],
    },
    Fault {
        name: "first-pod-decides",
        what: "gives a pod that may only read the mode of one that writes",
        of: Tmpfs,
        change: &[(
            READ_ONLY,
            r#"[ "$2" = rw ] || findmnt -S "tmpfs.sh:$1:rw" || mount -n -c -i -o remount,bind,ro"#,
        )],
        fails: &["mount::two_modes"],
    },
    Fault {
        name: "root-alone",
        what: "leaves the volume to root, and says that kubelet need not change the group",
        of: Tmpfs,
        change: &[("mode=0777", "mode=0750"), (r#""fsGroup":true"#, r#""fsGroup":false"#)],
        fails: &["mount::fs_group"],
    },
    Fault {
        name: "suid-and-dev",
        what: "mounts with set-uid programs and device files: nearly everybody",
        of: Tmpfs,
        change: &[
            ("nosuid,nodev,mode=0777", "mode=0777"),
            ("remount,bind,ro,nosuid,nodev", "remount,bind,ro"),
        ],
        fails: &["mount::nosuid_nodev"],
    },
];

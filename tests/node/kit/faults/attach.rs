//! Disks that are attached, formatted or mounted in a wrong way.

use super::Fault;
use super::Reference::Loop;

const RECORD: &str = r#"    [ -L "$images/attached/$volume" ] || ln -s "#;
const FIND: &str = r#"[ -n "$found" ] || found=$(losetup -f --show "$image")"#;
const DEVICE: &str = r#"    succeed ",\"device\":\"$found\"""#;
const UNKNOWN: &str = r#"record=$(readlink "$images/attached/$1") || succeed"#;
const FREE: &str = r#"for found in $(device); do losetup -d "$found" || fail "cannot take $found away"; done
    gone"#;
const ATTACHED: &str =
    r#"    [ "$(readlink "$images/attached/$volume")" = "$2:${image##*/}" ] && [ -n "$(device)" ] &&"#;
const BLANK: &str = r#"if [ $? = 2 ] && cmp -s -n 1048576 "$found" /dev/zero; then"#;
const BUSY: &str = r#"umount -n "$dir" || fail "cannot unmount $dir"#;
const NOT_MOUNTED: &str = "sources=$(mounted) || succeed";
const MOUNTED: &str = r#"case $(mounted) in "$found") succeed ;; ?*) fail"#;

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "attached-is-a-failure",
        what: "fails if the disk is attached already, to the same node",
        of: Loop,
        change: &[(
            RECORD,
            r#"    [ ! -L "$images/attached/$volume" ] || fail "$volume is attached already"; ln -s "#,
        )],
        fails: &["attach::twice", "attach::second_node", "sequence::reboot"],
    },
    Fault {
        name: "a-device-for-each-call",
        what: "takes another device each time it is asked for one",
        of: Loop,
        change: &[(FIND, r#"found=$(losetup -f --show "$image")"#)],
        fails: &["attach::works", "left::files"],
    },
    Fault {
        name: "no-device",
        what: "answers waitforattach without the device, which kubelet then forgets",
        of: Loop,
        change: &[(DEVICE, r#"    [ "$verb" = attach ] || succeed; succeed ",\"device\":\"$found\"""#)],
        fails: &["attach::device", "attach::wait"],
    },
    Fault {
        name: "detach-wants-a-device",
        what: "takes what detach gets for a device, as the official document says: kubernetes.io/lvm",
        of: Loop,
        change: &[(
            UNKNOWN,
            r#"[ -b "$1" ] || fail "$1 is no device"; record=$(readlink "$images/attached/$1")"#,
        )],
        fails: &["attach::works", "left::devices", "left::files"],
    },
    Fault {
        name: "detached-is-a-failure",
        what: "fails to detach what is not attached",
        of: Loop,
        change: &[(UNKNOWN, r#"record=$(readlink "$images/attached/$1") || fail "$1 is not attached""#)],
        fails: &["attach::detach_twice", "attach::detach_unknown"],
    },
    Fault {
        name: "detach-by-part-of-a-name",
        what: "looks for the volume with grep, and detaches another one whose name has this one in it",
        of: Loop,
        change: &[(
            UNKNOWN,
            r#"name=$(ls "$images/attached" | grep "$1" | head -n 1)
    [ -n "$name" ] || succeed
    set -- "$name" "$2"
    record=$(readlink "$images/attached/$1") || succeed"#,
        )],
        fails: &["attach::detach_unknown"],
    },
    Fault {
        name: "detach-keeps-the-device",
        what: "notes that the disk is detached, and leaves its device on the node: arturoguerra/xenserver",
        of: Loop,
        change: &[(FREE, ":")],
        fails: &["attach::detach_by_name", "left::devices"],
    },
    Fault {
        name: "attached-is-not-said",
        what: "answers isattached with Success and nothing else, which means no",
        of: Loop,
        change: &[(r#"succeed ',"attached":true'"#, "succeed")],
        fails: &["attach::is_attached", "attach::detach_unknown", "attach::second_node", "sequence::attach"],
    },
    Fault {
        name: "always-attached",
        what: "answers isattached with true, whatever is attached",
        of: Loop,
        change: &[(ATTACHED, "    :")],
        fails: &["attach::is_attached", "attach::detach_by_name"],
    },
    Fault {
        name: "attached-to-two-nodes",
        what: "attaches a disk to a second node while the first one writes to it",
        of: Loop,
        change: &[(
            r#"[ "$record" = "$2:${image##*/}" ] || fail "$volume is attached as $record: detach it there first""#,
            ":",
        )],
        fails: &["attach::second_node"],
    },
    Fault {
        name: "crash-without-tools",
        what: "ends without an answer in the controller's image, where the node's tools are missing",
        of: Loop,
        change: &[(
            r#"[ "$record" = "$2:"#,
            r#"command -v losetup || { answer= && exit; }; [ "$record" = "$2:"#,
        )],
        fails: &["attach::without_secrets_and_tools", "output::one_object"],
    },
    Fault {
        name: "waits-for-a-named-device",
        what: "fails waitforattach if kubelet does not know the device",
        of: Loop,
        change: &[(
            "wait_for_attach() {\n    count $# 2",
            "wait_for_attach() {\n    count $# 2\n    [ $verb = attach ] || [ -n \"$1\" ] || fail \"which device?\"",
        )],
        fails: &["attach::wait"],
    },
    Fault {
        name: "waits-until-unmounted",
        what: "fails waitforattach while the device is in use, so that no second pod starts",
        of: Loop,
        change: &[(
            DEVICE,
            "    findmnt -S \"$found\" && fail \"$found is in use\"\n    succeed \",\\\"device\\\":\\\"$found\\\"\"",
        )],
        fails: &[
            "attach::wait_again",
            "sequence::restart_alive",
            "mount::propagates",
            "sequence::failed_start",
        ],
    },
    Fault {
        name: "deaf-to-sigterm",
        what: "waits for a device for ever and does not end when kubelet asks it to",
        of: Loop,
        change: &[(
            "wait_for_attach() {\n    count $# 2",
            "wait_for_attach() {\n    count $# 2\n    trap '' TERM\n    while [ -n \"$1\" ] && [ ! -b \"$1\" ]; do sleep 1; done",
        )],
        fails: &["attach::wait_fails_in_time"],
    },
    Fault {
        name: "device-mounted-twice",
        what: "mounts a device again that is mounted already",
        of: Loop,
        change: &[(MOUNTED, r#"case $(mounted) in "$found") ;; ?*) fail"#)],
        fails: &["attach::mount_device"],
    },
    Fault {
        name: "mounts-nothing-without-a-name",
        what: "says Success when kubelet does not know the device, and mounts none",
        of: Loop,
        change: &[("    count $# 3\n", "    count $# 3\n    [ -n \"$2\" ] || succeed\n")],
        fails: &["attach::mount_device_without_name"],
    },
    Fault {
        name: "leaves-a-file-after-a-failure",
        what: "leaves a file in the directory when it fails to mount a device",
        of: Loop,
        change: &[(
            "    count $# 3\n    wish \"$3\"",
            "    count $# 3\n    echo trying >\"$1/.state\"\n    wish \"$3\"\n    rm \"$1/.state\"",
        )],
        fails: &["attach::mount_device_fails_cleanly"],
    },
    Fault {
        name: "shows-what-is-mounted-for-the-node",
        what: "binds the global directory without a look at what is mounted there: ours until it was found",
        of: Loop,
        change: &[(
            r#"[ -n "$found" ] && [ "$(mounted "$global")" = "$found" ] || fail"#,
            r#"[ -n "$found" ] && [ -n "$(mounted "$global")" ] || fail"#,
        )],
        fails: &["attach::another_volume"],
    },
    Fault {
        name: "formats-always",
        what: "formats a disk each time it is mounted: prateekpandey14",
        of: Loop,
        change: &[(BLANK, "if :; then")],
        fails: &[
            "attach::keeps_data",
            "attach::read_only",
            "attach::partition_table",
            "attach::unknown_data",
            "left::files",
            "options::read_only",
            "unmount::keeps_data",
        ],
    },
    Fault {
        name: "formats-another-type",
        what: "formats a disk that has no file system, also if it has partitions or is encrypted: pharmer",
        of: Loop,
        change: &[(BLANK, r#"if [ -z "$(blkid -p -o value -s USAGE "$found" | grep filesystem)" ]; then"#)],
        fails: &["attach::partition_table", "attach::unknown_data"],
    },
    Fault {
        name: "formats-what-blkid-does-not-know",
        what: "takes a disk for blank if blkid finds nothing on it: nearly everybody",
        of: Loop,
        change: &[(BLANK, "if [ $? = 2 ]; then")],
        fails: &["attach::unknown_data"],
    },
    Fault {
        name: "formats-for-a-reader",
        what: "formats a blank disk for a pod that may only read",
        of: Loop,
        change: &[(r#"[ "$access" = rw ] || fail "${image##*/} is blank and must not be written to""#, ":")],
        fails: &["attach::read_only_blank"],
    },
    Fault {
        name: "device-always-writable",
        what: "mounts a device read-write whatever kubelet asks for",
        of: Loop,
        change: &[(r#"-o "$access,nosuid,nodev""#, r#"-o "nosuid,nodev""#)],
        fails: &["attach::read_only"],
    },
    Fault {
        name: "unmounted-device-is-a-failure",
        what: "fails to unmount a device that is not mounted",
        of: Loop,
        change: &[(
            NOT_MOUNTED,
            r#"sources=$(mounted) || { [ $verb = unmount ] && succeed; fail "$dir is not mounted"; }"#,
        )],
        fails: &["attach::unmount_device_again"],
    },
    Fault {
        name: "busy-device-is-a-success",
        what: "says that a device is unmounted which is in use",
        of: Loop,
        change: &[(
            BUSY,
            r#"umount -n "$dir" || { [ $verb = unmountdevice ] && succeed; false; } || fail "cannot unmount $dir"#,
        )],
        fails: &["attach::unmount_device_busy"],
    },
    Fault {
        name: "one-layer-of-the-device",
        what: "takes off one mount of a device, however many there are",
        of: Loop,
        change: &[(
            BUSY,
            r#"umount -n "$dir" && { [ $verb = unmount ] || succeed; } || fail "cannot unmount $dir"#,
        )],
        fails: &["attach::unmount_device_stacked"],
    },
    Fault {
        name: "mounts-elsewhere-too",
        what: "mounts the device in a place of its own as well",
        of: Loop,
        change: &[
            (
                r#"fail "cannot mount $found as $type""#,
                "fail \"cannot mount $found as $type\"\n    mkdir -p /run/loop && mount -n --bind \"$dir\" /run/loop",
            ),
            (NOT_MOUNTED, "[ $verb = unmount ] || umount -n /run/loop\n    sources=$(mounted) || succeed"),
        ],
        fails: &["attach::no_other_mounts", "left::devices", "left::mounts"],
    },
    Fault {
        name: "holds-the-device",
        what: "leaves a process in a mount namespace of its own, which keeps the device from being free",
        of: Loop,
        change: &[(
            r#"fail "cannot mount $found as $type""#,
            "fail \"cannot mount $found as $type\"\n    setsid -f unshare -m --propagation private sleep 600 3>&- 8>&- 9>&-",
        )],
        fails: &[
            "attach::device_is_free",
            "daemon::fails_early",
            "daemon::is_gone",
            "left::processes",
            "mount::failure_leaves_nothing",
        ],
    },
];

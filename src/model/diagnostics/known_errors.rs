//! The table: causes and fixes, the particular before the general.

mod shares;

use super::KnownError;
use super::Sign::{Kubelet, Words};

/// What is to be read on the node.
const DOCTOR: &str = "sudo flexvol doctor";
const PROBE: &str = "sudo flexvol probe";
const STATUS: &str = "sudo flexvol status";
const LOGS: &str = "sudo flexvol logs --failed";
pub(super) const CALL: &str = "sudo flexvol call VENDOR/DRIVER init";
const VALIDATE: &str = "flexvol validate -f FILE";

/// A driver answered Failure with words that only its author knows.
pub const SAID: KnownError = KnownError {
    id: "driver-said",
    sign: Kubelet(&[]),
    cause: "the driver refused, in its own words: kubelet passes on what follows \"reason:\"",
    fix: "do what these words say; kubelet tries again by itself, with growing pauses",
    next: LOGS,
};

/// A driver answered Failure and nothing else.
pub const WORDLESS: KnownError = KnownError {
    id: "driver-wordless",
    sign: Kubelet(&[]),
    cause: "the driver refused and does not say why",
    fix: "call it by hand with the same options and look at what it prints, or ask its author for a \"message\"",
    next: CALL,
};

/// The kernel refuses a mount to a process without the one capability that it needs.
pub const NO_ADMIN: KnownError = KnownError {
    id: "no-admin",
    sign: Words(&["cap_sys_admin"]),
    cause: "the driver runs without CAP_SYS_ADMIN, so the kernel mounts nothing for it",
    fix: "run kubelet as the node's root with all capabilities; if it is in a container, give that \"privileged\"",
    next: DOCTOR,
};

/// All of them, in the order in which they are looked for: the first that fits wins.
pub fn all() -> impl Iterator<Item = &'static KnownError> {
    [FIRST, shares::ALL, WORDS, LAST].into_iter().flatten()
}

/// What kubelet says before it has called a driver, and of what the driver printed.
const FIRST: &[KnownError] = &[
    // --- kubelet, before any driver is called
    KnownError {
        id: "no-plugin",
        sign: Kubelet(&[
            "no volume plugin matched",
            "failed to get plugin from volumespec",
            "no plugin found",
        ]),
        cause: "kubelet has no driver of that name: it reads another plugin directory, the driver's init fails, or the name in the volume is not the directory's with a slash for the ~",
        fix: "put the driver into the directory that kubelet reads (flexvol locate), as VENDOR~DRIVER/DRIVER, and make its init succeed",
        next: DOCTOR,
    },
    KnownError {
        id: "object-not-read",
        sign: Kubelet(&["failed to sync secret cache", "failed to sync configmap cache"]),
        cause: "kubelet did not get a Secret or ConfigMap of the pod from the API server in time; no driver was called for that",
        fix: "check that it exists in the pod's namespace, that this node reaches the API server, and that kubelet may read it (its log says forbidden if not); after a restart of kubelet it passes: kubelet tries again by itself",
        next: "kubectl get secrets,configmaps --namespace NAMESPACE",
    },
    KnownError {
        id: "secret-missing",
        sign: Kubelet(&["secret…not found", "secrets…not found"]),
        cause: "there is no Secret of that name in the pod's namespace, or of a PersistentVolume in the one that secretRef names",
        fix: "make it there, with the driver's name, VENDOR/DRIVER, as its type, or correct secretRef; kubelet tries again by itself",
        next: "kubectl get secrets --namespace NAMESPACE",
    },
    KnownError {
        id: "secret-type",
        sign: Kubelet(&["cannot get secret of type", "couldn't get secret"]),
        cause: "kubelet hands out only Secrets whose type is the driver's name, VENDOR/DRIVER, and this one has another",
        fix: "delete the Secret and make it again with type: VENDOR/DRIVER (a type cannot be changed)",
        next: VALIDATE,
    },
    KnownError {
        id: "plugin-name",
        sign: Kubelet(&["volume plugin has invalid name", "invalid name:"]),
        cause: "a driver's name must be VENDOR/DRIVER in small letters, digits, dots and dashes",
        fix: "rename the driver's directory and its executable, and the driver in the volumes",
        next: PROBE,
    },
    KnownError {
        id: "attached-elsewhere",
        sign: Kubelet(&[
            "multi-attach error",
            "volume is already exclusively attached",
            "volume is already used by…pod(s)",
        ]),
        cause: "another node still has the volume attached, and it goes to one at a time: a pod there uses it, or that node is down and could not detach it",
        fix: "delete the pod that uses it there (a Deployment needs strategy Recreate), and wait until that node has detached it; of a node that is surely off, add the taint node.kubernetes.io/out-of-service=nodeshutdown:NoExecute or delete its Node",
        next: "kubectl get pods --all-namespaces -o wide",
    },
    KnownError {
        id: "inline-attached",
        sign: Kubelet(&["recovered from panic…nil pointer dereference"]),
        cause: "kubelet panicked on a PersistentVolume that is not there: an inline volume of a driver that attaches, where another pod of the node has one of the same name (its check for ReadWriteOncePod in MountVolume, since 1.27); the pod hangs without an Event",
        fix: "make it a PersistentVolume with a claim, or let the driver not attach (of flexvol's, attach: false in its side file)",
        next: VALIDATE,
    },
    KnownError {
        id: "not-attached",
        sign: Kubelet(&[
            "volume not attached according to node status",
            "volume has not been added to the list of volumesinuse",
        ]),
        cause: "the driver says that its volumes are attached (attach: true, also if it says nothing), so kube-controller-manager has to attach them first, and has not",
        fix: "install the driver where kube-controller-manager looks, too (--flex-volume-plugin-dir); if it has nothing to attach, let init answer attach: false",
        next: PROBE,
    },
    KnownError {
        id: "mount-options",
        sign: Kubelet(&[
            "mountoptionsupport check failed",
            "mount options are not supported for this volume type",
        ]),
        cause: "the PV has mountOptions (spec.mountOptions, the annotation volume.beta.kubernetes.io/mount-options, or from its StorageClass), which kubelet refuses for every FlexVolume before it calls a driver",
        fix: "take them out of the PV, and put them into flexVolume.options as the driver wants them (flexvol explain DRIVER)",
        next: VALIDATE,
    },
    KnownError {
        id: "orphaned-pod",
        sign: Kubelet(&["orphaned pod…volume", "volume paths are still present", "orphaned pod"]),
        cause: "the pod is gone, and in its directory a volume is still mounted or files were left, which kubelet does not dare to delete",
        fix: "unmount what is mounted there; move files away that were written while nothing was mounted; then remove the empty directories",
        next: "sudo flexvol doctor --repair",
    },
    // --- what the driver printed
    KnownError {
        id: "panic",
        sign: Kubelet(&["invalid memory address or nil pointer", "nil pointer dereference"]),
        cause: "a driver answered init with \"capabilities\": null, at which kubelet crashes",
        fix: "leave capabilities out of the answer, or make them an object",
        next: PROBE,
    },
    KnownError {
        id: "busy-text",
        sign: Words(&["text file busy"]),
        cause: "the driver was executed while it was open for writing",
        fix: "never copy over an executable in place: write a new file beside it, under a name with a dot, and rename that",
        next: "sudo flexvol install VENDOR/DRIVER --binary FILE",
    },
    KnownError {
        id: "wrong-format",
        sign: Words(&["exec format error"]),
        cause: "the driver is no program for this machine: built for another architecture, or a script without #! in its first line",
        fix: "install the build for this architecture (uname -m), or begin the script with #!/bin/sh",
        next: PROBE,
    },
    KnownError {
        id: "exec-denied",
        sign: Words(&["fork/exec…permission denied", "exec…permission denied"]),
        cause: "kubelet may not execute the driver: its mode lacks x, its file system is mounted noexec, or a security module forbids it",
        fix: "chmod 0755 the executable, and mount -o remount,exec its file system or give kubelet another --volume-plugin-dir",
        next: DOCTOR,
    },
    KnownError {
        id: "no-executable",
        sign: Kubelet(&["executable file not found", "fork/exec…no such file or directory"]),
        cause: "kubelet could not start the driver: the file is missing or not executable, or the interpreter in its first line (bash, jq's python, a dynamic loader) is not where kubelet runs",
        fix: "put the executable at VENDOR~DRIVER/DRIVER with mode 0755; install its interpreter, or take a static binary",
        next: PROBE,
    },
    KnownError {
        id: "too-long",
        sign: Words(&["argument list too long"]),
        cause: "an argument may have 131071 bytes, and options with all keys of the Secret are one argument",
        fix: "take keys out of the Secret that the driver does not need",
        next: VALIDATE,
    },
    KnownError {
        id: "no-output",
        sign: Kubelet(&["unexpected end of json input"]),
        cause: "the driver printed nothing, or half an object: it could not be executed, crashed, or a program that it needs (jq) is missing",
        fix: "call it by hand and see what comes",
        next: CALL,
    },
    KnownError {
        id: "noise",
        sign: Kubelet(&["invalid character", "cannot unmarshal", "after top-level value"]),
        cause: "the driver printed something that is not one JSON object: a warning on standard error counts, too, as do two objects, single quotes, or a number where a text is due",
        fix: "print one object and nothing else; send everything other to a log, standard error included",
        next: CALL,
    },
    KnownError {
        id: "no-children",
        sign: Kubelet(&["no child processes"]),
        cause: "another process reaped the driver's process (kubelet is process 1 of its container), so its answer was lost",
        fix: "nothing: kubelet calls again, and a driver that is already done says Success; else run kubelet's container with an init",
        next: STATUS,
    },
    KnownError {
        id: "exit-after-success",
        sign: Kubelet(&["driver bug…no error in response"]),
        cause: "the driver said Success and then exited with another status than 0",
        fix: "exit 0 whenever an answer was printed",
        next: CALL,
    },
    NO_ADMIN,
];

/// What the kernel and its helpers say.
const WORDS: &[KnownError] = &[
    KnownError {
        id: "unknown-option",
        // Our drivers' own words say all of it, here and in the next three.
        sign: Kubelet(&["unknown option"]),
        cause: "the volume has an option that the driver, or the program it runs, does not know",
        fix: "correct the option that the message names, or leave it out; flexvol explain DRIVER lists those of flexvol's",
        next: VALIDATE,
    },
    KnownError {
        id: "policy",
        sign: Kubelet(&["let the admin…policy."]),
        cause: "the policy of this node does not allow its driver what the volume asks for",
        fix: "use what the policy allows, which the message names, or let the admin widen it on each node: flexvol install DRIVER --set policy.KEY=VALUE",
        next: VALIDATE,
    },
    KnownError {
        id: "tool-missing",
        sign: Kubelet(&["is not on this node: install"]),
        cause: "a program that the driver runs is not on this node",
        fix: "install the package that the message names on every node that shall serve such volumes",
        next: DOCTOR,
    },
    KnownError {
        id: "deadline",
        sign: Kubelet(&["deadline of…passed"]),
        cause: "a step took longer than the driver's deadline: mostly because a server does not answer",
        fix: "check that server, and the network and firewalls between it and this node; for work that takes long, raise the deadline: flexvol install DRIVER --set deadlines.mount=SECONDS",
        next: DOCTOR,
    },
    KnownError {
        id: "script-lacks",
        sign: Words(&[
            "command not found",
            "sh: …: not found",
            "bad interpreter",
            "failed to exec fusermount",
        ]),
        cause: "a program that the driver calls, or the interpreter in its first line, is not where kubelet runs",
        fix: "install it there (doctor names the package); if kubelet is in a container, it needs the program inside, or a static driver",
        next: DOCTOR,
    },
    KnownError {
        id: "watches",
        sign: Words(&[
            "inotify…no space left on device",
            "inotify…too many open files",
            "too many open files",
        ]),
        cause: "the node's inotify watches or open files are used up, not its disk: kubelet then misses new drivers, too",
        fix: "sysctl fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=1048576, for good in /etc/sysctl.d, and restart kubelet",
        next: PROBE,
    },
    KnownError {
        id: "not-mounted",
        sign: Words(&["umount…not mounted"]),
        cause: "the driver was to unmount a volume that is not mounted any more, and failed; kubelet asks for ever, and the pod stays in Terminating",
        fix: "let the driver's unmount succeed when nothing is mounted there; to free this pod, remove the volume's empty directory",
        next: STATUS,
    },
    KnownError {
        id: "no-device",
        sign: Words(&["special device…does not exist"]),
        cause: "mount(8) takes the source for a device of the node, and there is none of that name: the type is missing or misspelt, or the device has not appeared",
        fix: "check fsType and the source; look whether the device is in lsblk",
        next: VALIDATE,
    },
    KnownError {
        id: "nfs-version",
        sign: Words(&["mount.nfs…protocol not supported", "requested nfs version or transport protocol"]),
        cause: "the NFS server does not speak that version, or not over that protocol",
        fix: "leave version out, or name one that the server has (rpcinfo -p SERVER)",
        next: VALIDATE,
    },
    KnownError {
        id: "nfs-missing",
        sign: Words(&["mount.nfs…no such file or directory"]),
        cause: "the NFS server exports no such directory, or the directory in the pod is gone",
        fix: "see its exports with showmount -e, or check path and subDir",
        next: VALIDATE,
    },
    KnownError {
        id: "no-helper",
        sign: Words(&[
            "wrong fs type, bad option, bad superblock",
            "need a /sbin/mount.",
            "you might need a…helper program",
            "unknown filesystem type",
            "filesystem not supported by the system",
            "mount error(19)",
        ]),
        cause: "mount(8) cannot mount that type: its helper /sbin/mount.TYPE is not on the node (or not in kubelet's container), the kernel lacks the file system, an option is wrong, or the device holds none",
        fix: "install the helper (cifs-utils, nfs-common, glusterfs-client) where the driver runs; flexvol's own nfs, cifs and cephfs drivers need none",
        next: DOCTOR,
    },
    KnownError {
        id: "nfs-refused",
        sign: Words(&["access denied by server while mounting", "mount.nfs…operation not permitted"]),
        cause: "the server does not export it to this node",
        fix: "look at /etc/exports there, or at the address it sees",
        next: LOGS,
    },
    KnownError {
        id: "no-key",
        sign: Words(&["required key not available", "key has expired", "key was rejected"]),
        cause: "a key is missing",
        fix: "install keyutils and cifs-utils, and look at the node's keytab",
        next: DOCTOR,
    },
    KnownError {
        id: "dead-daemon",
        sign: Words(&["transport endpoint is not connected", "software caused connection abort"]),
        cause: "the program that served the volume (FUSE) is gone: it crashed, was killed for memory, or died with kubelet, in whose control group it ran; the mount is still there",
        fix: "unmount the volume (umount -l) and delete the pod, so that kubelet mounts it again; start such programs in a scope of their own",
        next: "sudo flexvol doctor --repair",
    },
    KnownError {
        id: "stale-handle",
        sign: Words(&["stale file handle", "stale nfs file handle"]),
        cause: "the server has another file system there now, or removed the directory, so what is mounted leads nowhere",
        fix: "unmount the volume (umount -l) and delete its pods, so that it is mounted again",
        next: "sudo flexvol doctor --repair",
    },
    KnownError {
        id: "busy",
        sign: Words(&[
            "device is busy",
            "target is busy",
            "device or resource busy",
            "resource busy",
            "is in use by…(pid",
        ]),
        cause: "a process still uses the volume, or something is mounted inside of it",
        fix: "end that process (the message of flexvol's drivers names it); kubelet tries again by itself",
        next: STATUS,
    },
    KnownError {
        id: "not-empty",
        sign: Words(&["directory not empty", "mountpoint directory…is not empty"]),
        cause: "files were written into the volume's directory while nothing was mounted there, so they are on the node's own disk and kubelet cannot remove the directory",
        fix: "look at them and move them away; the driver said Success without a mount, or left its mount too early",
        next: "sudo flexvol doctor",
    },
    KnownError {
        id: "no-space",
        sign: Words(&["no space left on device", "disk quota exceeded"]),
        cause: "a file system is full: the volume's, or the node's own (/run, where drivers keep what they must remember)",
        fix: "make room on it: df -h, and df -i for inodes",
        next: DOCTOR,
    },
    KnownError {
        id: "read-only",
        sign: Words(&["read-only file system"]),
        cause: "the file system is mounted read-only: asked for, or made so by the kernel after an error",
        fix: "look for errors in dmesg; of a plugin directory, give kubelet a writable one with --volume-plugin-dir",
        next: DOCTOR,
    },
    KnownError {
        id: "no-name",
        sign: Words(&[
            "could not resolve address",
            "name or service not known",
            "temporary failure in name resolution",
            "no such host",
            "failed to resolve server",
            "knows no address of it",
        ]),
        cause: "the node does not know the server's name: names of Services are known in pods only",
        fix: "use a name of the node's DNS or an address, or give flexvol's drivers option nameserver with the address of the cluster's DNS",
        next: DOCTOR,
    },
    KnownError {
        id: "no-route",
        sign: Words(&["no route to host", "network is unreachable", "host is down"]),
        cause: "no way leads from this node to the server, or it is down",
        fix: "check that it runs, its address, and the network and firewalls between it and this node",
        next: DOCTOR,
    },
    KnownError {
        id: "refused",
        sign: Words(&["connection refused"]),
        cause: "nothing listens at the server's address and port",
        fix: "start the service there, and check address, port and firewalls",
        next: DOCTOR,
    },
    KnownError {
        id: "silent",
        sign: Words(&["connection timed out", "operation timed out", "does not answer"]),
        cause: "the server does not answer",
        fix: "check it, the network and the firewalls",
        next: DOCTOR,
    },
    KnownError {
        id: "ceph-key",
        sign: Words(&["keyring…malformed input"]),
        cause: "the Secret's key is none of Ceph's",
        fix: "put into it what ceph auth get-key says",
        next: VALIDATE,
    },
    KnownError {
        id: "user-refused",
        sign: Words(&["401 unauthorized", "authentication failed"]),
        cause: "the server does not accept that user with that secret",
        fix: "check the user (user, or rclone's backend.user; left out it is a default) and the Secret's key, pass or password",
        next: VALIDATE,
    },
    KnownError {
        id: "io-error",
        sign: Words(&["input/output error", "structure needs cleaning", "bad superblock"]),
        cause: "the disk or server behind the volume fails, or its file system is damaged",
        fix: "look at dmesg; unmount the volume and check it (fsck), or fix the server",
        next: STATUS,
    },
    KnownError {
        id: "fuse-missing",
        sign: Words(&[
            "/dev/fuse",
            "fuse: device not found",
            "fusermount: mount failed",
            "fusermount3: mount failed",
        ]),
        cause: "the kernel module fuse is not loaded, or /dev/fuse is not where the driver runs",
        fix: "modprobe fuse on the node; in a container give it /dev/fuse",
        next: DOCTOR,
    },
    KnownError {
        id: "no-loop",
        sign: Words(&[
            "could not find any free loop device",
            "failed to set up loop device",
            "losetup: cannot find an unused",
        ]),
        cause: "no loop device is free, or the kernel module loop is not loaded",
        fix: "modprobe loop; leaked devices show in losetup -a",
        next: "sudo flexvol doctor --repair",
    },
];

/// What kubelet says at its wits' end: it says least, so comes last.
const LAST: &[KnownError] = &[
    KnownError {
        id: "waited-too-long",
        sign: Kubelet(&[
            "timed out waiting for the condition",
            "timeout expired waiting for volumes",
            "context deadline exceeded",
            "unable to attach or mount volumes",
            "unable to mount volumes for pod",
        ]),
        cause: "kubelet gave up waiting for the pod's volumes after two minutes; this only sums up, an Event of the same pod says why: FailedMount or FailedAttachVolume, or none if the driver hangs, or attaches and kube-controller-manager has not attached the volume",
        fix: "read the pod's Events (kubectl describe pod), and explain those; a driver that hangs shows in its processes; one that attaches belongs into kube-controller-manager's --flex-volume-plugin-dir, too, which then finds pods that wait within three minutes",
        next: "sudo flexvol status && sudo flexvol logs --failed",
    },
    KnownError {
        id: "call-timeout",
        sign: Kubelet(&["reason: timeout", "error: timeout", "waitforattach…timeout"]),
        cause: "the driver's waitforattach took longer than ten minutes and was ended",
        fix: "look whether the device ever appears on the node, and why not",
        next: LOGS,
    },
    KnownError {
        id: "exit-status",
        sign: Kubelet(&["exit status", "signal: killed", "signal: terminated"]),
        cause: "the driver, or a program that it ran, failed; on such an end kubelet logs all arguments, the Secret's content too",
        fix: "read what stands before and after it, and call the driver by hand; drivers should exit 0 whenever they answered",
        next: CALL,
    },
    KnownError {
        id: "call-failed",
        sign: Kubelet(&["driver call failed"]),
        cause: "kubelet executed the driver, and got no answer that it understands; the line holds all arguments, the Secret's content too, so do not share it",
        fix: "see what the driver prints when it is called by hand, and change what was in the Secret if others could read that log",
        next: CALL,
    },
    KnownError {
        id: "denied",
        // In a helper's last words it says no more than they do.
        sign: Kubelet(&["permission denied", "operation not permitted"]),
        cause: "the kernel, a security module or the server does not permit it",
        fix: "check user, modes and export on the server; on the node look for denials of SELinux or AppArmor in dmesg",
        next: DOCTOR,
    },
];

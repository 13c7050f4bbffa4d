//! Table of known errors: causes and fixes, the particular before the general.

mod kubernetes;
mod shares;
mod storage;
mod tools;
mod words;

use super::KnownError;
use super::Sign::{Kubelet, Words};

/// Command that shows the state of the node.
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

/// Kubelet waits for a volume that was never attached. Its log then names neither the cause nor the
/// driver.
pub const UNATTACHED: KnownError = KnownError {
    id: "unattached",
    sign: Kubelet(&[]),
    cause: "kubelet gave up waiting for the volume to be attached, which kube-controller-manager does: its attach failed, and an Event FailedAttachVolume says why, or it has no such driver, and there is no Event",
    fix: "put the driver into its --flex-volume-plugin-dir, too: it then finds pods that wait within three minutes; if there is nothing to attach, let init answer attach: false",
    next: "kubectl describe pod POD",
};

/// The kernel refuses a mount to a process without the one capability that it needs.
pub const NO_ADMIN: KnownError = KnownError {
    id: "no-admin",
    sign: Words(&["cap_sys_admin"]),
    cause: "the driver runs without CAP_SYS_ADMIN, so the kernel mounts nothing for it",
    fix: "run kubelet as the node's root with all capabilities; if it is in a container, give that \"privileged\"",
    next: DOCTOR,
};

/// Returns all of them in the order of the search: the first that fits wins.
pub fn all() -> impl Iterator<Item = &'static KnownError> {
    [kubernetes::ALL, FIRST, tools::ALL, storage::ALL, shares::ALL, words::ALL, kubernetes::OF_OTHERS, LAST]
        .into_iter()
        .flatten()
}

/// Reports whether a text with this sign says that something failed, but not why.
pub(super) fn says_little(known_error: &KnownError) -> bool {
    let by_itself = [
        "no-output",
        SAID.id,
        WORDLESS.id,
        "csi-said",
        "attach-refused",
        "detach-timeout",
        "rbd-map",
        "gluster-log",
    ];
    LAST.iter().any(|it| it.id == known_error.id) || by_itself.contains(&known_error.id)
}

/// Texts of kubelet before it has called a driver, and about the driver's output.
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
        sign: Kubelet(&["secret…\" not found", "secret…\\\" not found"]),
        cause: "there is no Secret of that name in the pod's namespace, or of a PersistentVolume in the one that secretRef names",
        fix: "make it there, with the driver's name, VENDOR/DRIVER, as its type, or correct secretRef; kubelet tries again by itself",
        next: "kubectl get secrets --namespace NAMESPACE",
    },
    KnownError {
        id: "secret-type",
        sign: Kubelet(&["cannot get secret of type"]),
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
            "is already attached by pod",
            "is locked by other nodes",
            "is still being used",
            "is already attached to",
            "volume is already in use",
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
        sign: Kubelet(&[
            "driver call failed…executable file not found",
            "fork/exec…no such file or directory",
        ]),
        cause: "kubelet could not start the driver: the file is missing or not executable, or the interpreter in its first line (bash, jq's python, a dynamic loader) is not where kubelet runs",
        fix: "put the executable at VENDOR~DRIVER/DRIVER with mode 0755; install its interpreter, or take a static binary",
        next: PROBE,
    },
    KnownError {
        id: "program-missing",
        sign: Kubelet(&[
            "kubernetes.io/…executable file not found",
            "rpc error…executable file not found",
            "exec: \"…\": executable file not found",
            "rbd image…executable file not found",
            "failed to modprobe…executable file not found",
            "nsenter: failed to execute…no such file or directory",
        ]),
        cause: "a program that mounts such volumes is not on the node, or not in the container that needs it",
        fix: "install it there: iscsiadm (open-iscsi), rbd (ceph-common), mkfs, resize2fs, fusermount",
        next: DOCTOR,
    },
    KnownError {
        id: "no-executable-at-all",
        sign: Kubelet(&["executable file not found"]),
        cause: "kubelet could not start the driver, or a program: there is no such file where kubelet runs",
        fix: "put the driver's executable at VENDOR~DRIVER/DRIVER with mode 0755; install the program that the text names",
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

/// Kubelet's most general texts. They say least, so they come last.
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
        // A hint would add nothing to a helper's last words, so this is a sign of kubelet only.
        sign: Kubelet(&["permission denied", "operation not permitted"]),
        cause: "the kernel, a security module or the server does not permit it",
        fix: "check user, modes and export on the server; on the node look for denials of SELinux or AppArmor in dmesg",
        next: DOCTOR,
    },
];

//! Texts of Kubernetes about volumes, before any driver is called, and about other kinds of
//! volumes.

use super::super::KnownError;
use super::super::Sign::Kubelet;
use super::{DOCTOR, STATUS, VALIDATE};

const EVENTS: &str = "kubectl describe pod POD";
const CLAIM: &str = "kubectl describe pvc CLAIM";

pub(super) const ALL: &[KnownError] = &[
    KnownError {
        id: "csi-not-registered",
        sign: Kubelet(&["not found in the list of registered csi drivers"]),
        cause: "no CSI driver of that name has registered with kubelet on this node: its pod does not run here, or not yet",
        fix: "look at its pod on this node, and whether its manifest names kubelet's directory as it is here",
        next: "kubectl get csinodes,pods --all-namespaces -o wide",
    },
    KnownError {
        id: "csi-away",
        sign: Kubelet(&["dial unix…csi.sock"]),
        cause: "the CSI driver has registered on this node, and nothing listens on its socket now: its pod has ended or starts again",
        fix: "look at its pod on this node and read its log; kubelet tries again by itself",
        next: "kubectl get pods --all-namespaces -o wide",
    },
    KnownError {
        id: "csi-vol-data",
        sign: Kubelet(&["vol_data.json"]),
        cause: "kubelet's own file about a CSI volume is missing or empty, mostly after a crash or a full disk, and it cannot unmount what it does not know",
        fix: "unmount what is mounted there (findmnt), then remove the volume's directory below /var/lib/kubelet/pods; kubelet goes on by itself",
        next: EVENTS,
    },
    KnownError {
        id: "secret-key-missing",
        sign: Kubelet(&["references non-existent secret key"]),
        cause: "the Secret is there, and lacks a key that the pod's volume names",
        fix: "add the key to the Secret, or correct items in the pod; kubelet tries again by itself",
        next: "kubectl get secrets --namespace NAMESPACE",
    },
    KnownError {
        id: "class-missing",
        sign: Kubelet(&[
            "storageclass.storage.k8s.io \"…\" not found",
            "storageclass.storage.k8s.io \\\"…\\\" not found",
        ]),
        cause: "the claim names a StorageClass that the cluster does not have",
        fix: "make the class, or make the claim again with one that there is (kubectl get storageclass); \"\" is for volumes without one",
        next: CLAIM,
    },
    KnownError {
        id: "configmap-missing",
        sign: Kubelet(&[
            "configmap…\" not found",
            "configmap…\\\" not found",
            "references non-existent config key",
        ]),
        cause: "the ConfigMap, or the key of it, that the pod names is not in the pod's namespace",
        fix: "make it there, or correct its name in the pod; kubelet tries again by itself",
        next: "kubectl get configmaps --namespace NAMESPACE",
    },
    KnownError {
        id: "object-not-watched",
        sign: Kubelet(&["object \"…not registered", "object \\\"…not registered"]),
        cause: "kubelet does not watch that Secret or ConfigMap: not yet, after a restart, or no longer, because the pod is going",
        fix: "nothing, it passes; of a pod that stays so, delete it",
        next: EVENTS,
    },
    KnownError {
        id: "hostpath-type",
        sign: Kubelet(&["hostpath type check failed"]),
        cause: "what is at the hostPath on this node is not of the type that the pod says (or is missing)",
        fix: "make it on the node, correct path or type, or leave type out",
        next: EVENTS,
    },
    KnownError {
        id: "claim-missing",
        sign: Kubelet(&[
            "persistentvolumeclaim \"…\" not found",
            "persistentvolumeclaim \\\"…\\\" not found",
        ]),
        cause: "there is no claim of that name in the pod's namespace",
        fix: "make it there, or correct claimName in the pod",
        next: "kubectl get pvc --namespace NAMESPACE",
    },
    KnownError {
        id: "claim-unbound",
        sign: Kubelet(&[
            "unbound immediate persistentvolumeclaims",
            "unbound persistentvolumeclaims",
            "persistentvolumeclaim is not bound",
            "no persistent volumes available for this claim",
            "waiting for a volume to be created, either by external provisioner",
            "didn't find available persistent volumes to bind",
        ]),
        cause: "a claim of the pod has no PersistentVolume: none fits it in size, access modes, class and labels, or nothing makes one",
        fix: "read the claim's Events; write the class of the PV into the claim (\"\" for none), or run the provisioner of its class",
        next: CLAIM,
    },
    KnownError {
        id: "volume-elsewhere",
        sign: Kubelet(&["volume node affinity conflict", "no matching nodeselectorterms"]),
        cause: "the volume can be reached from other nodes only (the nodeAffinity of its PV), and the pod may not run there",
        fix: "let the pod run where the volume is, or take a class with volumeBindingMode: WaitForFirstConsumer",
        next: "kubectl describe pv PV",
    },
    KnownError {
        id: "not-grown-here",
        sign: Kubelet(&[
            "didn't find a plugin capable of expanding the volume",
            "noopexpandablevolumeplugin",
            "to not support node expansion",
            "waiting for an external controller to process this pvc",
        ]),
        cause: "kube-controller-manager has no plugin that grows this volume, and leaves that to a controller of the driver's",
        fix: "run the driver's resizer; where there is none, grow the storage by hand and write its size into a new PV",
        next: CLAIM,
    },
    KnownError {
        id: "format-first",
        sign: Kubelet(&[
            "appears to be unformatted, attempting to format",
            "to check whether the volume has been formatted",
        ]),
        cause: "the device is blank: kubelet tries to mount it, sees that, and formats it",
        fix: "nothing, if the next line says that it is mounted",
        next: STATUS,
    },
    KnownError {
        id: "manifest-invalid",
        sign: Kubelet(&[
            "is invalid:…spec",
            "was not valid:",
            "validationerror(",
            "error validating",
            "strict decoding error",
            "must specify a volume type",
            "may not specify more than 1 volume type",
            "error converting yaml",
        ]),
        cause: "the API server refuses the manifest: a field is missing, misspelt, or of another kind",
        fix: "correct the field that it names",
        next: VALIDATE,
    },
    KnownError {
        id: "not-volumes",
        sign: Kubelet(&[
            "remote_runtime.go",
            "failed to create pod sandbox",
            "restarting failed container",
            "crashloopbackoff",
            "imagepullbackoff",
            "errimagepull",
            "failed to pull image",
            "oomkilled",
            "network plugin is not ready",
            "networkplugin cni",
            "had taint",
            "had untolerated taint",
            "insufficient cpu",
            "insufficient memory",
            "probe failed",
        ]),
        cause: "this is not about volumes: it is about containers, their image, their network, or nodes that may not have the pod",
        fix: "look at the pod's other Events",
        next: EVENTS,
    },
    KnownError {
        id: "agent-down",
        sign: Kubelet(&["error getting rpc client", "mount command failed…dial unix"]),
        cause: "the driver is but a client, and the agent behind its socket does not run on this node",
        fix: "start the agent's pod here (its DaemonSet), and read its log; of Rook's, which is gone since 1.8, move the volume to CSI",
        next: DOCTOR,
    },
];

/// Texts that show the kind of volume and little else.
pub(super) const OF_OTHERS: &[KnownError] = &[
    KnownError {
        id: "detach-timeout",
        sign: Kubelet(&[
            "attachdetachment timeout",
            "detachvolume…timeout",
            "detach…timed out",
            "desired=detached",
        ]),
        cause: "attaching or detaching did not end in time: the storage still has the volume in use, or its controller does not answer",
        fix: "see which node has it in the storage's own view, and read the log of the controller that attaches",
        next: "kubectl get volumeattachments",
    },
    KnownError {
        id: "csi-said",
        sign: Kubelet(&[
            "rpc error: code =",
            "kubernetes.io/csi:",
            "csi_handler.go",
            "waiting for external-attacher of",
        ]),
        cause: "a CSI driver failed, in its own words",
        fix: "do what they say, or read the log of its pod: on the node for mounts, the controller's for attach and provisioning",
        next: "kubectl get pods --all-namespaces -o wide",
    },
    KnownError {
        id: "still-used",
        sign: Kubelet(&[
            "unsafe to detach",
            "cannot detach volume because it is still mounted",
            "still in use by node",
            "volume is still in use",
        ]),
        cause: "detaching waits, because the node says that the volume is still mounted there",
        fix: "end what uses it there; of a node that is surely off, add the taint node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
        next: "kubectl get node NODE -o jsonpath={.status.volumesInUse}",
    },
    KnownError {
        id: "attach-refused",
        sign: Kubelet(&[
            "failed to attach volume…on node…with:",
            "attach volume…to instance…failed with",
            "googleapi: error",
            "request id:",
            "requestid",
        ]),
        cause: "the storage or the cloud refuses to attach the volume to that node, in the words after \"with:\"",
        fix: "do what they say: mostly another machine still has it",
        next: "kubectl describe pod POD",
    },
];

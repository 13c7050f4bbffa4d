//! Reasons why something is not migrated, and the fixes. Pure.

use super::plan::Refused;
use flexvol_model::translate::Refusal;
use flexvol_protocol::text::one_line;
use std::fmt;

/// Limit for a name in a message.
const QUOTED: usize = 300;

/// Reason in the cluster. A reason in the volume itself comes from its translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It cannot move to the named driver.
    NoWay(String),
    /// It has not been translated before, so it cannot be translated back.
    NoOriginal,
    /// Another migration has begun with it.
    Migrating(String),
    /// It has a finalizer that is not one of Kubernetes' own.
    Finalizer(String),
    /// It belongs to this object.
    Owned(String),
    /// This tool would write it again from files.
    GitOps(String),
    /// It is neither bound nor free.
    Phase(String),
    /// The claim that it names does not exist.
    ClaimMissing(String),
    /// The claim of that name is another one, or is bound to another volume.
    ClaimOther(String),
    /// Its claim is being deleted.
    ClaimDeleting(String),
    /// Its claim is deleted together with a pod.
    ClaimOfPod(String, String),
    /// Its claim is being enlarged.
    ClaimGrows(String),
    /// There is no `CSIDriver` object of this name.
    NoDriver(String),
    /// The driver is not on this node, but pods may run there.
    NotServed(String, String),
    /// Another volume is the same to the driver.
    HandleTaken(String),
    /// The Secret does not exist.
    SecretMissing(String),
    /// A pod without an owner uses it.
    BarePod(String),
    /// A static pod of a kubelet uses it.
    StaticPod(String),
    /// A pod of a Job uses it.
    JobRuns(String, String),
    /// A pod that has ended still exists.
    CompletedPod(String),
    /// A `DaemonSet` uses it.
    DaemonSet(String),
    /// It is used by a pod whose owner is of a kind that cannot be stopped here.
    UnknownOwner(String, String),
    /// The workload that uses it belongs to another object.
    WorkloadOwned(String, String),
    /// The workload that uses it is written again from files.
    WorkloadGitOps(String, String),
    /// Its `StatefulSet` deletes claims when it is scaled down.
    ScaledDeletes(String),
    /// A pod uses it on a node that does not report.
    NodeSilent(String),
    /// A kubelet is too old for the new volume.
    OldKubelet(String, String),
    /// It is part of an object that cannot be changed.
    NotChanged,
    /// It also has volumes of this driver, which is not selected.
    OtherDriver(String),
}

impl Why {
    /// Returns the name for programs.
    pub fn id(&self) -> &'static str {
        match self {
            Self::NoWay(_) => "no-way",
            Self::NoOriginal => "no-original",
            Self::Migrating(_) => "migrating",
            Self::Finalizer(_) => "finalizer",
            Self::Owned(_) => "owned",
            Self::GitOps(_) => "gitops",
            Self::Phase(_) => "phase",
            Self::ClaimMissing(_) => "claim-missing",
            Self::ClaimOther(_) => "claim-other",
            Self::ClaimDeleting(_) => "claim-deleting",
            Self::ClaimOfPod(..) => "claim-of-pod",
            Self::ClaimGrows(_) => "claim-grows",
            Self::NoDriver(_) => "no-driver",
            Self::NotServed(..) => "not-served",
            Self::HandleTaken(_) => "handle-taken",
            Self::SecretMissing(_) => "secret-missing",
            Self::BarePod(_) => "bare-pod",
            Self::StaticPod(_) => "static-pod",
            Self::JobRuns(..) => "job-runs",
            Self::CompletedPod(_) => "completed-pod",
            Self::DaemonSet(_) => "daemon-set",
            Self::UnknownOwner(..) => "unknown-owner",
            Self::WorkloadOwned(..) => "workload-owned",
            Self::WorkloadGitOps(..) => "workload-gitops",
            Self::ScaledDeletes(_) => "scaled-deletes",
            Self::NodeSilent(_) => "node-silent",
            Self::OldKubelet(..) => "old-kubelet",
            Self::NotChanged => "not-changed",
            Self::OtherDriver(_) => "other-driver",
        }
    }

    /// Returns the fix.
    pub fn fix(&self) -> &'static str {
        match self {
            Self::NoWay(_) => "leave out --to: flexvold csi serves any driver",
            Self::NoOriginal => "take it from a backup",
            Self::Migrating(_) => "finish that one: kubectl flexvol migrate status",
            Self::Finalizer(_) => "find out who put it there, and end what it is for",
            Self::Owned(_) => "delete or pause the owner, and remove the reference",
            Self::GitOps(_) | Self::WorkloadGitOps(..) => {
                "pause it, and change the files first: flexvol-kit translate -f FILE"
            }
            Self::Phase(_) => "wait, or see kubectl describe pv",
            Self::ClaimMissing(_) => "remove claimRef if its data is nobody's, or restore the claim",
            Self::ClaimOther(_) => "repair the binding first: kubectl describe pv",
            Self::ClaimDeleting(_) => "wait until it is gone",
            Self::ClaimOfPod(..) => "make a claim of its own, which outlives the pod",
            Self::ClaimGrows(_) => "wait until it is done",
            Self::NoDriver(_) => {
                "install the driver: flexvold manifest csi prints it for a FlexVolume driver"
            }
            Self::NotServed(..) => "wait for the driver's pod there, or cordon the node",
            Self::HandleTaken(_) => "decide which of both it is to be, and delete the other",
            Self::SecretMissing(_) => "make it, or remove secretRef",
            Self::BarePod(_) => "save its manifest, delete it, and make it again afterwards",
            Self::StaticPod(_) => "remove its file from that node, and put it back afterwards",
            Self::JobRuns(..) => "wait until the Job has ended, and delete it",
            Self::CompletedPod(_) => "delete the pod, or allow it with --delete-completed",
            Self::DaemonSet(_) => "delete the DaemonSet, and make it again afterwards",
            Self::UnknownOwner(..) | Self::WorkloadOwned(..) => {
                "stop the pods by their owner's own means, and plan again"
            }
            Self::ScaledDeletes(_) => "set persistentVolumeClaimRetentionPolicy.whenScaled to Retain",
            Self::NodeSilent(_) => "start the node, or mark it off: docs/agent.md",
            Self::OldKubelet(..) => "upgrade the node to Kubernetes 1.25 or later",
            Self::NotChanged => "make it again, as flexvol-kit translate writes it",
            Self::OtherDriver(_) => "name that driver, too",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let q = |text: &str| one_line(text, QUOTED);
        match self {
            Self::NoWay(driver) => write!(f, "volumes of {} have no way to that driver", q(driver)),
            Self::NoOriginal => f.write_str("it was never a FlexVolume that was translated"),
            Self::Migrating(id) => write!(f, "migration {} has begun with it", q(id)),
            Self::Finalizer(name) => write!(f, "it has the finalizer {}", q(name)),
            Self::Owned(owner) => write!(f, "it belongs to {}", q(owner)),
            Self::GitOps(owner) => write!(f, "{} would write it again", q(owner)),
            Self::Phase(phase) => write!(f, "its phase is {}", q(phase)),
            Self::ClaimMissing(claim) => write!(f, "its claim {} is not there", q(claim)),
            Self::ClaimOther(claim) => write!(f, "claim {} is not bound to it", q(claim)),
            Self::ClaimDeleting(claim) => write!(f, "its claim {} is being deleted", q(claim)),
            Self::ClaimOfPod(claim, pod) => {
                write!(f, "its claim {} is deleted with pod {}", q(claim), q(pod))
            }
            Self::ClaimGrows(claim) => write!(f, "its claim {} is being enlarged", q(claim)),
            Self::NoDriver(driver) => write!(f, "CSI driver {} is not in the cluster", q(driver)),
            Self::NotServed(driver, node) => {
                write!(f, "node {} does not have CSI driver {}", q(node), q(driver))
            }
            Self::HandleTaken(other) => write!(f, "the driver would take it for the same as {}", q(other)),
            Self::SecretMissing(name) => write!(f, "Secret {} is not there", q(name)),
            Self::BarePod(pod) => write!(f, "pod {} uses it, which nothing would make again", q(pod)),
            Self::StaticPod(pod) => write!(f, "pod {} uses it, which is a file on its node", q(pod)),
            Self::JobRuns(pod, job) => write!(f, "pod {} of Job {} uses it", q(pod), q(job)),
            Self::CompletedPod(pod) => write!(f, "pod {} has ended, and is still there", q(pod)),
            Self::DaemonSet(name) => write!(f, "DaemonSet {} uses it, and cannot be scaled", q(name)),
            Self::UnknownOwner(pod, owner) => write!(f, "pod {} of {} uses it", q(pod), q(owner)),
            Self::WorkloadOwned(workload, owner) => {
                write!(f, "{} uses it, and {} would start it again", q(workload), q(owner))
            }
            Self::WorkloadGitOps(workload, owner) => {
                write!(f, "{} uses it, and {} would write it again", q(workload), q(owner))
            }
            Self::ScaledDeletes(name) => {
                write!(f, "StatefulSet {} deletes its claims when it is scaled down", q(name))
            }
            Self::NodeSilent(node) => write!(f, "a pod uses it on node {}, which does not report", q(node)),
            Self::OldKubelet(node, version) => write!(f, "node {} has kubelet {}", q(node), q(version)),
            Self::NotChanged => {
                f.write_str("a flex volume stands in it, and Kubernetes changes none of its kind")
            }
            Self::OtherDriver(driver) => write!(f, "volumes of {} stand in it as well", q(driver)),
        }
    }
}

impl Refused {
    /// Refuses an object for a reason in the cluster.
    pub fn new(object: String, why: &Why) -> Self {
        Self { object, reason: why.id().to_owned(), message: why.to_string(), fix: why.fix().to_owned() }
    }

    /// Refuses an object for a reason in the object itself.
    pub fn of(refusal: &Refusal) -> Self {
        let reason = &refusal.reason;
        let (message, fix) = (reason.to_string(), reason.fix().to_owned());
        Self { object: refusal.object.clone(), reason: reason.id().to_owned(), message, fix }
    }
}

//! Flags of Kubernetes' own sidecars that `flexvold` lacks or has by another name: a user who
//! adopts a manifest is told what to do with each.

use clap::error::{ContextKind, ContextValue};

/// Flags or prefixes of flags, each with what to do instead.
const FLAGS: &[(&str, &str)] = &[
    ("csi-address", "write --endpoint unix:///PATH"),
    ("master", "write --server https://ADDRESS:PORT, or leave it out in a pod"),
    ("kubeconfig", "a pod's own account is used: leave it out, or write --server and --account"),
    ("leader-election-namespace", "write --lease-namespace NAME"),
    ("leader-election", "one process of several always leads, by upstream's lease and times: leave it out"),
    ("v", "write --log-level debug"),
    ("vmodule", "write --log-level debug"),
    ("logging-format", "the log is JSON, a line for each event: leave it out"),
    ("log-", "the log is JSON, a line for each event: leave it out"),
    ("http-endpoint", "flexvold csi-controller serves no HTTP: leave it out, with the probe and port for it"),
    ("metrics-", "flexvold csi-controller serves no HTTP: leave it out, with the probe and port for it"),
    ("enable-pprof", "flexvold csi-controller serves no HTTP: leave it out"),
    ("automaxprocs", "one thread does the work: leave it out"),
    ("feature-gates", "nothing is gated: leave it out"),
    ("kube-api-", "16 requests go on at the same time, as fast as they are answered: leave it out"),
    ("worker-threads", "10 calls attach, 100 provision and 10 resize at the same time: leave it out"),
    ("workers", "10 calls attach, 100 provision and 10 resize at the same time: leave it out"),
    (
        "retry-interval-",
        "it is tried again after 1 s, and after twice as long each time up to 5 minutes: leave it out",
    ),
    ("resync", "what changes is watched, and nothing is asked again: leave it out"),
    ("reconcile-sync", "a driver that lists what is published is asked each minute: leave it out"),
    ("max-entries", "a driver lists as many entries at a time as it likes: leave it out"),
    ("max-grpc-log-length", "calls are not logged: leave it out"),
    ("enable-capacity", "write --capacity"),
    ("capacity-poll-interval", "write --capacity-interval SECONDS"),
    ("capacity-ownerref-level", "the owner is the object on top, such as the Deployment: leave it out"),
    ("capacity-threads", "four calls ask at the same time: leave it out"),
    ("capacity-for-immediate-binding", "the scheduler does not read it: leave it out"),
    ("node-deployment", "one process provisions for all nodes, also for volumes of one node: leave it out"),
    (
        "prevent-volume-mode-conversion",
        "no snapshots are restored: take external-provisioner if you need them",
    ),
    (
        "snapshot-orphan-sweep-interval",
        "no snapshots are restored: take external-provisioner if you need them",
    ),
    ("cloning-protection-threads", "no volumes are cloned: take external-provisioner if you need that"),
    ("extra-modify-metadata", "no VolumeAttributesClass: take external-resizer if you need it"),
    ("modify-timeout", "no VolumeAttributesClass: take external-resizer if you need it"),
    ("resize-timeout", "write --timeout SECONDS, for every call"),
    (
        "handle-volume-inuse-error",
        "a volume in use is left until no pod uses it, where the driver refuses it: leave it out",
    ),
    ("kubelet-registration-path", "flexvold csi --register tells kubelet: leave it out"),
    ("plugin-registration-path", "flexvold csi --register tells kubelet: leave it out"),
    ("health-port", "probe with flexvold csi --driver DRIVER --check"),
];

/// Explains a command line that is wrong because of a flag of upstream's sidecars.
pub(super) fn explain(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else { return None };
    let name = given.trim_start_matches('-');
    let instead = instead_of(name)?;
    Some(format!("--{name} is a flag of Kubernetes' own sidecars: {instead}"))
}

fn instead_of(name: &str) -> Option<&'static str> {
    FLAGS.iter().find(|(flag, _)| *flag == name).or_else(|| begun_by(name)).map(|(_, instead)| *instead)
}

fn begun_by(name: &str) -> Option<&'static (&'static str, &'static str)> {
    FLAGS.iter().filter(|(flag, _)| flag.len() > 2).find(|(flag, _)| name.starts_with(flag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_of_upstreams_has_its_words() {
        for (name, instead) in [
            ("leader-election-renew-deadline", "always leads"),
            ("leader-election-namespace", "--lease-namespace"),
            ("kube-api-qps", "16 requests"),
            ("v", "--log-level"),
            ("node-deployment-base-delay", "for all nodes"),
        ] {
            assert!(instead_of(name).unwrap().contains(instead), "{name}");
        }
        assert_eq!(instead_of("verbose"), None);
    }

    /// All flags are in docs/csi.md.
    #[test]
    fn each_flag_is_documented() {
        let page = include_str!("../../../docs/csi.md");
        let missing: Vec<_> =
            FLAGS.iter().filter(|(flag, _)| !page.contains(&format!("`--{flag}"))).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}

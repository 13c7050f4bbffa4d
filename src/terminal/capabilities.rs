//! The five capabilities, for people.

use flexvol_protocol::Capabilities;
use flexvol_protocol::ordered::filled;
use serde_json::{Map, Value};

/// Returns name, value and meaning of each capability.
pub fn all(of: Capabilities) -> [(&'static str, bool, &'static str); 5] {
    [
        ("attach", of.attach, "volumes are attached to a node before they are mounted"),
        ("selinuxRelabel", of.selinux_relabel, "the runtime may relabel the files of the volume"),
        ("supportsMetrics", of.supports_metrics, "kubelet measures the volume once a minute"),
        ("fsGroup", of.fs_group, "kubelet gives all files to the pod's fsGroup"),
        ("requiresFSResize", of.requires_fs_resize, "the volume grows when its PV does (expandfs)"),
    ]
}

/// Returns the names of the capabilities that a driver has, separated by spaces; `-` for none.
pub fn names(of: Capabilities) -> String {
    let names: Vec<_> = all(of).into_iter().filter(|(_, value, _)| *value).map(|(name, ..)| name).collect();
    if names.is_empty() { "-".to_owned() } else { names.join(" ") }
}

/// Returns the capabilities as `init` writes them.
pub fn json(of: Capabilities) -> Map<String, Value> {
    filled(all(of).into_iter().map(|(name, value, _)| (name.to_owned(), value.into())))
}

//! Trust in a process that claims to be a kubelet or a controller-manager. Pure.

use super::command_line::Program;
use flexvol_linux::proc::process_table::Identity;

/// Returns why a process that calls itself kubelet or kube-controller-manager is not trusted;
/// `None` if it is trusted.
///
/// A pod can run a process with any argv. That process cannot be root in our pid and user namespace
/// with `CAP_SYS_ADMIN` unless the node's admin allowed it, and then it needs no false name.
pub fn distrust(program: Program, identity: Identity) -> Option<String> {
    let (real, effective) = identity.users;
    if identity.is_nested {
        return Some("it runs in a pid namespace of its own, as a pod's processes do".to_owned());
    }
    if (real, effective) != (0, 0) {
        return Some(format!("it runs as user {}, not as root", if real == 0 { effective } else { real }));
    }
    if identity.is_root_of_its_own {
        return Some("it runs in a user namespace of its own, where anybody can be root".to_owned());
    }
    let must_mount = program != Program::ControllerManager;
    (must_mount && !identity.may_mount).then(|| "it cannot mount: it has no CAP_SYS_ADMIN".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_of_this_pid_namespace_that_may_mount_is_believed() {
        let node = Identity { may_mount: true, ..Identity::default() };
        let why = |identity| distrust(Program::Kubelet, identity).unwrap_or_default();
        assert_eq!(why(node), "");
        assert!(why(Identity { is_nested: true, ..node }).contains("pid namespace"));
        assert!(why(Identity { users: (0, 1000), ..node }).contains("user 1000"));
        assert!(why(Identity { users: (1000, 0), ..node }).contains("user 1000"));
        let rootless = Identity { is_root_of_its_own: true, ..node };
        assert!(why(rootless).contains("user namespace"));
        assert!(distrust(Program::ControllerManager, rootless).is_some());
        let weak = Identity { may_mount: false, ..node };
        assert!(why(weak).contains("CAP_SYS_ADMIN"));
        assert_eq!(distrust(Program::ControllerManager, weak), None);
        assert!(distrust(Program::K3s, weak).is_some());
    }
}

//! Plugin directory of each Kubernetes distribution, and the way to change it.
//!
//! Pure data. [`locate`](super::locate) uses it if there is no running kubelet to ask. `install`
//! takes the fix of an obstacle from it, and `manifest` writes a deployment for each of its rows.
//! The settings of a running kubelet override everything in this table.

/// Default directory of kubelet and of kube-controller-manager.
pub const DEFAULT_PLUGIN_DIR: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec";

/// Default of kubelet's own directory: pods and their volumes are below it.
pub const DEFAULT_KUBELET_ROOT: &str = "/var/lib/kubelet";

/// One distribution of Kubernetes, or one operating system on which Kubernetes usually runs.
#[derive(Debug, PartialEq, Eq)]
pub struct Platform {
    /// Name that `--platform` takes and `locate` prints.
    pub name: &'static str,
    /// Common name, for display.
    pub title: &'static str,
    /// Marks that identify a node of the platform: all marks of one list must be present. Empty:
    /// the platform is selected only by name.
    pub marks: &'static [&'static [Mark]],
    /// Plugin directory in the view of the node's kubelet; `None` if the platform allows no
    /// drivers.
    pub plugin_dir: Option<&'static str>,
    /// The same directory in the view of the host, if kubelet runs in a container with other paths.
    pub host_dir: Option<&'static str>,
    /// Kubelet's own directory.
    pub kubelet_root: &'static str,
    /// Obstacle on a node with default settings, and its fix.
    pub obstacle: Option<Obstacle>,
    /// Instruction for setting another directory.
    pub set: &'static str,
    /// Files in which the node keeps the setting, for when no kubelet runs; a later one overrides.
    pub kept: &'static [Kept],
    /// Additional needs of a deployment on this platform.
    pub needs: &'static [Need],
}

/// One mark of a platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// `ID` of os-release(5).
    Id(&'static str),
    /// `VARIANT_ID` of os-release(5).
    Variant(&'static str),
    /// File or directory that exists.
    Path(&'static str),
}

/// Reason why drivers cannot be put into the directory of a node with default settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Kind of the obstacle.
    pub kind: ObstacleKind,
    /// Fix, as an instruction.
    pub fix: &'static str,
}

/// Kinds of obstacles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObstacleKind {
    /// Its file system is mounted noexec.
    NoExec,
    /// Its file system is read-only.
    ReadOnly,
    /// By default, kubelet does not see the host's directory.
    Unseen,
    /// The platform does not support FlexVolume at all.
    Unsupported,
}

/// Place where a node stores its setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// A `KubeletConfiguration`.
    Configuration(&'static str),
    /// A file, or a directory of `*.conf`, that contains kubelet's flags among other text: a unit
    /// or environment file of systemd.
    Flags(&'static str),
    /// The directory of a `config.yaml` in k3s's format, with `config.yaml.d` beside it.
    Rancher(&'static str),
    /// A file with one flag of kubelet per line, and snap's variables.
    Arguments(&'static str),
    /// A configuration that contains kubelet's configuration in the named members.
    Within(&'static str, &'static [&'static str]),
}

/// Special requirements of a platform for its manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// `SecurityContextConstraints` that allow host directories, and a role that may use them.
    SecurityContextConstraints,
    /// A container that may write to host files in spite of their SELinux labels: type `spc_t`.
    SELinuxType,
    /// A container that remounts the directory with `exec` before kubelet uses it.
    RemountExec,
}

/// Returns every known platform, the most specific first: a node can be a k3s on Flatcar.
pub fn all() -> &'static [Platform] {
    PLATFORMS
}

/// Other common names of platforms, each with its name in this table.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("eks", "default"),
    ("gke", "cos"),
    ("kind", "default"),
    ("kops", "default"),
    ("kubeadm", "default"),
    ("minikube", "default"),
    ("okd", "openshift"),
];

/// Returns the platform with this name, for `--platform`.
pub fn find(name: &str) -> Option<&'static Platform> {
    let other = OTHER_NAMES.iter().find(|(called, _)| *called == name);
    let name = other.map_or(name, |(_, name)| name);
    PLATFORMS.iter().find(|platform| platform.name == name)
}

/// Returns the other names of a platform.
pub fn other_names(platform: &Platform) -> impl Iterator<Item = &'static str> {
    OTHER_NAMES.iter().filter(|(_, name)| *name == platform.name).map(|(called, _)| *called)
}

/// Returns the platform that a node's marks identify, and those marks.
pub fn recognise(holds: impl Fn(Mark) -> bool) -> Option<(&'static Platform, &'static [Mark])> {
    PLATFORMS.iter().find_map(|platform| {
        let all_hold = |marks: &&&[Mark]| marks.iter().all(|mark| holds(*mark));
        platform.marks.iter().find(all_hold).map(|marks| (platform, *marks))
    })
}

impl Platform {
    /// Returns the plugin directory in the view of the host.
    pub fn directory(&self) -> Option<&'static str> {
        self.host_dir.or(self.plugin_dir)
    }
}

/// Files that kubeadm, and tools based on it, leave on a node.
const USUAL: &[Kept] = &[
    Kept::Configuration("/var/lib/kubelet/config.yaml"),
    Kept::Flags("/etc/systemd/system/kubelet.service"),
    Kept::Flags("/etc/systemd/system/kubelet.service.d"),
    Kept::Flags("/var/lib/kubelet/kubeadm-flags.env"),
    Kept::Flags("/etc/default/kubelet"),
    Kept::Flags("/etc/sysconfig/kubelet"),
];

/// Usual directory on platforms without a writable /usr.
const BELOW_VAR: &str = "/var/lib/kubelet/volumeplugins";

/// Instruction for platforms without a special procedure.
const SET_USUAL: &str = "set volumePluginDir in /var/lib/kubelet/config.yaml and restart kubelet";

/// Defaults for a row.
const PLAIN: Platform = Platform {
    name: "default",
    title: "any other Kubernetes: kubeadm, EKS, kind, minikube, kubespray since 2.11, kops, SUSE CaaSP 4",
    marks: &[],
    plugin_dir: Some(DEFAULT_PLUGIN_DIR),
    host_dir: None,
    kubelet_root: DEFAULT_KUBELET_ROOT,
    obstacle: None,
    set: SET_USUAL,
    kept: USUAL,
    needs: &[],
};

const PLATFORMS: &[Platform] = &[
    Platform {
        name: "talos",
        title: "Talos Linux",
        marks: &[&[Mark::Id("talos")]],
        plugin_dir: None,
        obstacle: Some(Obstacle {
            kind: ObstacleKind::Unsupported,
            fix: "Talos has a read-only /usr and no host programs: use a CSI driver there",
        }),
        set: "set machine.kubelet.extraArgs.volume-plugin-dir and a matching extraMounts in the machine \
              configuration (not supported by Talos)",
        ..PLAIN
    },
    Platform {
        name: "microk8s",
        title: "MicroK8s",
        marks: &[&[Mark::Path("/var/snap/microk8s/current")]],
        kubelet_root: "/var/snap/microk8s/common/var/lib/kubelet",
        set: "add --volume-plugin-dir=DIR to /var/snap/microk8s/current/args/kubelet and run snap restart \
              microk8s",
        kept: &[Kept::Arguments("/var/snap/microk8s/current/args/kubelet")],
        ..PLAIN
    },
    Platform {
        name: "microshift",
        title: "MicroShift",
        marks: &[&[Mark::Path("/etc/microshift")], &[Mark::Path("/var/lib/microshift")]],
        plugin_dir: Some("/var/lib/microshift/kubelet-plugins/volume/exec"),
        set: "set kubelet.volumePluginDir in /etc/microshift/config.yaml and restart microshift",
        kept: &[
            Kept::Configuration("/var/lib/microshift/resources/kubelet/config/config.yaml"),
            Kept::Within("/etc/microshift/config.yaml", &["kubelet"]),
        ],
        needs: &[Need::SecurityContextConstraints, Need::SELinuxType],
        ..PLAIN
    },
    Platform {
        name: "rke2",
        title: "RKE2",
        marks: &[&[Mark::Path("/etc/rancher/rke2")], &[Mark::Path("/var/lib/rancher/rke2")]],
        plugin_dir: Some(BELOW_VAR),
        set: "set kubelet-arg: [volume-plugin-dir=DIR] in /etc/rancher/rke2/config.yaml and restart \
              rke2-server or rke2-agent",
        kept: &[Kept::Rancher("/etc/rancher/rke2")],
        ..PLAIN
    },
    Platform {
        name: "k3s",
        title: "k3s",
        marks: &[&[Mark::Path("/etc/rancher/k3s")], &[Mark::Path("/var/lib/rancher/k3s")]],
        obstacle: Some(Obstacle {
            kind: ObstacleKind::ReadOnly,
            fix: "on a read-only /usr set kubelet-arg: [volume-plugin-dir=/var/lib/kubelet/volumeplugins] in \
                   /etc/rancher/k3s/config.yaml and restart k3s",
        }),
        set: "set kubelet-arg: [volume-plugin-dir=DIR] and kube-controller-manager-arg: \
              [flex-volume-plugin-dir=DIR] in /etc/rancher/k3s/config.yaml and restart k3s",
        kept: &[Kept::Rancher("/etc/rancher/k3s")],
        ..PLAIN
    },
    Platform {
        name: "k0s",
        title: "k0s",
        marks: &[&[Mark::Path("/etc/k0s")], &[Mark::Path("/var/lib/k0s")]],
        plugin_dir: Some("/usr/libexec/k0s/kubelet-plugins/volume/exec"),
        kubelet_root: "/var/lib/k0s/kubelet",
        set: "set volumePluginDir in a worker profile (spec.workerProfiles of the k0s configuration), or run \
              k0s worker --kubelet-extra-args=--volume-plugin-dir=DIR",
        kept: &[Kept::Configuration("/var/lib/k0s/kubelet-config.yaml")],
        ..PLAIN
    },
    Platform {
        name: "kubeedge",
        title: "KubeEdge",
        marks: &[&[Mark::Path("/etc/kubeedge")]],
        set: "set modules.edged.tailoredKubeletConfig.volumePluginDir in /etc/kubeedge/config/edgecore.yaml \
              and restart edgecore",
        kept: &[
            Kept::Within("/etc/kubeedge/config/edgecore.yaml", &["modules", "edged"]),
            Kept::Within(
                "/etc/kubeedge/config/edgecore.yaml",
                &["modules", "edged", "tailoredKubeletConfig"],
            ),
        ],
        ..PLAIN
    },
    Platform {
        name: "rke-prefix",
        title: "RKE1, Rancher 2 on RancherOS or CoreOS",
        marks: &[&[Mark::Path("/opt/rke/var/lib/kubelet")], &[Mark::Id("rancheros"), Mark::Path("/opt/rke")]],
        plugin_dir: Some(BELOW_VAR),
        host_dir: Some("/opt/rke/var/lib/kubelet/volumeplugins"),
        kubelet_root: "/opt/rke/var/lib/kubelet",
        obstacle: Some(RKE_UNSEEN),
        set: SET_RKE,
        kept: &[],
        ..PLAIN
    },
    Platform {
        name: "rke",
        title: "RKE1, Rancher 2",
        marks: &[&[Mark::Path("/opt/rke")]],
        plugin_dir: Some(BELOW_VAR),
        obstacle: Some(RKE_UNSEEN),
        set: SET_RKE,
        kept: &[],
        ..PLAIN
    },
    Platform {
        name: "openshift3-atomic",
        title: "OpenShift 3.10 and later on Atomic Host",
        marks: &[&[Mark::Path("/etc/origin/node"), Mark::Path("/run/ostree-booted")]],
        plugin_dir: Some("/etc/origin/kubelet-plugins/volume/exec"),
        set: SET_ORIGIN,
        kept: &[Kept::Within("/etc/origin/node/node-config.yaml", &["kubeletArguments"])],
        needs: &[Need::SecurityContextConstraints, Need::SELinuxType],
        ..PLAIN
    },
    Platform {
        name: "openshift3",
        title: "OpenShift 3",
        marks: &[&[Mark::Path("/etc/origin/node")]],
        set: SET_ORIGIN,
        kept: &[Kept::Within("/etc/origin/node/node-config.yaml", &["kubeletArguments"])],
        needs: &[Need::SecurityContextConstraints, Need::SELinuxType],
        ..PLAIN
    },
    Platform {
        name: "openshift",
        title: "OpenShift 4 and later",
        marks: &[&[Mark::Id("rhcos")], &[Mark::Id("scos")], &[Mark::Path("/etc/machine-config-daemon")]],
        plugin_dir: Some("/etc/kubernetes/kubelet-plugins/volume/exec"),
        set: "leave it: the Machine Config Operator owns kubelet's flags, and reverts an edit",
        kept: &[
            Kept::Configuration("/etc/kubernetes/kubelet.conf"),
            Kept::Flags("/etc/systemd/system/kubelet.service"),
            Kept::Flags("/etc/systemd/system/kubelet.service.d"),
        ],
        needs: &[Need::SecurityContextConstraints, Need::SELinuxType],
        ..PLAIN
    },
    Platform {
        name: "aks",
        title: "AKS, acs-engine",
        marks: &[&[Mark::Path("/etc/kubernetes/azure.json")]],
        plugin_dir: Some("/etc/kubernetes/volumeplugins"),
        set: "leave it: AKS sets kubelet's flags in /etc/default/kubelet when it makes the node",
        ..PLAIN
    },
    Platform {
        name: "gardener",
        title: "Gardener",
        marks: &[
            &[Mark::Path("/var/lib/gardener-node-agent")],
            &[Mark::Path("/var/lib/cloud-config-downloader")],
            &[Mark::Id("gardenlinux")],
        ],
        plugin_dir: Some(BELOW_VAR),
        set: "leave it: Gardener writes kubelet's configuration, and reverts an edit",
        kept: &[Kept::Configuration("/var/lib/kubelet/config/kubelet")],
        ..PLAIN
    },
    Platform {
        name: "magnum",
        title: "OpenStack Magnum",
        marks: &[&[Mark::Path("/etc/sysconfig/heat-params")]],
        plugin_dir: Some(BELOW_VAR),
        set: "set the label kubelet_options=--volume-plugin-dir=DIR on the cluster template",
        ..PLAIN
    },
    Platform {
        name: "cos",
        title: "GKE, Container-Optimized OS",
        marks: &[&[Mark::Id("cos")]],
        plugin_dir: Some("/home/kubernetes/flexvolume"),
        obstacle: Some(Obstacle {
            kind: ObstacleKind::NoExec,
            fix: "mount --bind /home/kubernetes/flexvolume /home/kubernetes/flexvolume && mount -o \
                   remount,exec /home/kubernetes/flexvolume",
        }),
        set: "leave it: GKE sets kubelet's flags in /etc/default/kubelet when it makes the node",
        kept: &[
            Kept::Configuration("/home/kubernetes/kubelet-config.yaml"),
            Kept::Flags("/etc/default/kubelet"),
        ],
        needs: &[Need::RemountExec],
        ..PLAIN
    },
    Platform {
        name: "bottlerocket",
        title: "Bottlerocket",
        marks: &[&[Mark::Id("bottlerocket")]],
        plugin_dir: Some("/var/lib/kubelet/plugins/volume/exec"),
        set: "leave it: Bottlerocket has no setting for it",
        kept: &[Kept::Configuration("/etc/kubernetes/kubelet/config")],
        needs: &[Need::SELinuxType],
        ..PLAIN
    },
    Platform {
        name: "flatcar",
        title: "Flatcar, Fedora CoreOS, Container Linux (Typhoon, Tectonic)",
        marks: &[
            &[Mark::Id("flatcar")],
            &[Mark::Id("coreos")],
            &[Mark::Id("fedora"), Mark::Variant("coreos")],
        ],
        plugin_dir: Some(BELOW_VAR),
        obstacle: Some(Obstacle {
            kind: ObstacleKind::ReadOnly,
            fix: "start kubelet with --volume-plugin-dir=/var/lib/kubelet/volumeplugins: its default is on the \
                   read-only /usr, where it gives FlexVolume up until it is restarted",
        }),
        set: SET_USUAL,
        ..PLAIN
    },
    Platform { marks: &[&[Mark::Path("/var/lib/kubelet")], &[Mark::Path("/etc/kubernetes")]], ..PLAIN },
];

/// Kubelet runs in a container there and sees only the host paths that `extra_binds` names.
const RKE_UNSEEN: Obstacle = Obstacle {
    kind: ObstacleKind::Unseen,
    fix: "set services.kubelet.extra_args.volume-plugin-dir: /var/lib/kubelet/volumeplugins in cluster.yml: \
           kubelet's container sees nothing below /usr/libexec of the host",
};

const SET_RKE: &str = "set services.kubelet.extra_args.volume-plugin-dir and services.kubelet.extra_binds: \
                       [DIR:DIR] in cluster.yml and run rke up";

const SET_ORIGIN: &str = "set kubeletArguments.volume-plugin-dir: [DIR] in /etc/origin/node/node-config.yaml (3.10 and later: in \
     the node group's ConfigMap) and restart the node service";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_can_be_named_and_read() {
        let mut names: Vec<_> = all().iter().map(|platform| platform.name).collect();
        names.extend(OTHER_NAMES.iter().map(|(called, _)| *called));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().len() + OTHER_NAMES.len());
        assert_eq!(find("gke").map(|platform| platform.name), Some("cos"));
        assert_eq!(all().iter().flat_map(other_names).count(), OTHER_NAMES.len());
        for platform in all() {
            assert_eq!(find(platform.name), Some(platform));
            let paths = [platform.plugin_dir, platform.host_dir, Some(platform.kubelet_root)];
            assert!(paths.iter().flatten().all(|path| path.starts_with('/') && !path.ends_with('/')));
            let texts = [Some(platform.set), platform.obstacle.map(|obstacle| obstacle.fix)];
            for text in texts.into_iter().flatten() {
                assert!(!text.contains('\n') && !text.contains("  ") && !text.ends_with('.'), "{text}");
            }
            assert_eq!(
                platform.plugin_dir.is_none(),
                platform.obstacle.is_some_and(|obstacle| obstacle.kind == ObstacleKind::Unsupported)
            );
        }
    }

    #[test]
    fn the_directories_are_those_of_the_platforms() {
        let directory = |name: &str| find(name).and_then(Platform::directory);
        for (name, path) in [
            ("default", Some("/usr/libexec/kubernetes/kubelet-plugins/volume/exec")),
            ("k3s", Some("/usr/libexec/kubernetes/kubelet-plugins/volume/exec")),
            ("microk8s", Some("/usr/libexec/kubernetes/kubelet-plugins/volume/exec")),
            ("kubeedge", Some("/usr/libexec/kubernetes/kubelet-plugins/volume/exec")),
            ("openshift3", Some("/usr/libexec/kubernetes/kubelet-plugins/volume/exec")),
            ("openshift3-atomic", Some("/etc/origin/kubelet-plugins/volume/exec")),
            ("openshift", Some("/etc/kubernetes/kubelet-plugins/volume/exec")),
            ("microshift", Some("/var/lib/microshift/kubelet-plugins/volume/exec")),
            ("cos", Some("/home/kubernetes/flexvolume")),
            ("aks", Some("/etc/kubernetes/volumeplugins")),
            ("rke", Some("/var/lib/kubelet/volumeplugins")),
            ("rke-prefix", Some("/opt/rke/var/lib/kubelet/volumeplugins")),
            ("rke2", Some("/var/lib/kubelet/volumeplugins")),
            ("k0s", Some("/usr/libexec/k0s/kubelet-plugins/volume/exec")),
            ("flatcar", Some("/var/lib/kubelet/volumeplugins")),
            ("magnum", Some("/var/lib/kubelet/volumeplugins")),
            ("gardener", Some("/var/lib/kubelet/volumeplugins")),
            ("bottlerocket", Some("/var/lib/kubelet/plugins/volume/exec")),
            ("talos", None),
        ] {
            assert_eq!(directory(name), path, "{name}");
        }
        assert_eq!(all().len(), 19);
    }

    #[test]
    fn a_node_is_told_by_its_marks_the_most_particular_first() {
        let name = |held: &[Mark]| recognise(|mark| held.contains(&mark)).map(|(platform, _)| platform.name);
        assert_eq!(name(&[Mark::Id("bottlerocket")]), Some("bottlerocket"));
        assert_eq!(name(&[Mark::Id("flatcar"), Mark::Path("/etc/rancher/k3s")]), Some("k3s"));
        assert_eq!(name(&[Mark::Id("fedora")]), None);
        assert_eq!(name(&[Mark::Id("fedora"), Mark::Variant("coreos")]), Some("flatcar"));
        assert_eq!(name(&[Mark::Path("/etc/origin/node")]), Some("openshift3"));
        assert_eq!(name(&[Mark::Path("/var/lib/kubelet"), Mark::Path("/opt/rke")]), Some("rke"));
        assert_eq!(name(&[Mark::Path("/var/lib/kubelet")]), Some("default"));
        assert_eq!(name(&[Mark::Path("/var/lib/kubelet"), Mark::Id("talos")]), Some("talos"));
        assert_eq!(name(&[]), None);
    }
}

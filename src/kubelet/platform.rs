//! Where each distribution of Kubernetes keeps the plugin directory, and how it is changed there.
//!
//! Data and nothing else. [`locate`](super::locate) asks it when no kubelet runs that could be
//! asked, `install` takes the fix of an obstacle from it, and `manifest` writes a deployment for
//! each of its rows. What a running kubelet says beats everything that is written here.

/// The directory of a kubelet that was told nothing, and of kube-controller-manager.
pub const DEFAULT_PLUGIN_DIR: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec";

/// kubelet's own directory, if it was told nothing: pods and their volumes are below it.
pub const DEFAULT_KUBELET_ROOT: &str = "/var/lib/kubelet";

/// One distribution of Kubernetes, or one operating system that Kubernetes is usually put on.
#[derive(Debug, PartialEq, Eq)]
pub struct Platform {
    /// What `--platform` takes and `locate` prints.
    pub name: &'static str,
    /// What people call it.
    pub title: &'static str,
    /// How a node of it is told: one of these lists must hold whole. None: only by name.
    pub marks: &'static [&'static [Mark]],
    /// The directory as the node's kubelet sees it; `None` where there can be no drivers.
    pub plugin_dir: Option<&'static str>,
    /// The same directory as the host sees it, where kubelet runs in a container that sees others.
    pub host_dir: Option<&'static str>,
    /// kubelet's own directory.
    pub kubelet_root: &'static str,
    /// What is in the way on a node as it comes, and what to do about it.
    pub obstacle: Option<Obstacle>,
    /// How another directory is set there, as an instruction.
    pub set: &'static str,
    /// Where the node keeps it, for when no kubelet runs; a later one counts more.
    pub kept: &'static [Kept],
    /// What a deployment needs there beyond the usual.
    pub needs: &'static [Need],
}

/// One sign of a platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// `ID` of os-release(5).
    Id(&'static str),
    /// `VARIANT_ID` of os-release(5).
    Variant(&'static str),
    /// A file or directory is there.
    Path(&'static str),
}

/// Why drivers cannot be put into the directory of a node as it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Which one.
    pub kind: ObstacleKind,
    /// What to do, as an instruction.
    pub fix: &'static str,
}

/// What can be in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObstacleKind {
    /// Nothing can be executed on its file system.
    NoExec,
    /// Nothing can be written to its file system.
    ReadOnly,
    /// kubelet does not see the host's directory unless it is told to.
    Unseen,
    /// The platform has no FlexVolume at all.
    Unsupported,
}

/// Where a node's setting is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// A `KubeletConfiguration`.
    Configuration(&'static str),
    /// A file, or a directory of `*.conf`, in which kubelet's flags stand among other text: a unit
    /// or environment file of systemd.
    Flags(&'static str),
    /// The directory of a `config.yaml` of k3s's kind, with `config.yaml.d` beside it.
    Rancher(&'static str),
    /// A file with one flag of kubelet's a line, and variables of snap's.
    Arguments(&'static str),
    /// A configuration that has kubelet's in the members named.
    Within(&'static str, &'static [&'static str]),
}

/// What the manifest for a platform has to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// `SecurityContextConstraints` that allow host directories, and a role to use them.
    SecurityContextConstraints,
    /// A container that may write where SELinux labels the host's files: type `spc_t`.
    SELinuxType,
    /// A container that remounts the directory with `exec` before kubelet uses it.
    RemountExec,
}

/// Every platform known, the most particular first: a node can be a k3s on Flatcar.
pub fn all() -> &'static [Platform] {
    PLATFORMS
}

/// What people call a platform, and what it is here.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("eks", "default"),
    ("gke", "cos"),
    ("kind", "default"),
    ("kops", "default"),
    ("kubeadm", "default"),
    ("minikube", "default"),
    ("okd", "openshift"),
];

/// The platform of that name, for `--platform`.
pub fn find(name: &str) -> Option<&'static Platform> {
    let other = OTHER_NAMES.iter().find(|(called, _)| *called == name);
    let name = other.map_or(name, |(_, name)| name);
    PLATFORMS.iter().find(|platform| platform.name == name)
}

/// What else a platform is called.
pub fn other_names(platform: &Platform) -> impl Iterator<Item = &'static str> {
    OTHER_NAMES.iter().filter(|(_, name)| *name == platform.name).map(|(called, _)| *called)
}

/// The platform that a node's marks speak of, and those marks.
pub fn recognise(holds: impl Fn(Mark) -> bool) -> Option<(&'static Platform, &'static [Mark])> {
    PLATFORMS.iter().find_map(|platform| {
        let all_hold = |marks: &&&[Mark]| marks.iter().all(|mark| holds(*mark));
        platform.marks.iter().find(all_hold).map(|marks| (platform, *marks))
    })
}

impl Platform {
    /// The plugin directory as the host sees it.
    pub fn directory(&self) -> Option<&'static str> {
        self.host_dir.or(self.plugin_dir)
    }
}

/// What kubeadm, and whoever builds on it, leaves on a node.
const USUAL: &[Kept] = &[
    Kept::Configuration("/var/lib/kubelet/config.yaml"),
    Kept::Flags("/etc/systemd/system/kubelet.service"),
    Kept::Flags("/etc/systemd/system/kubelet.service.d"),
    Kept::Flags("/var/lib/kubelet/kubeadm-flags.env"),
    Kept::Flags("/etc/default/kubelet"),
    Kept::Flags("/etc/sysconfig/kubelet"),
];

/// Where most put it that have no writable /usr.
const BELOW_VAR: &str = "/var/lib/kubelet/volumeplugins";

/// How it is changed where there is nothing particular about it.
const SET_USUAL: &str = "set volumePluginDir in /var/lib/kubelet/config.yaml and restart kubelet";

/// What a row has unless it says otherwise.
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

/// kubelet is a container there, and sees of the host what `extra_binds` names.
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

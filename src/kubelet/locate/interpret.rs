//! Plugin directories according to each kind of program. Pure: a [`Files`] supplies the files.

use super::command_line::{Flag, Program, flags, last};
use super::configuration::{
    Files, MANIFESTS, Told, arguments, attaches, flex_volume_plugin_dir, k3s, kept, manifest, plugin_dir,
    root_dir,
};
use crate::platform::{self, Platform};
use flexvol_protocol::failure::Result;
use std::path::{Path, PathBuf};

/// Settings of a program that contains kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubelet {
    /// Plugin directory.
    pub plugin_dir: Told,
    /// Kubelet's own directory.
    pub root_dir: PathBuf,
    /// True if it calls `attach` and `detach` itself; false also if that cannot be read.
    pub attaches: bool,
}

/// Returns the settings of a running program that contains kubelet, from the words after its name.
pub fn kubelet(program: Program, words: &[String], cwd: &Path, files: &dyn Files) -> Result<Kubelet> {
    let flags = kubelet_flags(program, words, cwd, files)?;
    let mut told = plugin_dir(&flags, cwd, files)?;
    let platform = program.platform().and_then(platform::find);
    if let Some(platform) = platform.filter(|_| told.is_default) {
        told.directory = platform.plugin_dir.unwrap_or(platform::DEFAULT_PLUGIN_DIR).into();
        told.by = format!("the default of {}, nothing else being set", platform.title);
    }
    let has_flag = last(&flags, "root-dir").is_some();
    let root_dir = match platform {
        Some(platform) if !has_flag => platform.kubelet_root.into(),
        _ => root_dir(&flags, cwd),
    };
    let attaches = attaches(&flags, cwd, files).unwrap_or_default();
    Ok(Kubelet { plugin_dir: told, root_dir, attaches })
}

fn kubelet_flags(program: Program, words: &[String], cwd: &Path, files: &dyn Files) -> Result<Vec<Flag>> {
    let own = flags(words, "command line");
    match program {
        Program::Kubelet | Program::ControllerManager => Ok(own),
        Program::K3s => k3s(words, "kubelet-arg", files),
        Program::Kubelite => match last(&own, "kubelet-args-file") {
            Some(file) => arguments(&cwd.join(&file.value), files),
            None => kept_by(program, files),
        },
        Program::MicroShift | Program::EdgeCore | Program::Origin => kept_by(program, files),
    }
}

fn kept_by(program: Program, files: &dyn Files) -> Result<Vec<Flag>> {
    let platform = program.platform().and_then(platform::find);
    platform.map_or(Ok(Vec::new()), |platform| kept(platform.kept, files))
}

/// Returns the directory of a running program that contains kube-controller-manager; `None` if none
/// is set, or if the program does not contain it.
pub fn manager(program: Program, words: &[String], cwd: &Path, files: &dyn Files) -> Result<Option<Told>> {
    let own = flags(words, "command line");
    let flags = match program {
        Program::ControllerManager => own,
        Program::K3s => k3s(words, "kube-controller-manager-arg", files)?,
        Program::Kubelite => match last(&own, "controller-manager-args-file") {
            Some(file) => arguments(&cwd.join(&file.value), files)?,
            None => Vec::new(),
        },
        _ => Vec::new(),
    };
    Ok(flex_volume_plugin_dir(&flags, cwd))
}

/// Returns the controller-manager's directory from the static pods of a node.
pub fn manifests(files: &dyn Files) -> Result<Option<Told>> {
    for path in MANIFESTS {
        if let Some(told) = flex_volume_plugin_dir(&manifest(path, files)?, Path::new("/")) {
            return Ok(Some(told));
        }
    }
    Ok(None)
}

/// Returns the directory that a platform's files give to a kubelet that starts; `None` if they set
/// none.
pub fn configured(platform: &Platform, files: &dyn Files) -> Result<Option<Told>> {
    let told = plugin_dir(&kept(platform.kept, files)?, Path::new("/"), files)?;
    Ok(Some(told).filter(|told| !told.is_default))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_protocol::failure::{Code, Failure};
    use std::collections::BTreeMap;

    /// Files by path; a path that starts other paths is a directory.
    struct Table(BTreeMap<PathBuf, String>);

    impl Files for Table {
        fn read(&self, path: &Path) -> Result<Option<String>, Failure> {
            match self.0.get(path).map(String::as_str) {
                Some("DENIED") => Err(Failure::new(Code::Denied, "Permission denied (os error 13)")),
                text => Ok(text.map(str::to_owned)),
            }
        }

        fn list(&self, directory: &Path) -> Result<Vec<(String, bool)>, Failure> {
            let below = self.0.keys().filter_map(|path| path.strip_prefix(directory).ok());
            let names = below.filter_map(|below| {
                let mut names = below.iter();
                Some((names.next()?.to_str()?.to_owned(), names.next().is_some()))
            });
            Ok(names.collect::<std::collections::BTreeSet<_>>().into_iter().collect())
        }
    }

    fn files(list: &[(&str, &str)]) -> Table {
        Table(list.iter().map(|(path, text)| (path.into(), (*text).to_owned())).collect())
    }

    fn words(line: &str) -> Vec<String> {
        line.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    const DEFAULT: &str = platform::DEFAULT_PLUGIN_DIR;

    fn of(program: Program, line: &str, list: &[(&str, &str)]) -> (String, String) {
        let told = kubelet(program, &words(line), Path::new("/cwd"), &files(list)).unwrap().plugin_dir;
        (told.directory.to_str().unwrap().to_owned(), told.by)
    }

    #[test]
    fn the_flag_beats_the_drop_ins_and_they_beat_the_file() {
        let list = [
            ("/etc/k.yaml", "kind: KubeletConfiguration\nvolumePluginDir: /file\n"),
            ("/etc/k.d/10.conf", "volumePluginDir: /ten"),
            ("/etc/k.d/20.conf", "{\"volumePluginDir\": \"/twenty\"}"),
            ("/etc/k.d/30.conf", "maxPods: 5"),
            ("/etc/k.d/40.yaml", "volumePluginDir: /no"),
            ("/etc/k.d/50.d/1.conf", "volumePluginDir: /below"),
        ];
        let kubelet = |line: &str, list: &[(&str, &str)]| of(Program::Kubelet, line, list);
        let file = "--config=/etc/k.yaml";
        let told = kubelet(&format!("{file} --config-dir /etc/k.d --volume-plugin-dir=/flag"), &list);
        assert_eq!(told, ("/flag".into(), "command line: --volume-plugin-dir".into()));
        let told = kubelet(&format!("{file} --config-dir /etc/k.d"), &list);
        assert_eq!(told, ("/below".into(), "/etc/k.d/50.d/1.conf: volumePluginDir".into()));
        let told = kubelet(&format!("{file} --config-dir /etc/k.d"), &list[..5]);
        assert_eq!(told, ("/twenty".into(), "/etc/k.d/20.conf: volumePluginDir".into()));
        let told = kubelet(file, &list);
        assert_eq!(told, ("/file".into(), "/etc/k.yaml: volumePluginDir".into()));
        assert_eq!(kubelet("", &list).0, DEFAULT);
    }

    #[test]
    fn who_attaches_is_told_by_the_flag_the_drop_ins_or_the_file() {
        let off = "enableControllerAttachDetach: false";
        let on = "enableControllerAttachDetach: true";
        let list = [
            ("/off", off),
            ("/on", on),
            ("/null", "enableControllerAttachDetach: null"),
            ("/d/1.conf", off),
            ("/d/2.conf", "maxPods: 5"),
            ("/e/1.conf", off),
            ("/e/2.conf", on),
            ("/broken", "a: ["),
        ];
        let of = |program, line: &str, list: &[(&str, &str)]| {
            kubelet(program, &words(line), Path::new("/"), &files(list)).unwrap().attaches
        };
        for (line, attaches) in [
            ("", false),
            ("--enable-controller-attach-detach", false),
            ("--enable-controller-attach-detach=true", false),
            ("--enable-controller-attach-detach=false", true),
            ("--enable_controller_attach_detach=F --v=2", true),
            ("--config=/off", true),
            ("--config=/off --enable-controller-attach-detach=true", false),
            ("--config=/on --enable-controller-attach-detach=0", true),
            ("--config=/null", false),
            ("--config=/on --config-dir=/d", true),
            ("--config=/off --config-dir=/e", false),
            ("--volume-plugin-dir=/a --config=/broken", false),
            ("--volume-plugin-dir=/a --config=/none", false),
        ] {
            assert_eq!(of(Program::Kubelet, line, &list), attaches, "{line}");
        }
        let handed = "--kubelet-arg=enable-controller-attach-detach=false";
        assert!(of(Program::K3s, handed, &[]) && !of(Program::K3s, "", &[]));
        let origin = "kubeletArguments: {enable-controller-attach-detach: ['false']}";
        assert!(of(Program::Origin, "", &[("/etc/origin/node/node-config.yaml", origin)]));
        let edge = "modules: {edged: {tailoredKubeletConfig: {enableControllerAttachDetach: false}}}";
        assert!(of(Program::EdgeCore, "", &[("/etc/kubeedge/config/edgecore.yaml", edge)]));
    }

    #[test]
    fn relative_paths_are_those_of_kubelet() {
        let list =
            [("/cwd/etc/k", "volumePluginDir: plugins"), ("/cwd/d/1.conf", "volumePluginDir: plugins")];
        let kubelet = |line: &str| of(Program::Kubelet, line, &list).0;
        assert_eq!(kubelet("--volume-plugin-dir=plugins"), "/cwd/plugins");
        assert_eq!(kubelet("--config=etc/k"), "/cwd/etc/plugins");
        assert_eq!(kubelet("--config-dir=d"), "/cwd/plugins");
    }

    #[test]
    fn an_empty_setting_is_none() {
        let list = [("/k", "volumePluginDir: ''"), ("/e", ""), ("/d/1.conf", "volumePluginDir: ''")];
        let kubelet = |line: &str| of(Program::Kubelet, line, &list).0;
        for line in ["--config=/k", "--config=/e", "--volume-plugin-dir=", "--config=/e --config-dir=/d"] {
            assert_eq!(kubelet(line), DEFAULT, "{line}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_not_guessed() {
        let list = [("/denied", "DENIED"), ("/broken", "a: [")];
        let code = |line: &str| {
            let error = kubelet(Program::Kubelet, &words(line), Path::new("/"), &files(&list)).unwrap_err();
            (error.code(), error.message())
        };
        assert_eq!(code("--config=/denied").0, Code::Denied);
        let (missing, message) = code("--config=/none");
        assert_eq!(missing, Code::NotFound);
        assert!(message.contains("--plugin-dir"), "{message}");
        assert!(code("--config=/broken").1.contains("/broken"));
        let flag = "--config=/none --volume-plugin-dir=/a";
        assert_eq!(of(Program::Kubelet, flag, &list).0, "/a", "no file is needed then");
    }

    #[test]
    fn k3s_hands_on_what_its_configuration_and_command_line_say() {
        let path = "/etc/rancher/k3s/config.yaml";
        let k3s = |line: &str, list: &[(&str, &str)]| of(Program::K3s, line, list);
        assert_eq!(k3s("", &[]), (DEFAULT.into(), "the default of k3s, nothing else being set".into()));
        let told = ("/a".to_owned(), format!("{path}: kubelet-arg: --volume-plugin-dir"));
        assert_eq!(k3s("", &[(path, "kubelet-arg:\n- max-pods=9\n- volume-plugin-dir=/a\n")]), told);
        assert_eq!(k3s("", &[(path, "kubelet-arg: volume-plugin-dir=/a")]), told);
        assert_eq!(k3s("", &[(path, "kubelet-arg: --volume-plugin-dir=/a")]), told);
        let line = "--kubelet-arg=volume-plugin-dir=/b";
        assert_eq!(k3s(line, &[(path, "kubelet-arg: volume-plugin-dir=/a")]).0, "/b");
        let (first, second) =
            ("/etc/rancher/k3s/config.yaml.d/1.yaml", "/etc/rancher/k3s/config.yaml.d/2.yml");
        let base = (path, "kubelet-arg: volume-plugin-dir=/a");
        assert_eq!(k3s("", &[base, (first, "kubelet-arg: volume-plugin-dir=/b")]).0, "/b");
        assert_eq!(k3s("", &[base, (first, "kubelet-arg: max-pods=1")]).0, DEFAULT, "replaced");
        assert_eq!(k3s("", &[base, (first, "kubelet-arg+: max-pods=1")]).0, "/a", "added");
        let more = (second, "kubelet-arg+: [volume-plugin-dir=/c]");
        assert_eq!(k3s("", &[base, (first, "kubelet-arg+: volume-plugin-dir=/b"), more]).0, "/c");
    }

    #[test]
    fn k3s_has_drop_ins_below_its_data_directory() {
        let conf = "volumePluginDir: /conf";
        let usual = ("/var/lib/rancher/k3s/agent/etc/kubelet.conf.d/9.conf", conf);
        let own = ("/srv/agent/etc/kubelet.conf.d/9.conf", conf);
        let data = ("/etc/rancher/k3s/config.yaml", "data-dir: /srv");
        let k3s = |line: &str, list: &[(&str, &str)]| of(Program::K3s, line, list).0;
        assert_eq!(k3s("", &[usual]), "/conf");
        assert_eq!(k3s("", &[usual, data]), DEFAULT);
        assert_eq!(k3s("", &[own, data]), "/conf");
        assert_eq!(k3s("--data-dir /srv", &[own]), "/conf");
    }

    #[test]
    fn kubelite_reads_files_with_variables() {
        let path = "/var/snap/microk8s/7/args/kubelet";
        let line = format!("--kubelet-args-file={path} --controller-manager-args-file=/c");
        let text =
            "# x\n--root-dir=${SNAP_COMMON}/var/lib/kubelet\n--volume-plugin-dir=\"${SNAP_DATA}/plugins\"\n";
        let list = [(path, text), ("/c", "--flex-volume-plugin-dir=/cm")];
        let said = kubelet(Program::Kubelite, &words(&line), Path::new("/"), &files(&list)).unwrap();
        assert_eq!(said.plugin_dir.directory, Path::new("/var/snap/microk8s/7/plugins"));
        assert_eq!(said.plugin_dir.by, format!("{path}: --volume-plugin-dir"));
        assert_eq!(said.root_dir, Path::new("/var/snap/microk8s/common/var/lib/kubelet"));
        let managed = manager(Program::Kubelite, &words(&line), Path::new("/"), &files(&list)).unwrap();
        assert_eq!(managed.unwrap().directory, Path::new("/cm"));
        let none = kubelet(Program::Kubelite, &[], Path::new("/"), &files(&[])).unwrap();
        assert_eq!(none.plugin_dir.directory, Path::new(DEFAULT));
        assert_eq!(none.root_dir, Path::new("/var/snap/microk8s/common/var/lib/kubelet"));
    }

    #[test]
    fn embedded_kubelets_are_read_from_their_own_files() {
        let edge = "/etc/kubeedge/config/edgecore.yaml";
        for (program, path, text, expected) in [
            (Program::MicroShift, "/none", "", "/var/lib/microshift/kubelet-plugins/volume/exec"),
            (Program::MicroShift, "/etc/microshift/config.yaml", "kubelet: {volumePluginDir: /a}", "/a"),
            (
                Program::MicroShift,
                "/var/lib/microshift/resources/kubelet/config/config.yaml",
                "volumePluginDir: /b",
                "/b",
            ),
            (
                Program::EdgeCore,
                edge,
                "modules: {edged: {tailoredKubeletConfig: {volumePluginDir: /c}}}",
                "/c",
            ),
            (Program::EdgeCore, edge, "modules: {edged: {volumePluginDir: /d}}", "/d"),
            (Program::EdgeCore, edge, "modules: {}", DEFAULT),
            (
                Program::Origin,
                "/etc/origin/node/node-config.yaml",
                "kubeletArguments: {volume-plugin-dir: [/e]}",
                "/e",
            ),
        ] {
            assert_eq!(of(program, "", &[(path, text)]).0, expected, "{program:?} {path}");
        }
    }

    #[test]
    fn every_platform_is_read_from_where_it_keeps_its_setting() {
        let configuration = "volumePluginDir: /a";
        let unit = "[Service]\nExecStart=/usr/bin/kubelet \\\n  --volume-plugin-dir=/a\n";
        let rancher = "kubelet-arg: [volume-plugin-dir=/a]";
        for (name, path, text) in [
            ("default", "/var/lib/kubelet/config.yaml", configuration),
            (
                "default",
                "/var/lib/kubelet/kubeadm-flags.env",
                "KUBELET_KUBEADM_ARGS=\"--volume-plugin-dir=/a\"",
            ),
            ("default", "/etc/systemd/system/kubelet.service.d/20-x.conf", unit),
            ("flatcar", "/etc/systemd/system/kubelet.service", unit),
            ("aks", "/etc/default/kubelet", "KUBELET_FLAGS=--volume-plugin-dir=/a --v=2"),
            ("magnum", "/etc/sysconfig/kubelet", "KUBELET_EXTRA_ARGS=--volume-plugin-dir=/a"),
            ("cos", "/home/kubernetes/kubelet-config.yaml", configuration),
            ("openshift", "/etc/kubernetes/kubelet.conf", configuration),
            ("gardener", "/var/lib/kubelet/config/kubelet", configuration),
            ("bottlerocket", "/etc/kubernetes/kubelet/config", configuration),
            ("k0s", "/var/lib/k0s/kubelet-config.yaml", configuration),
            ("k3s", "/etc/rancher/k3s/config.yaml", rancher),
            ("rke2", "/etc/rancher/rke2/config.yaml", rancher),
            ("rke2", "/etc/rancher/rke2/config.yaml.d/1.yaml", rancher),
            ("microk8s", "/var/snap/microk8s/current/args/kubelet", "--volume-plugin-dir=/a"),
            ("microshift", "/etc/microshift/config.yaml", "kubelet: {volumePluginDir: /a}"),
            (
                "openshift3",
                "/etc/origin/node/node-config.yaml",
                "kubeletArguments: {volume-plugin-dir: [/a]}",
            ),
        ] {
            let platform = platform::find(name).unwrap();
            let told = configured(platform, &files(&[(path, text)])).unwrap();
            assert_eq!(told.map(|told| told.directory), Some("/a".into()), "{name} {path}");
            assert_eq!(configured(platform, &files(&[(path, "")])).unwrap(), None, "{name} {path}");
            assert_eq!(configured(platform, &files(&[])).unwrap(), None, "{name}");
        }
    }

    #[test]
    fn a_controller_manager_says_it_on_its_command_line_or_in_its_manifest() {
        let at = |program, line: &str| manager(program, &words(line), Path::new("/"), &files(&[])).unwrap();
        let directory = |told: Option<Told>| told.map(|told| told.directory);
        let flag = "--flex-volume-plugin-dir=/a";
        assert_eq!(directory(at(Program::ControllerManager, flag)), Some("/a".into()));
        assert_eq!(at(Program::ControllerManager, "--v=2"), None);
        assert_eq!(at(Program::Kubelet, flag), None);
        let k3s = "--kube-controller-manager-arg=flex-volume-plugin-dir=/a";
        assert_eq!(directory(at(Program::K3s, k3s)), Some("/a".into()));
        let pod = "spec:\n  containers:\n  - command:\n    - kube-controller-manager\n    - --v=2\n    args: [--flex-volume-plugin-dir=/a]\n";
        for path in MANIFESTS {
            let told = manifests(&files(&[(path, pod)])).unwrap().unwrap();
            assert_eq!((told.directory, told.by), ("/a".into(), format!("{path}: --flex-volume-plugin-dir")));
        }
        assert_eq!(manifests(&files(&[])).unwrap(), None);
    }
}

//! Manifests that install drivers on the nodes of a cluster, as text to apply: a DaemonSet with its
//! objects, or a systemd unit where there is no cluster yet.
//!
//! Pure functions: a [`ManifestRequest`] in, a [`Manifest`] out. Text from a command line appears
//! only as a JSON string or as a quoted word of systemd, never as YAML or as a line of its own.
//!
//! A deployment gets only the rights for putting files into one directory: user 0, because that
//! user owns it, and no capability; a read-only root; three directories of the host; no token.

mod cluster;
mod daemon_set;
pub mod helm;
mod node;

use flexvol_kubelet::platform::{self, Platform};
use flexvol_model::drivers;
use flexvol_model::profiles;
use flexvol_protocol::DriverName;
use flexvol_protocol::failure::{Code, Failure, Result};
use flexvol_terminal::emit;
use flexvol_terminal::image::without_registry;
use serde_json::Value;
use std::path::{Component, Path};

/// Default name of a deployment and of its namespace.
pub const NAME: &str = "flexvol";

/// Path of the program on a node without a cluster.
pub const PROGRAM: &str = "/usr/local/bin/flexvol";

/// Kind of manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManifestKind {
    /// Namespace, account, policy and DaemonSet, for `kubectl apply`.
    DaemonSet,
    /// The same objects as a directory for `kubectl apply -k`: a base for one's own overlays.
    Kustomize,
    /// A patch that adds an init container to an existing DaemonSet.
    InitContainer,
    /// A systemd unit, for a node that has the program.
    Systemd,
    /// User data for cloud-init: a node installs the unit, and the program if its source is given.
    CloudInit,
}

/// Request for a manifest: what is deployed, and where.
#[derive(Clone, Debug)]
pub struct ManifestRequest {
    /// The drivers as `install` takes them: `[vendor/]driver[=what]`. At least one.
    pub drivers: Vec<String>,
    /// The nodes' platform: decides the plugin directory, and the rights that a pod needs there.
    pub platform: &'static Platform,
    /// The plugin directory, if it is not the platform's.
    pub plugin_dir: Option<String>,
    /// The image that has the program as `/flexvol`.
    pub image: String,
    /// The namespace. `kube-system` exists already and is not created.
    pub namespace: String,
    /// The name of every object. Two deployments on one node need different names.
    pub name: String,
    /// The text of a policy for every driver, checked by the caller.
    pub policy: Option<String>,
    /// Further arguments of `deploy`, each one word: `--set=size=64Mi`.
    pub arguments: Vec<String>,
    /// True if the drivers are uninstalled when the pod ends. The pod then sees the host's mounts.
    pub uninstall_on_exit: bool,
    /// Path of the program on a node, for systemd.
    pub program: String,
    /// Source of the program for cloud-init; `None` if the machine's image has the program.
    pub fetch: Option<Fetch>,
}

/// Program to download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Its URL.
    pub url: String,
    /// Its expected SHA-256, 64 hexadecimal digits.
    pub sha256: String,
}

/// Requested manifest.
#[derive(Clone, Debug, PartialEq)]
pub enum Manifest {
    /// Kubernetes objects, and notes to read before they are applied, one line each.
    Objects(Vec<String>, Vec<Value>),
    /// Several files of one directory: names and texts.
    Files(Vec<(String, String)>),
    /// One file of another format.
    Text(String),
}

impl Manifest {
    /// Returns the text; objects as YAML, one document each. `None` for several files.
    pub fn to_text(&self) -> Option<String> {
        match self {
            Self::Objects(notes, objects) => Some(emit::documents(notes, objects)),
            Self::Text(text) => Some(text.clone()),
            Self::Files(_) => None,
        }
    }
}

/// Makes the manifest, or fails with what is wrong in the request.
pub fn make(kind: ManifestKind, request: &ManifestRequest) -> Result<Manifest> {
    let deployment = Deployment::of(request)?;
    Ok(match kind {
        ManifestKind::DaemonSet => cluster::objects(&deployment),
        ManifestKind::Kustomize => cluster::kustomization(&deployment),
        ManifestKind::InitContainer => cluster::init_container(&deployment),
        ManifestKind::Systemd => Manifest::Text(node::unit(&deployment)),
        ManifestKind::CloudInit => Manifest::Text(node::cloud_init(&deployment)?),
    })
}

/// Returns a warning to show besides the manifest, if there is one.
pub fn warning(kind: ManifestKind, request: &ManifestRequest) -> Option<&'static str> {
    let has_image = !matches!(kind, ManifestKind::Systemd | ManifestKind::CloudInit);
    has_image.then(|| without_registry(&request.image)).flatten()
}

/// A request that has been checked.
struct Deployment<'a> {
    request: &'a ManifestRequest,
    /// The plugin directory as the host sees it.
    directory: &'a str,
}

impl<'a> Deployment<'a> {
    fn of(request: &'a ManifestRequest) -> Result<Self> {
        if request.drivers.is_empty() {
            return Err(Failure::options("no driver: name at least one, such as example/tmpfs"));
        }
        request.drivers.iter().try_for_each(|driver| check_driver(driver))?;
        for (what, text) in [("name", &request.name), ("namespace", &request.namespace)] {
            check_label(what, text)?;
        }
        check_word("image", &request.image)?;
        request.arguments.iter().try_for_each(|argument| check_printable("argument", argument))?;
        check_path("program", &request.program)?;
        let directory = directory_of(request.platform, request.plugin_dir.as_deref())?;
        check_path("plugin directory", directory)?;
        Ok(Self { request, directory })
    }

    /// Returns a step that each node needs before the drivers, if there is one.
    fn first(&self) -> Option<String> {
        self.request.platform.obstacle.map(|obstacle| format!("before: {}", obstacle.fix))
    }

    fn needs(&self, need: platform::Need) -> bool {
        self.request.platform.needs.contains(&need)
    }

    /// Returns the words after `flexvol deploy`; `policy` is the path of its file.
    fn arguments(&self, policy: &str) -> Vec<String> {
        let ManifestRequest { name, policy: with_policy, arguments, drivers, .. } = self.request;
        let mut words = vec![
            format!("--plugin-dir={}", self.directory),
            format!("--ready-file=/run/flexvol/deploy/{name}"),
        ];
        words.extend(with_policy.as_ref().map(|_| format!("--policy={policy}")));
        words.extend(arguments.iter().cloned());
        words.extend(self.request.uninstall_on_exit.then(|| "--uninstall-on-exit".to_owned()));
        words.push("--".to_owned());
        words.extend(drivers.iter().cloned());
        words
    }
}

/// Returns the named directory, otherwise the platform's.
fn directory_of<'a>(platform: &'static Platform, named: Option<&'a str>) -> Result<&'a str> {
    if let Some(directory) = named.or(platform.directory()) {
        return Ok(directory);
    }
    let fix = platform.obstacle.map_or("name it with --plugin-dir", |obstacle| obstacle.fix);
    Err(Failure::new(Code::Conflict, format!("{} has no plugin directory: {fix}", platform.title)))
}

fn check_driver(text: &str) -> Result<()> {
    let (name, what) = text.split_once('=').map_or((text, None), |(name, what)| (name, Some(what)));
    let name = DriverName::parse(name)?;
    let dialect = profiles::find(what.unwrap_or(&name.to_string())).is_some();
    // Drivers of Rook pass here: the installer has a more detailed message for them.
    let rook = what.is_none() && !profiles::rook(&name).is_empty();
    let what = what.unwrap_or(name.driver());
    if dialect || rook || drivers::find(what).is_some() {
        return Ok(());
    }
    let known = drivers::ALL.iter().map(|driver| driver.name()).collect::<Vec<_>>().join(", ");
    let text = format!("flexvol has no driver {what:?}: write {name}= and one of {known}");
    Err(Failure::new(Code::NotFound, text))
}

/// Fails if Kubernetes does not accept the text as the name of a namespace.
fn check_label(what: &str, text: &str) -> Result<()> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let edges = !text.starts_with('-') && !text.ends_with('-');
    if (1..=63).contains(&text.len()) && edges && text.bytes().all(inner) {
        return Ok(());
    }
    let fix = "write 1 to 63 lower-case letters, digits and '-', a letter or digit first and last";
    Err(Failure::options(format!("{what} {text:?} is no name of Kubernetes: {fix}")))
}

fn check_word(what: &str, text: &str) -> Result<()> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    Err(Failure::options(format!("{what} {text:?} is no word: leave out blanks and special characters")))
}

fn check_printable(what: &str, text: &str) -> Result<()> {
    if text.chars().any(char::is_control) {
        return Err(Failure::options(format!("{what} {text:?} has a control character: leave it out")));
    }
    Ok(())
}

/// Fails unless the path is valid as a `hostPath`, as a `mountPath`, and as a program of systemd.
fn check_path(what: &str, text: &str) -> Result<()> {
    check_printable(what, text)?;
    let path = Path::new(text);
    let plain = path.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
    if path.is_absolute() && plain && path.file_name().is_some() && !text.contains(':') {
        return Ok(());
    }
    let fix = "write an absolute path without '..' and ':'";
    Err(Failure::options(format!("{what} {text:?} cannot be mounted: {fix}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::wording;

    pub(super) fn request() -> ManifestRequest {
        ManifestRequest {
            drivers: vec!["example/tmpfs".into(), "example/scratch=tmpfs".into()],
            platform: platform::find("default").unwrap(),
            plugin_dir: None,
            image: "registry.example/flexvol:1".into(),
            namespace: "flexvol".into(),
            name: NAME.into(),
            policy: Some(r#"{"maxSize":"1Gi"}"#.into()),
            arguments: vec!["--set=size=64Mi".into()],
            uninstall_on_exit: false,
            program: PROGRAM.into(),
            fetch: None,
        }
    }

    fn refused(change: impl FnOnce(&mut ManifestRequest)) -> String {
        let mut request = request();
        change(&mut request);
        make(ManifestKind::DaemonSet, &request).unwrap_err().message()
    }

    #[test]
    fn what_cannot_be_deployed_is_refused() {
        assert!(refused(|it| it.drivers.clear()).starts_with("no driver: "));
        assert!(refused(|it| it.drivers = vec!["example/tmpsf".into()]).contains("no driver \"tmpsf\""));
        assert!(refused(|it| it.drivers = vec!["--once".into()]).contains("driver name"));
        assert!(refused(|it| it.name = "a b".into()).contains(wording("no-kubernetes-name")));
        assert!(refused(|it| it.namespace = "-a".into()).contains(wording("no-kubernetes-name")));
        assert!(refused(|it| it.image = "a\nb: c".into()).contains("is no word"));
        assert!(refused(|it| it.arguments = vec!["a\nb".into()]).contains("control character"));
        for path in ["relative", "/a/../b", "/", "/a:b", "/a\n"] {
            assert!(refused(|it| it.plugin_dir = Some(path.into())).contains("plugin directory"), "{path}");
        }
    }

    #[test]
    fn only_what_has_an_image_is_warned_of() {
        let request = ManifestRequest { image: "flexvol:0.1.0".into(), ..request() };
        assert!(warning(ManifestKind::DaemonSet, &request).is_some());
        assert_eq!(warning(ManifestKind::Systemd, &request), None);
    }

    #[test]
    fn a_platform_without_flexvolume_is_refused_with_its_fix() {
        let talos = platform::find("talos").unwrap();
        let message = refused(|it| it.platform = talos);
        assert!(message.contains("Talos") && message.contains("CSI driver"), "{message}");
    }

    #[test]
    fn the_words_of_deploy_end_with_the_drivers() {
        let request = request();
        let words = Deployment::of(&request).unwrap().arguments("/etc/flexvol/policy.json");
        let expected = [
            "--plugin-dir=/usr/libexec/kubernetes/kubelet-plugins/volume/exec",
            "--ready-file=/run/flexvol/deploy/flexvol",
            "--policy=/etc/flexvol/policy.json",
            "--set=size=64Mi",
            "--",
            "example/tmpfs",
            "example/scratch=tmpfs",
        ];
        assert_eq!(words, expected);
    }
}

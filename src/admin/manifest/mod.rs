//! What brings drivers onto the nodes of a cluster, as text to apply: a DaemonSet and what belongs
//! to it, or a unit of systemd where there is no cluster yet.
//!
//! Pure: a [`ManifestRequest`] in, a [`Manifest`] out. Whatever people wrote on a command line
//! reaches the text as a JSON string or as a quoted word of systemd, never as YAML or a line of its
//! own.
//!
//! A deployment gets no more than putting files into one directory takes: user 0, because that is
//! whose directory it is, and no capability; a read-only root; three directories of the host; no
//! token.

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

/// What a deployment is called unless someone says otherwise, and the namespace it is in.
pub const NAME: &str = "flexvol";

/// Where a node without a cluster has the program.
pub const PROGRAM: &str = "/usr/local/bin/flexvol";

/// Which text is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManifestKind {
    /// Namespace, account, policy and DaemonSet, for `kubectl apply`.
    DaemonSet,
    /// The same as a directory for `kubectl apply -k`, to lay one's own changes over.
    Kustomize,
    /// A patch that adds an init container to a DaemonSet that is there already.
    InitContainer,
    /// A unit of systemd, for a node that has the program.
    Systemd,
    /// User data for cloud-init that makes a node install the unit, and the program if it is told
    /// where from.
    CloudInit,
}

/// What is to be deployed, and to where.
#[derive(Clone, Debug)]
pub struct ManifestRequest {
    /// The drivers as `install` takes them: `[vendor/]driver[=what]`. At least one.
    pub drivers: Vec<String>,
    /// What kind of nodes: decides the plugin directory, and what a pod needs there.
    pub platform: &'static Platform,
    /// Another plugin directory than the platform's.
    pub plugin_dir: Option<String>,
    /// The image that has the program as `/flexvol`.
    pub image: String,
    /// The namespace; `kube-system` is there already and is not made.
    pub namespace: String,
    /// The name of every object. Two deployments on one node need two.
    pub name: String,
    /// The text of a policy for every driver, checked by the caller.
    pub policy: Option<String>,
    /// More arguments of `deploy`, each one word: `--set=size=64Mi`.
    pub arguments: Vec<String>,
    /// Whether the drivers go when the pod goes. That needs a sight of the host's mounts.
    pub uninstall_on_exit: bool,
    /// Where a node has the program, for systemd.
    pub program: String,
    /// Where cloud-init gets the program from; `None` if the machine's image has it.
    pub fetch: Option<Fetch>,
}

/// A program to be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// From where.
    pub url: String,
    /// What it must be, as 64 hexadecimal digits.
    pub sha256: String,
}

/// The text that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Manifest {
    /// Objects of Kubernetes, and what people should know before they apply them, a line each.
    Objects(Vec<String>, Vec<Value>),
    /// Several files of one directory: names and texts.
    Files(Vec<(String, String)>),
    /// One file of another kind.
    Text(String),
}

impl Manifest {
    /// Objects as YAML, one document each; `None` for what is several files.
    pub fn to_text(&self) -> Option<String> {
        match self {
            Self::Objects(notes, objects) => Some(emit::documents(notes, objects)),
            Self::Text(text) => Some(text.clone()),
            Self::Files(_) => None,
        }
    }
}

/// Makes the text, or says what is wrong with the request.
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

/// What is to be said to whoever asks, besides the text.
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

    /// What is to be done on each node first.
    fn first(&self) -> Option<String> {
        self.request.platform.obstacle.map(|obstacle| format!("before: {}", obstacle.fix))
    }

    fn needs(&self, need: platform::Need) -> bool {
        self.request.platform.needs.contains(&need)
    }

    /// The words after `flexvol deploy`; `policy` is where its file will be.
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

/// The directory that was named, else the platform's.
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
    // What the installer says of one of Rook's is more.
    let rook = what.is_none() && !profiles::rook(&name).is_empty();
    let what = what.unwrap_or(name.driver());
    if dialect || rook || drivers::find(what).is_some() {
        return Ok(());
    }
    let known = drivers::ALL.iter().map(|driver| driver.name()).collect::<Vec<_>>().join(", ");
    let text = format!("flexvol has no driver {what:?}: write {name}= and one of {known}");
    Err(Failure::new(Code::NotFound, text))
}

/// What Kubernetes takes as the name of a namespace.
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

/// A path that Kubernetes takes as `hostPath` and `mountPath`, and systemd as that of a program.
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

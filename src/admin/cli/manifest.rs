//! `flexvol manifest`.

use super::install::Choice;
use super::kit;
use crate::manifest::{self, Fetch, Manifest as Text, ManifestRequest, NAME, PROGRAM, helm};
use crate::plugin_dir::install::SideFileChanges;
use anyhow::{Context as _, Result};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use flexvol_kubelet::platform::{self, Platform};
use flexvol_linux::fs::files;
use flexvol_model::policy::Policy;
use flexvol_model::settings::SIZE_LIMIT;
use flexvol_protocol::failure::{Failure, Result as Checked};
use flexvol_protocol::ordered::filled;
use flexvol_terminal::emit;
use flexvol_terminal::exit::warn;
use flexvol_terminal::screen::Screen;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Print what installs drivers on the nodes of a cluster: a DaemonSet, or a systemd unit
#[derive(Args)]
#[command(after_help = "\
daemonset       namespace, account, policy and DaemonSet, for kubectl apply -f -
kustomize       the same as a directory (--output) for kubectl apply -k, to lay your changes over
helm            the same as a chart (--output) for helm install, with image, drivers and policy as values
init-container  a patch for a DaemonSet of yours, whose pods then bring the drivers along
systemd         a unit for a node that has the program
cloud-init      user data that installs that unit

Examples:
  flexvol manifest daemonset --image registry.example/flexvol:1 example/tmpfs | kubectl apply -f -
  flexvol manifest daemonset --platform openshift --policy policy.json example/bind
  flexvol manifest kustomize --platform cos --output base example/image && kubectl apply -k base
  flexvol manifest helm --output chart example/tmpfs && helm install drivers chart -n flexvol
  flexvol manifest init-container example/tmpfs > patch.yaml
  kubectl patch daemonset mine --patch-file patch.yaml
  flexvol manifest systemd example/tmpfs > /etc/systemd/system/flexvol.service

Whoever may read pods reads what stands behind --set: it is no place for a secret.
With --json objects come as one List, which kubectl takes as well.

Exit status: 0 done, 1 the request cannot be met (the reason is printed), 2 wrong usage.")]
pub(super) struct Manifest {
    /// Kind of manifest
    #[arg(value_enum)]
    kind: ManifestArg,
    /// Drivers, as for flexvol install
    #[arg(required = true, value_name = "[VENDOR/]DRIVER[=WHAT]")]
    drivers: Vec<String>,
    /// Platform of the nodes: decides the plugin directory and what a pod needs there
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = platforms())]
    platform: &'static Platform,
    /// Plugin directory on the host, instead of the platform's
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<String>,
    /// Image with the program as /flexvol
    #[arg(long, default_value = concat!("flexvol:", env!("CARGO_PKG_VERSION")))]
    image: String,
    /// Namespace; it is created unless it is kube-system
    #[arg(long, default_value = NAME)]
    namespace: String,
    /// The name of every object
    #[arg(long, default_value = NAME)]
    name: String,
    /// A JSON file with the policy for every driver
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Setting for every driver or one, as for flexvol install; may be repeated
    #[arg(long, value_name = "[DRIVER:]KEY=VALUE", value_parser = SideFileChanges::parse_set)]
    set: Vec<(String, String)>,
    /// Take over drivers of these names that flexvol did not install
    #[arg(long)]
    take_over: bool,
    /// Replace newer versions of the drivers
    #[arg(long)]
    allow_downgrade: bool,
    /// Uninstall the drivers whenever a pod ends, unless volumes are mounted; requires hostPID
    #[arg(long)]
    uninstall_on_exit: bool,
    /// Path of the program on a node (systemd, cloud-init)
    #[arg(long, value_name = "FILE", default_value = PROGRAM)]
    program: String,
    /// URL from which a node gets the program (cloud-init)
    #[arg(long, value_name = "URL", requires = "sha256")]
    fetch: Option<String>,
    /// SHA-256 of the fetched program
    #[arg(long, value_name = "HEX", requires = "fetch")]
    sha256: Option<String>,
    /// Write files into this directory instead of printing them
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// Kinds of manifests, as arguments.
#[derive(Clone, Copy, ValueEnum)]
enum ManifestArg {
    #[value(name = "daemonset")]
    DaemonSet,
    Kustomize,
    Helm,
    InitContainer,
    Systemd,
    CloudInit,
}

impl ManifestArg {
    fn wanted(self) -> manifest::ManifestKind {
        match self {
            // The chart is made from the DaemonSet.
            Self::DaemonSet | Self::Helm => manifest::ManifestKind::DaemonSet,
            Self::Kustomize => manifest::ManifestKind::Kustomize,
            Self::InitContainer => manifest::ManifestKind::InitContainer,
            Self::Systemd => manifest::ManifestKind::Systemd,
            Self::CloudInit => manifest::ManifestKind::CloudInit,
        }
    }

    /// Returns the name of its single file.
    fn file(self, name: &str) -> String {
        match self {
            Self::DaemonSet | Self::Kustomize | Self::Helm => format!("{name}.yaml"),
            Self::InitContainer => "patch.yaml".to_owned(),
            Self::Systemd => "flexvol.service".to_owned(),
            Self::CloudInit => "user-data".to_owned(),
        }
    }
}

/// Completes and corrects the names of platforms.
fn platforms() -> impl TypedValueParser<Value = &'static Platform> {
    let names = platform::all()
        .iter()
        .map(|each| PossibleValue::new(each.name).help(each.title).aliases(platform::other_names(each)));
    PossibleValuesParser::new(names).try_map(|name| platform::find(&name).ok_or("no such platform"))
}

impl Manifest {
    pub(super) fn run(&self, arguments: &[OsString], screen: &mut Screen) -> Result<ExitCode> {
        let request = self.request()?;
        let made = manifest::make(self.kind.wanted(), &request)?;
        self.check_settings(request.policy.as_deref())?;
        if let Some(warning) = manifest::warning(self.kind.wanted(), &request) {
            warn(warning);
        }
        if matches!(self.kind, ManifestArg::Helm) {
            return self.chart(&request, arguments, screen.wants_json());
        }
        match &self.output {
            Some(directory) => self.write(screen, directory, &made)?,
            None => print(screen, self.kind.file(&self.name).as_str(), &made)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn request(&self) -> Result<ManifestRequest> {
        let fetch = self.fetch.clone().zip(self.sha256.clone());
        let mut arguments: Vec<_> =
            self.set.iter().map(|(key, value)| format!("--set={key}={value}")).collect();
        let flags = [(self.take_over, "--take-over"), (self.allow_downgrade, "--allow-downgrade")];
        arguments.extend(flags.iter().filter(|(given, _)| *given).map(|(_, flag)| (*flag).to_owned()));
        Ok(ManifestRequest {
            drivers: self.drivers.clone(),
            platform: self.platform,
            plugin_dir: self.plugin_dir.clone(),
            image: self.image.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            policy: self.policy.as_deref().map(policy).transpose()?,
            arguments,
            uninstall_on_exit: self.uninstall_on_exit,
            program: self.program.clone(),
            fetch: fetch.map(|(url, sha256)| Fetch { url, sha256 }),
        })
    }

    /// Lets the kit write the chart, from a manifest with placeholders for Helm's values.
    fn chart(&self, request: &ManifestRequest, arguments: &[OsString], json: bool) -> Result<ExitCode> {
        let directory = self.output.as_deref().ok_or_else(several)?;
        let made = manifest::make(self.kind.wanted(), &helm::marked(request))?;
        let mut words: Vec<OsString> = arguments.iter().take(1).cloned().collect();
        words.push("chart".into());
        words.extend(json.then(|| "--json".into()));
        // After `--`, no word is an option.
        words.push("--".into());
        words.push(directory.into());
        words.push(made.to_text().unwrap_or_default().into());
        words.push(helm::values(request).to_string().into());
        kit::execute(kit::KIT, &words)
    }

    /// Fails if `deploy` would refuse the settings on every node.
    fn check_settings(&self, policy: Option<&str>) -> Result<()> {
        let policy = policy.map(serde_json::from_str).transpose()?;
        let side_file_changes =
            SideFileChanges { policy, set: self.set.clone(), ..SideFileChanges::default() };
        let choices = self.drivers.iter().map(|driver| Choice::parse(driver));
        let choices = choices.collect::<Result<Vec<_>, _>>()?;
        Choice::check_keys(&choices, &side_file_changes)?;
        choices.iter().try_for_each(|choice| choice.check(&side_file_changes))
    }

    /// Writes the files into a directory, and makes it if it is missing. Never overwrites a file:
    /// it may have been edited.
    fn write(&self, screen: &mut Screen, directory: &Path, made: &Text) -> Result<()> {
        let files = match made {
            Text::Files(files) => files.clone(),
            other => vec![(self.kind.file(&self.name), other.to_text().unwrap_or_default())],
        };
        let paths: Vec<_> = files.iter().map(|(name, _)| directory.join(name)).collect();
        for (path, (_, text)) in paths.iter().zip(&files) {
            files::write_new(path, text)?;
        }
        if screen.wants_json() {
            return screen.json(&json!({"written": paths}));
        }
        paths.iter().try_for_each(|path| screen.line(&format!("wrote {}", path.display())))
    }
}

fn several() -> Failure {
    Failure::options("this is several files: name a directory for them with --output")
}

fn print(screen: &mut Screen, name: &str, made: &Text) -> Result<()> {
    match (made, screen.wants_json()) {
        (Text::Objects(_, objects), true) => screen.json(&list(objects)),
        (Text::Files(files), true) => {
            let files = files.iter().map(|(name, text)| (name.clone(), Value::from(text.as_str())));
            screen.json(&Value::Object(filled(files)))
        }
        (Text::Files(_), false) => Err(several().into()),
        (made, _) => screen.document(name, &made.to_text().unwrap_or_default()),
    }
}

/// Returns a patch as it is, and objects as a `List`.
fn list(objects: &[Value]) -> Value {
    match objects {
        [patch] if patch.get("kind").is_none() => patch.clone(),
        objects => emit::list(objects),
    }
}

/// Returns the text of a policy; fails if drivers would not understand it.
fn policy(path: &Path) -> Result<String> {
    let text = files::read_small(path, SIZE_LIMIT)?;
    let text = text.with_context(|| format!("no file {}", path.display()))?;
    let parsed: Checked<Policy> = serde_json::from_str(&text)
        .map_err(|error| Failure::options(format!("{} is no policy: {error}", path.display())));
    Ok(parsed.map(|_| text)?)
}

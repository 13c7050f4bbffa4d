//! Reads a cluster's objects with the user's own kubectl: its configuration, rights and connection.

use crate::validate::Gathered;
use anyhow::{Context as _, Result};
use clap::Args;
use flexvol_linux::proc::piped::{Piped, of_the_user};
use flexvol_protocol::failure::{Code, Failure};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Program that kubectl executes for `kubectl flexvol`.
const PLUGIN: &str = "kubectl-flexvol";

/// Pods come first: an object that a pod names and that a later list lacks did not exist.
const OBJECTS: [&str; 5] = ["get", "pod,pvc,pv,storageclass", "--all-namespaces", "--output", "json"];

const MAY_LIST_SECRETS: [&str; 5] = ["auth", "can-i", "list", "secrets", "--all-namespaces"];

/// Secrets of types that no driver has are numerous, and are left out.
const SECRETS: [&str; 6] = [
    "get",
    "secret",
    "--all-namespaces",
    "--field-selector=type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token",
    "--output",
    "json",
];

/// Selection of the cluster, with the flags of kubectl.
#[derive(Args)]
pub(super) struct Cluster {
    /// Check a cluster's volumes through kubectl, as kubectl flexvol validate does without
    /// --filename
    #[arg(long = "cluster", conflicts_with = "files")]
    wanted: bool,
    /// Check the cluster of this kubectl context
    #[arg(long, value_name = "NAME", conflicts_with = "files")]
    context: Option<String>,
    /// Check the cluster of this kubeconfig file
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    kubeconfig: Option<PathBuf>,
}

impl Cluster {
    /// Reports whether a command line without files means a cluster.
    pub(super) fn is_meant(&self, program: &OsStr) -> bool {
        let is_plugin = Path::new(program).file_name() == Some(PLUGIN.as_ref());
        is_plugin || self.wanted || self.context.is_some() || self.kubeconfig.is_some()
    }

    /// Gathers all objects. Returns true if this includes the Secrets.
    pub(super) fn gather(&self, gathered: &mut Gathered) -> Result<bool> {
        let missing = || {
            Failure::new(Code::ToolMissing, "there is no kubectl in $PATH: install it, or name files with -f")
        };
        let kubectl = of_the_user("kubectl").ok_or_else(missing)?;
        self.get(&kubectl, &OBJECTS, gathered)?;
        let reads_secrets = self.may_list_secrets(&kubectl)?;
        if reads_secrets {
            self.get(&kubectl, &SECRETS, gathered)?;
        } else {
            gathered.without_secrets();
        }
        Ok(reads_secrets)
    }

    fn may_list_secrets(&self, kubectl: &Path) -> Result<bool> {
        Ok(self.start(kubectl, &MAY_LIST_SECRETS)?.end()?.success())
    }

    fn get(&self, kubectl: &Path, words: &[&str], gathered: &mut Gathered) -> Result<()> {
        let mut running = self.start(kubectl, words)?;
        let mut output = running.output().context("kubectl has no output")?;
        let read = gathered.stream("the cluster", true, &mut output);
        if read.is_ok() {
            drop(output);
            let status = running.end()?;
            anyhow::ensure!(status.success(), "kubectl get {} failed ({status}): see what it says", words[1]);
        }
        Ok(read.map_err(|why| Failure::options(format!("kubectl get {}: {}", words[1], why.message())))?)
    }

    fn start(&self, kubectl: &Path, words: &[&str]) -> Result<Piped> {
        let mut own: Vec<OsString> = Vec::new();
        if let Some(context) = &self.context {
            own.push(format!("--context={context}").into());
        }
        if let Some(file) = &self.kubeconfig {
            own.extend(["--kubeconfig".into(), file.into()]);
        }
        let words = own.iter().map(OsString::as_os_str).chain(words.iter().map(OsStr::new));
        Piped::start(kubectl, words).with_context(|| format!("start {}", kubectl.display()))
    }
}

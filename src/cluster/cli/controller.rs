//! `flexvold controller`: removes the locks of nodes that can no longer write.

use super::api_server::ApiServer;
use super::csi::runtime;
use super::log::Log;
use crate::breaker::asking::Asking;
use crate::breaker::review::Reviewer;
use crate::breaker::seen::Missing;
use crate::breaker::{Setup, run};
use crate::controllers::client::connect;
use crate::fence::evidence::Rules;
use crate::fence::store::kubernetes::KubernetesStore;
use anyhow::{Context as _, Result};
use clap::Args;
use flexvol_terminal::screen::Screen;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Release storage of nodes that are off, so that pods on other nodes can use it
#[derive(Args)]
#[command(after_help = "\
A node is off if an administrator has said so with the taint node.kubernetes.io/out-of-service, and it reports no more;
what it held before a reboot is free as well. A node that only does not report keeps what it holds: it may still write.")]
pub(super) struct Controller {
    #[command(flatten)]
    api: ApiServer,
    /// Treat a node whose Node object is gone as off; use it only if machines are shut down before
    /// that
    #[arg(long)]
    removed_is_off: bool,
    /// Seconds after which a missing Node object counts as gone
    #[arg(long, value_name = "SECONDS", default_value = "300")]
    gone_after: u64,
    #[command(flatten)]
    log: Log,
}

impl Controller {
    pub(super) fn run(self, _screen: &mut Screen) -> Result<ExitCode> {
        self.log.begin();
        let runtime = runtime()?;
        runtime.block_on(async { run(self.setup()?).await })?;
        // Reviews that are blocked by a dead API server are not waited for.
        runtime.shutdown_background();
        Ok(ExitCode::SUCCESS)
    }

    fn setup(&self) -> Result<Setup> {
        let (namespace, place) = (self.api.namespace(), self.api.place()?);
        let clients = connect(&place, &namespace).context("reach the API server")?;
        let store = || KubernetesStore::open(&place, &namespace).context("reach the API server");
        let gone_grace = Duration::from_secs(self.gone_after);
        let rules = Rules { unfenced_break: self.removed_is_off, gone_grace, ..Rules::default() };
        let (store, cluster) = (Box::new(store()?), Box::new(Asking(store()?)));
        let reviewer = Arc::new(Reviewer { store, cluster, rules, missing: Missing::default() });
        Ok(Setup { clients, namespace, identity: super::csi_controller::identity()?, reviewer })
    }
}

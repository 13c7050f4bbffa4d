//! Arguments that `probe` and `watch` share: the plugin directory, and the kubelet to imitate.

use crate::prober::Behaviour;
use anyhow::Result;
use clap::Args;
use flexvol_terminal::driver_dir;
use std::path::PathBuf;

/// Plugin directory, and the kubelet to imitate.
#[derive(Args)]
pub(super) struct Probing {
    /// The plugin directory [default: the one flexvol locate finds]
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<PathBuf>,
    /// Behave as the kubelet of this Kubernetes release: 1.36, 1.22 or any other from 1.10 on
    #[arg(long, value_name = "RELEASE")]
    as_kubelet: Option<Behaviour>,
}

impl Probing {
    /// Returns the directory that was named, or the one that kubelet reads.
    pub(super) fn plugin_dir(&self) -> Result<PathBuf> {
        driver_dir::find(self.plugin_dir.as_deref())
    }

    /// Returns the behaviour of the prober, by default the documented one.
    pub(super) fn behaviour(&self) -> Behaviour {
        self.as_kubelet.unwrap_or(Behaviour::Design)
    }
}

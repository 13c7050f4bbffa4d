//! Temporary node: a plugin directory, kubelet's directory, and something to mount.

use crate::plugin_dir::install::{self, InstallRequest, SideFileChanges, Source};
use crate::plugin_dir::opened;
use anyhow::{Context as _, Result};
use flexvol_kubelet::{Caller, PodVolume};
use flexvol_linux::fs::files::{self, TempDir};
use flexvol_linux::mount::place::Place;
use flexvol_linux::mount::{self, mount_table};
use flexvol_model::policy::Policy;
use flexvol_model::settings::{SIDE_FILE, Settings};
use flexvol_protocol::failure::Result as Answer;
use flexvol_protocol::ordered::filled;
use flexvol_protocol::{DriverName, Options, TargetPath};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The image's name below the image root.
pub(super) const IMAGE: &str = "try.img";

/// File that a pod writes into its volume.
pub(super) const FILE: &str = "greeting";

/// One driver to try, with its options.
#[derive(Default)]
pub(super) struct Part {
    pub(super) driver: &'static str,
    pub(super) options: BTreeMap<String, String>,
    pub(super) settings: Settings,
    /// True if the next pod finds what the last one wrote.
    pub(super) keeps_data: bool,
    /// Program without which it cannot be tried.
    pub(super) tool: Option<&'static str>,
    /// Device without which it cannot be tried.
    pub(super) device: Option<&'static str>,
}

/// A directory that looks like a node.
pub(super) struct Stage {
    /// Dropped before the directory: its removal must not reach into mounts that are still there.
    mounts: Mounts,
    root: TempDir,
}

/// All mounts below a directory; detached when dropped.
struct Mounts(PathBuf);

impl Drop for Mounts {
    fn drop(&mut self) {
        for entry in mount_table::below(&self.0).unwrap_or_default() {
            let place = TargetPath::parse(entry.target.as_os_str()).ok().map(|target| Place::open(&target));
            if let Some(Ok(Some(place))) = place {
                // A mount that cannot be detached disappears with the namespace.
                let _ = mount::unmount(&place, true);
            }
        }
    }
}

impl Stage {
    /// Makes an empty stage.
    pub(super) fn set() -> Result<Self> {
        let root = files::temporary("flexvol-try-").context("make a directory")?;
        let stage = Self { mounts: Mounts(root.path().to_owned()), root };
        for directory in ["plugins", "kubelet", "images", "shared"] {
            make_directory(&stage.path().join(directory))?;
        }
        Ok(stage)
    }

    /// Returns the root of the stage.
    pub(super) fn path(&self) -> &Path {
        self.root.path()
    }

    /// Returns the directory that is bind-mounted.
    pub(super) fn shared(&self) -> PathBuf {
        self.path().join("shared")
    }

    /// Returns the policy of the stage's admin: only this stage is allowed.
    pub(super) fn policy(&self) -> Policy {
        let image_roots = vec![self.path().join("images")];
        Policy { bind_roots: vec![self.shared()], image_roots, ..Policy::default() }
    }

    /// Installs this executable as a driver.
    pub(super) fn install(&self, name: &DriverName, settings: &Settings) -> Result<Caller> {
        let plugins = self.path().join("plugins");
        let side_file_changes =
            SideFileChanges { settings: Some(serde_json::to_value(settings)?), ..SideFileChanges::default() };
        let state = self.path().join("state");
        let place = opened::PluginDirPath::new(&plugins);
        let request = InstallRequest {
            side_file_changes,
            state: state.clone(),
            ..InstallRequest::new(name.clone(), place)
        };
        install::install(&request, &Source::own()?)?;
        // Remove the receipt: a driver of one trial is not repaired. If the receipt stays, the
        // search for leaks reports it.
        let _ = files::remove_tree(&state);
        Ok(Caller::new(plugins.join(name.directory()).join(name.executable())))
    }

    /// Returns a volume of one pod.
    pub(super) fn volume(&self, name: &DriverName, part: &Part, pod: &str, options: Options) -> PodVolume {
        PodVolume {
            kubelet_root: self.path().join("kubelet"),
            pod_uid: pod.to_owned(),
            driver: name.clone(),
            name: "data".to_owned(),
            options: Options { own: part.options.clone(), ..options },
            capacity: None,
        }
    }

    /// Returns the files and directories that a faultless trial leaves, relative to the stage.
    pub(super) fn expected(drivers: &[&str]) -> Answer<BTreeSet<PathBuf>> {
        let mut expected: BTreeSet<PathBuf> =
            filled(["plugins", "kubelet", "kubelet/pods", "images", "shared"].map(PathBuf::from));
        expected.extend([Path::new("images").join(IMAGE), Path::new("shared").join(FILE)]);
        for driver in drivers {
            let name = DriverName::parse(&format!("example/{driver}"))?;
            let directory = Path::new("plugins").join(name.directory());
            expected.extend([directory.join(SIDE_FILE), directory.join(name.executable()), directory]);
        }
        Ok(expected)
    }

    /// Removes everything.
    pub(super) fn strike(self) -> Result<()> {
        let path = self.path().to_owned();
        drop(self.mounts);
        self.root.close().with_context(|| format!("remove {}", path.display()))
    }
}

fn make_directory(path: &Path) -> Result<()> {
    files::make_directories(path, 0o755).with_context(|| format!("make {}", path.display()))
}

//! The temporary node: a plugin directory, kubelet's directory, and something to mount.

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

/// What a pod writes into its volume.
pub(super) const FILE: &str = "greeting";

/// One driver, and how it is tried.
#[derive(Default)]
pub(super) struct Part {
    pub(super) driver: &'static str,
    pub(super) options: BTreeMap<String, String>,
    pub(super) settings: Settings,
    /// Whether the next pod finds what the last one wrote.
    pub(super) keeps_data: bool,
    /// The program it cannot do without.
    pub(super) tool: Option<&'static str>,
    /// The device it cannot do without.
    pub(super) device: Option<&'static str>,
}

/// A directory that looks like a node.
pub(super) struct Stage {
    /// Dropped before the directory: removing that must not reach into what is still mounted in it.
    mounts: Mounts,
    root: TempDir,
}

/// Whatever is mounted below a directory; detached when dropped.
struct Mounts(PathBuf);

impl Drop for Mounts {
    fn drop(&mut self) {
        for entry in mount_table::below(&self.0).unwrap_or_default() {
            let place = TargetPath::parse(entry.target.as_os_str()).ok().map(|target| Place::open(&target));
            if let Some(Ok(Some(place))) = place {
                // What cannot be detached goes with the namespace.
                let _ = mount::unmount(&place, true);
            }
        }
    }
}

impl Stage {
    /// Makes it, empty.
    pub(super) fn set() -> Result<Self> {
        let root = files::temporary("flexvol-try-").context("make a directory")?;
        let stage = Self { mounts: Mounts(root.path().to_owned()), root };
        for directory in ["plugins", "kubelet", "images", "shared"] {
            make_directory(&stage.path().join(directory))?;
        }
        Ok(stage)
    }

    /// Where everything is.
    pub(super) fn path(&self) -> &Path {
        self.root.path()
    }

    /// The directory that is bound.
    pub(super) fn shared(&self) -> PathBuf {
        self.path().join("shared")
    }

    /// What the stage's admin allows: this stage and nothing else.
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
        // The receipt: what lives for one trial is not repaired. If it stays, the search for leaks
        // names it.
        let _ = files::remove_tree(&state);
        Ok(Caller::new(plugins.join(name.directory()).join(name.executable())))
    }

    /// A volume of one pod.
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

    /// The files and directories a faultless trial leaves, relative to the stage.
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

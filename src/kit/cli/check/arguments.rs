//! Arguments by which the author describes a driver.

use super::volume::{self, VolumeArguments};
use super::wrong;
use crate::check::{Case, Chosen, Given, Level, Nature};
use crate::sandbox::Network;
use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use flexvol_linux::proc::clock;
use flexvol_model::schema::did_you_mean;
use flexvol_protocol::ordered::filled;
use flexvol_protocol::{Access, DriverName};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::Duration;

/// Limit for parallel sandboxes: more of them only wait for each other.
const JOBS: usize = 4;

/// Directories that are empty in a sandbox.
const HIDDEN: [&str; 3] = ["/run", "/var/run", "/var/lib/kubelet"];

/// Selection of cases.
#[derive(Args)]
pub(super) struct Selection {
    /// Only cases whose id matches, where * matches anything; may be repeated
    #[arg(short = 't', long = "test", value_name = "PATTERN")]
    patterns: Vec<String>,
    /// Lowest level of the cases to run; all of them decide the exit status [default: all are run,
    /// and those that must hold decide]
    #[arg(long, value_enum, value_name = "must|should|harden", hide_possible_values = true)]
    level: Option<Level>,
}

/// Network that the driver reaches.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Reach {
    /// Only a loopback device.
    None,
    /// The network that this machine reaches.
    Host,
}

/// Cases to run and how, the driver's volume, and its traits.
#[derive(Args)]
pub(super) struct RunArguments {
    #[command(flatten)]
    selection: Selection,
    /// Number of repetitions, where repeating is useful
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeat: u16,
    /// Replay the run that printed this seed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Seconds after which one call counts as hanging
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Cases to run in parallel [default: one per CPU, at most 4; with --network host one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: Option<u16>,
    #[command(flatten)]
    volume: VolumeArguments,
    #[command(flatten)]
    nature: NatureArguments,
}

/// Traits that would be faults in another driver.
#[derive(Args)]
#[command(next_help_heading = "Driver traits")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
struct NatureArguments {
    /// Network of the driver: host is what this machine reaches, none is only 127.0.0.1
    #[arg(long, value_enum, value_name = "none|host", default_value = "none", hide_possible_values = true)]
    network: Reach,
    /// Let the driver see this directory or file below /run or /var/lib/kubelet; may be repeated
    #[arg(long, value_name = "PATH")]
    expose: Vec<PathBuf>,
    /// Let the driver make and remove nodes and links in the machine's /dev, as LVM does without
    /// udev
    #[arg(long)]
    make_nodes: bool,
    /// Option whose value is a comma-separated list of mount options; may be repeated
    #[arg(long, value_name = "KEY")]
    mount_options: Vec<String>,
    /// The volume is read-only, whatever a pod requests
    #[arg(long)]
    read_only_ok: bool,
    /// Written data is gone after the unmount
    #[arg(long)]
    ephemeral_ok: bool,
    /// One pod at a time has the volume
    #[arg(long)]
    exclusive_ok: bool,
    /// All mounts of a volume on a node are read-only, or none
    #[arg(long)]
    shared_ok: bool,
}

impl Selection {
    /// Returns the selected cases.
    pub(super) fn chosen(&self) -> Result<Chosen> {
        let chosen = Chosen::new(&self.patterns, self.level).map_err(|pattern| wrong(no_case(&pattern)))?;
        if chosen.reported.is_empty() {
            return Err(wrong("all cases that are meant are of a lower level: leave out --level"));
        }
        Ok(chosen)
    }
}

fn no_case(pattern: &str) -> String {
    let group = pattern.split("::").next().unwrap_or(pattern);
    let groups: BTreeSet<_> = filled(Case::all().map(Case::group));
    let near = did_you_mean(pattern, Case::all().map(|case| case.id));
    if groups.contains(group) {
        let ids: Vec<_> = Case::all().filter(|case| case.group() == group).map(|case| case.id).collect();
        return near.map_or_else(
            || format!("no case matches {pattern:?}: there are {}", ids.join(", ")),
            |near| format!("no case matches {pattern:?}: did you mean {near}?"),
        );
    }
    let near = did_you_mean(group, groups.iter().copied()).map_or_else(
        || format!("the groups are {}", groups.into_iter().collect::<Vec<_>>().join(", ")),
        |near| format!("did you mean '{near}::*'?"),
    );
    format!("no case matches {pattern:?}: {near}")
}

impl RunArguments {
    /// Returns the selected cases, see [`Selection::chosen`].
    pub(super) fn chosen(&self) -> Result<Chosen> {
        self.selection.chosen()
    }

    /// Returns the complete description of the driver.
    pub(super) fn given(&self, driver: &Path) -> Result<Given> {
        let driver = executable(driver)?;
        let volume = self.volume.read(&driver)?;
        let mut natures = self.nature.natures();
        if volume.as_ref().is_some_and(|volume| volume.options.access() == Access::ReadOnly) {
            natures.insert(Nature::ReadOnly);
        }
        let keys = volume.iter().flat_map(|volume| volume.options.own.keys());
        let lists = keys.filter(|key| volume::is_list(key)).chain(&self.nature.mount_options);
        Ok(Given {
            lists: lists.cloned().collect(),
            natures,
            network: self.nature.network(),
            exposed: self.nature.exposed(&driver)?,
            makes_nodes: self.nature.make_nodes,
            repeat: self.repeat.into(),
            patience: Duration::from_secs(self.timeout),
            seed: self.seed.unwrap_or_else(seed),
            jobs: self.jobs.map_or_else(|| self.jobs(volume.is_some()), usize::from),
            volume,
            ..Given::new(driver)
        })
    }

    /// Returns the default number of parallel cases; one if they share servers in the machine's
    /// network, because they might disturb each other.
    fn jobs(&self, has_volume: bool) -> usize {
        if has_volume && self.nature.network == Reach::Host {
            return 1;
        }
        available_parallelism().map_or(1, usize::from).min(JOBS)
    }
}

impl NatureArguments {
    fn natures(&self) -> BTreeSet<Nature> {
        let all = [
            (self.read_only_ok, Nature::ReadOnly),
            (self.ephemeral_ok, Nature::Ephemeral),
            (self.exclusive_ok, Nature::Exclusive),
            (self.shared_ok, Nature::Shared),
        ];
        all.into_iter().filter(|(given, _)| *given).map(|(_, nature)| nature).collect()
    }

    fn network(&self) -> Network {
        match self.network {
            Reach::None => Network::Loopback,
            Reach::Host => Network::Machine,
        }
    }

    /// Returns the given paths, and the driver's own directory if it would be hidden.
    fn exposed(&self, driver: &Path) -> Result<Vec<PathBuf>> {
        let mut exposed = Vec::new();
        for path in &self.expose {
            let path = std::path::absolute(path).context("find what to expose")?;
            if !path.exists() {
                return Err(wrong(format!("there is no {} to expose", path.display())));
            }
            exposed.push(path);
        }
        let hidden = HIDDEN.iter().any(|directory| driver.starts_with(directory));
        exposed.extend(driver.parent().filter(|_| hidden).map(Path::to_owned));
        Ok(exposed)
    }
}

/// Returns the file that kubelet would execute. The given path stays: it is the driver's argv[0].
fn executable(given: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(given).context("find the driver")?;
    let metadata = path.metadata().map_err(|error| {
        wrong(format!("there is no driver {}: {error}; name an executable", path.display()))
    })?;
    if metadata.is_dir() {
        let name = path.file_name().map(DriverName::executable_in).unwrap_or_default();
        let inside = path.join(name);
        if name.is_empty() || !inside.is_file() {
            let text = format!(
                "{} is a directory without an executable {}: name the driver itself",
                path.display(),
                name.to_string_lossy()
            );
            return Err(wrong(text));
        }
        return executable(&inside);
    }
    if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 {
        let text = format!("{} is not executable: chmod +x it", path.display());
        return Err(wrong(text));
    }
    Ok(path)
}

/// Returns a random seed that is short enough to type.
fn seed() -> u64 {
    let now = clock::since_1970();
    fastrand::Rng::with_seed(u64::from(now.subsec_nanos()) ^ now.as_secs()).u64(1..1_000_000)
}

//! CSI drivers behind FlexVolume. The agent is their client, instead of kubelet.
//!
//! ```text
//! driver csi ──csi.publish──▶ Volumes ─▶ journal ─▶ Plugin: NodeStage, NodePublish ─▶ CSI driver
//!            ─csi.unpublish─▶         └─ sweep: targets that kubelet has removed
//! ```
//!
//! * A volume is staged once for the node and unstaged with its last target.
//! * Each request to a CSI driver is written to the journal first, without secrets. So an agent
//!   that was killed at any point knows what may exist.
//! * kubelet forgets a failed mount, and its pod may be deleted. So an unknown outcome stays in the
//!   journal until kubelet asks again or has removed the directory.
//! * A volume that kubelet itself has staged is refused: CSI has one staging path for each volume
//!   and node.

mod entry;
mod expand;
mod plugin;
mod publish;
mod refused;
mod unpublish;

use super::Asked;
use super::fault::{Code, Fault};
use super::journal::Journal;
use super::turns::{Turn, Turns};
use crate::csi::name::hash;
use entry::Entry;
use flexvol_linux::proc::clock;
use flexvol_model::csi::volume::CsiVolume;
use flexvol_model::translate::through;
use flexvol_protocol::TargetPath;
use flexvol_protocol::failure::Failure;
use flexvol_protocol::secret::{Redactor, Secret};
use flexvol_protocol::volume_dir::VolumeDir;
use plugin::Plugins;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Limits for requests that are served or wait at the same time: in total, and for one CSI driver,
/// which may hang. The agent's other connections are for requests that take no time.
const MOST: usize = 20;
const MOST_OF_ONE: usize = 16;

/// Limit for the wait for another call for the same volume.
const TURN: Duration = Duration::from_secs(20);

/// Time before the driver's deadline at which the agent answers.
const MARGIN: Duration = Duration::from_millis(500);

/// Time for which an unpublish is remembered, to refuse late publish requests.
const LATEST: Duration = Duration::from_mins(5);

/// Staging directory of kubelet and the agent, below kubelet's directory: CSI drivers look there.
pub const STAGING: &str = "plugins/kubernetes.io/csi";

/// Limit for the name of a volume or a directory, in bytes.
const LONGEST: usize = 4096;

/// Directories of the journal and of kubelet.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The directory of the journal.
    pub journal: PathBuf,
    /// kubelet's own directory.
    pub kubelet_root: PathBuf,
}

/// The volumes of CSI drivers on this node.
#[derive(Debug)]
pub struct Volumes {
    journal: Journal<Entry>,
    plugins: Plugins,
    turns: Turns,
    boot: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of requests that are served or wait, by CSI driver.
    busy: BTreeMap<String, usize>,
    /// Time of the last unpublish request, by target.
    unpublished: BTreeMap<String, u64>,
}

/// Parameters of a publish request, as they are sent.
#[derive(Deserialize)]
struct Params {
    volume: CsiVolume,
    #[serde(default)]
    secrets: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct ExpandParams {
    volume: CsiVolume,
    size: u64,
}

#[derive(Deserialize)]
struct TargetParams {
    target: String,
}

/// Requested volume.
struct Wanted {
    volume: CsiVolume,
    id: String,
    secrets: BTreeMap<String, Secret>,
    masked: Redactor,
    until: Instant,
}

/// Slot of one request, within the limits.
struct Slot<'a> {
    volumes: &'a Volumes,
    driver: &'a str,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut state = self.volumes.state();
        if let Some(count) = state.busy.get_mut(self.driver) {
            *count -= 1;
        }
        state.busy.retain(|_, count| *count > 0);
    }
}

impl Volumes {
    /// Reads the journal. Also returns a message for each file that could not be read.
    pub fn open(setup: Setup, boot: String) -> anyhow::Result<(Self, Vec<String>)> {
        let (journal, broken) = Journal::open(setup.journal)?;
        let plugins = Plugins::of(setup.kubelet_root);
        let volumes = Self { journal, plugins, turns: Turns::default(), boot, state: Mutex::default() };
        Ok((volumes, broken))
    }

    /// Lets the CSI driver publish a volume at a target. Starts nothing if the calling driver is
    /// gone.
    pub fn publish(&self, params: Value, asked: Asked, is_there: impl Fn() -> bool) -> Result<Value, Fault> {
        let wanted = Wanted::parse(params, asked)?;
        let _slot = self.slot(&wanted.volume.driver)?;
        let _turns = self.turns(&wanted.volume.target, &wanted.id, wanted.until)?;
        let target = &wanted.volume.target;
        let late = self.state().unpublished.get(target).is_some_and(|at| *at > asked.at);
        if late || !is_there() {
            return Err(Fault::late());
        }
        let begun = Instant::now();
        let shown = handle()?.block_on(self.show(&wanted));
        // A target in the journal must still be cleaned up.
        let is_left = || self.of_target(target).is_some();
        shown.map_err(|fault| if is_left() { Fault { code: Code::InProgress, ..fault } } else { fault })?;
        let CsiVolume { driver, handle, target, .. } = &wanted.volume;
        let seconds = begun.elapsed().as_secs_f64();
        tracing::info!(driver, handle, target, seconds, "published");
        Ok(json!({}))
    }

    /// Lets the CSI driver unpublish a target.
    pub fn unpublish(&self, params: Value, asked: Asked) -> Result<Value, Fault> {
        let TargetParams { target } = serde_json::from_value(params).map_err(Fault::bad)?;
        TargetPath::parse(target.as_ref()).map_err(|failure| Fault::bad(failure.message()))?;
        self.note_unpublish(&target, asked.at);
        let until = until(asked)?;
        let Some(found) = self.of_target(&target) else { return Ok(json!({"state": "nothing"})) };
        let _slot = self.slot(&found.driver)?;
        let _turns = self.turns(&target, found.id(), until)?;
        // The entry may have changed during the wait for its turn.
        let Some(entry) = self.of_target(&target) else { return Ok(json!({"state": "nothing"})) };
        if entry.id() != found.id() {
            return Err(Fault::new(
                Code::InProgress,
                "the target shows another volume by now: kubelet tries again",
            ));
        }
        handle()?.block_on(self.take_away(entry, &target, until))?;
        tracing::info!(target, "unpublished");
        Ok(json!({"state": "unpublished"}))
    }

    /// Tells the CSI driver that a volume has grown, if the driver supports that.
    pub fn expand(&self, params: Value, asked: Asked) -> Result<Value, Fault> {
        let ExpandParams { volume, size } = serde_json::from_value(params).map_err(Fault::bad)?;
        let wanted = Wanted::new(volume, BTreeMap::new(), asked)?;
        let _slot = self.slot(&wanted.volume.driver)?;
        let _turns = self.turns(&wanted.volume.target, &wanted.id, wanted.until)?;
        handle()?.block_on(self.grow(&wanted, size))?;
        let CsiVolume { driver, handle, target, .. } = &wanted.volume;
        tracing::info!(driver, handle, target, size, "expanded");
        Ok(json!({}))
    }

    /// Returns the volumes, for people.
    pub fn status(&self) -> Value {
        let volume = |entry: Entry| {
            let targets = entry
                .targets
                .iter()
                .map(|(path, target)| json!({"target": path, "phase": target.phase.name()}));
            json!({
                "driver": entry.driver,
                "handle": entry.handle,
                "staging": entry.staging,
                "targets": targets.collect::<Vec<_>>(),
            })
        };
        self.journal.all().into_iter().map(volume).collect()
    }

    /// Returns the volume that is published at a target, or will be.
    fn of_target(&self, target: &str) -> Option<Entry> {
        self.journal.all().into_iter().find(|entry| entry.targets.contains_key(target))
    }

    fn write(&self, entry: &Entry) -> Result<(), Fault> {
        self.journal.write(entry).map_err(|error| Fault::journal(&error))
    }

    /// Takes the turns of the target and the volume, always in this order.
    fn turns(&self, target: &str, id: &str, until: Instant) -> Result<[Turn<'_>; 2], Fault> {
        let until = until.min(Instant::now() + TURN);
        Ok([self.turns.take(&format!("target {target}"), until)?, self.turns.take(id, until)?])
    }

    fn slot<'a>(&'a self, driver: &'a str) -> Result<Slot<'a>, Fault> {
        let mut state = self.state();
        let (all, own): (usize, _) = (state.busy.values().sum(), state.busy.get(driver).copied());
        let own = own.unwrap_or_default();
        if all >= MOST || own >= MOST_OF_ONE {
            let text = format!("{own} calls of the CSI driver {driver} are under way: kubelet tries again");
            return Err(Fault::new(Code::Crowded, text));
        }
        state.busy.insert(driver.to_owned(), own + 1);
        Ok(Slot { volumes: self, driver })
    }

    /// Remembers an unpublish: a publish that was requested before it is refused from now on.
    fn note_unpublish(&self, target: &str, at: u64) {
        let oldest = clock::since_boot().saturating_sub(LATEST.as_nanos().try_into().unwrap_or(0));
        let mut state = self.state();
        state.unpublished.retain(|_, at| *at >= oldest);
        state.unpublished.insert(target.to_owned(), at);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns kubelet's own staging directory for a volume, or the agent's directory beside it.
    fn staging(&self, driver: &str, name: &str) -> PathBuf {
        self.plugins.kubelet_root().join(STAGING).join(driver).join(hash(name.as_bytes())).join("globalmount")
    }
}

impl Wanted {
    fn parse(params: Value, asked: Asked) -> Result<Self, Fault> {
        // The error repeats nothing from the parameters.
        let Params { volume, secrets } =
            serde_json::from_value(params).map_err(|_| Fault::bad("it names no volume"))?;
        let secrets = secrets.into_iter().map(|(key, text)| (key, Secret::new(text.into_bytes())));
        Self::new(volume, flexvol_protocol::ordered::filled(secrets), asked)
    }

    fn new(volume: CsiVolume, secrets: BTreeMap<String, Secret>, asked: Asked) -> Result<Self, Fault> {
        let refused = |failure: Failure| Fault::new(Code::Failed, failure.message());
        let secrets = through::secrets(&volume, secrets).map_err(refused)?;
        let (volume, warnings) = through::volume(volume).map_err(refused)?;
        for warning in warnings {
            tracing::info!(target = volume.target, "{warning}");
        }
        let texts = [&volume.driver, &volume.handle, &volume.target];
        if texts.iter().any(|text| text.is_empty() || text.len() > LONGEST) || !is_name(&volume.driver) {
            return Err(Fault::bad("driver, handle and target must be given, and none over 4096 bytes"));
        }
        let target =
            TargetPath::parse(volume.target.as_ref()).map_err(|failure| Fault::bad(failure.message()))?;
        if VolumeDir::of(&target).driver.is_none() {
            let text = format!(
                "{target} is no directory that kubelet makes for a FlexVolume: the containers of CSI drivers see \
                 no other, mount it there"
            );
            return Err(Fault::new(Code::Failed, text));
        }
        let masked = Redactor::new(secrets.values());
        let id = entry::id_of(&volume.driver, &volume.handle);
        Ok(Self { volume, id, secrets, masked, until: until(asked)? })
    }

    fn secrets(&self) -> std::collections::HashMap<String, String> {
        let text = |secret: &Secret| String::from_utf8_lossy(secret.expose()).into_owned();
        self.secrets.iter().map(|(key, secret)| (key.clone(), text(secret))).collect()
    }
}

/// Reports whether the name is valid. It becomes part of a path.
fn is_name(driver: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    driver.bytes().all(inner) && driver.starts_with(|first: char| first.is_ascii_alphanumeric())
}

fn until(asked: Asked) -> Result<Instant, Fault> {
    let deadline = asked.deadline()?;
    Ok(deadline.checked_sub(MARGIN).unwrap_or(deadline))
}

/// Returns the handle of the serving runtime. Each request waits in a thread of its own.
fn handle() -> Result<Handle, Fault> {
    Handle::try_current().map_err(|error| Fault::new(Code::Failed, error.to_string()))
}

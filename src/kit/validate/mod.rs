//! Finds errors of volumes in their YAML alone, before a cluster, a node or a pod is asked.
//!
//! ```text
//! texts ─▶ objects ─▶ each flexVolume: its fields, its options, its Secret, its PersistentVolume
//!             │                └─▶ with the pods that use it: the plan of its driver, the policy of the node
//!             └─▶ names, secrets, claims
//! ```
//!
//! The rules are those of the API server, kubelet and the drivers: options are checked against the
//! table of [`schema`](flexvol_model::schema), [`Objects`] resolves volumes, and plans are made by
//! [`Installed::plan`](flexvol_model::installed::Installed::plan). A configuration that a driver
//! would refuse is reported in the driver's words.
//!
//! The module is pure: its inputs are texts and known facts about the nodes, its outputs are
//! findings. No finding repeats a value of a Secret.
//!
//! ```
//! use flexvol_kit::validate::{KnownDrivers, Source, validate};
//! let text = "kind: Pod\nmetadata: {name: web}\nspec:\n  volumes:\n  - name: a\n    flexVolume:\n      driver: example/tmpfs\n      options: {sise: 1Mi}\n";
//! let report = validate(&[Source { name: "web.yaml", text }], &KnownDrivers::default());
//! assert_eq!(report.findings[0].to_string(), "web.yaml:8: error: unknown option \"sise\": did you mean \"size\"? [unknown-option]");
//! ```

mod finding;
mod flex;
mod gather;
mod known;
mod mount_pods;
mod node;
mod object;
mod options;
mod plans;
mod pods;
mod prune;
mod read;
mod secrets;
mod slips;
mod sources;
mod stream;
mod take_over;
mod volumes;

pub use finding::{Finding, RULES, Rule, Severity};
pub use gather::Gathered;
pub use known::KnownDrivers;
pub use plans::{Planned, PlannedCall};
pub use read::Source;
pub use take_over::{Change, Outcome, TakenOver};

use crate::objects::{Objects, Origin, Secrets, Used};
use finding::{BINDING, Findings, NOTHING, OBJECT, SHAPE};
use flex::{Flex, Owner};
use object::Object;
use read::Document;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;

/// Default root directory of kubelet, the start of every target path.
const KUBELET_ROOT: &str = "/var/lib/kubelet";

/// Result of a validation.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Findings, in the order of files and lines.
    pub findings: Vec<Finding>,
    /// Number of `flexVolume` entries.
    pub volumes: usize,
    /// Plans for the volumes that one of our drivers can plan.
    pub plans: Vec<Planned>,
    /// Effects on the volumes if our drivers take them over, by driver.
    pub taken_over: Vec<TakenOver>,
}

impl Report {
    /// Returns the number of findings of this severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }
}

/// Validates the objects of all texts together.
pub fn validate(sources: &[Source<'_>], installed: &KnownDrivers) -> Report {
    let mut gathered = Gathered::default();
    for source in sources {
        gathered.text(source.name, source.text);
    }
    gathered.report(installed)
}

/// Validates the objects of all documents together.
fn validated(
    documents: &[Document],
    files: &[Rc<str>],
    mut findings: Findings,
    installed: &KnownDrivers,
) -> Report {
    let objects = read::objects(documents, &mut findings);
    let flexes: Vec<_> = objects.iter().flat_map(flex::of).collect();
    let drivers = flexes.iter().filter_map(|flex| Some(flex.driver.as_ref()?.to_string()));
    let drivers: BTreeSet<_> = drivers.collect();
    for object in &objects {
        slips::check(object, &mut findings);
        sources::check(object, installed, &mut findings);
        mount_pods::check(object, installed, &mut findings);
        pods::check_names(object, &mut findings);
        if object.kind == "Secret" {
            secrets::check(object, &drivers, &mut findings);
            secrets::check_keys(object, &drivers, installed, &mut findings);
        }
    }
    let sound = check_each(&flexes, installed, &mut findings);
    Flex::check_rook(&flexes, installed, &mut findings);
    let cluster = resolve(&objects, &mut findings);
    let used = cluster.used(Path::new(KUBELET_ROOT), Secrets::IfThere);
    let mut plans = Vec::new();
    for (flex, sound) in flexes.iter().zip(&sound) {
        plans.extend(check_used(flex, *sound, &objects, &used, installed, &mut findings));
    }
    pods::check_claims(&objects, &mut findings);
    check_bindings(&cluster, &objects, &mut findings);
    let is_empty = flexes.is_empty() && !objects.iter().any(mount_pods::is_one);
    if let (true, Some(first)) = (is_empty && findings.errors() == 0, files.first()) {
        let text = "there is no FlexVolume in the files: give a Pod with one, or a PersistentVolume";
        findings.push(first, 1, NOTHING, Severity::Warning, text);
    }
    let taken_over = take_over::of(&flexes, &sound, installed, &findings);
    Report { findings: findings.sorted(files), volumes: flexes.len(), plans, taken_over }
}

/// Checks each `flexVolume` on its own. Returns true for those without errors: only these get
/// plans.
fn check_each(all: &[Flex<'_>], installed: &KnownDrivers, findings: &mut Findings) -> Vec<bool> {
    let mut check = |flex: &Flex<'_>| {
        let before = findings.errors();
        flex.check(installed, findings);
        if let Some(known) = flex.known(installed) {
            flex.check_against(&known, findings);
        }
        findings.errors() == before
    };
    all.iter().map(&mut check).collect()
}

/// Resolves the objects as kubelet does. A refusal of kubelet that no rule has found is an error,
/// too.
fn resolve(all: &[Object<'_>], findings: &mut Findings) -> Objects {
    let mut cluster = Objects::default();
    for object in all {
        let Err(why) = cluster.add_object(&object.named()) else { continue };
        let message = why.message();
        let (_, what) = message.split_once(": ").unwrap_or(("", &message));
        let place = what.split([' ', '"']).next().unwrap_or_default();
        let twice = message.ends_with("is there twice: remove one");
        if twice {
            findings.add(object, object.node, OBJECT, message);
        } else if !findings.has_error_in(object) {
            findings.add(object, object.node.nearest(place), SHAPE, message);
        }
    }
    cluster
}

/// Checks a `flexVolume` together with the pods that use it. Returns its plans.
fn check_used(
    flex: &Flex<'_>,
    sound: bool,
    objects: &[Object<'_>],
    used: &[Used],
    installed: &KnownDrivers,
    findings: &mut Findings,
) -> Vec<Planned> {
    let used: Vec<_> = used.iter().filter(|used| is_of(flex, used)).collect();
    let known = flex.known(installed);
    flex.check_volume(known.as_ref(), &used, findings);
    let certain = flex.check_secrets(objects, &used, findings);
    let Some(known) = known.filter(|known| sound && is_configured(known)) else { return Vec::new() };
    used.into_iter().filter_map(|used| flex.plan(&known, used, certain, findings)).collect()
}

/// Reports whether a driver can be planned: `exec` does nothing without its side file.
fn is_configured(known: &known::Known) -> bool {
    known.installed.driver.is_configured(&known.installed.settings)
}

fn is_of(flex: &Flex<'_>, used: &Used) -> bool {
    match (&used.origin, flex.owner) {
        (Origin::Volume(name), Owner::Volume) => name == flex.name,
        (Origin::Inline(name), Owner::Pod) => {
            name == flex.name && used.pod.as_ref() == Some(&flex.object.pod_key())
        }
        _ => false,
    }
}

fn check_bindings(cluster: &Objects, all: &[Object<'_>], findings: &mut Findings) {
    for (key, why) in cluster.misfits() {
        let is_it = |object: &&Object<'_>| object.kind == "PersistentVolumeClaim" && object.key == key;
        // A claim with an error may have been meant differently.
        if let Some(claim) = all.iter().find(is_it).filter(|claim| !findings.has_error_in(claim)) {
            findings.add(claim, claim.node.at(&["spec", "volumeName"]), BINDING, why);
        }
    }
}

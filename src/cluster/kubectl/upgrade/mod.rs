//! Upgrade of a node's mount pod: the pod is replaced while it serves nothing.
//!
//! ```text
//! mark the node ─▶ wait until no pod uses its volumes, and it serves none ─▶ delete it
//!                                    ─▶ wait until the new one answers ─▶ remove the mark
//! ```
//!
//! Only the mark on the node stores the progress: [`decide`] derives the next step from the state
//! of the cluster. That state is read again until the time is over: when a watch of the node and
//! its pods reports a change, and every 20 s without one, because the DaemonSet is not watched. A
//! pod that still serves volumes is asked every 2 s.

pub mod decide;
pub mod mark;
pub mod node;
pub mod users;

use super::asking::Kubectl;
use super::asking::exec::Container;
use super::mount_pods::{MountPod, Owner, newest_revision};
use super::session::Session;
use crate::controllers::blocking::Answer;
use anyhow::{Context as _, Error, Result, anyhow, bail, ensure};
use decide::{Next, next};
use flexvol_model::mounter::volume;
use flexvol_terminal::screen::counted;
use mark::{MARK, Mark, Marked, begun, ended, stays};
use node::{Node, Seen};
use serde_json::{Value, json};
use std::sync::mpsc::Receiver;
use std::thread::sleep;
use std::time::{Duration, Instant};
use users::{User, users};

/// Longest time between two looks, with or without a reported change.
const LOOK: Duration = Duration::from_secs(20);

/// Shortest time between two looks, however much changes.
const QUIET: Duration = Duration::from_millis(300);

/// Pause after a failure that may be temporary.
const AGAIN: Duration = Duration::from_secs(2);

/// Deadline for writing or removing the mark, while others change the node.
const MARKING: Duration = Duration::from_mins(1);

/// Time for which the pod itself waits until it serves nothing, in seconds.
const DRAINED: &str = "10";

/// Deadline for the question to the pod.
const ASK: Duration = Duration::from_secs(30);

/// Limit for the volumes that a message names.
const NAMED: usize = 5;

/// Request for an upgrade.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Name of the node.
    pub node: String,
    /// Name of the DaemonSet, if given.
    pub name: Option<String>,
    /// Namespace of the DaemonSet, if given.
    pub namespace: Option<String>,
    /// True to only report what would be done.
    pub is_dry: bool,
    /// True to replace also a pod of the newest template.
    pub again: bool,
    /// True to skip the question to the pod.
    pub trusts_api: bool,
    /// Limit for each wait.
    pub patience: Duration,
}

/// Result of an upgrade.
#[derive(Clone, Debug)]
pub enum Done {
    /// The pod is already of the newest template.
    Newest(MountPod),
    /// Preview of a dry run.
    Would(Preview),
    /// Uid of the old pod, and the new pod.
    Replaced(String, MountPod),
}

/// Preview of an upgrade.
#[derive(Clone, Debug)]
pub struct Preview {
    /// Pod that would be replaced, if it exists.
    pub pod: Option<MountPod>,
    /// True if the node already has the taint.
    pub is_marked: bool,
    /// Pods that would be evicted and use its volumes.
    pub users: Vec<User>,
    /// Number of other pods that would be evicted.
    pub others: usize,
}

/// Upgrade in progress.
pub struct Upgrade<'a> {
    wanted: &'a Wanted,
    kubectl: &'a Kubectl,
    session: &'a Session,
    node: Node<'a>,
    bell: Option<Receiver<()>>,
    say: &'a mut dyn FnMut(&str) -> Result<()>,
}

/// Results of one look.
enum Step {
    /// Look again at once: the state has changed.
    Go,
    /// There is nothing to do but to wait for this, at most for so long.
    Wait(String, Duration),
    /// The upgrade is over: this is the new pod.
    Over(Box<MountPod>),
    /// The upgrade must not continue. True if the mark is to be removed.
    Stop(Error, bool),
}

impl<'a> Upgrade<'a> {
    /// Creates an upgrade; `say` receives progress messages.
    pub fn new(
        wanted: &'a Wanted,
        kubectl: &'a Kubectl,
        session: &'a Session,
        say: &'a mut dyn FnMut(&str) -> Result<()>,
    ) -> Self {
        Self { wanted, kubectl, session, node: Node::new(session, &wanted.node), bell: None, say }
    }

    /// Begins an upgrade, or continues one that has begun.
    pub fn run(mut self) -> Result<Done> {
        let (begun, mut may_be_marked) = (Instant::now(), false);
        loop {
            let seen = match self.node.look() {
                // Try again: the node may be marked. Otherwise the next run finds out.
                Err(_) if may_be_marked && begun.elapsed() < MARKING => {
                    sleep(AGAIN);
                    continue;
                }
                seen => seen?,
            };
            match seen.marked.clone() {
                Marked::Foreign(value) => bail!(
                    "node {0} has the taint {MARK}={value}:NoExecute, which no upgrade has written: \
                    kubectl taint node {0} {MARK}:NoExecute- removes it",
                    self.wanted.node
                ),
                Marked::By(mark) => return self.resume(&mark, &seen),
                Marked::No => {}
            }
            let old = self.chosen(&seen)?;
            let owner = owner_of(&old)?;
            if !self.wanted.again && self.is_newest(&old, &owner)? {
                return Ok(Done::Newest(old));
            }
            if let Some(why) = self.makes_none(&owner, &old.uid)? {
                bail!(why);
            }
            self.refuse_what_stays(&old, &seen)?;
            if self.wanted.is_dry {
                return Ok(Done::Would(preview(Some(old), &seen)));
            }
            if self.mark(&seen, &old, &owner)? {
                let mark = Mark { pod: old.uid, owner: None };
                return self.carry_out(&mark, &owner);
            }
            may_be_marked = true;
            ensure!(
                begun.elapsed() < MARKING,
                "node {} is being changed all the time: try again",
                self.wanted.node
            );
            sleep(QUIET);
        }
    }

    /// Writes the mark. Returns false if the node was changed meanwhile, or if the result is
    /// unknown.
    fn mark(&mut self, seen: &Seen, old: &MountPod, owner: &Owner) -> Result<bool> {
        let node = &self.wanted.node;
        match self.session.ask("PATCH", &self.node.path(), Some(begun(&seen.object, &old.uid, owner))) {
            Answer::Done(_) => {}
            Answer::Conflict | Answer::Unsure(_) => return Ok(false),
            Answer::Refused(why) | Answer::Missing(why) => bail!("taint node {node}: {why}"),
        }
        (self.say)(&format!("node {node} is tainted: pods that do not tolerate it are evicted"))?;
        Ok(true)
    }

    fn resume(&mut self, mark: &Mark, seen: &Seen) -> Result<Done> {
        let node = &self.wanted.node;
        let old = seen.mount_pods.iter().find(|pod| pod.uid == mark.pod);
        if let Some(why) = old.and_then(|old| old.lacks) {
            bail!("the taint of node {node} names pod {}, which is no mount pod: {why}", mark.pod);
        }
        let Some(owner) = old.and_then(|old| old.owner.clone()).or_else(|| mark.owner.clone()) else {
            bail!(
                "the taint of node {node} names pod {}, which is gone, and nothing says whose it was: \
                when the node's mount pods are ready, kubectl taint node {node} {MARK}:NoExecute-",
                mark.pod
            );
        };
        ensure!(
            self.is_meant(&owner),
            "the mount pod of DaemonSet {} is being replaced on node {node}: run this with --namespace {} --name {} first",
            owner.shown(),
            owner.namespace,
            owner.name
        );
        (self.say)(&format!(
            "node {node} is tainted already: going on with the upgrade of pod {}",
            mark.pod
        ))?;
        if self.wanted.is_dry {
            let old = old.filter(|old| !old.is_ending).cloned();
            return Ok(Done::Would(preview(old, seen)));
        }
        self.carry_out(mark, &owner)
    }

    fn is_meant(&self, owner: &Owner) -> bool {
        let is = |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
        is(&self.wanted.name, &owner.name) && is(&self.wanted.namespace, &owner.namespace)
    }

    /// Returns the mount pod that is meant.
    fn chosen(&self, seen: &Seen) -> Result<MountPod> {
        let node = &self.wanted.node;
        let is_meant = |pod: &&MountPod| match &pod.owner {
            Some(owner) => self.is_meant(owner),
            None => self.is_meant(&Owner { namespace: pod.namespace.clone(), ..Owner::default() }),
        };
        let meant = seen.mount_pods.iter().filter(is_meant);
        let (genuine, posing): (Vec<_>, Vec<_>) = meant.partition(|pod| pod.lacks.is_none());
        let shown = |pods: &[&MountPod]| pods.iter().map(|pod| pod.shown()).collect::<Vec<_>>().join(", ");
        match (&*genuine, &*posing) {
            ([pod], _) if pod.is_ending => {
                bail!("mount pod {} is ending already: wait until there is a new one", pod.shown())
            }
            ([pod], _) => Ok((*pod).clone()),
            ([], []) => {
                bail!("node {node} has no such mount pod: kubectl get pods -A -o wide says what it has")
            }
            ([], [pod, ..]) => bail!(
                "node {node} has no such mount pod: {} runs the same program, but {}",
                pod.shown(),
                pod.lacks.unwrap_or_default()
            ),
            (several, _) => bail!(
                "node {node} has several mount pods ({}): name a DaemonSet with --name and --namespace",
                shown(several)
            ),
        }
    }

    fn is_newest(&self, pod: &MountPod, owner: &Owner) -> Result<bool> {
        let mut all = Vec::new();
        let path = format!("/apis/apps/v1/namespaces/{}/controllerrevisions", owner.namespace);
        self.session.list(&path, |revision| all.push(revision))?;
        Ok(newest_revision(&all, &owner.uid).is_some_and(|newest| newest == pod.revision))
    }

    /// Returns why the DaemonSet would make no pod that may run on the tainted node; `None` if it
    /// would.
    fn makes_none(&self, owner: &Owner, taint: &str) -> Result<Option<String>> {
        let path = format!("/apis/apps/v1/namespaces/{}/daemonsets/{}", owner.namespace, owner.name);
        let set = self.session.get(&path)?.unwrap_or_default();
        let metadata = &set["metadata"];
        if metadata["uid"] != *owner.uid || !metadata["deletionTimestamp"].is_null() {
            let why = "is gone, and nothing would make a new mount pod: replace it by hand";
            return Ok(Some(format!("DaemonSet {} {why}", owner.shown())));
        }
        let makes = stays(&set["spec"]["template"]["spec"], taint);
        let why = "would be evicted with their volumes: give its template tolerations: [{operator: Exists}]";
        Ok((!makes).then(|| format!("the pods of DaemonSet {} {why}", owner.shown())))
    }

    fn refuse_what_stays(&self, old: &MountPod, seen: &Seen) -> Result<()> {
        let is_old = |pod: &&users::Pod| pod.shown == old.shown();
        ensure!(
            seen.pods.iter().find(is_old).is_some_and(|pod| stays(&pod.spec, &old.uid)),
            "mount pod {} would be evicted with its volumes: replace it by hand, once nothing uses them",
            old.shown()
        );
        let users = users(&seen.pods, &old.plugins, &old.uid);
        let staying: Vec<_> = users.into_iter().filter(|user| user.stays).map(|user| user.pod).collect();
        if staying.is_empty() { Ok(()) } else { Err(self.staying(&staying)) }
    }

    fn staying(&self, pods: &[String]) -> Error {
        anyhow!(
            "{} would stay on node {} and keep the volumes: delete them by hand, or take that toleration from them",
            named(pods),
            self.wanted.node
        )
    }

    /// Repeats steps until the upgrade is over. Each of the two waits has its own time limit.
    fn carry_out(&mut self, mark: &Mark, owner: &Owner) -> Result<Done> {
        self.bell = Some(self.node.bell());
        let (mut since, mut is_before, mut said) = (Instant::now(), true, String::new());
        let limit = self.wanted.patience.as_secs();
        loop {
            let (still, step) = self.step(mark, owner);
            if is_before && still == Some(false) {
                (since, is_before) = (Instant::now(), false);
            }
            let (left, pause) = match step {
                Step::Go => (said.clone(), QUIET),
                Step::Over(new) => {
                    self.unmark(mark)?;
                    return Ok(Done::Replaced(mark.pod.clone(), *new));
                }
                Step::Stop(error, gives_back) => return Err(self.stop(mark, error, gives_back)),
                Step::Wait(left, pause) => (left, pause),
            };
            if left != said {
                (self.say)(&format!("waiting for {left}, at most {limit} s"))?;
            }
            said = left;
            let spent = since.elapsed();
            if spent >= self.wanted.patience {
                let error = anyhow!("timed out after {limit} s waiting for {said}");
                return Err(self.stop(mark, error, is_before));
            }
            self.wait(pause.min(self.wanted.patience.saturating_sub(spent)));
        }
    }

    /// Ends a failed upgrade. Removes the mark if nothing was broken; keeps it if it is too late
    /// for that.
    fn stop(&mut self, mark: &Mark, error: Error, gives_back: bool) -> Error {
        let node = &self.wanted.node;
        if !gives_back {
            return error.context(format!(
                "node {node} keeps the taint: run this again, or kubectl taint node {node} {MARK}:NoExecute-"
            ));
        }
        match self.unmark(mark) {
            Ok(()) => error,
            Err(why) => error.context(format!("the taint of node {node} could not be removed ({why:#})")),
        }
    }

    /// Waits until something has changed.
    fn wait(&self, most: Duration) {
        let Some(bell) = &self.bell else { return sleep(most) };
        if bell.recv_timeout(most).is_ok() {
            sleep(QUIET.min(most));
            let _ = bell.try_recv();
        }
    }

    /// Looks once and takes the next step; also returns whether the old pod still runs, if that is
    /// known.
    fn step(&mut self, mark: &Mark, owner: &Owner) -> (Option<bool>, Step) {
        let seen = match self.node.look() {
            Ok(seen) => seen,
            Err(error) => return (None, unanswered(&error)),
        };
        let next = next(&seen, mark, owner);
        let still = next.is_before();
        let wait = |what: String| Step::Wait(what, LOOK);
        let step = match next {
            Next::Cancelled => Step::Stop(
                anyhow!("somebody has removed the taint of node {}: nothing was replaced", self.wanted.node),
                true,
            ),
            Next::Stays(pods) => Step::Stop(self.staying(&pods), true),
            Next::Leave(pods) => wait(format!("{} to leave node {}", named(&pods), self.wanted.node)),
            Next::Ask(old) => self.end(&old, mark, owner),
            Next::End(pod) => wait(format!("mount pod {} to end", pod.shown())),
            Next::Make => match self.makes_none(owner, &mark.pod) {
                Ok(Some(why)) => Step::Stop(anyhow!(why), false),
                _ => wait(format!("a new mount pod of DaemonSet {}", owner.shown())),
            },
            Next::Answer(pod) => wait(format!("mount pod {} to be ready", pod.shown())),
            Next::Free(pod) => Step::Over(Box::new(pod)),
        };
        (Some(still), step)
    }

    /// Deletes the old pod, if it reports that it serves nothing and if no user has come meanwhile.
    fn end(&mut self, old: &MountPod, mark: &Mark, owner: &Owner) -> Step {
        // If its container does not run, the programs that served volumes have ended with it.
        if !self.wanted.trusts_api && old.is_running {
            match self.serves(old) {
                Ok(volumes) if volumes.is_empty() => {}
                Ok(volumes) => return Step::Wait(unmounted(&volumes), AGAIN),
                Err(error) => {
                    let asked = format!("mount pod {} to say what it serves ({error:#})", old.shown());
                    return Step::Wait(asked, AGAIN);
                }
            }
        }
        match self.node.look() {
            Ok(seen) if next(&seen, mark, owner) == Next::Ask(old.clone()) => {}
            _ => return Step::Go,
        }
        match self.makes_none(owner, &mark.pod) {
            Ok(None) => self.delete(old),
            Ok(Some(why)) => Step::Stop(anyhow!(why), true),
            Err(error) => unanswered(&error),
        }
    }

    /// Returns the volumes of the pod, as the pod itself reports them.
    fn serves(&self, pod: &MountPod) -> Result<Vec<String>> {
        let at = Container { namespace: &pod.namespace, pod: &pod.name, name: &pod.container };
        let words = [&*pod.program, "--json", "mounter", "drained", "--timeout", DRAINED];
        let said = self.kubectl.exec(at, &words, ASK)?;
        let said: Value = serde_json::from_str(&said).context("read what it says")?;
        let volumes = said["volumes"].as_array().context("its answer makes no sense")?;
        let name = |said: &Value| {
            let name = said.as_str().and_then(|name| volume(name).ok());
            name.context("its answer makes no sense")
        };
        volumes.iter().map(name).collect()
    }

    fn delete(&mut self, old: &MountPod) -> Step {
        let path = format!("/api/v1/namespaces/{}/pods/{}", old.namespace, old.name);
        let body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": old.uid}});
        match self.session.ask("DELETE", &path, Some(body)) {
            Answer::Done(_) => {
                let said = (self.say)(&format!("mount pod {} serves nothing, and is deleted", old.shown()));
                said.map_or_else(|error| Step::Stop(error, false), |()| Step::Go)
            }
            Answer::Missing(_) | Answer::Conflict => Step::Go,
            Answer::Refused(why) => Step::Stop(anyhow!("delete mount pod {}: {why}", old.shown()), true),
            Answer::Unsure(why) => unanswered(&anyhow!(why)),
        }
    }

    /// Removes the mark of this upgrade, and no other one; a mark that is already gone counts as
    /// removed.
    fn unmark(&self, mark: &Mark) -> Result<()> {
        let until = Instant::now() + MARKING;
        loop {
            let why = match self.node.object() {
                Ok(object) if !Marked::of(&object).is_of(&mark.pod) => return Ok(()),
                Ok(object) => match self.session.ask("PATCH", &self.node.path(), Some(ended(&object))) {
                    Answer::Done(_) | Answer::Missing(_) => return Ok(()),
                    Answer::Refused(why) => bail!("untaint node {}: {why}", self.wanted.node),
                    Answer::Conflict => "it is being changed all the time".to_owned(),
                    Answer::Unsure(why) => why,
                },
                Err(error) => format!("{error:#}"),
            };
            ensure!(Instant::now() < until, "untaint node {}: {why}", self.wanted.node);
            sleep(QUIET);
        }
    }
}

fn owner_of(pod: &MountPod) -> Result<Owner> {
    let none = || {
        format!("mount pod {} has no DaemonSet that would make a new one: replace it by hand", pod.shown())
    };
    pod.owner.clone().with_context(none)
}

fn preview(pod: Option<MountPod>, seen: &Seen) -> Preview {
    let is_marked = seen.marked != Marked::No;
    let of = |pod: &MountPod| users(&seen.pods, &pod.plugins, &pod.uid);
    let users = pod.as_ref().map(of).unwrap_or_default();
    let leaves = |it: &&users::Pod| pod.as_ref().is_some_and(|pod| !stays(&it.spec, &pod.uid));
    let leaving = seen.pods.iter().filter(leaves).count();
    Preview { is_marked, others: leaving.saturating_sub(users.len()), users, pod }
}

fn unanswered(error: &Error) -> Step {
    Step::Wait(format!("the API server ({error:#})"), AGAIN)
}

/// Names pods, for people.
pub fn named(pods: &[String]) -> String {
    pods.iter().map(|pod| format!("pod {pod}")).collect::<Vec<_>>().join(", ")
}

fn unmounted(volumes: &[String]) -> String {
    let more = if volumes.len() > NAMED { ", …" } else { "" };
    let names = volumes[..volumes.len().min(NAMED)].join(", ");
    format!("{} to be unmounted: {names}{more}", counted(volumes.len(), "volume"))
}

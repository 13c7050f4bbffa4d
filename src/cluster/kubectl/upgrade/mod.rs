//! The upgrade of a node's mount pod: it is replaced while it serves nothing.
//!
//! ```text
//! mark the node ─▶ wait until no pod uses its volumes, and it serves none ─▶ delete it
//!                                    ─▶ wait until the new one answers ─▶ remove the mark
//! ```
//!
//! Only the mark is remembered, on the node: what is next, [`decide`] says of what the cluster has.
//! The API server is asked again until the time is over; a watch says when, and nothing is polled.

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

/// The longest time without a look, whether or not something is said to have changed.
const LOOK: Duration = Duration::from_secs(20);

/// Between two looks, however much changes.
const QUIET: Duration = Duration::from_millis(300);

/// After something that failed, and may succeed.
const AGAIN: Duration = Duration::from_secs(2);

/// How long the mark may take to be written or removed, while others change the node.
const MARKING: Duration = Duration::from_mins(1);

/// How long the pod waits by itself until it serves nothing, in seconds.
const DRAINED: &str = "10";

/// How long the question to it may take.
const ASK: Duration = Duration::from_secs(30);

/// So many volumes are named.
const NAMED: usize = 5;

/// What is wanted.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The node.
    pub node: String,
    /// The DaemonSet, if it is named.
    pub name: Option<String>,
    /// Its namespace, if that is named.
    pub namespace: Option<String>,
    /// Only say what would be done.
    pub is_dry: bool,
    /// Also one of the newest template.
    pub again: bool,
    /// The pod is not asked.
    pub trusts_api: bool,
    /// For each wait.
    pub patience: Duration,
}

/// What came of it.
#[derive(Clone, Debug)]
pub enum Done {
    /// It is of the newest template already.
    Newest(MountPod),
    /// What would be done.
    Would(Preview),
    /// The uid of the old one, and the new one.
    Replaced(String, MountPod),
}

/// What would be done.
#[derive(Clone, Debug)]
pub struct Preview {
    /// The pod that would be replaced, if it is there.
    pub pod: Option<MountPod>,
    /// The taint is there already.
    pub is_marked: bool,
    /// Who would be evicted, and has its volumes.
    pub users: Vec<User>,
    /// How many others would be evicted.
    pub others: usize,
}

/// One that is being carried out.
pub struct Upgrade<'a> {
    wanted: &'a Wanted,
    kubectl: &'a Kubectl,
    session: &'a Session,
    node: Node<'a>,
    bell: Option<Receiver<()>>,
    say: &'a mut dyn FnMut(&str) -> Result<()>,
}

/// What is known after one look.
enum Step {
    /// Look again at once: it is not as it was.
    Go,
    /// Nothing is to be done, but to wait for this, and how long at most.
    Wait(String, Duration),
    /// It is over: this one has come.
    Over(Box<MountPod>),
    /// It must not go on. Whether the mark is to be removed.
    Stop(Error, bool),
}

impl<'a> Upgrade<'a> {
    /// Of what is wanted; `say` is told what happens.
    pub fn new(
        wanted: &'a Wanted,
        kubectl: &'a Kubectl,
        session: &'a Session,
        say: &'a mut dyn FnMut(&str) -> Result<()>,
    ) -> Self {
        Self { wanted, kubectl, session, node: Node::new(session, &wanted.node), bell: None, say }
    }

    /// Begins it, or goes on with one that has begun.
    pub fn run(mut self) -> Result<Done> {
        let (begun, mut may_be_marked) = (Instant::now(), false);
        loop {
            let seen = match self.node.look() {
                // The next run would find out, too.
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

    /// Whether the node has it now; else it was changed meanwhile, or nobody knows.
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

    /// The one that is meant.
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

    /// Why the DaemonSet would make no pod that may run on the node as it is then, if it would not.
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

    /// Goes on until it is over. Each of the two waits has its time.
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

    /// Nothing was broken, and nothing is to be; or it is too late for that.
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

    /// Until something has changed.
    fn wait(&self, most: Duration) {
        let Some(bell) = &self.bell else { return sleep(most) };
        if bell.recv_timeout(most).is_ok() {
            sleep(QUIET.min(most));
            let _ = bell.try_recv();
        }
    }

    /// One look, and what follows from it; and whether the old pod still goes on, if that is known.
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

    /// Deletes it, if it serves nothing by its own word, and nobody has come meanwhile.
    fn end(&mut self, old: &MountPod, mark: &Mark, owner: &Owner) -> Step {
        // What one has served that does not run has ended with it.
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

    /// The volumes of the pod, by its own word.
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

    /// Nobody else's mark is removed, and one that is gone is.
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

/// Pods, as people say it.
pub fn named(pods: &[String]) -> String {
    pods.iter().map(|pod| format!("pod {pod}")).collect::<Vec<_>>().join(", ")
}

fn unmounted(volumes: &[String]) -> String {
    let more = if volumes.len() > NAMED { ", …" } else { "" };
    let names = volumes[..volumes.len().min(NAMED)].join(", ");
    format!("{} to be unmounted: {names}{more}", counted(volumes.len(), "volume"))
}

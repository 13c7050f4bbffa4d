//! Programs in a mount pod, instead of on the node: the pod that has registered for a driver runs
//! the programs that serve its volumes.
//!
//! ```text
//! <kubelet's directory>/plugin-containers/<vendor~driver>.json   the pod: read for each volume
//!                                         <vendor~driver>.sock   the pod's process 1 listens here
//! ```
//!
//! If no process 1 of ours answers, the node's agent gets the same request, and asks the container
//! runtime.
//!
//! Programs that run there, and programs that do not:
//!
//! * In the pod: a program that serves a volume, its probe, and the program that makes its files
//!   from a secret. Its secrets lie in files in memory that both sides see, or go through the
//!   socket, but are never in an argument.
//! * On the node: mkfs, fsck and qemu, which read a tenant's bytes as root. So they are kept from
//!   this node's files, or get an open file or a root of their own. No process elsewhere can get
//!   these, so `MountPod` refuses them.
//! * Never here: programs that speak to daemons and devices of the node (iscsiadm, lvm, cryptsetup,
//!   modprobe), git, and an admin's own commands.
//!
//! A program that serves a volume lives in the pod. The pod ends it unless it is told to keep it,
//! so no program outlives a killed call. The pod's word does not count for anything that can be
//! checked here: the mount table tells whether the volume is mounted.

use super::context::Context;
use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flexvol_linux::fs::directory::Directory;
use flexvol_linux::fs::files;
use flexvol_linux::net::daemon_socket::{self, Conversation};
use flexvol_linux::proc::daemon::Daemon;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::{HelperExit, Invocation, Runner, last_words};
use flexvol_linux::proc::process;
use flexvol_model::agent::{self, LONGEST_FRAME};
use flexvol_model::mounter::{self, Note, Order, Registration};
use flexvol_model::paths::AGENT_SOCKET;
use flexvol_model::settings::Settings;
use flexvol_protocol::TargetPath;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::secret::{Redactor, Secret};
use flexvol_protocol::volume_dir::VolumeDir;
use serde_json::Value;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

/// Limit for a pod to answer that it is there, to start a program or to look at one.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Extra time for an answer beyond the program's own: the program is told to end, then killed.
const END_WAIT: Duration = Duration::from_secs(5);

/// Pod that has registered for a driver.
#[derive(Debug)]
pub(super) struct MountPod {
    directory: Directory,
    name: String,
    pod: Registration,
    /// Socket of the agent that asks the runtime; empty if the pod's process 1 is asked.
    agent: PathBuf,
}

/// Pod that has registered for a driver, for observers.
#[derive(Debug)]
pub struct Seen {
    /// Path of its registration.
    pub file: PathBuf,
    /// Identity according to its registration.
    pub pod: Registration,
    /// A second file for the same driver, which names another pod and is not read.
    pub beside: Option<PathBuf>,
    found: MountPod,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.found.fmt(f)
    }
}

/// Source of the answer for a mount pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Its process 1, with the PID that it has in this PID namespace, if it has one.
    Process1(Option<u32>),
    /// The agent, which has found this container.
    Agent(String),
}

/// Returns the pod registered for a driver, by the name of its directory; `kubelet` is kubelet's
/// directory.
///
/// # Errors
///
/// Fails if drivers do not accept the registration.
pub fn seen(kubelet: &Path, driver: &str, settings: &Settings) -> Result<Option<Seen>> {
    let asks = mounter::settings(settings)?.asks;
    let Some(name) = Some(driver).filter(|_| asks).and_then(mounter::file_name) else { return Ok(None) };
    let Some(found) = MountPod::read(&kubelet.join(mounter::DIRECTORY), &name)? else { return Ok(None) };
    let (file, other) =
        (found.directory.path_of(format!("{name}.json")), found.directory.path_of(as_kubernetes(&name)));
    let (file, other) = if file.exists() { (file, Some(other)) } else { (other, None) };
    let text = other.as_deref().and_then(|other| files::read_small(other, mounter::LARGEST).ok()?);
    let is_other =
        text.is_some_and(|text| Registration::parse(text.as_bytes()).ok().as_ref() != Some(&found.pod));
    Ok(Some(Seen { file, pod: found.pod.clone(), beside: other.filter(|_| is_other), found }))
}

impl Seen {
    /// Asks whether the pod is there, as a driver does before it mounts.
    ///
    /// # Errors
    ///
    /// Fails if drivers cannot use the pod.
    pub fn ask(&mut self, settings: &Settings, patience: Duration) -> Result<Answer> {
        let said = self.found.greet(settings, patience)?;
        if !self.found.agent.as_os_str().is_empty() {
            return Ok(Answer::Agent(said["container"].as_str().unwrap_or_default().to_owned()));
        }
        Ok(Answer::Process1(self.found.begin(&Deadline::after(patience))?.listener()))
    }

    /// Returns the uid of the pod that listens, even if another one has registered; `None` without
    /// an answer.
    pub fn listener(&self, patience: Duration) -> Option<String> {
        let socket = self.found.directory.inside(&format!("{}.sock", self.found.name));
        let answer =
            daemon_socket::ask(&socket, r#"{"v":1,"method":"hello"}"#, &Deadline::after(patience)).ok()?;
        let answer: Value = serde_json::from_slice(&answer).ok()?;
        answer["ok"]["pod"].as_str().map(str::to_owned)
    }
}

/// Returns the pod that serves the volumes of this driver; `None` if the node itself does.
pub(super) fn of(context: &Context<'_>, target: &TargetPath) -> Result<Option<MountPod>> {
    let settings = mounter::settings(context.settings)?;
    let Some(name) = context.directory.filter(|_| settings.asks).and_then(mounter::file_name) else {
        return Ok(None);
    };
    match MountPod::registered(&directory(target), &name, context.settings) {
        Err(_) if settings.falls_back => Ok(None),
        found => found.with_context(|| {
            let path = directory(target).join(&name);
            format!("use the mount pod of {}.json, because \"mounterFallback\" is fail", path.display())
        }),
    }
}

/// Returns the name of the file that Kubernetes read for its own FlexVolume drivers.
fn as_kubernetes(name: &str) -> String {
    format!("flexvolume-{name}.json")
}

/// Returns the directory where pods register, from the path of a volume.
fn directory(target: &TargetPath) -> PathBuf {
    let volume = VolumeDir::of(target);
    let kubelet_s = volume.driver.is_some() || volume.is_csi();
    let root = if kubelet_s { volume.root } else { mounter::KUBELET.into() };
    root.join(mounter::DIRECTORY)
}

impl MountPod {
    /// Returns the registered pod; fails if it does not answer.
    fn registered(directory: &Path, name: &str, settings: &Settings) -> Result<Option<Self>> {
        let Some(mut found) = Self::read(directory, name)? else { return Ok(None) };
        found.greet(settings, ANSWER_WAIT).map(|_| Some(found))
    }

    /// Reads the registration.
    fn read(directory: &Path, name: &str) -> Result<Option<Self>> {
        let Some(directory) = Directory::open_of_root(directory)? else { return Ok(None) };
        let read = |name: &str| directory.read_of_root(name, mounter::LARGEST);
        let Some(text) = read(&format!("{name}.json"))?
            .map_or_else(|| read(&as_kubernetes(name)), |text| Ok(Some(text)))?
        else {
            return Ok(None);
        };
        let pod = Registration::parse(&text)
            .map_err(|why| Failure::new(Code::Conflict, format!("it is no registration: {why}")))?;
        Ok(Some(Self { directory, name: name.to_owned(), pod, agent: PathBuf::new() }))
    }

    /// Asks whether the pod is there: its process 1, or the agent if process 1 does not answer or
    /// is not to be asked.
    fn greet(&mut self, settings: &Settings, patience: Duration) -> Result<Value> {
        let by_runtime = mounter::settings(settings)?.by_runtime;
        let agent = agent::settings(&settings.agent)?.map_or(AGENT_SOCKET, |agent| agent.socket);
        let greet = |pod: &Self| pod.ask("hello", "null", &Deadline::after(patience));
        if by_runtime {
            self.agent = agent.into();
        }
        let answered = greet(self);
        if answered.is_err() && !by_runtime && Path::new(agent).exists() {
            self.agent = agent.into();
            return greet(self);
        }
        answered
    }

    /// Returns the note by which the pod is found again when its program is to be ended.
    pub(super) fn note(&self) -> String {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let (directory, agent) = (text(self.directory.path()), text(&self.agent));
        Note { directory, name: self.name.clone(), pod: self.pod.clone(), agent }.text()
    }

    /// Starts a program that serves a volume; it ends when this call ends, unless it is
    /// [kept](Served::keep).
    pub(super) fn launch(
        &self,
        program: &Invocation,
        serves: &str,
        memory: u64,
        deadline: &Deadline,
    ) -> Result<Launched> {
        let order = Order { serves: serves.to_owned(), memory, ..order(program, deadline)? };
        let until = soon(deadline);
        let masked = program.redactor();
        let mut conversation = self.begin(&until)?;
        let answer = conversation.ask(&self.request("launch", &order.into_json())?, &until);
        self.said(answer, &masked)?;
        let request = |method| self.request(method, "null");
        Ok(Launched {
            conversation,
            look: request("look")?,
            keep: request("keep")?,
            pod: self.to_string(),
            masked,
            others: false,
            words: String::new(),
        })
    }

    fn begin(&self, deadline: &Deadline) -> Result<Conversation> {
        if !self.agent.as_os_str().is_empty() {
            let place = || format!("ask the agent at {} for {self}", self.agent.display());
            return Conversation::begin(&self.agent, deadline).with_context(place);
        }
        let socket = format!("{}.sock", self.name);
        let place = || format!("connect to {self} at {}", self.directory.path_of(&socket).display());
        Conversation::begin(&self.directory.inside(&socket), deadline).with_context(place)
    }

    fn request(&self, method: &str, params: &str) -> Result<String> {
        let Registration { pod_namespace, pod_name, pod_uid, container_name } = &self.pod;
        // The names are plain and need no escapes.
        let request = format!(
            r#"{{"v":1,"method":"{method}","pod":"{pod_uid}","at":{{"podNamespace":"{pod_namespace}","podName":"{pod_name}","podUID":"{pod_uid}","containerName":"{container_name}"}},"params":{params}}}"#
        );
        if request.len() > LONGEST_FRAME {
            let text =
                format!("a program's words and secrets have {} bytes: that is too long", request.len());
            return Err(Failure::options(text).into());
        }
        Ok(request)
    }

    fn ask(&self, method: &str, params: &str, deadline: &Deadline) -> Result<Value> {
        let request = self.request(method, params)?;
        let answer = self.begin(deadline)?.ask(&request, deadline);
        self.said(answer, &Redactor::default())
    }

    fn said(&self, answer: Result<Vec<u8>>, masked: &Redactor) -> Result<Value> {
        said(answer, &self.to_string(), masked)
    }
}

impl fmt::Display for MountPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Registration { pod_namespace, pod_name, container_name, .. } = &self.pod;
        write!(f, "mount pod {pod_namespace}/{pod_name} (container {container_name})")
    }
}

impl Runner for MountPod {
    /// Always succeeds: only the start of a program tells.
    fn find(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn run(&self, invocation: Invocation, deadline: &Deadline) -> Result<HelperExit> {
        let name = invocation.name();
        if let Some(needs) = invocation.only_on_host() {
            let text = format!("{name} cannot run in {self}: it needs {needs}: install it on the node");
            return Err(Failure::new(Code::ToolMissing, text).into());
        }
        deadline.check(&format!("about to run {name} in {self}"))?;
        let params = order(&invocation, deadline)?.into_json();
        let until = Deadline::after(deadline.remaining().saturating_add(END_WAIT));
        let answer = self.begin(&until)?.ask(&self.request("exec", &params)?, &until);
        let masked = invocation.redactor();
        let said = self.said(answer, &masked)?;
        let text = |key: &str| masked.clean(said[key].as_str().unwrap_or_default());
        let status = said["status"].as_i64().and_then(|status| i32::try_from(status).ok());
        let status =
            ExitStatus::from_raw(status.with_context(|| format!("{self} does not say how it ended"))?);
        Ok(HelperExit { status, output: text("output"), answer: text("answer") })
    }
}

/// Returns the result in a pod's answer, or the error that it reports.
fn said(answer: Result<Vec<u8>>, pod: &str, masked: &Redactor) -> Result<Value> {
    let answer = answer.with_context(|| format!("ask {pod}"))?;
    let mut answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
    if answer["ok"].is_object() {
        return Ok(answer["ok"].take());
    }
    let error = &answer["err"];
    let words = last_words(&masked.clean(error["msg"].as_str().unwrap_or("its answer makes no sense")));
    let (code, text) = match error["code"].as_str() {
        Some("MISSING") => (Code::ToolMissing, format!("{words} is not in {pod}: add it to its image")),
        Some("TIMEOUT") => (Code::Timeout, words),
        _ => (Code::Internal, format!("{pod}: {words}")),
    };
    Err(Failure::new(code, text).into())
}

fn order(program: &Invocation, deadline: &Deadline) -> Result<Order> {
    let secret = |secret: &Secret| STANDARD.encode(secret.expose());
    let mut env = Vec::new();
    for (name, value) in program.environment() {
        env.push(format!("{}={}", text(name)?, text(value)?));
    }
    let mut args = Vec::new();
    for word in program.words() {
        args.push(text(word)?.to_owned());
    }
    Ok(Order {
        program: program.name(),
        args,
        env,
        stdin: program.input().map(secret).unwrap_or_default(),
        masked: program.secrets().iter().map(secret).collect(),
        answering: program.is_answering(),
        within: u64::try_from(deadline.remaining().as_millis()).unwrap_or(u64::MAX),
        serves: String::new(),
        memory: 0,
    })
}

fn text(word: &OsStr) -> Result<&str> {
    word.to_str().context("a word of a program in a mount pod must be UTF-8")
}

fn soon(deadline: &Deadline) -> Deadline {
    Deadline::after(ANSWER_WAIT.min(deadline.remaining()))
}

/// Program in a pod that serves a volume.
pub(super) struct Launched {
    conversation: Conversation,
    look: String,
    keep: String,
    pod: String,
    masked: Redactor,
    others: bool,
    words: String,
}

/// A program that serves a volume, wherever it runs.
pub(super) enum Served {
    /// On this node.
    Here(Daemon),
    /// In a mount pod.
    There(Box<Launched>),
}

impl Served {
    /// Returns the exit status; `None` while the program runs.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let there = match self {
            Self::Here(daemon) => return daemon.ended(),
            Self::There(there) => there,
        };
        let answer = there.conversation.ask(&there.look, &Deadline::after(ANSWER_WAIT));
        let said = said(answer, &there.pod, &there.masked)?;
        there.others = said["others"] == true;
        there.words = last_words(&there.masked.clean(said["words"].as_str().unwrap_or_default()));
        let status = said["status"].as_i64().and_then(|status| i32::try_from(status).ok());
        Ok(status.map(ExitStatus::from_raw))
    }

    /// Reports whether a process that it had started was still running.
    pub(super) fn has_others(&self) -> bool {
        match self {
            Self::Here(_) => process::has_children(),
            Self::There(there) => there.others,
        }
    }

    /// Returns its output without secrets, as one line for a message.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Here(daemon) => daemon.words(),
            Self::There(there) => there.words.clone(),
        }
    }

    /// Does the same with text that it has written elsewhere.
    pub(super) fn told(&self, text: &str) -> String {
        match self {
            Self::Here(daemon) => daemon.told(text),
            Self::There(there) => last_words(&there.masked.clean(text)),
        }
    }

    /// Keeps the program: it has mounted, and goes on without us.
    pub(super) fn keep(&mut self) -> Result<()> {
        let Self::There(there) = self else { return Ok(()) };
        let answer = there.conversation.ask(&there.keep, &Deadline::for_undo(ANSWER_WAIT));
        said(answer, &there.pod, &there.masked).map(drop)
    }
}

/// Gives the program that serves a volume in the pod of this note `patience` to finish, then ends
/// it. Nothing is left of a pod that is gone, and a pod that does not answer blocks no unmount.
pub(super) fn end(note: &str, serves: &str, patience: Duration) {
    let Note { directory, name, pod, agent } = Note::parse(note);
    let Ok(Some(directory)) = Directory::open_of_root(Path::new(&directory)) else { return };
    let pod = MountPod { directory, name, pod, agent: agent.into() };
    let params = format!(r#"{{"serves":"{serves}","within":{}}}"#, patience.as_millis());
    let _ = pod.ask("end", &params, &Deadline::for_undo(patience + END_WAIT));
}

//! One connection of a driver: runs the requested programs, which end with the connection unless
//! the driver keeps them.
//!
//! ```text
//! hello                 identity of this pod
//! exec    Order         run to its end: {"status":…,"output":"…","answer":"…"}
//! launch  Order         start a program that serves a volume; after that
//!   look                {"status":null,"others":true,"words":"…"}
//!   keep                keep the program when this connection ends
//! end     serves,within let the program that serves a volume finish, then end it
//! ```

use crate::agent::wire::{Received, receive, send};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flexvol_linux::errno::Missing;
use flexvol_linux::proc::daemon::Daemon;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::{HostRunner, Invocation, Runner as _};
use flexvol_linux::proc::scope::Scope;
use flexvol_linux::proc::{orphans, process};
use flexvol_linux::raw;
use flexvol_model::mounter::{self, Order, Registration, SERVES};
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::secret::Secret;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::Deserialize;
use serde_json::{Value, json};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

/// Version of requests and answers.
pub const PROTOCOL: u32 = 1;

/// Limit for the silence on a connection.
const PATIENCE: Duration = Duration::from_mins(10);

/// Deadline for sending an answer.
const READ: Duration = Duration::from_secs(5);

/// Limit for the run time of a program.
const LONGEST: Duration = Duration::from_hours(1);

/// Request of a driver.
#[derive(Deserialize)]
struct Request {
    v: u32,
    method: String,
    #[serde(default)]
    pod: Option<String>,
    #[serde(default)]
    params: Value,
}

#[derive(Deserialize)]
struct End {
    serves: String,
    within: u64,
}

/// Reason for a failure: a code for programs and a line for people.
type Fault = (&'static str, String);

/// Program that serves a volume, started by this connection.
struct Serving {
    daemon: Daemon,
    name: String,
    kept: bool,
}

/// Answers requests until the connection ends.
pub fn converse(pod: &Registration, mut stream: UnixStream) {
    let mut serving = None;
    while let Ok(Received::Frame(frame)) = receive(&mut stream, PATIENCE) {
        let answer = match answer(pod, &frame, &mut serving, &stream) {
            Ok(ok) => json!({"v": PROTOCOL, "ok": ok}),
            Err((code, text)) => json!({"v": PROTOCOL, "err": {"code": code, "msg": text}}),
        };
        if send(&mut stream, &answer, READ).is_err() {
            break;
        }
    }
    if let Some(Serving { name, kept: false, .. }) = serving {
        end(&name, Duration::ZERO);
    }
}

fn answer(
    pod: &Registration,
    frame: &[u8],
    serving: &mut Option<Serving>,
    caller: &UnixStream,
) -> Result<Value, Fault> {
    let request: Request = serde_json::from_slice(frame).map_err(bad)?;
    if request.v != PROTOCOL {
        return Err(bad(format!("protocol {} is not supported: use {PROTOCOL}", request.v)));
    }
    if request.pod.as_ref().is_some_and(|uid| *uid != pod.pod_uid) {
        return Err(("WRONG_POD", format!("it is pod {} and not the one that is registered", pod.pod_uid)));
    }
    match (request.method.as_str(), serving) {
        ("hello", _) => Ok(json!({"pod": pod.pod_uid, "version": env!("CARGO_PKG_VERSION")})),
        ("exec", _) => exec(&parsed(request.params)?, caller),
        ("launch", serving @ None) => {
            *serving = Some(launch(&parsed(request.params)?)?);
            Ok(json!({}))
        }
        ("look", Some(serving)) => look(serving),
        ("keep", Some(serving)) => {
            serving.kept = true;
            Ok(json!({}))
        }
        ("end", _) => {
            let End { serves, within } = parsed(request.params)?;
            end(&mounter::volume(&serves).map_err(bad)?, Duration::from_millis(within).min(LONGEST));
            Ok(json!({}))
        }
        (method, _) => Err(bad(format!("there is no method {method:?}"))),
    }
}

fn parsed<T: for<'de> Deserialize<'de>>(params: Value) -> Result<T, Fault> {
    serde_json::from_value(params).map_err(bad)
}

fn bad(why: impl std::fmt::Display) -> Fault {
    ("BAD_REQUEST", format!("the request is not valid: {why}"))
}

fn invocation(order: &Order) -> Result<Invocation, Fault> {
    let secret = |text: &String| STANDARD.decode(text).map(Secret::new).map_err(bad);
    let masked = order.masked.iter().map(secret).collect::<Result<Vec<_>, _>>()?;
    let mut invocation = Invocation::of(&order.program).args(&order.args).mask(&masked);
    for (name, value) in order.env.iter().filter_map(|word| word.split_once('=')) {
        invocation = invocation.env(name, value);
    }
    if !order.stdin.is_empty() {
        invocation = invocation.stdin(secret(&order.stdin)?);
    }
    Ok(if order.answering { invocation.answering() } else { invocation })
}

fn exec(order: &Order, caller: &UnixStream) -> Result<Value, Fault> {
    let deadline = Deadline::after(Duration::from_millis(order.within).min(LONGEST));
    let watched = Watch::over(caller);
    let ran = HostRunner.run(invocation(order)?, &deadline);
    drop(watched);
    let ran = ran.map_err(failed)?;
    Ok(json!({"status": ran.status.into_raw(), "output": ran.output, "answer": ran.answer}))
}

fn launch(order: &Order) -> Result<Serving, Fault> {
    let name = mounter::volume(&order.serves).map_err(bad)?;
    let scope = scope(&name).limited(order.memory);
    let daemon = invocation(order)?.env(SERVES, &name).launch(&scope).map_err(failed)?;
    Ok(Serving { daemon, name, kept: false })
}

fn look(serving: &mut Serving) -> Result<Value, Fault> {
    let ended = serving.daemon.ended().map_err(failed)?;
    let status = ended.map(std::os::unix::process::ExitStatusExt::into_raw);
    let (others, words) = (process::has_children(), serving.daemon.words());
    Ok(json!({"status": status, "others": others, "words": words}))
}

/// Ends the programs that serve a volume, also those that could not be put into a control group.
fn end(name: &str, patience: Duration) {
    scope(name).end(patience);
    while let Ok(Some(pid)) = orphans::started_with(SERVES, name) {
        process::end(vec![pid]);
    }
    process::end_children();
}

/// Returns the control group of a volume. Its name has our namespace, because several containers
/// may share the control groups.
fn scope(name: &str) -> Scope {
    Scope::named(&format!("{name}-{}", process::namespace()))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: anyhow::Error) -> Fault {
    let code = match error.downcast_ref::<Failure>().map(Failure::code) {
        Some(Code::Timeout) => "TIMEOUT",
        _ => "FAILED",
    };
    match error.downcast_ref::<Missing>() {
        Some(Missing(program)) => ("MISSING", program.clone()),
        None => (code, format!("{error:#}")),
    }
}

/// Watch that stops this process once its caller is gone: a killed driver does not wait for the
/// result.
struct Watch(Option<Pid>);

impl Watch {
    fn over(caller: &UnixStream) -> Self {
        let this = rustix::process::getpid();
        match raw::fork() {
            Ok(Some(pid)) => Self(Pid::from_raw(pid.as_raw())),
            Ok(None) => {
                // poll(2) reports the end of the connection even if no event is requested.
                while poll(&mut [PollFd::new(caller, PollFlags::empty())], None).is_err() {}
                let _ = kill_process(this, Signal::TERM);
                raw::end()
            }
            Err(_) => Self(None),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(pid) = self.0 else { return };
        let _ = kill_process(pid, Signal::KILL);
        while matches!(waitpid(Some(pid), WaitOptions::empty()), Err(rustix::io::Errno::INTR)) {}
    }
}

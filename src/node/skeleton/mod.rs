//! Process that kubelet starts: it keeps the reply pipe from all other processes, answers once, and
//! exits with 0.
//!
//! Its steps, in this order:
//!
//! 1. [`ReplyPipe::take`](flexvol_linux::proc::reply_pipe::ReplyPipe::take): fd 1 is moved to a
//!    close-on-exec descriptor, 0, 1 and 2 become /dev/null and every other inherited descriptor is
//!    closed. kubelet reads stdout and stderr as one pipe up to its end. So a stray byte makes the
//!    answer invalid, and a child that keeps the pipe makes kubelet hang forever.
//! 2. A panic hook that replies, and handlers for the signals that mean stop; the side file; umask
//!    077 and working directory `/`.
//! 3. The verb. If the driver does not have it, the reply is `Not supported` whatever the arguments
//!    are, because kubelet remembers that answer. `init` is answered at once. Both need no file, no
//!    /proc and no second process.
//! 4. The arguments of all other verbs. They are parsed, and the values of secrets are erased from
//!    argv, where every user of the node could read them as long as this process lives. The call
//!    runs in a worker, a fork of this process, which plans and executes. This process waits: if
//!    the worker dies, hangs in the kernel past its deadline or is killed, this process cleans up
//!    after it and still replies.
//! 5. One reply, one write(2), and exit 0 whatever the reply says: on any other status kubelet logs
//!    the whole argv, including secrets.
//! 6. A line in the [drivers' log](crate::driver_log), now that nothing can delay or damage the
//!    reply.

mod in_agent;
mod supervise;

use crate::driver_log::Entry;
use crate::executor::{self, Task};
use crate::hints::to_failure;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::HostRunner;
use flexvol_linux::proc::reply_pipe::ReplyPipe;
use flexvol_linux::proc::{limits, memory, process, signal};
use flexvol_model::agent::FROM_INPUT;
use flexvol_model::installed::Installed;
use flexvol_model::plan::{Goal, Source, View};
use flexvol_protocol::failure::{Code, Failure, Result};
use flexvol_protocol::secret::Redactor;
use flexvol_protocol::{Call, Fields, Reply, SECRET, Verb};
use in_agent::Order;
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Runs a driver's process from start to end. `identify` is called after the reply pipe is safe,
/// because it may fail, and before the working directory changes, because `argv[0]` may be relative
/// to it.
pub fn main(identify: impl FnOnce() -> Result<Installed>, arguments: &mut [OsString]) -> ExitCode {
    if matches!(arguments, [word] if word == FROM_INPUT) {
        let (mut arguments, within) = in_agent::left_on_input();
        return reply(identify, &mut arguments, Some(within));
    }
    reply(identify, arguments, None)
}

/// Answers a call. `within` is the time limit if the node's agent runs the call here.
fn reply(
    identify: impl FnOnce() -> Result<Installed>,
    arguments: &mut [OsString],
    within: Option<Duration>,
) -> ExitCode {
    let pipe = ReplyPipe::take(no_room);
    limits::lift();
    pipe.reply_on_panic(|text| Reply::from(bug(text)).to_line());
    // Before any slow work: without a handler, a stop signal from kubelet would end this process
    // without a reply.
    let told = signal::install().map_err(to_failure);
    let installed = told.and_then(|()| identify());
    process::detach_from_caller();
    process::adopt_orphans();
    let (reply, carried_out) = match &installed {
        Ok(installed) => answer(installed, arguments, within),
        Err(failure) => (failure.clone().into(), None),
    };
    pipe.send(&reply.to_line());
    // A call that the agent carries out is logged by the driver that asked the agent.
    if let (Ok(installed), Some((call, started)), None) = (installed, carried_out, within) {
        Entry::of(installed.name(), &call, started, &reply).note();
    }
    ExitCode::SUCCESS
}

/// Returns the reply for the case that no descriptor is free for the reply pipe.
fn no_room() -> String {
    let text = "the limit of open files is too low: raise LimitNOFILE of kubelet";
    Reply::from(Failure::new(Code::Internal, text)).to_line()
}

/// Describes a panic for people.
fn bug(text: &str) -> Failure {
    Failure::new(Code::Internal, format!("this is a bug of flexvol, please report it: {text}"))
}

/// Call that was parsed, and the time when it began.
type CarriedOut = (Call, Instant);

fn answer(
    installed: &Installed,
    arguments: &mut [OsString],
    within: Option<Duration>,
) -> (Reply, Option<CarriedOut>) {
    let Some((verb, arguments)) = arguments.split_first_mut() else {
        let text = "no verb: kubelet calls a driver with init, mount, unmount and the like";
        return (Failure::call(text).into(), None);
    };
    dispatch(installed, verb, arguments, within)
}

/// Runs one verb: `init`, and verbs that the driver does not have, at once; others in a supervised
/// worker. Never panics, never prints.
pub fn perform(installed: &Installed, verb: &OsStr, arguments: &[OsString]) -> Reply {
    dispatch(installed, verb, &mut arguments.to_vec(), None).0
}

fn dispatch(
    installed: &Installed,
    verb: &OsStr,
    arguments: &mut [OsString],
    within: Option<Duration>,
) -> (Reply, Option<CarriedOut>) {
    match Verb::parse(verb) {
        Some(verb) if installed.verbs().contains(verb) => match verb {
            Verb::Init => (Reply::capabilities(installed.capabilities()), None),
            verb => carry_out(installed, verb, arguments, within),
        },
        _ => (Reply::NotSupported, None),
    }
}

/// Carries out a call. It is parsed here and not in the worker, so that an invalid call costs no
/// fork.
fn carry_out(
    installed: &Installed,
    verb: Verb,
    arguments: &mut [OsString],
    within: Option<Duration>,
) -> (Reply, Option<CarriedOut>) {
    let started = Instant::now();
    memory::refuse_dumps();
    let parsed = Call::parse(verb, arguments).and_then(|call| {
        let order = if within.is_some() { None } else { Order::of(installed, verb, arguments)? };
        Ok((call, order))
    });
    // Best effort: the arguments have been visible already, if only for a moment.
    let _ = memory::forget_arguments(arguments, SECRET.as_bytes());
    let (call, order) = match parsed {
        Ok(parsed) => parsed,
        Err(failure) => return (failure.into(), None),
    };
    let mut allowed = within.unwrap_or_else(|| installed.settings.deadlines.of(verb));
    if let Some(order) = order {
        if let Some(reply) = order.carry_out(allowed) {
            return (reply, Some((call, started)));
        }
        allowed = allowed.saturating_sub(started.elapsed());
    }
    let names = (installed.driver.name(), installed.directory.as_deref());
    // The worker has a copy of all this memory and ends without wiping it, so it forgets the
    // secrets first.
    let call = RefCell::new(call);
    let work = || {
        let deadline = Deadline::after(allowed).sooner(supervise::margin(verb, allowed) * 2);
        let reply = work(installed, &call.borrow(), deadline);
        call.borrow_mut().forget_secrets();
        reply
    };
    let storage = || storage(installed, &call.borrow());
    let reply = supervise::supervise(&call, names, allowed, storage, work);
    (reply, Some((call.into_inner(), started)))
}

/// Returns the source of the volume's content, for a message.
fn storage(installed: &Installed, call: &Call) -> Option<String> {
    match installed.plan(call).ok()?.goal {
        Goal::Mounted { view: View { source: Source::Any | Source::Identity(_), .. }, .. } => None,
        Goal::Mounted { view, .. } => Some(view.source.to_string()),
        _ => None,
    }
}

/// Does the worker's work. The reply contains no secret of the call, whatever a helper or the
/// kernel says.
fn work(installed: &Installed, call: &Call, deadline: Deadline) -> Reply {
    match carried_out(installed, call, deadline) {
        Ok(fields) => Reply::Success(fields),
        Err(failure) => {
            // Redacts also what only the driver knows to be secret: a password among mount options.
            let understood = installed.understood(call).ok();
            let options = understood.as_ref().and_then(|(call, _)| call.options());
            let further = Redactor::new(options.into_iter().flat_map(|options| options.secrets.values()));
            Reply::Failure(further.clean(&redacted(call, &failure)))
        }
    }
}

/// Plans the call, checks the plan against the policy, and executes it.
fn carried_out(installed: &Installed, call: &Call, deadline: Deadline) -> Result<Fields> {
    let plan = installed.plan(call)?;
    installed.settings.policy.check(&plan)?;
    let task = Task {
        runner: &HostRunner,
        driver: installed.driver.name(),
        directory: installed.directory.as_deref(),
        settings: &installed.settings,
        call,
        plan: &plan,
    };
    let fields = executor::execute(&task, deadline)?;
    Ok(installed.fields(call).unwrap_or(fields))
}

/// Redacts every secret that kubelet passed as one.
fn redacted(call: &Call, failure: &Failure) -> String {
    let secrets = call.options().into_iter().flat_map(|options| options.secrets.values());
    Redactor::new(secrets).clean(&failure.message())
}

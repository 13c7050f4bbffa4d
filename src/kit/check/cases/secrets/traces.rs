//! Traces of secrets that a volume leaves for others, while it is mounted and afterwards.

use super::values::with_canaries;
use crate::check::answer::Answer;
use crate::check::attempt::plainly;
use crate::check::evidence::{Evidence, Played, Stopped, skip};
use crate::check::hunt::{Find, Hunt};
use crate::check::subject::Subject;
use crate::tracer::{self, Execution, Look, Trace};
use flexvol_kubelet::PodVolume;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// Sockets to which the C library, logger(1) and the journal's own tools send log messages.
const SOCKETS: [&str; 3] =
    ["/run/systemd/journal/dev-log", "/run/systemd/journal/socket", "/run/systemd/journal/syslog"];

/// Case about an unmount after several mounts.
const MANY_TIMES: &str = "mount::many_times";

/// Builds the search for a volume's secrets. Skips the case if they look like any other text.
fn hunt_for(volume: &PodVolume) -> Result<Hunt, Stopped> {
    let hunt = Hunt::of(volume);
    if hunt.is_vain() {
        return skip("every secret is shorter than 4 bytes, or no secret");
    }
    Ok(hunt)
}

/// Check that a case makes after one call.
type Judge<'a> = dyn FnMut(&Hunt, &Answer) -> Result<Option<Evidence>, Stopped> + 'a;

/// Plays a mount that works, the same mount again, the unmount, and a mount with random secrets
/// that probably fails. Calls `look` after each.
fn live(subject: &mut Subject<'_>, look: &mut Judge<'_>) -> Played {
    let volume = subject.volume()?;
    let hunt = hunt_for(&volume)?;
    subject.stage(&volume)?;
    let mut see = |hunt: &Hunt, answer: &Answer| match look(hunt, answer)? {
        Some(evidence) => Err(Stopped::from(hunt.masked(evidence))),
        None => Ok(()),
    };
    for about_it in ["mount::works", "mount::twice"] {
        let answer = subject.mount(&volume)?.or_blocked(about_it)?;
        see(&hunt, &answer)?;
    }
    let answer = subject.unmount(&volume)?.or_blocked(MANY_TIMES)?;
    if subject.layers(&volume)? > 0 {
        let evidence = answer.evidence("it was mounted twice, and one unmount does not end that");
        return Err(Stopped::Blocked(MANY_TIMES, Box::new(evidence)));
    }
    see(&hunt, &answer)?;
    let wrong = with_canaries(volume.clone(), &mut subject.random);
    let attempt = subject.attempt_mount(&wrong, &plainly)?;
    see(&Hunt::of(&wrong), &attempt.answer)?;
    subject.clear(&volume)
}

pub(super) fn arguments(subject: &mut Subject<'_>) -> Played {
    executions(subject, "arguments", |execution| &execution.words)
}

pub(super) fn environment(subject: &mut Subject<'_>) -> Played {
    executions(subject, "environment", |execution| &execution.environment)
}

fn executions(subject: &mut Subject<'_>, place: &str, words_of: fn(&Execution) -> &Vec<OsString>) -> Played {
    if !tracer::is_possible() {
        return skip("needs ptrace(2), which is not permitted here");
    }
    subject.trace = Some(Trace::Executions(None));
    live(subject, &mut |hunt, answer| {
        let executions = answer.observed.traced.iter().flat_map(|traced| &traced.executions);
        // The driver itself, started by its interpreter, has the arguments that kubelet gave it.
        let mut others = executions.filter(|execution| !execution.words.ends_with(&answer.asked.arguments));
        Ok(others.find_map(|execution| {
            let what = words_of(execution).iter().find_map(|word| hunt.found(word.as_bytes()))?;
            let name = execution.words.first().map(|name| name.to_string_lossy()).unwrap_or_default();
            Some(answer.evidence(format!("{name} is started with {what} in its {place}")))
        }))
    })
}

pub(super) fn mount_table(subject: &mut Subject<'_>) -> Played {
    live(subject, &mut |hunt, answer| {
        let mut texts = vec![fs::read("/proc/self/mountinfo")?, fs::read("/proc/self/mounts")?];
        // These files write blanks and the like in octal.
        let plain = texts.iter().map(|text| unescaped(text)).collect::<Vec<_>>();
        texts.extend(plain);
        let what = texts.iter().find_map(|text| hunt.found(text));
        Ok(what.map(|what| answer.evidence(format!("the mount table holds {what}"))))
    })
}

fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let code =
            rest.get(1..4).and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 8).ok());
        match code {
            Some(code) if byte == b'\\' => {
                plain.push(code);
                rest = &rest[4..];
            }
            _ => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    plain
}

pub(super) fn files(subject: &mut Subject<'_>) -> Played {
    let is_log = |find: &Find| is_log(&find.path);
    if tracer::is_possible() {
        // Everything else of the driver stands still while a program is being started.
        let (inside, hunt) = (subject.inside.clone(), hunt_for(&subject.volume()?)?);
        subject.trace = Some(Trace::Executions(Some(Look::new(move || {
            let finds = hunt.files(&inside).unwrap_or_default().into_iter();
            finds.filter(|find| find.open).map(|find| words_of(&find)).collect()
        }))));
    }
    let inside = subject.inside.clone();
    live(subject, &mut |hunt, answer| {
        let while_running = answer.observed.traced.as_ref().and_then(|traced| traced.found.first());
        if let Some(words) = while_running {
            return Ok(Some(answer.evidence(format!("for a moment others can read {words}"))));
        }
        let unmounted = answer.asked.verb() == "unmount" || !answer.is_success();
        let finds = hunt.files(&inside)?;
        let find = finds.iter().find(|find| !is_log(find) && (find.open || unmounted));
        Ok(find.map(|find| {
            let when =
                if find.open { "others can read" } else { "nothing is mounted any more, and there is" };
            answer.evidence(format!("{when} {}", words_of(find)))
        }))
    })
}

fn words_of(find: &Find) -> String {
    format!("{}, with {}", find.path.display(), find.what)
}

pub(super) fn logs(subject: &mut Subject<'_>) -> Played {
    let sockets: Vec<_> = SOCKETS.iter().filter_map(|path| listen(Path::new(path))).collect();
    for path in SOCKETS {
        subject.ours(path);
    }
    let inside = subject.inside.clone();
    live(subject, &mut |hunt, answer| {
        let finds = hunt.files(&inside)?;
        if let Some(find) = finds.iter().find(|find| is_log(&find.path)) {
            return Ok(Some(answer.evidence(format!("a log holds a secret: {}", words_of(find)))));
        }
        let mut line = vec![0; 256 << 10];
        for socket in &sockets {
            while let Ok(length) = socket.recv(&mut line) {
                if let Some(what) = hunt.found(&line[..length]) {
                    return Ok(Some(answer.evidence(format!("it sends {what} to the log of the system"))));
                }
            }
        }
        Ok(None)
    })?;
    for path in SOCKETS {
        // A socket that could not be made is missing here.
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// Listens at this path, as the log of the system does.
fn listen(path: &Path) -> Option<UnixDatagram> {
    fs::create_dir_all(path.parent()?).ok()?;
    let socket = UnixDatagram::bind(path).ok()?;
    socket.set_nonblocking(true).ok()?;
    Some(socket)
}

/// Reports whether a file is a log, by its place or extension.
fn is_log(path: &Path) -> bool {
    let in_log = path.ancestors().any(|above| above.file_name().is_some_and(|name| name == "log"));
    in_log || path.extension().is_some_and(|ending| ending == "log" || ending == "jsonl")
}

pub(super) fn daemon(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let hunt = hunt_for(&volume)?;
    if subject.facts.daemons.is_empty() {
        return skip("no process of the driver serves a mount");
    }
    let answer = subject.bring_up(&volume)?;
    for (pid, _) in subject.inside.processes()? {
        for (file, place) in [("cmdline", "arguments"), ("environ", "environment")] {
            // The process may be gone by now.
            let Ok(text) = fs::read(format!("/proc/{pid}/{file}")) else { continue };
            if let Some(what) = hunt.found(&text) {
                let text = format!("a process that serves the mount has {what} in its {place}");
                return Err(hunt.masked(answer.evidence(text)).into());
            }
        }
    }
    subject.take_down(&volume)
}

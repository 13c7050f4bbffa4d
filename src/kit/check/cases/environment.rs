//! Environment that kubelet gives to every driver: variables, a directory, a umask, the path of the
//! driver, limits, and a full node.

mod ordeal;
mod scarce;
mod where_it_is;

use crate::check::case::{How, Scene};
use crate::check::evidence::Played;
use crate::check::subject::Subject;
use crate::check::survey::modes;
use ordeal::{Demand, endure, works_otherwise};
use std::ffi::OsString;
use std::path::Path;

/// `PATH` of most nodes, and the minimum that a driver may count on.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables of a session, a proxy, a debugger: drivers do not need them, but many programs read
/// them.
const HOSTILE: &[(&str, &str)] = &[
    ("HOME", "/no/such/home"),
    ("TMPDIR", "/no/such/directory"),
    ("LANG", "xx_XX.UTF-8"),
    ("LC_ALL", "xx_XX.UTF-8"),
    ("LANGUAGE", "xx"),
    ("TZ", "Nowhere/Nothing"),
    ("TERM", "no-such-terminal"),
    ("COLUMNS", "1"),
    ("IFS", "/{}\":,e"),
    ("PS4", "$(echo noise >&2)"),
    ("CDPATH", "/:/tmp"),
    ("POSIXLY_CORRECT", "1"),
    ("http_proxy", "http://127.0.0.1:1/"),
    ("https_proxy", "http://127.0.0.1:1/"),
    ("HTTPS_PROXY", "http://127.0.0.1:1/"),
    ("ALL_PROXY", "socks5://127.0.0.1:1/"),
    ("LIBMOUNT_DEBUG", "all"),
    ("LOOPDEV_DEBUG", "all"),
    ("LIBBLKID_DEBUG", "all"),
    ("G_MESSAGES_DEBUG", "all"),
    ("RUST_LOG", "trace"),
    ("RUST_BACKTRACE", "full"),
    ("DEBUG", "1"),
    ("VERBOSE", "1"),
];

/// File that shells read before a script, if a variable names it.
const STARTUP: &str = "/run/startup-of-a-shell";

pub(in crate::check) const SCENES: &[Scene] = &[
    ("environment::empty", How::Played(empty)),
    ("environment::hostile", How::Played(hostile)),
    ("environment::no_stdin", How::Played(silent_input)),
    ("environment::deleted_directory", How::Played(where_it_is::deleted_directory)),
    ("environment::detached_directory", How::Played(where_it_is::detached_directory)),
    ("environment::other_path", How::Played(where_it_is::other_path)),
    ("environment::symlink", How::Played(where_it_is::symlink)),
    ("environment::tight_umask", How::Played(|subject| masked(subject, 0o077))),
    ("environment::open_umask", How::Played(|subject| masked(subject, 0))),
    ("environment::few_files", How::Played(scarce::files)),
    ("environment::no_processes", How::Played(scarce::processes)),
    ("environment::full_disk", How::Played(scarce::full_disk)),
    ("environment::read_only", How::Played(scarce::read_only)),
];

fn empty(subject: &mut Subject<'_>) -> Played {
    works_otherwise(subject)?;
    let usual = std::mem::take(&mut subject.terms.environment);
    subject.excused = true;
    let init = subject.words(&["init"]);
    subject.excused = false;
    subject.terms.environment = usual;
    if !init.is_success() || subject.facts.clean && !init.is_readable() {
        return Err(init.fails(format!("without environment variables init must work, but {}", init.shown())));
    }
    endure(subject, "with nothing but a PATH in its environment", Demand::Works, |subject| {
        subject.terms.environment = vec![("PATH".into(), PATH.into())];
        Ok(())
    })
}

fn hostile(subject: &mut Subject<'_>) -> Played {
    let startup = Path::new(STARTUP);
    if subject.is_contained() {
        crate::check::staging::put(startup, "echo noise >&2\n")?;
    }
    let played = endure(subject, "with an odd environment", Demand::Works, |subject| {
        let more = HOSTILE.iter().copied().chain([("BASH_ENV", STARTUP), ("ENV", STARTUP)]);
        subject.terms.environment.extend(more.map(|(name, value)| (name.into(), OsString::from(value))));
        Ok(())
    });
    if subject.is_contained() {
        std::fs::remove_file(startup)?;
    }
    played
}

fn masked(subject: &mut Subject<'_>, mask: u32) -> Played {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    subject.terms.umask = Some(mask);
    let mounted = subject.mount(&volume);
    subject.terms.umask = Some(0o022);
    let answer = mounted?.or_blocked("mount::works")?;
    let modes = modes(subject, &volume)?;
    subject.take_down(&volume)?;
    let differing = subject.facts.modes.iter().find_map(|(path, mode)| {
        let now = modes.get(path).filter(|now| *now != mode)?;
        let what = if path.is_empty() { "the root of the volume" } else { path };
        Some(format!("with umask {mask:03o} {what} has mode {now:04o}, with 022 it has {mode:04o}"))
    });
    differing.map_or(Ok(()), |problem| Err(answer.evidence(problem).into()))
}

fn silent_input(subject: &mut Subject<'_>) -> Played {
    endure(subject, "with a standard input on which nothing comes", Demand::Works, |subject| {
        subject.terms.silent_input = true;
        Ok(())
    })
}

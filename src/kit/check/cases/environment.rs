//! Environment that kubelet gives to every driver: variables, a directory, a umask, the path of the
//! driver, limits, and a full node.

mod ordeal;
mod scarce;
mod where_it_is;

use crate::check::case::{Case, How, Level, Scope};
use crate::check::evidence::Played;
use crate::check::subject::Subject;
use crate::check::survey::modes;
use flexvol_protocol::VerbSet;
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

const fn case(
    id: &'static str,
    (level, scope): (Level, Scope),
    items: &'static [u8],
    [claim, reason, fix]: [&'static str; 3],
    scene: fn(&mut Subject<'_>) -> Played,
) -> Case {
    Case { id, level, scope, needs: VerbSet::of(&[]), items, claim, reason, fix, how: How::Played(scene) }
}

const MUST: (Level, Scope) = (Level::Must, Scope::All);
const SHOULD: (Level, Scope) = (Level::Should, Scope::All);
const OF_A_VOLUME: (Level, Scope) = (Level::Should, Scope::Volume);

pub(in crate::check) const CASES: &[Case] = &[
    case(
        "environment::empty",
        MUST,
        &[11],
        [
            "init needs no environment variable at all, and a volume no more than the plainest PATH",
            "kubelet hands on its own, in which there is no HOME, LANG, USER or TMPDIR (driver-call.go: Run)",
            "set PATH and whatever else tools need at the top of the driver, and read nothing from outside",
        ],
        empty,
    ),
    case(
        "environment::hostile",
        SHOULD,
        &[12],
        [
            "no environment variable changes what the driver does or prints",
            "kubelet hands on whatever it was started with: proxies, locales, what an admin exported once",
            "drop the environment first: #!/usr/bin/env -S -i PATH=/usr/sbin:/usr/bin:/sbin:/bin sh",
        ],
        hostile,
    ),
    case(
        "environment::no_stdin",
        MUST,
        &[10],
        [
            "the driver never waits for input",
            "there is nobody to answer a prompt, and kubelet has no timeout (driver-call.go: Run)",
            "read nothing, and start tools with standard input from /dev/null and their options against prompts",
        ],
        silent_input,
    ),
    case(
        "environment::deleted_directory",
        MUST,
        &[13],
        [
            "the driver works in a directory that was removed",
            "it gets kubelet's working directory, whatever that is; a shell complains about such a one",
            "change to / first: #!/usr/bin/env -S -C / sh, and use absolute paths only",
        ],
        where_it_is::deleted_directory,
    ).at(Level::Harden),
    case(
        "environment::detached_directory",
        MUST,
        &[13],
        [
            "the driver works in a directory that no path leads to",
            "it gets kubelet's working directory, whatever that is, if only one on a file system that is gone",
            "change to / first: #!/usr/bin/env -S -C / sh, and use absolute paths only",
        ],
        where_it_is::detached_directory,
    ).at(Level::Harden),
    case(
        "environment::other_path",
        MUST,
        &[14],
        [
            "the driver works in another plugin directory, with blanks in its path",
            "each distribution has its own plugin directory (--volume-plugin-dir)",
            "name no plugin directory in the driver, and quote $0 and what is made of it",
        ],
        where_it_is::other_path,
    ),
    case(
        "environment::symlink",
        MUST,
        &[14],
        [
            "the driver works if the executable in its directory is a symbolic link",
            "kubelet executes links, and installers make them (probe.go)",
            "find what lies beside the driver by readlink -f \"$0\", or need nothing beside it",
        ],
        where_it_is::symlink,
    ),
    case(
        "environment::tight_umask",
        OF_A_VOLUME,
        &[18],
        [
            "with umask 077 everything has the mode it has otherwise",
            "the mask is kubelet's; hardened nodes have 077, and then pods cannot enter their volumes",
            "set the umask first, or give each file and directory its mode (mkdir -m, install -m, chmod)",
        ],
        |subject| masked(subject, 0o077),
    ),
    case(
        "environment::open_umask",
        OF_A_VOLUME,
        &[18],
        [
            "with umask 0 everything has the mode it has otherwise",
            "the mask is kubelet's; with 0, what root makes without a mode can be written by everybody",
            "set the umask first, or give each file and directory its mode (mkdir -m, install -m, chmod)",
        ],
        |subject| masked(subject, 0),
    ),
    case(
        "environment::few_files",
        SHOULD,
        &[20],
        [
            "a driver that may open but a few files works or says why not",
            "without an answer kubelet logs unexpected end of JSON input, and nobody learns why",
            "keep the answer's descriptor open from the start, and answer Failure from an exit handler",
        ],
        scarce::files,
    ),
    case(
        "environment::no_processes",
        SHOULD,
        &[20],
        [
            "a driver that may start no process works or says why not",
            "a node that runs out of processes refuses fork(2); without an answer nobody learns why",
            "answer with what needs no process (in a shell: printf), from an exit handler",
        ],
        scarce::processes,
    ),
    case(
        "environment::full_disk",
        SHOULD,
        &[21],
        [
            "with /tmp, /run and /var/log full the driver works or says why not",
            "full disks are what makes kubelet evict pods, whose volumes are unmounted then",
            "check what each write says, log without minding whether it works, and answer all the same",
        ],
        scarce::full_disk,
    ),
    case(
        "environment::read_only",
        SHOULD,
        &[21],
        [
            "with /tmp, /run, /var/log and /etc read-only the driver works or says why not",
            "there are distributions whose root cannot be written to, and disks that fail become read-only",
            "check what each write says, log without minding whether it works, and answer all the same",
        ],
        scarce::read_only,
    ),
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

//! Options of a call: one JSON object of strings. Kubelet writes a part of them, users who may make
//! pods write the rest, and the driver that reads them runs as root.

mod access;
mod text;
mod values;

use crate::check::case::{Case, How, Level, Scope};
use crate::check::evidence::Played;
use crate::check::subject::Subject;
use flexvol_protocol::VerbSet;

pub(super) use values::{names, places};

/// Builds a case for drivers with a volume.
const fn case(
    id: &'static str,
    level: Level,
    items: &'static [u8],
    [claim, reason, fix]: [&'static str; 3],
    scene: fn(&mut Subject<'_>) -> Played,
) -> Case {
    let (scope, needs) = (Scope::Volume, VerbSet::of(&[]));
    Case { id, level, scope, needs, items, claim, reason, fix, how: How::Played(scene) }
}

/// Cases about the way in which options are written.
pub(in crate::check) const CASES: &[Case] = &[
    case(
        "options::escapes",
        Level::Must,
        &[40],
        [
            "what is written with escapes of JSON means what it means without",
            "Go writes < > & and line breaks as escapes such as \\u003c (driver-call.go: AppendSpec, json.Marshal)",
            "read the options with a JSON parser, jq for example, and not with grep or sed",
        ],
        text::escapes,
    ),
    case(
        "options::unknown_keys",
        Level::Must,
        &[41],
        [
            "new keys of kubernetes.io/ are ignored; users' own that are unknown are ignored or refused",
            "each release of kubelet may send more of its own (driver-call.go: the option constants)",
            "take the keys you know, and leave those below kubernetes.io/ alone",
        ],
        text::unknown_keys,
    ),
    case(
        "options::empty_fs_type",
        Level::Must,
        &[42],
        [
            "an empty kubernetes.io/fsType means that none is asked for",
            "kubelet always sends the key, empty where the volume says nothing (driver-call.go: NewOptionsForDriver)",
            "treat an empty fsType like a missing one: use your default",
        ],
        text::empty_fs_type,
    ),
    case(
        "options::order_and_blanks",
        Level::Harden,
        &[43],
        [
            "the order of the keys, blanks and line breaks make no difference",
            "kubelet sends sorted keys without blanks today; people who test by hand send others (driver-call.go)",
            "read the options with a JSON parser",
        ],
        text::order_and_blanks,
    ),
    case(
        "options::long",
        Level::Must,
        &[47],
        [
            "127 KiB of options are taken",
            "nothing but the kernel's limit of 128 KiB for one argument bounds what kubelet sends (driver-call.go: Run)",
            "hand the options on through a pipe, not in an argument or a variable with something put before",
        ],
        text::long,
    ),
    case(
        "options::malformed",
        Level::Harden,
        &[48],
        [
            "what is not one JSON object is a Failure, and nothing is mounted",
            "kubelet never sends it, people and other callers do: defaults in place of what was meant are a wrong mount",
            "let the parser read all of the argument, and answer Failure where it complains",
        ],
        text::malformed,
    ),
    case(
        "options::strings_only",
        Level::Harden,
        &[46, 48],
        [
            "an option that is a number, a list or an object is a Failure, and nothing is mounted",
            "kubelet's options are a map of strings; anything else is somebody's mistake (driver-call.go: OptionsForDriver)",
            "check that every value is a string before you use one",
        ],
        text::strings_only,
    ),
    case(
        "options::duplicate_keys",
        Level::Harden,
        &[48],
        [
            "a key that is there twice is a Failure, or the last one counts",
            "Go's JSON takes the last; a driver that takes the first and is checked by one that does not is a hole",
            "refuse it where your parser can tell, and use one parser for everything",
        ],
        text::duplicate_keys,
    ),
    case(
        "options::unicode",
        Level::Must,
        &[45],
        [
            "options in any script are taken or refused, and not mangled",
            "kubelet sends them as UTF-8; a driver without a locale must not read Latin-1 (driver-call.go: json.Marshal)",
            "treat text as UTF-8 whatever the locale, and check values against what you can deal with",
        ],
        text::unicode,
    ),
];

/// Cases about the content of options.
pub(in crate::check) const VALUES: &[Case] = &[
    case(
        "options::shell",
        Level::Must,
        &[44],
        [
            "no shell ever carries out what an option says",
            "whoever may make a pod writes the options, and kubelet runs the driver as root (driver-call.go: Run)",
            "quote every variable, use no eval and no sh -c with an option in it, and allow only what you expect",
        ],
        values::shell,
    ),
    case(
        "options::injection",
        Level::Must,
        &[44],
        [
            "no comma, blank or dash in an option adds an option to mount",
            "whoever may make a pod writes them: suid and dev in a mount are root on the node (driver-call.go)",
            "refuse commas, blanks and leading dashes, or hand each option on as an argument of its own",
        ],
        values::injection,
    ),
    case(
        "options::paths",
        Level::Must,
        &[44, 55],
        [
            "no .. in an option leads to a directory of the node that was not meant",
            "whoever may make a pod writes them, and the driver may read and write everything (driver-call.go)",
            "refuse .. and slashes in names, and open paths below a directory that the admin allows",
        ],
        values::paths,
    ),
    case(
        "options::missing",
        Level::Must,
        &[49],
        [
            "an option that is missing is no harm, or the Failure names it and nothing is mounted",
            "the message becomes an Event of the pod: all that its author sees (operation_generator.go)",
            "look for every option you need before you do anything, and name the missing one in the message",
        ],
        values::missing,
    ),
    case(
        "options::unknown_value",
        Level::Must,
        &[46, 50],
        [
            "a value that makes no sense has the same outcome each time, and a Success is a mount",
            "kubelet repeats a failed mount for ever: what was refused must not get through later (reconciler.go)",
            "check values before you use them, remember nothing of what was refused, and answer Failure",
        ],
        values::unknown_value,
    ),
];

/// Cases about the options that kubelet adds.
pub(in crate::check) const ACCESS: &[Case] = &[
    case(
        "options::read_only",
        Level::Should,
        &[51],
        [
            "with kubernetes.io/readwrite ro nothing can be written",
            "kubelet keeps containers from writing, and not the node: a disk that two nodes have is damaged (mounter.go)",
            "mount with -o ro, and a bind with a second mount -o remount,bind,ro",
        ],
        access::read_only,
    ),
    case(
        "options::read_write",
        Level::Must,
        &[51],
        [
            "with rw, or without a word about it, the volume is writable; any other word is a Failure",
            "kubelet sends rw or ro; a pod that cannot write does not run (driver-call.go: NewOptionsForDriver)",
            "compare with ro and rw exactly, and answer Failure to anything else",
        ],
        access::read_write,
    ),
    case(
        "options::ro_wins",
        Level::Should,
        &[52],
        [
            "no option of a user makes a read-only volume writable",
            "that a claim is read-only is a rule for its users, who may write options of their own (mounter.go)",
            "put ro after whatever the user says, or better refuse ro and rw in users' options",
        ],
        access::ro_wins,
    ),
    case(
        "options::other_case_key",
        Level::Harden,
        &[52],
        [
            "a key that only looks like one of kubernetes.io/ is a user's key",
            "the API server keeps users from kubernetes.io/ only (validation.go); Go's structs match in any case",
            "read the options into a map, not into a struct, and compare keys byte by byte",
        ],
        access::other_case_key,
    ),
    case(
        "options::fs_group",
        Level::Should,
        &[53],
        [
            "both names of fsGroup are known, and odd values are taken or refused",
            "it is kubernetes.io/mounterArgs.FsGroup since 1.15 and was kubernetes.io/fsGroup (driver-call.go)",
            "look for both, and take whole numbers from 0 to 4294967294",
        ],
        access::fs_group,
    ),
    case(
        "options::without_pod",
        Level::Harden,
        &[54],
        [
            "without the keys about the pod the volume is mounted, or it is a Failure",
            "only mount of Kubernetes 1.8 and later sends them, and no other caller has to (mounter.go: SetUpAt)",
            "do not rely on them; where you must, name the missing one in the message",
        ],
        access::without_pod,
    ),
    case(
        "options::pod_names",
        Level::Harden,
        &[55],
        [
            "no name of the pod or the volume leads out of a directory of the driver",
            "they are plain names as long as the API server checks them; the next caller may not (mounter.go)",
            "do not build paths from them, or refuse .. and slashes in them",
        ],
        access::pod_names,
    ),
];

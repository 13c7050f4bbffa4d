//! Secrets of a volume: for the driver only, and for no one else on the node or in the cluster.

mod traces;
mod values;

use crate::check::case::Seen;
use crate::check::case::{Case, How, Level, Scope};
use crate::check::evidence::{Evidence, Played};
use crate::check::hunt::Hunt;
use crate::check::subject::Subject;
use flexvol_protocol::{Verb, VerbSet};

/// Builds a case for drivers whose volume has a secret. Only `mount` gets it.
const fn case(
    id: &'static str,
    items: &'static [u8],
    [claim, reason, fix]: [&'static str; 3],
    scene: fn(&mut Subject<'_>) -> Played,
) -> Case {
    let (level, scope, needs) = (Level::Must, Scope::Secrets, VerbSet::of(&[Verb::Mount]));
    Case { id, level, scope, needs, items, claim, reason, fix, how: How::Played(scene) }
}

pub(in crate::check) const CASES: &[Case] = &[
    case(
        "secrets::binary",
        &[56],
        [
            "a secret is decoded from base64 byte for byte, NUL and line breaks included",
            "a Secret holds any bytes, and kubelet sends each value in base64 (driver-call.go: NewOptionsForDriver)",
            "decode into a file or a pipe; a shell variable loses NUL and the last line break",
        ],
        values::binary,
    ),
    case(
        "secrets::bad_base64",
        &[57],
        [
            "a secret that is no base64 is a Failure",
            "kubelet always encodes; text by hand would be used as garbage (driver-call.go: NewOptionsForDriver)",
            "look at the status of the decoder before you use what it printed",
        ],
        values::bad_base64,
    ).at(Level::Harden),
    case(
        "secrets::missing",
        &[57, 58],
        [
            "without a secret, or with an empty one, the volume is mounted or the Failure names it",
            "secretRef is optional, and a Secret has whatever keys somebody gave it (mounter.go: SetUpAt)",
            "name the key that is missing or empty in the message, before you do anything",
        ],
        values::missing,
    ),
    Case {
        id: "secrets::output",
        level: Level::Must,
        scope: Scope::Secrets,
        needs: VerbSet::of(&[]),
        items: &[113],
        claim: "no answer repeats a secret, in no form and not even in part",
        reason: "the message becomes an Event of the pod that anybody in the namespace can read (operation_generator.go)",
        fix: "take secrets out of what tools say before it becomes a message, or say something of your own",
        how: How::Watched(output),
    },
    case(
        "secrets::malformed_options",
        &[116],
        [
            "options that cannot be read are not repeated in the message",
            "the secrets are among them, and the message becomes an Event of the pod (operation_generator.go)",
            "say where the JSON is wrong, not what it is; mind that a parser's own message may quote it",
        ],
        values::malformed_options,
    ).at(Level::Harden),
    case(
        "secrets::arguments",
        &[115],
        [
            "no program that is started has a secret in its arguments",
            "every user of the node and every pod with hostPID can read them in /proc (proc(5): cmdline)",
            "hand it over on standard input or in a file with mode 0600; printf of the shell itself is no program",
        ],
        traces::arguments,
    ),
    case(
        "secrets::environment",
        &[115],
        [
            "no program that is started has a secret in its environment",
            "it is inherited by whatever that starts, and lands in crash reports and debug logs (proc(5): environ)",
            "hand it over on standard input or in a file with mode 0600 that is removed again",
        ],
        traces::environment,
    ).at(Level::Should),
    case(
        "secrets::mount_table",
        &[73],
        [
            "no secret is in the mount table",
            "every process of the node and every pod can read /proc/mounts (proc(5): mounts)",
            "use the credentials file, key file or standard input of the mount helper, and not -o password=",
        ],
        traces::mount_table,
    ),
    case(
        "secrets::files",
        &[73, 114],
        [
            "no file with a secret can be read by others, and none is there after the unmount",
            "what is written on a node is read by its other users, by backups and by the next driver (mounter.go)",
            "set umask 077 first, write to /run, and remove the file as soon as it was read, also after a failure",
        ],
        traces::files,
    ),
    case(
        "secrets::logs",
        &[114],
        [
            "no secret is in a log, whether mount works or not",
            "logs leave the node and are kept for years by whoever collects them (driver-call.go: Run)",
            "log the verb and the directory, never the options as a whole, and no set -x",
        ],
        traces::logs,
    ),
    case(
        "secrets::daemon",
        &[73, 115],
        [
            "no process that stays has a secret in its arguments or its environment",
            "it is there as long as the pod runs, for every user of the node (proc(5): cmdline, environ)",
            "start it with a file of mode 0600 or a pipe, and clear its environment",
        ],
        traces::daemon,
    ),
];

fn output(seen: &Seen<'_>) -> Option<Vec<Evidence>> {
    let hunt = Hunt::of_answers(seen.answers);
    if hunt.is_vain() {
        return None;
    }
    let leak = |answer: &crate::check::answer::Answer| {
        let what = hunt.found(&answer.run.output)?;
        Some(hunt.masked(answer.evidence(format!("the output holds {what}"))))
    };
    Some(seen.answers.iter().filter_map(leak).collect())
}

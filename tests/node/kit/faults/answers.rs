//! Answers that are right in most calls.

use super::Fault;
use super::Reference::Tmpfs;

const PRINT: &str = r#"    printf '%s\n' "$answer" >&3"#;
const ESCAPED: &str = r#" | tr -c ' -~' '?' | cut -c 1-900 | sed 's/["\\]/\\&/g')"#;
const NOT_SUPPORTED: &str = r#"*) answer='{"status":"Not supported"}' ;;"#;
const VERB: &str = "verb=${1-}\n";
const UNMOUNT: &str = r#"    [ $# = 1 ] || fail "unmount takes a directory""#;
const INIT: &str = "init)\n";
const LAST: &str = r#""supportsMetrics":true}}'"#;

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "json-by-hand",
        what: "puts what it was called with into its JSON as it is: nearly every shell driver",
        of: Tmpfs,
        change: &[(ESCAPED, r" | tr -c ' -~' '?' | cut -c 1-900)")],
        fails: &["output::escapes"],
    },
    Fault {
        name: "answer-in-a-hurry",
        what: "gives up on an answer that is not read at once",
        of: Tmpfs,
        change: &[(PRINT, r#"    printf '%30000s%s\n' ' ' "$answer" | timeout 0.3 cat >&3"#)],
        fails: &["environment::no_processes", "output::slow_reader"],
    },
    Fault {
        name: "capabilities-in-a-list",
        what: "lists its capabilities instead of saying true or false to each",
        of: Tmpfs,
        change: &[(
            LAST,
            "\"supportsMetrics\":true}}'\n    answer='{\"status\":\"Success\",\"capabilities\":[\"fsGroup\"]}'",
        )],
        fails: &["init::attach_is_meant", "init::attach_is_said", "init::capabilities", "output::types"],
    },
    Fault {
        name: "count-of-inits",
        what: "puts a number into the capabilities that is another in each call",
        of: Tmpfs,
        change: &[(LAST, "\"supportsMetrics\":true}}'\n    answer=${answer%??},\\\"call\\\":$$}}")],
        fails: &["init::extra_arguments", "init::same_everywhere", "init::storm"],
    },
    Fault {
        name: "notes-in-init",
        what: "writes into its own directory in init, whereupon kubelet calls init again, for ever",
        of: Tmpfs,
        change: &[(INIT, "init)\n    date >\"${0%/*}/started\"\n")],
        fails: &["init::no_side_effects", "left::own_directory", "verbs::own_directory"],
    },
    Fault {
        name: "verbs-in-any-case",
        what: "takes MOUNT for mount",
        of: Tmpfs,
        change: &[("mount) mount_volume", "mount | MOUNT) mount_volume")],
        fails: &["verbs::unknown"],
    },
    Fault {
        name: "success-without-a-verb",
        what: "says Success if there is nothing to do",
        of: Tmpfs,
        change: &[(VERB, "[ $# -gt 0 ] || succeed\nverb=${1-}\n")],
        fails: &["verbs::none"],
    },
    Fault {
        name: "crash-without-arguments",
        what: "ends without an answer if an argument is missing: set -u",
        of: Tmpfs,
        change: &[(
            UNMOUNT,
            "    [ $# -gt 0 ] || { answer=; exit 2; }\n    [ $# = 1 ] || fail \"unmount takes a directory\"",
        )],
        fails: &["output::one_object", "verbs::argument_count"],
    },
    Fault {
        name: "name-without-options",
        what: "makes the volume's name of its options, which are not there after a restart of kubelet",
        of: Tmpfs,
        change: &[(
            NOT_SUPPORTED,
            "getvolumename)\n    case $1 in *'\"size\"'*) succeed ;; *) fail 'option size is missing' ;; esac ;;\n*) answer='{\"status\":\"Not supported\"}' ;;",
        )],
        fails: &["verbs::name"],
    },
];

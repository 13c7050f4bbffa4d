//! Verbs that are answered in a wrong way, whatever their arguments.

use super::Fault;
use super::Reference::Tmpfs;

const OTHER: &str = r#"*) answer='{"status":"Not supported"}' ;;"#;
const SHIFT: &str = "[ $# = 0 ] || shift\n";
const OPTIONS: &str = r#"case $fields in error:*) fail "${fields#error: }" ;; esac"#;
const TWO: &str = r#"[ $# = 2 ] || fail "mount takes a directory and the options""#;
const ONE: &str = r#"[ $# = 1 ] || fail "unmount takes a directory""#;

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "unknown-is-a-failure",
        what: "fails if it does not know a verb",
        of: Tmpfs,
        change: &[(
            OTHER,
            "getvolumename) answer='{\"status\":\"Not supported\"}' ;;\n*) fail \"no such verb\" ;;",
        )],
        fails: &["verbs::unknown"],
    },
    Fault {
        name: "slow-not-supported",
        what: "connects to its server before it looks at the verb",
        of: Tmpfs,
        change: &[(
            OTHER,
            "getvolumename) answer='{\"status\":\"Not supported\"}' ;;\n*)\n    sleep 1.1\n    answer='{\"status\":\"Not supported\"}' ;;",
        )],
        fails: &["verbs::not_found_is_quick"],
    },
    Fault {
        name: "silent-without-a-verb",
        what: "ends without an answer if there is no verb",
        of: Tmpfs,
        change: &[(SHIFT, "[ $# != 0 ] || { answer= && exit; }\nshift\n")],
        fails: &["verbs::none", "output::one_object"],
    },
    Fault {
        name: "arguments-before-the-verb",
        what: "fails a verb it lacks if an argument is missing, and else says Not supported",
        of: Tmpfs,
        change: &[(
            OTHER,
            "waitforattach) [ $# = 2 ] || fail 'an argument is missing'; answer='{\"status\":\"Not supported\"}' ;;\n*) answer='{\"status\":\"Not supported\"}' ;;",
        )],
        fails: &["verbs::missing_stay_missing"],
    },
    Fault {
        name: "not-supported-for-this-volume",
        what: "says Not supported if it cannot mount a volume, and is never called for any volume again",
        of: Tmpfs,
        change: &[(
            OPTIONS,
            "case $fields in error:*) answer='{\"status\":\"Not supported\"}' && exit ;; esac",
        )],
        fails: &[
            "verbs::present_stay_present",
            "options::duplicate_keys",
            "options::long",
            "options::malformed",
            "options::read_write",
            "options::strings_only",
            "options::unicode",
            "secrets::bad_base64",
            "secrets::missing",
        ],
    },
    Fault {
        name: "arguments-are-not-counted",
        what: "says Success if an argument is missing",
        of: Tmpfs,
        change: &[(ONE, r#"[ $# -le 1 ] || fail "unmount takes a directory"; [ $# = 1 ] || succeed"#)],
        fails: &["verbs::argument_count"],
    },
    Fault {
        name: "surplus-arguments",
        what: "overlooks arguments that it does not know",
        of: Tmpfs,
        change: &[(TWO, r#"[ $# -ge 2 ] || fail "mount takes a directory and the options""#)],
        fails: &["verbs::surplus_arguments"],
    },
    Fault {
        name: "no-name",
        what: "fails getvolumename, without which kubelet attaches and takes down nothing",
        of: Tmpfs,
        change: &[(
            OTHER,
            "getvolumename) fail 'the volume has no name' ;;\n*) answer='{\"status\":\"Not supported\"}' ;;",
        )],
        fails: &["verbs::name"],
    },
    Fault {
        name: "version-in-words",
        what: "prints its version as text",
        of: Tmpfs,
        change: &[(
            OTHER,
            "version | --version) answer='tmpfs 1.0' ;;\n*) answer='{\"status\":\"Not supported\"}' ;;",
        )],
        fails: &["verbs::self_test_words"],
    },
    Fault {
        name: "lock-beside-itself",
        what: "makes a lock in its own directory for each call, and removes it",
        of: Tmpfs,
        change: &[(SHIFT, "[ $# = 0 ] || shift\ntouch \"${0%/*}/lock\" && rm \"${0%/*}/lock\"\n")],
        fails: &["verbs::own_directory"],
    },
];

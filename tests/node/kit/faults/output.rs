//! Answers that kubelet cannot use.

use super::Fault;
use super::Reference::{Keeper, Tmpfs};

const PRINT: &str = r#"    printf '%s\n' "$answer" >&3"#;
const SUCCESS: &str = r#"answer='{"status":"Success"}'"#;
const NOT_SUPPORTED: &str = r#"*) answer='{"status":"Not supported"}' ;;"#;
const REASON: &str =
    r#"    reason=$(printf '%s' "$1" | tr -c ' -~' '?' | cut -c 1-900 | sed 's/["\\]/\\&/g')"#;

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "warning",
        what: "prints a warning to standard error, as mount.cifs and sudo do",
        of: Tmpfs,
        change: &[(
            PRINT,
            "    echo 'warning: this option is deprecated' >&3\n    printf '%s\\n' \"$answer\" >&3",
        )],
        fails: &["output::no_noise"],
    },
    Fault {
        name: "words-after-the-answer",
        what: "leaves standard error open, and umount complains after the answer",
        of: Tmpfs,
        change: &[(PRINT, "    printf '%s\\n' \"$answer\" >&3\n    umount /no/such/mount 2>&3")],
        fails: &["output::no_noise"],
    },
    Fault {
        name: "two-answers",
        what: "prints the answer of a function and its own: fq/lizardfs",
        of: Tmpfs,
        change: &[(PRINT, "    printf '%s\\n%s\\n' \"$answer\" \"$answer\" >&3")],
        fails: &["output::one_object"],
    },
    Fault {
        name: "usage",
        what: "answers a verb it does not know with how it is used: Azure's smb and blobfuse, kvaps/loop",
        of: Tmpfs,
        change: &[(NOT_SUPPORTED, "*) answer=\"usage: ${0##*/} init | mount DIR JSON | unmount DIR\" ;;")],
        fails: &[
            "output::one_object",
            "verbs::name",
            "verbs::none",
            "verbs::self_test_words",
            "verbs::unknown",
        ],
    },
    Fault {
        name: "byte-order-mark",
        what: "begins its answer with a byte order mark, as PowerShell does",
        of: Tmpfs,
        change: &[(PRINT, "    printf '\\357\\273\\277%s\\n' \"$answer\" >&3")],
        fails: &["output::plain_text"],
    },
    Fault {
        name: "nul",
        what: "prints the NUL at the end of a C string",
        of: Tmpfs,
        change: &[(PRINT, "    printf '%s\\000' \"$answer\" >&3")],
        fails: &["output::plain_text"],
    },
    Fault {
        name: "success-in-small-letters",
        what: "says success",
        of: Tmpfs,
        change: &[(SUCCESS, r#"answer='{"status":"success"}'"#)],
        fails: &["output::status_words"],
    },
    Fault {
        name: "not-supported-in-capitals",
        what: "says Not Supported: the Go libraries of jaxxstorm and nickschuch",
        of: Tmpfs,
        change: &[(NOT_SUPPORTED, r#"*) answer='{"status":"Not Supported"}' ;;"#)],
        fails: &["output::status_words"],
    },
    Fault {
        name: "device-as-a-number",
        what: "answers a mount with a field of a wrong type",
        of: Tmpfs,
        change: &[(SUCCESS, r#"answer='{"status":"Success","device":0}'"#)],
        fails: &["output::types"],
    },
    Fault {
        name: "success-with-exit-status-1",
        what: "ends a Success with the exit status of its last command",
        of: Tmpfs,
        change: &[(
            PRINT,
            "    printf '%s\\n' \"$answer\" >&3\n    case $answer in *'\"Success\"'*) exit 1 ;; esac",
        )],
        fails: &["output::success_exits_zero"],
    },
    Fault {
        name: "failure-with-exit-status-1",
        what: "ends a Failure with exit status 1, so that kubelet logs the secrets: nearly everybody",
        of: Tmpfs,
        change: &[(
            PRINT,
            "    printf '%s\\n' \"$answer\" >&3\n    case $answer in *'\"Failure\"'*) exit 1 ;; esac",
        )],
        fails: &["output::failure_exits_zero"],
    },
    Fault {
        name: "crash",
        what: "crashes after its answer",
        of: Tmpfs,
        change: &[(PRINT, "    printf '%s\\n' \"$answer\" >&3\n    kill -SEGV $$")],
        fails: &["output::not_killed"],
    },
    Fault {
        name: "held-pipe",
        what: "starts a daemon that inherits its output: every FUSE driver once",
        of: Keeper,
        change: &[("setsid -f $server 3>&- 9>&-", "setsid -f $server 9>&-")],
        fails: &["output::pipe_closed"],
    },
    Fault {
        name: "hang",
        what: "waits for a server that never answers when it does not know a verb",
        of: Tmpfs,
        change: &[(NOT_SUPPORTED, "*) sleep 600 ;;")],
        fails: &[
            "output::in_time",
            "verbs::name",
            "verbs::none",
            "verbs::not_found_is_quick",
            "verbs::self_test_words",
            "verbs::unknown",
        ],
    },
    Fault {
        name: "large-answer",
        what: "prints 70 KB",
        of: Tmpfs,
        change: &[(PRINT, "    printf '%s%70000s\\n' \"$answer\" ' ' >&3")],
        fails: &["output::size"],
    },
    Fault {
        name: "no-reason",
        what: "fails without saying why",
        of: Tmpfs,
        change: &[(REASON, "    reason=")],
        fails: &["output::message", "secrets::missing"],
    },
    Fault {
        name: "long-reason",
        what: "puts the whole output of a tool into the reason of a failure",
        of: Tmpfs,
        change: &[(REASON, "    reason=$(printf '%2000s' x)")],
        fails: &["output::message", "secrets::missing"],
    },
    Fault {
        name: "reason-in-two-lines",
        what: "puts several lines into the reason of a failure",
        of: Tmpfs,
        change: &[(REASON, "    reason='first line\\nsecond line'")],
        fails: &["output::message", "secrets::missing"],
    },
];

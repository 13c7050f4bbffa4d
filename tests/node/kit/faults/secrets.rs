//! Secrets that others can see, and logs that do harm.

use super::Fault;
use super::Reference::Tmpfs;

const STORE: &str = r#"printf '%s' "$3" | base64 -d >"$dir/.password""#;
const VERB: &str = "verb=${1-}\n";

pub(super) const SECRETS: &[Fault] = &[
    Fault {
        name: "no-nul",
        what: "keeps a secret in a shell variable once it is decoded, and loses its zero bytes",
        of: Tmpfs,
        change: &[(STORE, r#"printf '%s' "$3" | base64 -d | tr -d '\000' >"$dir/.password""#)],
        fails: &["secrets::binary"],
    },
    Fault {
        name: "not-decoded",
        what: "uses a secret as kubelet sends it, in base64",
        of: Tmpfs,
        change: &[(STORE, r#"printf '%s' "$3" >"$dir/.password""#)],
        fails: &["secrets::binary"],
    },
    Fault {
        name: "garbage-decoded",
        what: "ignores that a secret is no base64",
        of: Tmpfs,
        change: &[
            (
                r#"password != "-" && (password !~ /^[A-Za-z0-9+\/]+=?=?$/ || length(password) % 4 != 0)"#,
                r#"password == """#,
            ),
            (STORE, r#"printf '%s' "$3" | base64 -d -i >"$dir/.password" || :"#),
        ],
        fails: &["secrets::bad_base64"],
    },
    Fault {
        name: "access-denied",
        what: "does not say that a secret is missing",
        of: Tmpfs,
        change: &[(
            r#"    if (password != "-" &&"#,
            "    if (password == \"-\") fail(\"access denied\")\n    if (password != \"-\" &&",
        )],
        fails: &["secrets::missing"],
    },
    Fault {
        name: "secret-in-the-message",
        what: "says with which password it failed",
        of: Tmpfs,
        change: &[(
            r#"fail("secret password: must be base64, and not empty")"#,
            r#"fail("secret password: must be base64, not " password)"#,
        )],
        fails: &["secrets::output"],
    },
    Fault {
        name: "part-of-a-secret",
        what: "says how the secret begins when it mounts",
        of: Tmpfs,
        change: &[
            (
                r#"answer='{"status":"Success"}'"#,
                r#"answer="{\"status\":\"Success\",\"message\":\"mounted with $(printf '%.10s' "${3-}")\"}""#,
            ),
            ("    succeed\n}\n\n# Nothing but", "    succeed '' '' \"$3\"\n}\n\n# Nothing but"),
        ],
        fails: &["secrets::output"],
    },
    Fault {
        name: "options-in-the-message",
        what: "repeats the options that it cannot read: Oracle's driver of 2018",
        of: Tmpfs,
        change: &[(
            r#"fail("the options must be strings in one object")"#,
            r#"fail("the options must be strings in one object, not " all)"#,
        )],
        fails: &["secrets::malformed_options", "secrets::output"],
    },
    Fault {
        name: "secret-in-arguments",
        what: "hands a secret to echo, or to mount -o password=: juliohm/cifs",
        of: Tmpfs,
        change: &[(STORE, r#"/bin/echo "$3" | base64 -d >"$dir/.password""#)],
        fails: &["secrets::arguments"],
    },
    Fault {
        name: "secret-in-the-environment",
        what: "hands a secret on in PASSWD, as the manual of mount.cifs proposes",
        of: Tmpfs,
        change: &[(STORE, r#"printf '%s' "$3" | PASSWD=$3 base64 -d >"$dir/.password""#)],
        fails: &["secrets::environment"],
    },
    Fault {
        name: "secret-in-the-mount-table",
        what: "mounts from a URL with the password in it",
        of: Tmpfs,
        change: &[("    source=tmpfs.sh:$1:$2\n", "    source=tmpfs.sh:$1:$2:$3\n")],
        fails: &["secrets::arguments", "secrets::mount_table"],
    },
    Fault {
        name: "readable-for-a-moment",
        what: "writes a secret to a file and makes that private afterwards",
        of: Tmpfs,
        change: &[(
            STORE,
            r#"(umask 022; printf '%s' "$3" >/run/secret.$$; chmod 600 /run/secret.$$; base64 -d /run/secret.$$; rm /run/secret.$$) >"$dir/.password""#,
        )],
        fails: &["secrets::files", "left::files"],
    },
    Fault {
        name: "secret-kept",
        what: "keeps the credentials of a volume that is unmounted",
        of: Tmpfs,
        change: &[(
            STORE,
            r#"printf '%s' "$3" >/run/lock/secret; base64 -d /run/lock/secret >"$dir/.password""#,
        )],
        fails: &["left::files", "secrets::files"],
    },
    Fault {
        name: "secret-in-the-log",
        what: "logs its arguments: fstab/cifs and many others when they are debugged",
        of: Tmpfs,
        change: &[(VERB, "verb=${1-}\n[ \"$verb\" != mount ] || printf '%s\\n' \"$*\" >/var/log/tmpfs.sh\n")],
        fails: &["secrets::logs"],
    },
    Fault {
        name: "secret-in-a-server",
        what: "starts a server with the password in its environment: s3fs in most manuals",
        of: Tmpfs,
        change: &[
            (
                "    \"\") undo=yes\n",
                "    \"\") undo=yes\n        PASSWORD=$3 setsid -f sleep infinity 3>&- 9>&-\n",
            ),
            (
                "    sources=$(mounted) || succeed\n",
                "    pkill -KILL -f 'sleep infinity'\n    sources=$(mounted) || succeed\n",
            ),
        ],
        fails: &[
            "secrets::daemon",
            "secrets::environment",
            "daemon::fails_early",
            "mount::failure_leaves_nothing",
        ],
    },
];

pub(super) const LOGS: &[Fault] = &[
    Fault {
        name: "endless-log",
        what: "logs every call and never cuts the log: nearly everybody who logs",
        of: Tmpfs,
        change: &[(VERB, "verb=${1-}\necho \"$verb\" >>/var/log/tmpfs.sh\n")],
        fails: &["log::bounded"],
    },
    Fault {
        name: "no-log-no-mount",
        what: "fails if it cannot write its log, as with set -e",
        of: Tmpfs,
        change: &[(VERB, "verb=${1-}\n(echo \"$verb\" >>/var/log/tmpfs.sh) || fail 'cannot log'\n")],
        fails: &["log::bounded", "log::unwritable"],
    },
    Fault {
        name: "forged-line",
        what: "logs a size that it cannot read, with the line breaks that are in it",
        of: Tmpfs,
        change: &[(
            VERB,
            "verb=${1-}\ncase $verb,$3 in mount,*'\"size\":\"'[1-9]*) ;; mount,*) printf '%b\\n' \"$(printf '%s' \"$3\" | sed 's/.*size//' | cut -c 1-500)\" >/var/log/tmpfs.sh ;; esac\n",
        )],
        fails: &["log::forged_lines"],
    },
    Fault {
        name: "log-written-anew",
        what: "keeps its log small by rewriting the end of it, without a lock",
        of: Tmpfs,
        change: &[(
            VERB,
            "verb=${1-}\nlog=$(tail -c 9999 /var/log/tmpfs.sh); printf '%s\\n' \"$log\" \"$verb ${2-}\" >/var/log/tmpfs.sh\n",
        )],
        fails: &["log::concurrent"],
    },
];

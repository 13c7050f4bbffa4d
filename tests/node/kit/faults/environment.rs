//! Assumptions about the environment that kubelet does not guarantee.

use super::Fault;
use super::Reference::Tmpfs;

const SHEBANG: &str = "#!/usr/bin/env -S -i -C / PATH=/usr/sbin:/usr/bin:/sbin:/bin sh";
const OUTPUTS: &str = "exec 3>&1 </dev/null >/dev/null 2>&1\n";
const INIT: &str = "init)\n";
const VERB: &str = "verb=${1-}\n";

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "needs-a-variable",
        what: "fails without a variable that it does not need",
        of: Tmpfs,
        change: &[
            (SHEBANG, "#!/usr/bin/env -S -C / /bin/sh"),
            (INIT, "init)\n    /usr/bin/printenv PATH || fail 'PATH is not set'\n"),
        ],
        fails: &["environment::empty"],
    },
    Fault {
        name: "debugs-if-told-to",
        what: "prints what it does if there is a variable DEBUG",
        of: Tmpfs,
        change: &[
            (SHEBANG, "#!/usr/bin/env -S -C / /bin/sh"),
            (
                VERB,
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin\n[ -z \"${DEBUG-}\" ] || echo \"$*\" >&3\nverb=${1-}\n",
            ),
        ],
        fails: &["environment::hostile"],
    },
    Fault {
        name: "asks-for-a-password",
        what: "waits for somebody to type something, as mount.cifs and ssh do",
        of: Tmpfs,
        change: &[(OUTPUTS, "exec 3>&1 >/dev/null 2>&1\n"), (VERB, "read -r password\nverb=${1-}\n")],
        fails: &["environment::no_stdin"],
    },
    Fault {
        name: "plain-shebang",
        what: "is a shell script as everybody writes it: the shell complains about a directory that is gone",
        of: Tmpfs,
        change: &[
            (SHEBANG, "#!/bin/sh"),
            (OUTPUTS, "exec 3>&1 </dev/null >/dev/null 2>&1\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\n"),
        ],
        fails: &["environment::deleted_directory", "environment::detached_directory"],
    },
    Fault {
        name: "path-without-quotes",
        what: "looks for its own directory without quotes, and finds none if there are blanks in its path",
        of: Tmpfs,
        change: &[(VERB, "[ -d ${0%/*} ] || fail \"where am I?\"\nverb=${1-}\n")],
        fails: &["environment::other_path"],
    },
    Fault {
        name: "is-no-link",
        what: "fails if it was executed through a link",
        of: Tmpfs,
        change: &[(VERB, "[ ! -L \"$0\" ] || fail \"$0 is a link\"\nverb=${1-}\n")],
        fails: &["environment::symlink"],
    },
    Fault {
        name: "umask-of-kubelet",
        what: "makes a directory in the volume with whatever umask kubelet has",
        of: Tmpfs,
        change: &[
            ("umask 077\n", "mask=$(umask)\numask 077\n"),
            (
                "    [ \"$2\" = rw ] || mount",
                "    (umask \"$mask\" && mkdir -p \"$dir/data\")\n    [ \"$2\" = rw ] || mount",
            ),
        ],
        fails: &["environment::open_umask", "environment::tight_umask", "environment::no_processes"],
    },
    Fault {
        name: "wants-many-files",
        what: "ends without an answer if it may open but a few files",
        of: Tmpfs,
        change: &[(VERB, "[ \"$(ulimit -n)\" -ge 64 ] || { answer= && exit; }\nverb=${1-}\n")],
        fails: &["environment::few_files"],
    },
    Fault {
        name: "wants-processes",
        what: "ends without an answer if it cannot start a process",
        of: Tmpfs,
        change: &[(
            VERB,
            "answer=\nid\nverb=${1-}\nanswer='{\"status\":\"Failure\",\"message\":\"ended early\"}'\n",
        )],
        fails: &["environment::no_processes"],
    },
    Fault {
        name: "must-log",
        what: "ends without an answer if it cannot write to its log: linbit, nodeagent/uds",
        of: Tmpfs,
        change: &[(VERB, "echo \"$1\" >>/var/log/tmpfs.log || { answer= && exit; }\nverb=${1-}\n")],
        fails: &[
            "environment::full_disk",
            "environment::read_only",
            "log::bounded",
            "log::unwritable",
            "output::one_object",
        ],
    },
    Fault {
        name: "must-write-to-etc",
        what: "ends without an answer if it cannot write to /etc, as ossfs wants its passwords there",
        of: Tmpfs,
        change: &[(VERB, "[ -w /etc ] || { answer= && exit; }\nverb=${1-}\n")],
        fails: &["environment::read_only"],
    },
];

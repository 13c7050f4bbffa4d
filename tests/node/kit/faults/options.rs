//! Options that are read in another way than they were meant.

use super::Fault;
use super::Reference::{Loop, Tmpfs};

const PARSED: &str = r#"    case $fields in error:*) fail "${fields#error: }" ;; esac
    take "$1""#;
const KEY: &str = r#"        if (key in given) fail("an option is there twice")
        given[key] = string()"#;
const GOOD_SIZE: &str = "size !~ /^[1-9][0-9]*[KMG]i$/ || length(size) > 9";
const FIELDS: &str = "    print size, access, password\n";
const TYPE: &str = r#""nosuid,nodev,mode=0777,size=${1%i}""#;

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "escapes-as-they-are",
        what: "takes values out of the options as they are written, with grep and sed: fstab/cifs, most shell drivers",
        of: Tmpfs,
        change: &[("while ((at = index(raw, \"\\\\\")) > 0) {", "while (0) {")],
        fails: &["options::escapes"],
    },
    Fault {
        name: "new-keys-refused",
        what: "refuses every key it does not know, kubelet's included",
        of: Tmpfs,
        change: &[(
            KEY,
            r#"        if (key in given) fail("an option is there twice")
        if (key !~ /^size$|readwrite$|fsType$|VolumeName$|pod[.]|Account.name$|secret|Group$/) fail(key " is unknown")
        given[key] = string()"#,
        )],
        fails: &["options::unknown_keys"],
    },
    Fault {
        name: "empty-fs-type",
        what: "takes the empty fsType of kubelet for the name of a file system",
        of: Loop,
        change: &[(r#"type == "" ? "ext4" : type"#, r#"type == "" ? "unset" : type"#)],
        fails: &["options::empty_fs_type"],
    },
    Fault {
        name: "sorted-keys",
        what: "relies on the order of the keys",
        of: Tmpfs,
        change: &[(
            KEY,
            "        if (key < last) fail(\"not sorted\")\n        last = key\n        given[key] = string()",
        )],
        fails: &["options::order_and_blanks"],
    },
    Fault {
        name: "options-cut",
        what: "reads no more than 64 KiB of its options",
        of: Tmpfs,
        change: &[(r#"fields=$(awk "$parse" <<END"#, r#"fields=$(head -c 65536 <<END | awk "$parse""#)],
        fails: &["options::long"],
    },
    Fault {
        name: "defaults-for-garbage",
        what: "mounts with defaults if the options cannot be read: every driver that ignores the status of jq",
        of: Tmpfs,
        change: &[(r#"fail("the options must be strings in one object")"#, r#"all = "{}""#)],
        fails: &["options::malformed", "options::strings_only"],
    },
    Fault {
        name: "trailing-garbage",
        what: "reads the first object and leaves the rest, as streaming parsers do",
        of: Tmpfs,
        change: &[(r#"pair ")*)?[}]" s "$""#, r#"pair ")*)?[}]" s"#)],
        fails: &["options::malformed"],
    },
    Fault {
        name: "numbers-taken",
        what: "takes a number for a string, as jq -r does",
        of: Tmpfs,
        change: &[(r#"{ all = all $0 "\n" }"#, r#"{ gsub(/:1/, ":\"1Mi\""); all = all $0 "\n" }"#)],
        fails: &["options::strings_only"],
    },
    Fault {
        name: "first-of-two",
        what: "takes the first of two values for a key, where Go and jq take the last",
        of: Tmpfs,
        change: &[(KEY, "        word = string()\n        if (!(key in given)) given[key] = word")],
        fails: &["options::duplicate_keys"],
    },
    Fault {
        name: "ascii-only",
        what: "fails if anything in its options is not ASCII: Python under LC_ALL=C",
        of: Tmpfs,
        change: &[(
            PARSED,
            "    case $(printf '%s' \"$2\" | tr -d '\\n\\r\\t') in *[!\\ -~]*) fail 'the options must be ASCII' ;; esac\n    case $fields in error:*) fail \"${fields#error: }\" ;; esac\n    take \"$1\"",
        )],
        fails: &["options::unicode"],
    },
    Fault {
        name: "eval",
        what: "hands the options to eval: nearly every shell driver that has no jq",
        of: Tmpfs,
        change: &[(
            PARSED,
            "    case $fields in error:*) fail \"${fields#error: }\" ;; esac\n    eval \": \\\"$2\\\"\"\n    take \"$1\"",
        )],
        fails: &["options::shell"],
    },
    Fault {
        name: "comma",
        what: "lets a comma in an option add options to mount: fstab/cifs, juliohm/cifs and most others",
        of: Tmpfs,
        change: &[
            (GOOD_SIZE, "size !~ /^[1-9][0-9]*[KMG]i(,[a-z,]+)?$/"),
            (TYPE, "\"nosuid,nodev,mode=0777,size=$(echo \"$1\" | sed s/i//)\""),
        ],
        fails: &["options::injection"],
    },
    Fault {
        name: "dot-dot",
        what: "makes and uses images wherever the name of one leads",
        of: Loop,
        change: &[("file !~ /^[a-z0-9][a-z0-9._-]*$/", "file !~ /^[a-z0-9.\\/_-]+$/")],
        fails: &["options::paths"],
    },
    Fault {
        name: "nameless",
        what: "does not say which option is missing",
        of: Loop,
        change: &[("option file: must be a plain name of a-z, 0-9, . _ -", "bad request")],
        fails: &["options::missing"],
    },
    Fault {
        name: "refused-once",
        what: "refuses a wrong size, and mounts the same at the next attempt",
        of: Tmpfs,
        change: &[(
            PARSED,
            "    case $fields in \"error: option size\"*) [ ! -e /run/refused ] || fields='16Mi rw -'; : >/run/refused ;; esac\n    case $fields in error:*) fail \"${fields#error: }\" ;; esac\n    take \"$1\"",
        )],
        fails: &["options::unknown_value"],
    },
    Fault {
        name: "ro-forgotten",
        what: "mounts writable, whatever was asked for: most drivers that were written for one pod",
        of: Tmpfs,
        change: &[("    [ \"$2\" = rw ] || mount", "    : || mount")],
        fails: &["options::read_only", "mount::two_modes"],
    },
    Fault {
        name: "any-word-is-rw",
        what: "takes everything but ro for rw",
        of: Tmpfs,
        change: &[(
            r#"if (access !~ /^r[ow]$/) fail("kubernetes.io/readwrite: must be ro or rw")"#,
            r#"if (access != "ro") access = "rw""#,
        )],
        fails: &["options::read_write"],
    },
    Fault {
        name: "ro-by-default",
        what: "mounts read-only without a word about it",
        of: Tmpfs,
        change: &[(r#"value("kubernetes.io/readwrite", "rw")"#, r#"value("kubernetes.io/readwrite", "ro")"#)],
        fails: &["options::read_write"],
    },
    Fault {
        name: "rw-by-option",
        what: "lets a user's option decide whether the volume is writable",
        of: Tmpfs,
        change: &[(
            r#"value("kubernetes.io/readwrite", "rw")"#,
            r#"value("readwrite", value("kubernetes.io/readwrite", "rw"))"#,
        )],
        fails: &["options::ro_wins"],
    },
    Fault {
        name: "keys-in-any-case",
        what: "takes KUBERNETES.IO/readwrite for kubelet's key",
        of: Tmpfs,
        change: &[(
            KEY,
            "        key = tolower(key)\n        word = string()\n        if (!(key in given)) given[key] = word",
        )],
        fails: &["options::duplicate_keys", "options::other_case_key"],
    },
    Fault {
        name: "keys-as-go-folds-them",
        what: "reads its options into a struct of Go, for which kuberneteſ.io is kubernetes.io",
        of: Tmpfs,
        change: &[(KEY, "        gsub(/ſ/, \"s\", key)\n        given[key] = string()")],
        fails: &["options::other_case_key"],
    },
    Fault {
        name: "one-fs-group",
        what: "knows fsGroup by one of its names",
        of: Tmpfs,
        change: &[
            (FIELDS, "    print size, access, password, value(\"kubernetes.io/mounterArgs.FsGroup\", 0)\n"),
            (TYPE, r#""nosuid,nodev,mode=0777,size=${1%i},gid=$4""#),
        ],
        fails: &["options::fs_group"],
    },
    Fault {
        name: "no-pod-no-mount",
        what: "takes a call without a pod for a test, and says Success",
        of: Tmpfs,
        change: &[
            (FIELDS, "    print size, access, password, value(\"kubernetes.io/pod.name\", \"none\")\n"),
            (
                PARSED,
                "    case $fields in error:*) fail \"${fields#error: }\" ;; *none) succeed ;; esac\n    take \"$1\"",
            ),
        ],
        fails: &["options::without_pod"],
    },
    Fault {
        name: "directory-by-name",
        what: "keeps a directory for each pod, and takes its name as it comes",
        of: Tmpfs,
        change: &[
            (FIELDS, "    print size, access, password, value(\"kubernetes.io/pod.name\", \"pod\")\n"),
            ("    set -- $fields\n", "    set -- $fields\n    mkdir -p \"/run/tmpfs.sh/$4\"\n"),
        ],
        fails: &["options::pod_names"],
    },
];

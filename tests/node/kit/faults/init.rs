//! Failures when kubelet loads a driver.

use super::Fault;
use super::Reference::Tmpfs;

const INIT: &str = "init)\n";
const ATTACH: &str = r#""attach":false,"#;
const LAST: &str = r#""supportsMetrics":true}}'"#;
const SHEBANG: &str = "#!/usr/bin/env -S -i -C / PATH=/usr/sbin:/usr/bin:/sbin:/bin sh";

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "init-fails-without-a-tool",
        what: "fails init if a tool is missing that only mount needs: nodeagent/uds, linbit",
        of: Tmpfs,
        change: &[(INIT, "init)\n    command -v mount.none || fail 'mount.none is not installed'\n")],
        fails: &["init::works", "storm::replaced"],
    },
    Fault {
        name: "null-capabilities",
        what: "answers init with null for its capabilities, at which kubelet crashes",
        of: Tmpfs,
        change: &[(
            LAST,
            "\"supportsMetrics\":true}}'\n    answer='{\"status\":\"Success\",\"capabilities\":null}'",
        )],
        fails: &["init::capabilities", "init::attach_is_meant", "init::attach_is_said"],
    },
    Fault {
        name: "capabilities-in-quotes",
        what: "says \"true\" in quotes: the Go libraries for drivers",
        of: Tmpfs,
        change: &[(LAST, r#""supportsMetrics":"true"}}'"#)],
        fails: &["init::booleans", "output::types"],
    },
    Fault {
        name: "attach-is-not-said",
        what: "does not say that it does not attach: the loop and lvm drivers, riofs",
        of: Tmpfs,
        change: &[(ATTACH, "")],
        fails: &["init::attach_is_said", "init::attach_is_meant"],
    },
    Fault {
        name: "slow-init",
        what: "looks for servers in init: pharmer asked a counter of visits",
        of: Tmpfs,
        change: &[(INIT, "init)\n    sleep 1.1\n")],
        fails: &["init::quick"],
    },
    Fault {
        name: "init-takes-a-lock",
        what: "fails init while another init runs",
        of: Tmpfs,
        change: &[
            (INIT, "init)\n    mkdir /run/init || fail 'init runs already'\n    sleep 0.05\n"),
            (LAST, "\"supportsMetrics\":true}}'\n    rmdir /run/init"),
        ],
        fails: &["init::storm", "sequence::probe_storm", "storm::replaced"],
    },
    Fault {
        name: "init-starts-a-daemon",
        what: "starts a process in init, one for each time that kubelet calls it",
        of: Tmpfs,
        change: &[(INIT, "init)\n    setsid -f sleep 600 3>&-\n")],
        fails: &["init::no_side_effects", "left::processes"],
    },
    Fault {
        name: "init-needs-a-path",
        what: "prints the capabilities with cat, and nothing where there is none: the controller's image",
        of: Tmpfs,
        change: &[
            (SHEBANG, "#!/usr/bin/env -S -C / /bin/sh"),
            (LAST, "\"supportsMetrics\":true}}'\n    answer=$(echo \"$answer\" | cat)"),
        ],
        fails: &["init::without_network_and_tools"],
    },
    Fault {
        name: "init-takes-no-arguments",
        what: "fails init if there is an argument",
        of: Tmpfs,
        change: &[(INIT, "init)\n    [ $# = 0 ] || fail 'init takes no arguments'\n")],
        fails: &["init::extra_arguments"],
    },
    Fault {
        name: "init-looks-at-the-host",
        what: "attaches on some hosts and not on others",
        of: Tmpfs,
        change: &[(
            LAST,
            "\"supportsMetrics\":true}}'\n    [ \"$(uname -n)\" != another-host.example.com ] || \
             answer='{\"status\":\"Success\",\"capabilities\":{\"attach\":true}}'",
        )],
        fails: &["init::same_everywhere"],
    },
];

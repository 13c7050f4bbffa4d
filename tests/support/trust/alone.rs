//! A test in namespaces of its own.

use crate::support::pace::slow_seconds;
use std::path::Path;
use std::process::{Command, Stdio};

/// Set in the test's own namespaces.
const INSIDE: &str = "FLEXVOL_TEST_INSIDE";

/// How many seconds a test may take where all there is shall be tried, or more than usual.
const LONG: u32 = 14_400;

/// Whether this is the process that was started for this test.
pub(crate) fn is_inside(name: &str) -> bool {
    std::env::var_os(INSIDE).is_some_and(|inside| inside == name)
}

/// Runs `body` where it has mounts, processes, /run and scratch of its own, and what `further`
/// words of unshare(1) say. `name` is the test's full name: the test binary is executed again for
/// exactly this test. When it ends, however it does, or after `limit` seconds, more on a slow
/// machine, the kernel ends all of its processes and mounts.
pub(crate) fn alone(name: &str, limit: u32, further: &[&str], body: impl FnOnce()) {
    if is_inside(name) {
        let cover = concat!(
            include_str!("../no_kubelet.sh"),
            "mkdir -p /var/lib/flexvol; for place in /run /var/lib/flexvol; do mount -t tmpfs -o mode=755 test $place; done"
        );
        assert!(Command::new("sh").args(["-ec", cover]).status().unwrap().success());
        return body();
    }
    let limit = if super::is_full() || super::sample_of(0) > 0 { LONG } else { limit };
    let limit = slow_seconds(limit.into());
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", &limit.to_string(), "unshare", "-m", "-p", "--fork", "--kill-child"]);
    // The first process of the namespace is no test: one that waits for a silent volume is not
    // ended by SIGKILL, and the others are only once the first has ended. And it reaps what others
    // leave.
    command.args(["--mount-proc", "--propagation", "private"]).args(further);
    command.args(["sh", "-c", "\"$@\"; exit $?", "init"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(INSIDE, name);
    let output = command.env("RUST_BACKTRACE", "0").stdin(Stdio::null()).output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // The harness prints a test's name without a line break.
    let text = text.replace(" ... NOTE ", " ...\nNOTE ").replace(" ... SKIP ", " ...\nSKIP ");
    for line in text.lines().filter(|line| line.starts_with("NOTE") || line.starts_with("SKIP")) {
        println!("{line}");
    }
    assert!(output.status.success() && text.contains("1 passed"), "{name}: {}\n{text}", output.status);
}

/// Whether a program is installed.
pub(crate) fn has(program: &str) -> bool {
    ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].iter().any(|dir| Path::new(dir).join(program).exists())
}

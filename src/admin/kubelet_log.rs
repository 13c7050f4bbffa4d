//! kubelet's log, from a file or the journal: for `doctor`, and for the waiting pods of `status`.

use anyhow::Result;
use flexvol_linux::fs::files;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::{Invocation, Tools};
use std::path::Path;
use std::time::Duration;

/// Limit for the part that is read from the end of a log file, in bytes.
const LENGTH: u64 = 1 << 20;

/// Log files of kubelets that log to a file.
const FILES: &[&str] =
    &["/var/log/kubelet.log", "/var/log/kubelet/kubelet.log", "/var/lib/rancher/rke2/agent/logs/kubelet.log"];

/// Systemd units that are a kubelet or contain one.
const UNITS: &[&str] = &[
    "kubelet",
    "k3s",
    "k3s-agent",
    "rke2-server",
    "rke2-agent",
    "k0scontroller",
    "k0sworker",
    "snap.microk8s.daemon-kubelite",
    "microshift",
];

/// Deadline for journalctl.
const JOURNAL_WAIT: Duration = Duration::from_secs(10);

/// Returns the end of the log file; without a file, the journal's lines about volumes.
pub fn text(file: Option<&Path>) -> Result<String> {
    if let Some(path) = file.or(usual()) {
        return files::end(path, LENGTH);
    }
    let grep = [
        "--lines",
        "3000",
        "--grep",
        "(?i)flexvolume|mountvolume|volume plugin|orphaned pod|probing plugins|mountdevice|unmounted volumes|panic: ",
    ];
    Ok(journal(&grep))
}

fn usual() -> Option<&'static Path> {
    FILES.iter().map(Path::new).find(|path| path.is_file())
}

/// Returns journalctl's output; empty if it fails. It also fails if no line matches.
fn journal(words: &[&str]) -> String {
    let units = UNITS.iter().flat_map(|unit| ["-u", *unit]);
    let usual = ["--no-pager", "--quiet", "--since", "-1h", "--output", "cat"];
    let journal =
        Invocation::of("journalctl").args(usual).args(words.iter().copied()).args(units).answering();
    let outcome = Tools::of_host(&Deadline::after(JOURNAL_WAIT)).run(journal);
    outcome.map(|outcome| outcome.answer).unwrap_or_default()
}

/// Fails if no kubelet has written anything here: then a log without errors proves nothing.
pub fn is_there(file: Option<&Path>) -> Result<()> {
    let is_silent = || file.is_none() && usual().is_none() && journal(&["--lines", "1"]).is_empty();
    anyhow::ensure!(
        !is_silent(),
        "no log of kubelet is found, neither a file nor in the journal of the last hour: name it with --kubelet-log"
    );
    Ok(())
}

/// Returns the first volume that, by this line, a pod waits for until it is attached.
pub fn unattached(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("unattached volumes=[")?;
    let names = rest.split(']').next()?;
    names.split([' ', ',']).next().filter(|name| !name.is_empty())
}

//! kubelet's log, wherever this node has it: for `doctor`, and for `status` to say why a pod waits.

use anyhow::Result;
use flexvol_linux::fs::files;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::{Invocation, Tools};
use std::path::Path;
use std::time::Duration;

/// How much is read, in bytes, from the end.
const LENGTH: u64 = 1 << 20;

/// Where kubelet logs that writes files.
const FILES: &[&str] =
    &["/var/log/kubelet.log", "/var/log/kubelet/kubelet.log", "/var/lib/rancher/rke2/agent/logs/kubelet.log"];

/// The units of systemd that are or have a kubelet.
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

/// How long the journal may take.
const JOURNAL_WAIT: Duration = Duration::from_secs(10);

/// Its last part: of a file, else of the journal, where only what is about volumes is looked for.
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

/// Nothing found is a failure for journalctl, and so is a journal that is not there.
fn journal(words: &[&str]) -> String {
    let units = UNITS.iter().flat_map(|unit| ["-u", *unit]);
    let usual = ["--no-pager", "--quiet", "--since", "-1h", "--output", "cat"];
    let journal =
        Invocation::of("journalctl").args(usual).args(words.iter().copied()).args(units).answering();
    let outcome = Tools::of_host(&Deadline::after(JOURNAL_WAIT)).run(journal);
    outcome.map(|outcome| outcome.answer).unwrap_or_default()
}

/// An error where no kubelet has written anything: that it says nothing means nothing then.
pub fn is_there(file: Option<&Path>) -> Result<()> {
    let is_silent = || file.is_none() && usual().is_none() && journal(&["--lines", "1"]).is_empty();
    anyhow::ensure!(
        !is_silent(),
        "no log of kubelet is found, neither a file nor in the journal of the last hour: name it with --kubelet-log"
    );
    Ok(())
}

/// The first volume that a line says a pod waits for to be attached.
pub fn unattached(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("unattached volumes=[")?;
    let names = rest.split(']').next()?;
    names.split([' ', ',']).next().filter(|name| !name.is_empty())
}

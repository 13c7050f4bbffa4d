//! Life of one driver: it is loaded, serves three pods one after the other, and gets every call
//! twice.

use super::stage::{FILE, Part, Stage};
use anyhow::{Context as _, Result, ensure};
use flexvol_kubelet::{Caller, Journal, PodVolume};
use flexvol_linux::errno::Errno;
use flexvol_linux::fs::files;
use flexvol_linux::proc::helper::{HostRunner, Runner as _};
use flexvol_protocol::{Access, Call, Capabilities, DriverName, FsGroup, FsGroupSpelling, Options};
use flexvol_terminal::capabilities;
use flexvol_terminal::report::{Report, Row};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Text that the first pod writes into the file.
const TEXT: &str = "written by the first pod";

/// The fsGroup of the pods.
const GROUP: u32 = 2000;

impl Part {
    /// Returns the reason why it cannot be tried on this machine.
    fn obstacle(&self) -> Option<String> {
        let missing = |device: &&str| !Path::new(device).exists();
        let tool = self.tool.and_then(|tool| HostRunner.find(tool).err()).map(|error| format!("{error:#}"));
        let device =
            || self.device.filter(missing).map(|device| format!("{device} is missing: modprobe loop"));
        tool.or_else(device)
    }
}

/// Tries one driver. Only a problem that ends the whole trial is an error.
pub(super) fn live(stage: &Stage, part: &Part, report: &mut Report<'_>) -> Result<()> {
    if let Some(obstacle) = part.obstacle() {
        return report.row(Row::skipped(part.driver, obstacle));
    }
    let name = DriverName::parse(&format!("example/{}", part.driver))?;
    let mut caller = stage.install(&name, &part.settings)?;
    let (journal, capabilities) = Journal::init(&mut caller);
    let note = capabilities.map(capabilities::names).unwrap_or_default();
    report.journal(part.driver, &journal, &note)?;
    let Some(capabilities) = capabilities else { return Ok(()) };
    let mut tried = Tried { stage, part, name, caller, capabilities, report };
    tried.first_pod()?;
    tried.second_pod()?;
    tried.read_only_pod()
}

/// A loaded driver on its stage.
struct Tried<'a, 'b> {
    stage: &'a Stage,
    part: &'a Part,
    name: DriverName,
    caller: Caller,
    capabilities: Capabilities,
    report: &'a mut Report<'b>,
}

impl Tried<'_, '_> {
    /// Writes data, and repeats every call, as after a lost answer.
    fn first_pod(&mut self) -> Result<()> {
        let group = FsGroup { gid: GROUP, spelling: FsGroupSpelling::Current };
        let pod = self.pod("1", Options { fs_group: Some(group), ..Options::default() });
        if self.set_up(&pod, &self.asked_for())? {
            let path = path(&pod)?;
            self.check("write and read back", write(&path))?;
            if self.part.driver != "bind" {
                self.check("the group is the pod's", owned(&path))?;
            }
            self.set_up(&pod, "as after a restart of kubelet")?;
            self.again(&pod.mount_call()?)?;
        }
        self.tear_down(&pod)?;
        self.again(&Call::Unmount { target: pod.target()? })
    }

    /// Checks that the data is found, or an empty volume, as the driver promises.
    fn second_pod(&mut self) -> Result<()> {
        let pod = self.pod("2", Options::default());
        if self.set_up(&pod, "a second pod")? {
            let found = found(&path(&pod)?.join(FILE), self.part.keeps_data);
            let step = if self.part.keeps_data { "the data is still there" } else { "the volume is empty" };
            self.check(step, found)?;
        }
        self.tear_down(&pod)
    }

    fn read_only_pod(&mut self) -> Result<()> {
        let pod = self.pod("3", Options { access: Some(Access::ReadOnly), ..Options::default() });
        if self.set_up(&pod, "read-only")? {
            self.check("writing is refused", refused(&path(&pod)?))?;
        }
        self.tear_down(&pod)
    }

    fn pod(&self, uid: &str, options: Options) -> PodVolume {
        self.stage.volume(&self.name, self.part, uid, options)
    }

    /// Returns the options for people, without the path of the stage.
    fn asked_for(&self) -> String {
        let options = self.part.options.iter().map(|(key, value)| format!("{key}={value}"));
        options.collect::<Vec<_>>().join(" ").replace(&*self.stage.path().to_string_lossy(), "…")
    }

    fn set_up(&mut self, pod: &PodVolume, note: &str) -> Result<bool> {
        let journal = pod.set_up(&mut self.caller, self.capabilities);
        self.report.journal(self.part.driver, &journal, note)
    }

    fn tear_down(&mut self, pod: &PodVolume) -> Result<()> {
        for journal in [pod.tear_down(&mut self.caller), pod.clean_up()] {
            self.report.journal(self.part.driver, &journal, "")?;
        }
        Ok(())
    }

    fn again(&mut self, call: &Call) -> Result<()> {
        let journal = Journal::of_call(&mut self.caller, call);
        self.report.journal(self.part.driver, &journal, "once more").map(drop)
    }

    fn check(&mut self, step: &str, seen: Result<String>) -> Result<()> {
        self.report.row(Row::noted(self.part.driver, step, seen))
    }
}

fn path(pod: &PodVolume) -> Result<PathBuf> {
    Ok(pod.target()?.as_path().to_owned())
}

fn write(volume: &Path) -> Result<String> {
    files::write_through(&volume.join(FILE), TEXT.as_bytes()).context("write")?;
    let text = files::read_text(&volume.join(FILE)).context("read")?;
    ensure!(text == TEXT, "read {text:?}");
    Ok(format!("{} bytes", text.len()))
}

fn owned(volume: &Path) -> Result<String> {
    let about = volume.metadata().context("look at the volume")?;
    let (gid, mode) = (about.gid(), about.mode() & 0o7777);
    ensure!(gid == GROUP && mode & 0o2070 == 0o2070, "group {gid}, mode {mode:04o}");
    Ok(format!("group {gid}, mode {mode:04o}"))
}

fn found(file: &Path, expected: bool) -> Result<String> {
    match files::read_text(file) {
        Ok(text) => ensure!(expected && text == TEXT, "read {text:?}"),
        Err(error) => ensure!(!expected && Errno::from_io_error(&error) == Some(Errno::NOENT), "{error}"),
    }
    Ok(String::new())
}

fn refused(volume: &Path) -> Result<String> {
    match files::make_empty(&volume.join("another")) {
        Ok(()) => anyhow::bail!("a file could be made on a read-only volume"),
        Err(error) => ensure!(Errno::from_io_error(&error) == Some(Errno::ROFS), "{error}"),
    }
    Ok(String::new())
}

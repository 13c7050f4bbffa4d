//! `flexvol call`: calls any driver as kubelet does.

mod shown;

use anyhow::{Context as _, Result};
use clap::Args;
use flexvol_kubelet::{Asked, Caller, Captured, Diagnosis, Finding, Run, Verdict};
use flexvol_linux::fs::{directory, files};
use flexvol_linux::mount::place::{Look, Place};
use flexvol_protocol::volume_dir::VolumeDir;
use flexvol_protocol::{DriverName, PodRef, TargetPath, Verb};
use flexvol_terminal::arguments::VolumeArguments;
use flexvol_terminal::driver_dir;
use flexvol_terminal::exit::NOT_SUPPORTED;
use flexvol_terminal::progress;
use flexvol_terminal::screen::Screen;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Limit for a file of recorded calls, in bytes.
const CAPTURE: usize = 16 << 20;

/// Call any driver as kubelet does, and show how kubelet would react
#[derive(Args)]
#[command(after_help = "\
The driver is executed with kubelet's environment, in /, standard output and error on one pipe
that is read until everybody who holds it has closed it. What comes back is judged as kubelet
judges it, and shown with what kubelet would log, what the pod's Event would say, whether a secret
would be in either, and what to fix.

Examples:
  sudo flexvol call ./mydriver init
  sudo flexvol call ./mydriver mount /mnt -o server=10.0.0.1 --secret password=@password
  sudo flexvol call example.com/nfs unmount /var/lib/kubelet/pods/7/volumes/example.com~nfs/data
  sudo flexvol call ./mydriver waitforattach /dev/sdb '{}' --json | jq .findings
  sudo flexvol call ./mydriver mount /mnt --kubelet-log       only the lines in kubelet's log
  sudo flexvol call ./mydriver --replay calls.jsonl --root /tmp/kubelet    what record wrote

Exit status: 0 Success, 1 Failure, 2 wrong usage, 3 Not supported.")]
pub(super) struct CallDriver {
    /// An executable (/path or ./path), or vendor/driver in the plugin directory
    driver: OsString,
    /// Verb to call: init, mount, unmount, attach, …; any word is passed on
    #[arg(required_unless_present = "replay")]
    verb: Option<OsString>,
    /// The verb's arguments, in kubelet's order; the options JSON may be left out; put -- before
    /// one that begins with a dash
    arguments: Vec<OsString>,
    /// The plugin directory; the one kubelet reads if left out (flexvol locate)
    #[arg(long, visible_alias = "driver-dir", value_name = "DIR")]
    plugin_dir: Option<PathBuf>,
    /// Seconds to wait; kubelet itself waits forever
    #[arg(long, value_name = "SECONDS", default_value_t = 123)]
    timeout: u64,
    /// Print only what kubelet would log
    #[arg(long)]
    kubelet_log: bool,
    /// Replay all calls that flexvol record has recorded, in their order
    #[arg(long, value_name = "FILE", requires = "root", conflicts_with = "verb")]
    replay: Option<PathBuf>,
    /// With --replay: directory to use as kubelet's own
    #[arg(long, value_name = "DIR", requires = "replay")]
    root: Option<PathBuf>,
    #[command(flatten)]
    volume: VolumeArguments,
}

/// Call with all its results.
struct Called {
    executable: PathBuf,
    asked: Asked,
    environment: Vec<(OsString, OsString)>,
    run: Run,
    verdict: Verdict,
    diagnosis: Diagnosis,
}

impl CallDriver {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        let executable = self.executable()?;
        if let (Some(file), Some(root)) = (&self.replay, &self.root) {
            return self.replay(&executable, file, root, screen);
        }
        let verb = self.verb.clone().unwrap_or_default();
        let mut arguments = self.volume.complete(&verb, &self.arguments, self.pod())?;
        arguments.insert(0, verb);
        let progress = progress::show(screen);
        let result = self.call(&executable, arguments);
        drop(progress);
        let result = result?;
        self.show(&result, screen)?;
        Ok(result.status())
    }

    fn call(&self, executable: &Path, arguments: Vec<OsString>) -> Result<Called> {
        let asked = Asked::new(arguments);
        let mut caller = Caller::new(executable.to_owned());
        caller.terms.patience = Duration::from_secs(self.timeout);
        let exchange = caller.execute(&asked.arguments);
        let run = exchange.run.context("the driver was not executed")?;
        let mut diagnosis = Diagnosis::of(executable, &asked, &run, &exchange.verdict);
        diagnosis.findings.extend(mounted_nothing(&asked, &exchange.verdict));
        let environment = caller.terms.environment;
        let executable = executable.to_owned();
        Ok(Called { executable, asked, environment, run, verdict: exchange.verdict, diagnosis })
    }

    fn show(&self, result: &Called, screen: &mut Screen) -> Result<()> {
        if self.kubelet_log { result.print_log(screen) } else { result.print(screen) }
    }

    /// Makes the recorded calls of a file. It creates directories of volumes as kubelet does. The
    /// first call that fails decides the status.
    fn replay(&self, executable: &Path, file: &Path, root: &Path, screen: &mut Screen) -> Result<ExitCode> {
        let text =
            files::read_small(file, CAPTURE)?.with_context(|| format!("there is no {}", file.display()))?;
        let root = std::path::absolute(root).context("find the directory to replay in")?;
        let mut status = None;
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let captured: Captured = serde_json::from_str(line).with_context(|| {
                format!("line {} of {} is no call that flexvol record wrote", number + 1, file.display())
            })?;
            let arguments = captured.to_arguments(&root);
            let mounts = ["mount", "mountdevice"].map(OsStr::new);
            if let Some(target) = arguments.get(1).filter(|_| mounts.contains(&arguments[0].as_os_str())) {
                directory::make_all(Path::new(target))?;
            }
            let result = self.call(executable, arguments)?;
            self.show(&result, screen)?;
            if matches!(result.verdict, Verdict::Failure(_)) {
                status.get_or_insert(result.status());
            }
        }
        Ok(status.unwrap_or(ExitCode::SUCCESS))
    }

    /// Returns the executable. A driver that begins with `/` or `.` is a path; anything else is a
    /// driver name, even if the current directory holds a file of this name.
    fn executable(&self) -> Result<PathBuf> {
        let path = Path::new(&self.driver);
        if path.is_absolute() || path.starts_with(".") || path.starts_with("..") {
            return std::path::absolute(path).context("find the executable");
        }
        match self.installed() {
            Err(error) if path.is_file() => {
                let path = path.display();
                Err(error
                    .context(format!("{path} is taken for a driver's name: write ./{path} for the file")))
            }
            found => found,
        }
    }

    /// Returns the executable that kubelet runs for the named driver.
    fn installed(&self) -> Result<PathBuf> {
        let text = self.driver.to_string_lossy();
        let named = if text.contains('~') {
            DriverName::from_directory(&self.driver)
        } else {
            DriverName::parse(&text)
        };
        let name = named.context("no driver has such a name: write one like example.com/nfs, or ./FILE")?;
        driver_dir::executable(&driver_dir::find(self.plugin_dir.as_deref())?, &name)
    }

    /// Returns the pod whose directory is named, or a made-up pod.
    fn pod(&self) -> PodRef {
        let target = self.arguments.first().and_then(|target| TargetPath::parse(target).ok());
        let uid = target.map(|target| VolumeDir::of(&target)).filter(|dir| dir.driver.is_some());
        let uid = uid.and_then(|dir| dir.below.iter().nth(1).map(OsStr::to_owned));
        let text = |text: &str| Some(text.to_owned());
        PodRef {
            name: text("pod"),
            namespace: text("default"),
            uid: uid.map_or_else(|| text("0"), |uid| text(&uid.to_string_lossy())),
            service_account: text("default"),
        }
    }
}

/// Reports a Success without a mount: a pod would write to the node's own disk.
fn mounted_nothing(asked: &Asked, verdict: &Verdict) -> Option<Finding> {
    let verb = Verb::parse(asked.verb().as_ref()).filter(|_| verdict.is_success())?;
    let fix = match verb {
        Verb::Mount => "say Success when it is mounted; a driver that writes files into the directory may",
        Verb::MountDevice => {
            "mount the device there, or say \"Not supported\" and have kubelet do it; flexvol's own drivers do nothing \
             in mountdevice unless their side file has \"attach\": true"
        }
        _ => return None,
    };
    let place = Place::open(&TargetPath::parse(asked.arguments.get(1)?).ok()?).ok()??;
    let is_mounted = matches!(place.look(), Err(_) | Ok(Look::Mount(_) | Look::Dead(_)));
    let problem = "it says Success, and nothing is mounted there".to_owned();
    (!is_mounted).then(|| Finding { problem, fix: fix.to_owned() })
}

impl Called {
    fn status(&self) -> ExitCode {
        match self.verdict {
            Verdict::Success(_) => ExitCode::SUCCESS,
            Verdict::Failure(_) => ExitCode::FAILURE,
            Verdict::NotSupported => ExitCode::from(NOT_SUPPORTED),
        }
    }
}

//! `flexvol record`.

use anyhow::{Context as _, Result};
use clap::Args;
use flexvol_kubelet::Captured;
use flexvol_linux::proc::clock;
use flexvol_linux::proc::exec_watch::ExecWatch;
use flexvol_linux::proc::{process, signal};
use flexvol_protocol::DriverName;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_terminal::driver_dir;
use flexvol_terminal::screen::Screen;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Limit for one wait for an execution.
const TICK: Duration = Duration::from_millis(200);

/// Record the calls that kubelet makes, without secrets, to replay them elsewhere
#[derive(Args)]
#[command(after_help = "\
The kernel tells who executes a driver of the plugin directory, foreign ones too; what it was called with is printed as one line of \
JSON a call. The values of Secrets, of options called like credentials, and of password= and the like are masked. Look through it \
all the same before you give it to anybody: names of servers, pods and volumes stay. A call that ends within a millisecond may be missed.

The lines are replayed by flexvol call, with placeholder secrets and in a directory of your choice:

Examples:
  sudo flexvol record --for 300 > calls.jsonl       then make the pod, or delete it
  sudo flexvol record fstab/cifs > calls.jsonl
  sudo flexvol call ./my-driver --replay calls.jsonl --root /tmp/kubelet

Exit status: 0 when the time is over or after SIGINT or SIGTERM, 1 if nothing can be recorded, 2 wrong usage.")]
pub(super) struct Record {
    /// Only these drivers, vendor/driver
    #[arg(value_name = "DRIVER")]
    drivers: Vec<DriverName>,
    /// The plugin directory [default: the one flexvol locate finds]
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<PathBuf>,
    /// Seconds after which to end [default: never]
    #[arg(long = "for", value_name = "SECONDS")]
    seconds: Option<u32>,
}

impl Record {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        signal::install()?;
        let executables = self.executables()?;
        let files: Vec<_> = executables.iter().map(PathBuf::as_path).collect();
        let Some(executions) = ExecWatch::of_any(&files) else {
            let text =
                "the kernel does not tell who executes a file: it needs Linux 5.0 and root (CAP_SYS_ADMIN)";
            return Err(Failure::new(Code::Denied, text).into());
        };
        let end = self.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
        while !signal::interrupted() && end.is_none_or(|end| Instant::now() < end) {
            for pid in executions.wait(TICK)? {
                if let Some(captured) = capture(pid, &executables) {
                    screen.line(&serde_json::to_string(&captured)?)?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn executables(&self) -> Result<Vec<PathBuf>> {
        let plugins = driver_dir::find(self.plugin_dir.as_deref())?;
        let entries = fs::read_dir(&plugins).with_context(|| format!("read {}", plugins.display()))?;
        let wanted = |directory: &OsString| {
            self.drivers.is_empty()
                || self.drivers.iter().any(|name| name.directory().as_str() == directory.as_os_str())
        };
        let directories = entries.flatten().map(|entry| entry.file_name()).filter(wanted);
        let paths =
            directories.map(|directory| plugins.join(&directory).join(DriverName::executable_in(&directory)));
        let paths: Vec<_> = paths.filter(|path| path.is_file()).collect();
        if paths.is_empty() {
            let text =
                format!("there is no such driver in {}: flexvol list says what is there", plugins.display());
            return Err(Failure::new(Code::NotFound, text).into());
        }
        Ok(paths)
    }
}

/// Returns the call of a process. In the words of a script, its interpreter comes first.
fn capture(pid: i32, executables: &[PathBuf]) -> Option<Captured> {
    let words = process::words_once(pid, |words| at(words, executables).is_some())?;
    let at = at(&words, executables)?;
    let driver = Path::new(&words[at]).parent()?.file_name()?.to_string_lossy().into_owned();
    let arguments = words.into_iter().skip(at + 1).collect();
    Some(Captured::of(clock::now(), driver, arguments))
}

fn at(words: &[OsString], executables: &[PathBuf]) -> Option<usize> {
    let name = |path: &Path| {
        path.components().rev().take(2).map(|part| part.as_os_str().to_owned()).collect::<Vec<_>>()
    };
    // Compare only the last two parts: in a container, the same directory has another path.
    let is_one = |word: &OsString| executables.iter().any(|path| name(path) == name(Path::new(word)));
    words.iter().take(3).position(is_one)
}

//! Actual state of the node: its processes, its files, and our paths of their directories.

use super::choose::{Claim, Located, NoPlace, Origin, SeenDirectory, choose};
use super::command_line::{Program, recognise};
use super::configuration::{Files, Told, UNCLEAR};
use super::translate::{candidates, joined};
use super::{KubeletProcess, check_root, interpret, trust};
use crate::platform::{self, DEFAULT_PLUGIN_DIR, Mark, ObstacleKind, Platform};
use anyhow::{Context as _, Result, bail};
use flexvol_linux::errno::to_failure;
use flexvol_linux::fs::exec_dir;
use flexvol_linux::fs::root::{Root, is_same, mount_id};
use flexvol_linux::mount::mount_table::{self, Entry};
use flexvol_linux::proc::process_table::{Process, ProcessTable};
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::shell::assigned;
use flexvol_protocol::text::one_line;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Limit for the size of a configuration file, in bytes.
const CONFIGURATION: usize = 1 << 20;
/// Limit for the processes inspected that call themselves kubelet. Trusted and untrusted ones are
/// counted separately, so that a crowd of processes cannot hide a kubelet.
const PROCESSES: usize = 64;
/// Limit for foreign text in one of our lines, in bytes.
const WORDS: usize = 200;

/// Node, or another root.
pub(super) struct Node {
    /// Root directory of the node.
    root: Root,
    /// Our path of that root; `None` if it is our own root.
    prefix: Option<PathBuf>,
    /// Processes of the node; `None` if they cannot be seen.
    table: Option<ProcessTable>,
}

impl Files for Root {
    fn read(&self, path: &Path) -> Result<Option<String>, Failure> {
        Root::read(self, path, CONFIGURATION).map_err(to_failure)
    }

    fn list(&self, directory: &Path) -> Result<Vec<(String, bool)>, Failure> {
        Root::list(self, directory).map_err(to_failure)
    }
}

/// Files that a process sees.
enum Sight {
    /// Files of the node.
    Node,
    /// Files below a root of its own.
    Own(Root),
    /// Unknown: we cannot open its root.
    Unknown,
}

impl Node {
    pub(super) fn open(root: Option<&Path>) -> Result<Self> {
        check_root(root)?;
        let prefix = root.map(std::path::absolute).transpose().context("find the root directory")?;
        let at = prefix.clone().unwrap_or_else(|| "/".into());
        Ok(Self { root: Root::open(&at)?, table: ProcessTable::open(&at.join("proc"))?, prefix })
    }

    pub(super) fn locate(&self, explicit: &[PathBuf], environment: Option<OsString>) -> Result<Located> {
        let mut claims = self.explicit(explicit)?;
        claims.extend(self.environment(&environment.unwrap_or_default()));
        for (process, program, words) in self.programs()? {
            claims.extend(self.running(&process, program, &words));
        }
        let platform = platform::recognise(|mark| self.holds(mark));
        claims.extend(self.configured(platform.map(|(platform, _)| platform)));
        claims.push(self.by_table(platform));
        let mut located = choose(claims, platform.map(|(platform, _)| platform));
        for candidate in &mut located.candidates {
            candidate.condition = candidate.directory().map(exec_dir::look);
        }
        Ok(located)
    }

    pub(super) fn kubelets(&self) -> Result<Vec<KubeletProcess>> {
        let mut found = Vec::new();
        for (process, program, words) in self.programs()? {
            if program == Program::ControllerManager || trust::distrust(program, process.identity).is_some() {
                continue;
            }
            let sight = self.sight(&process);
            let said = interpret::kubelet(program, &words, cwd(&process), self.files(&sight)).ok();
            let place = said.as_ref().map(|said| self.place_of(&process, &sight, &said.plugin_dir.directory));
            let (inside, directory) = place.map(|(place, _)| (place.inside, place.directory)).unzip();
            found.push(KubeletProcess {
                pid: process.pid,
                inside,
                directory,
                attaches: said.as_ref().is_some_and(|said| said.attaches),
                root_dir: said.map_or_else(|| platform::DEFAULT_KUBELET_ROOT.into(), |said| said.root_dir),
                program,
                process,
            });
        }
        Ok(found)
    }

    fn programs(&self) -> Result<Vec<(Process, Program, Vec<String>)>> {
        let Some(table) = &self.table else { return Ok(Vec::new()) };
        let processes = table.matching(|words, executable| recognise(words, executable).is_some())?;
        let recognised = processes.filter_map(|process| {
            let (program, words) = recognise(&process.words, process.executable.as_deref())?;
            Some((process, program, words))
        });
        let (mut believed, mut doubted) = (0, 0);
        let is_wanted = |(process, program, _): &(Process, Program, Vec<String>)| {
            let is_doubted = trust::distrust(*program, process.identity).is_some();
            let count = if is_doubted { &mut doubted } else { &mut believed };
            *count += 1;
            *count <= PROCESSES
        };
        Ok(recognised.filter(is_wanted).collect())
    }

    // --- claims

    fn explicit(&self, directories: &[PathBuf]) -> Result<Vec<Claim>> {
        let one = |directory: &PathBuf| {
            let path =
                if self.prefix.is_some() { Path::new("/").join(directory) } else { absolute(directory)? };
            Ok(self.claim(Origin::Explicit, "command line", Ok(path)))
        };
        directories.iter().map(one).collect()
    }

    fn environment(&self, value: &OsStr) -> Vec<Claim> {
        let one = |path: &[u8]| {
            let path = PathBuf::from(OsStr::from_bytes(path));
            let is_whole = path.is_absolute();
            let place = is_whole
                .then_some(path)
                .ok_or_else(|| "it is not an absolute path".to_owned())
                .map_err(NoPlace::Refused);
            self.claim(Origin::Environment, super::ENVIRONMENT, place)
        };
        value.as_bytes().split(|byte| *byte == b':').filter(|path| !path.is_empty()).map(one).collect()
    }

    /// Returns the claims of one process: about kubelet's directory, the controller-manager's, or
    /// both.
    fn running(&self, process: &Process, program: Program, words: &[String]) -> Vec<Claim> {
        let who = who(process);
        let is_manager = program == Program::ControllerManager;
        if let Some(reason) = trust::distrust(program, process.identity) {
            let origin = if is_manager { Origin::ControllerManager } else { Origin::Kubelet };
            return vec![self.claim(origin, &who, Err(NoPlace::Refused(reason)))];
        }
        let sight = self.sight(process);
        let (cwd, files) = (cwd(process), self.files(&sight));
        let mut claims = Vec::new();
        if !is_manager {
            let said = interpret::kubelet(program, words, cwd, files);
            claims.push(self.said(process, &sight, Origin::Kubelet, said.map(|said| said.plugin_dir)));
        }
        if let Some(said) = interpret::manager(program, words, cwd, files).transpose() {
            claims.push(self.said(process, &sight, Origin::ControllerManager, said));
        }
        claims
    }

    fn said(&self, process: &Process, sight: &Sight, origin: Origin, said: Result<Told, Failure>) -> Claim {
        let who = who(process);
        match said {
            Err(error) => self.claim(origin, &who, Err(no_place(&error))),
            Ok(told) => {
                let (place, notes) = self.place_of(process, sight, &told.directory);
                Claim { origin, evidence: format!("{who}, {}", told.by), place: Ok(place), notes }
            }
        }
    }

    /// Returns the claims of the node's files, for when no program runs.
    fn configured(&self, platform: Option<&Platform>) -> Vec<Claim> {
        let platform = platform.or_else(|| platform::find("default"));
        let kubelet = platform.and_then(|platform| interpret::configured(platform, &self.root).transpose());
        let manager = interpret::manifests(&self.root).transpose();
        let said = [(Origin::Configuration, kubelet), (Origin::ControllerManager, manager)];
        let said = said.into_iter().filter_map(|(origin, said)| Some((origin, said?)));
        said.map(|(origin, said)| match said {
            Ok(told) => self.claim(origin, &told.by, Ok(told.directory)),
            Err(error) => self.claim(origin, "files of this node", Err(no_place(&error))),
        })
        .collect()
    }

    fn by_table(&self, recognised: Option<(&'static Platform, &'static [Mark])>) -> Claim {
        let Some((platform, marks)) = recognised else {
            let evidence = "nothing says otherwise, and the platform is not known";
            return self.claim(Origin::Default, evidence, Ok(DEFAULT_PLUGIN_DIR.into()));
        };
        let evidence = format!("{}: {}", platform.name, in_words(marks));
        let none = || {
            let why = platform.obstacle.map_or("it has no plugin directory", |known| known.fix);
            NoPlace::Refused(why.to_owned())
        };
        let directory = platform.directory().map(PathBuf::from).ok_or_else(none);
        let mut claim = self.claim(Origin::Platform, &evidence, directory);
        if let (Ok(place), Some(inside)) = (&mut claim.place, platform.plugin_dir) {
            place.inside = inside.into();
        }
        claim.notes.extend(
            platform
                .obstacle
                .filter(|known| known.kind == ObstacleKind::Unseen)
                .map(|known| known.fix.to_owned()),
        );
        claim
    }

    fn claim(&self, origin: Origin, evidence: &str, directory: Result<PathBuf, NoPlace>) -> Claim {
        let place = directory.map(|inside| SeenDirectory { directory: self.outside(&inside), inside });
        Claim { origin, evidence: evidence.to_owned(), place, notes: Vec::new() }
    }

    fn holds(&self, mark: Mark) -> bool {
        match mark {
            Mark::Path(path) => self.root.holds(Path::new(path)),
            Mark::Id(id) => self.os_release("ID").as_deref() == Some(id),
            Mark::Variant(variant) => self.os_release("VARIANT_ID").as_deref() == Some(variant),
        }
    }

    fn os_release(&self, key: &str) -> Option<String> {
        let paths = ["/etc/os-release", "/usr/lib/os-release"].into_iter();
        let mut texts = paths.filter_map(|path| Files::read(&self.root, Path::new(path)).ok().flatten());
        let text = texts.next()?;
        assigned(&text, key)
    }

    // --- views

    /// Returns our path of a directory of the node.
    fn outside(&self, inside: &Path) -> PathBuf {
        let Some(prefix) = &self.prefix else { return inside.to_owned() };
        let below = |path: &Path| joined(prefix, path.strip_prefix("/").unwrap_or(path));
        // A symlink inside the root must not lead out of it.
        self.root
            .reach(inside)
            .map_or_else(|_| below(inside), |found| below(&joined(&found.path, &found.missing)))
    }

    fn sight(&self, process: &Process) -> Sight {
        let reference = if self.prefix.is_some() { "1" } else { "self" };
        let node = self.table.as_ref().and_then(|table| table.mount_namespace(reference));
        let Ok(root) = process.root() else { return Sight::Unknown };
        // In the /proc of another root, even process 1 may be hidden: then the root directories
        // decide.
        let is_elsewhere = node.is_some() && process.mount_namespace() != node;
        if is_elsewhere || !is_same(&root, &self.root) { Sight::Own(root) } else { Sight::Node }
    }

    fn files<'a>(&'a self, sight: &'a Sight) -> &'a dyn Files {
        match sight {
            Sight::Own(root) => root,
            Sight::Node | Sight::Unknown => &self.root,
        }
    }

    /// Returns our path of a process's directory, and notes about it.
    fn place_of(&self, process: &Process, sight: &Sight, inside: &Path) -> (SeenDirectory, Vec<String>) {
        let same = || SeenDirectory { directory: self.outside(inside), inside: inside.to_owned() };
        match sight {
            Sight::Node => (same(), Vec::new()),
            Sight::Unknown => {
                let note = format!("which files process {} sees is not known: run as root", process.pid);
                (same(), vec![note])
            }
            Sight::Own(root) => {
                let (directory, notes) = self.translated(process, root, inside);
                (SeenDirectory { directory, inside: inside.to_owned() }, notes)
            }
        }
    }

    fn translated(&self, process: &Process, root: &Root, inside: &Path) -> (PathBuf, Vec<String>) {
        match self.translate(process, root, inside) {
            Ok(directory) => (directory, Vec::new()),
            Err(error) => {
                let proc = self.prefix.as_deref().unwrap_or(Path::new("/")).join("proc");
                let through = joined(&proc.join(format!("{}/root", process.pid)), &relative(inside));
                let note = format!(
                    "{} is inside the container of process {}, as long as that lives: {error:#}",
                    inside.display(),
                    process.pid
                );
                (through, vec![note])
            }
        }
    }

    /// Finds the same directory in our mount table.
    fn translate(&self, process: &Process, root: &Root, inside: &Path) -> Result<PathBuf> {
        let reached = root.reach(inside)?;
        let id = mount_id(&reached.fd)?;
        let mount = process.mounts()?.into_iter().find(|entry| entry.id == id);
        let mount = mount.context("its mount is not in the table of the process")?;
        let below = reached.path.strip_prefix(&mount.target).context("its mount is elsewhere")?;
        let found = candidates(&mount, below, &mount_table::read()?);
        let found = found.into_iter().find(|path| self.is_ours(path) && is_there(path, &reached.fd));
        match found {
            Some(path) => Ok(joined(&path, &reached.missing)),
            None => bail!("{}: mount a directory of the node there", unseen(&mount)),
        }
    }

    fn is_ours(&self, path: &Path) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| path.starts_with(prefix))
    }
}

fn is_there(path: &Path, fd: &std::os::fd::OwnedFd) -> bool {
    Root::open(path).is_ok_and(|root| is_same(&root, fd))
}

fn unseen(mount: &Entry) -> String {
    format!("its file system ({}) is not mounted here", mount.file_system)
}

fn relative(path: &Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_owned()
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("find {}", path.display()))
}

fn cwd(process: &Process) -> &Path {
    process.cwd.as_deref().unwrap_or(Path::new("/"))
}

/// Describes a process: `pid 812, /usr/bin/kubelet`.
fn who(process: &Process) -> String {
    let name = process.words.first().map_or("", String::as_str);
    one_line(&format!("pid {}, {name}", process.pid), WORDS)
}

/// Returns why a process or its files name no directory; without root, access may be denied.
fn no_place(error: &Failure) -> NoPlace {
    let message = error.message();
    match error.code() {
        UNCLEAR => NoPlace::Unclear(message),
        Code::Denied => NoPlace::Refused(format!("{message}: run as root to see")),
        _ => NoPlace::Refused(message),
    }
}

fn in_words(marks: &[Mark]) -> String {
    let words = marks.iter().map(|mark| match mark {
        Mark::Id(id) => format!("/etc/os-release says ID={id}"),
        Mark::Variant(variant) => format!("VARIANT_ID={variant}"),
        Mark::Path(path) => format!("{path} is there"),
    });
    words.collect::<Vec<_>>().join(" and ")
}

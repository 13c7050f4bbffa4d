//! What is to be run as a helper program: data, until a [`Runner`](super::helper::Runner) carries
//! it out.

use crate::proc::bare_root::BareRoot;
use crate::proc::reach::Reach;
use anyhow::{Context, Result};
use flexvol_protocol::secret::{Redactor, Secret};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::Signal;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A program, its arguments, environment and standard input, and what it may hold on to.
///
/// What only a process of this node can be given, such as an open file, is told by
/// [`only_on_host`](Self::only_on_host): a runner elsewhere refuses it.
#[derive(Debug)]
pub struct Invocation {
    pub(crate) program: Program,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) stdin: Option<Secret>,
    pub(crate) masked: Vec<Secret>,
    pub(crate) kept: Vec<OwnedFd>,
    pub(crate) root: Option<OwnedFd>,
    pub(crate) reach: Option<Reach>,
    pub(crate) daemon: bool,
    pub(crate) answering: bool,
    pub(crate) last: Signal,
}

/// Which program.
#[derive(Debug)]
pub(crate) enum Program {
    /// The one of this plain name, where its runner looks for programs.
    Named(String),
    /// The one at this absolute path.
    At(PathBuf),
    /// The one that was opened. The program does not inherit the descriptor.
    Opened(OwnedFd),
}

impl Invocation {
    /// The program of this plain name. It must come from this program, never from options: one
    /// with a slash in it is not found.
    pub fn of(name: &str) -> Self {
        Self::new(Program::Named(name.to_owned()))
    }

    /// The program at an absolute path, as an admin configures one.
    pub fn at(path: &Path) -> Self {
        Self::new(Program::At(path.to_owned()))
    }

    /// The program that was opened, whatever has its name now.
    pub fn opened(program: OwnedFd) -> Self {
        Self::new(Program::Opened(program))
    }

    fn new(program: Program) -> Self {
        let (args, env, masked, kept) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self {
            program,
            args,
            env,
            stdin: None,
            masked,
            kept,
            root: None,
            reach: None,
            daemon: false,
            answering: false,
            last: Signal::KILL,
        }
    }

    /// What it is called in messages: the last part of its path.
    pub fn name(&self) -> String {
        match &self.program {
            Program::Named(name) => name.clone(),
            Program::At(path) => path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
            Program::Opened(program) => program.as_raw_fd().to_string(),
        }
    }

    /// What it needs that only a process of this node can have; none if it can run elsewhere, such
    /// as in a container.
    pub fn only_on_host(&self) -> Option<&'static str> {
        let needs = [
            (matches!(self.program, Program::Opened(_)), "a program that was opened"),
            (!self.kept.is_empty(), "an open file"),
            (self.root.is_some(), "a root directory of its own"),
            (self.reach.is_some(), "to be kept from this node's files"),
            (self.daemon, "to leave a daemon running"),
        ];
        needs.into_iter().find_map(|(needs, what)| needs.then_some(what))
    }

    /// The same program as a directory has it, with that as its root: by chroot(8), which looks for
    /// it there in the usual directories.
    #[must_use]
    pub fn inside(mut self, root: &Path) -> Self {
        let own = OsString::from(self.name());
        let args = std::mem::take(&mut self.args);
        self.program = Program::Named("chroot".to_owned());
        self.args = [root.into(), own].into_iter().chain(args).collect();
        self
    }

    /// Adds arguments. Never a secret: everybody on the node can read them.
    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Adds to the environment, which otherwise is `PATH`, `LC_ALL=C`, `LANG=C`, `HOME=/` and who
    /// started it, for the call after one that is killed.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// What it reads from standard input; without this, nothing. It is masked in everything the
    /// helper says.
    #[must_use]
    pub fn stdin(mut self, secret: Secret) -> Self {
        self.stdin = Some(secret);
        self
    }

    /// Secrets it can get hold of otherwise: masked, too. Here and not by the caller, who sees only
    /// the end of the output, which may begin in the middle of one.
    #[must_use]
    pub fn mask<'a>(mut self, secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        self.masked.extend(secrets.into_iter().cloned());
        self
    }

    /// Lets the helper and its children inherit a copy of `fd` and returns the path to give it as
    /// an argument, `/proc/self/fd/12`: so it works on the file that was checked, whatever became
    /// of its name.
    pub fn keep(&mut self, fd: BorrowedFd<'_>) -> Result<PathBuf> {
        // Above the three standard descriptors, which the child gets again.
        let copy = fcntl_dupfd_cloexec(fd, 3).context("copy a descriptor for a helper")?;
        let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
        self.kept.push(copy);
        Ok(path.into())
    }

    /// Lets the helper hold a lock together with us: flock(2) ends with the last copy of its
    /// descriptor, so a helper that outlives us for a moment still keeps others out.
    pub fn holding(mut self, lock: BorrowedFd<'_>) -> Result<Self> {
        self.keep(lock)?;
        Ok(self)
    }

    /// Lets it see nothing but this root and what is in it, and no network.
    pub fn within(mut self, root: &BareRoot) -> Result<Self> {
        self.root = Some(root.open()?);
        Ok(self)
    }

    /// Lets it open nothing but what is granted, if the kernel can keep it from that.
    #[must_use]
    pub fn reaching(mut self, reach: Reach) -> Self {
        self.reach = Some(reach);
        self
    }

    /// What it leaves running is wanted, as with a FUSE daemon: without this, everything in its
    /// process group is killed once it ended. Standard output must then be closed by the daemon;
    /// no one reads it any more.
    #[must_use]
    pub fn daemon(mut self) -> Self {
        self.daemon = true;
        self
    }

    /// What it prints on standard output is wanted, and a warning on standard error must not get
    /// into it.
    #[must_use]
    pub fn answering(mut self) -> Self {
        self.answering = true;
        self
    }

    /// If this process is killed it is told to end, and not killed: what it leaves half done is
    /// worse than that it runs on for a moment. It should be [`holding`](Self::holding) a lock.
    #[must_use]
    pub fn ending_well(mut self) -> Self {
        self.last = Signal::TERM;
        self
    }

    /// Its arguments.
    pub fn words(&self) -> &[OsString] {
        &self.args
    }

    /// What it has in its environment besides the usual.
    pub fn environment(&self) -> &[(OsString, OsString)] {
        &self.env
    }

    /// What it reads, if anything.
    pub fn input(&self) -> Option<&Secret> {
        self.stdin.as_ref()
    }

    /// What is masked besides that.
    pub fn secrets(&self) -> &[Secret] {
        &self.masked
    }

    /// Whether its standard output is [wanted](Self::answering).
    pub fn is_answering(&self) -> bool {
        self.answering
    }

    /// Masks what it says.
    pub fn redactor(&self) -> Redactor {
        Redactor::new(self.stdin.iter().chain(&self.masked))
    }
}

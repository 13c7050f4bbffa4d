//! Description of a helper program to run: data, until a [`Runner`](super::helper::Runner) runs it.

use crate::proc::bare_root::BareRoot;
use crate::proc::reach::Reach;
use anyhow::{Context, Result};
use flexvol_protocol::secret::{Redactor, Secret};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::Signal;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A program, its arguments, environment and standard input, and the resources that it may keep.
///
/// Some resources, such as an open file, can be given only to a process of this node.
/// [`only_on_host`](Self::only_on_host) reports them: a runner elsewhere refuses the invocation.
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

/// Program to run.
#[derive(Debug)]
pub(crate) enum Program {
    /// The program of this plain name, where its runner searches programs.
    Named(String),
    /// The program at this absolute path.
    At(PathBuf),
    /// A program that was opened. It does not inherit the descriptor.
    Opened(OwnedFd),
}

impl Invocation {
    /// Describes the program of this plain name.
    /// The name must come from our code, never from options: a name with a slash is not found.
    pub fn of(name: &str) -> Self {
        Self::new(Program::Named(name.to_owned()))
    }

    /// Describes the program at an absolute path, for example one that an admin configured.
    pub fn at(path: &Path) -> Self {
        Self::new(Program::At(path.to_owned()))
    }

    /// Describes a program that was opened, whatever file has its name now.
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

    /// Returns its name for messages: the last part of its path.
    pub fn name(&self) -> String {
        match &self.program {
            Program::Named(name) => name.clone(),
            Program::At(path) => path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
            Program::Opened(program) => program.as_raw_fd().to_string(),
        }
    }

    /// Returns a resource that only a process of this node can have; `None` if the program can run
    /// elsewhere, for example in a container.
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

    /// Runs the program of the same name in another root directory, through chroot(8), which
    /// searches it there in the usual directories.
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

    /// Adds a variable to the environment. Otherwise it contains `PATH`, `LC_ALL=C`, `LANG=C`,
    /// `HOME=/` and the name of the caller, for the call after a killed one.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets the standard input, which is empty otherwise.
    /// The text is masked in all output of the helper.
    #[must_use]
    pub fn stdin(mut self, secret: Secret) -> Self {
        self.stdin = Some(secret);
        self
    }

    /// Adds secrets that the helper knows in another way: they are masked, too. The caller could
    /// not do it: it sees only the end of the output, which may begin in the middle of a secret.
    #[must_use]
    pub fn mask<'a>(mut self, secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        self.masked.extend(secrets.into_iter().cloned());
        self
    }

    /// Lets the helper and its children inherit a copy of `fd`.
    /// Returns the path to give it as an argument, `/proc/self/fd/12`: so it works on the file that
    /// was checked, whatever file has its name now.
    pub fn keep(&mut self, fd: BorrowedFd<'_>) -> Result<PathBuf> {
        // Above the three standard descriptors, which are replaced in the child.
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

    /// Restricts it to this root and its content, without network.
    pub fn within(mut self, root: &BareRoot) -> Result<Self> {
        self.root = Some(root.open()?);
        Ok(self)
    }

    /// Restricts it to files that are granted, if the kernel supports this.
    #[must_use]
    pub fn reaching(mut self, reach: Reach) -> Self {
        self.reach = Some(reach);
        self
    }

    /// Keeps the processes that it leaves running, such as a FUSE daemon.
    /// Without this, its whole process group is killed once it has ended. The daemon must close its
    /// standard output, which has no reader any more.
    #[must_use]
    pub fn daemon(mut self) -> Self {
        self.daemon = true;
        self
    }

    /// Returns its standard output separately: a warning on standard error must not get into it.
    #[must_use]
    pub fn answering(mut self) -> Self {
        self.answering = true;
        self
    }

    /// Asks it to end if this process is killed, instead of killing it: an unfinished result is
    /// worse than a helper that runs on for a moment. Use it with [`holding`](Self::holding).
    #[must_use]
    pub fn ending_well(mut self) -> Self {
        self.last = Signal::TERM;
        self
    }

    /// Returns its arguments.
    pub fn words(&self) -> &[OsString] {
        &self.args
    }

    /// Returns its environment variables except the usual ones.
    pub fn environment(&self) -> &[(OsString, OsString)] {
        &self.env
    }

    /// Returns its standard input, if any.
    pub fn input(&self) -> Option<&Secret> {
        self.stdin.as_ref()
    }

    /// Returns the secrets that are masked besides the input.
    pub fn secrets(&self) -> &[Secret] {
        &self.masked
    }

    /// Reports whether its standard output is returned [separately](Self::answering).
    pub fn is_answering(&self) -> bool {
        self.answering
    }

    /// Returns the redactor for its output.
    pub fn redactor(&self) -> Redactor {
        Redactor::new(self.stdin.iter().chain(&self.masked))
    }
}

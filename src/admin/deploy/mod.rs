//! Deployment: process 1 of the image puts drivers into the plugin directory and keeps them there.
//!
//! There is one thread and one poll(2), without a timer while all is well. The process wakes when
//! something changes in the plugin directory or in the drivers' log, when a child ends, and when it
//! is told to stop. It does not judge whether a driver is correct: it installs the driver again,
//! and an installation that finds nothing to do writes nothing. So the changes that an installation
//! makes wake this process once more, and then it is quiet.
//!
//! * [`schedule`] decides when a driver is checked again, and limits how often two deployments with
//!   different settings replace each other's driver.
//! * [`keeper`] installs drivers.
//! * [`watches`] turns changes of directories into the numbers of drivers.
//! * [`tail`] follows the drivers' log, so that it appears in the pod's log.
//! * [`ready`] is the file that a readiness probe checks.

pub mod event;
pub mod keeper;
pub mod ready;
pub mod schedule;
pub mod tail;
pub mod watches;

use crate::plugin_dir::refusal::{Reason, Refusal};
use anyhow::Result;
use event::Event;
use flexvol_linux::fs::files;
use flexvol_linux::proc::reaper::Reaper;
use flexvol_linux::proc::signal;
use flexvol_model::paths;
use flexvol_node::driver_log;
use flexvol_protocol::DriverName;
use flexvol_protocol::failure::{Code, Failure};
use ready::Ready;
use schedule::{Ended, Schedule};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tail::Tail;
use watches::{Change, Watches};

/// Place of one driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverHome {
    /// The driver.
    pub name: DriverName,
    /// The plugin directory.
    pub plugin_dir: PathBuf,
}

impl DriverHome {
    /// Returns the driver's own directory.
    pub fn directory(&self) -> PathBuf {
        self.plugin_dir.join(self.name.directory())
    }
}

/// Result of putting a driver in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// True if anything had to be done.
    pub changed: bool,
    /// The action, in a word.
    pub word: &'static str,
    /// The version, and notes for the admin.
    pub message: String,
}

/// Access to the plugin directories.
pub trait Keeper {
    /// Puts a driver in its place, unless it is there and correct.
    fn put(&mut self, home: &DriverHome) -> Result<Put>;

    /// Removes a driver; refuses while its volumes are mounted.
    fn remove(&mut self, home: &DriverHome) -> Result<()>;
}

/// Request for a deployment.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The drivers, at least one.
    pub homes: Vec<DriverHome>,
    /// File that exists while all of them are in place.
    pub ready_file: PathBuf,
    /// True if the drivers are removed when this process is told to stop.
    pub uninstall_on_exit: bool,
}

/// Callback for each line of the log that people collect.
pub type Output<'a> = &'a mut dyn FnMut(&str);

/// Keeps the drivers in place until the process is told to stop. After an error, the process must
/// be started again by its supervisor.
pub fn deploy(wanted: Wanted, keeper: &mut dyn Keeper, output: Output<'_>) -> Result<()> {
    signal::install()?;
    let reaper = Reaper::new()?;
    let mut deployment = Deployment::begin(wanted, keeper, output)?;
    let done = deployment.keep(&reaper);
    deployment.leave(&done);
    done
}

/// State of one driver.
struct Post {
    home: DriverHome,
    schedule: Schedule,
    /// Result of the last check: in place, or the reason why not.
    standing: Option<Result<(), String>>,
}

struct Deployment<'a> {
    posts: Vec<Post>,
    homes: Vec<DriverHome>,
    uninstall_on_exit: bool,
    keeper: &'a mut dyn Keeper,
    output: Output<'a>,
    watches: Watches,
    log: PathBuf,
    tail: Tail,
    ready: Ready,
}

impl<'a> Deployment<'a> {
    fn begin(wanted: Wanted, keeper: &'a mut dyn Keeper, output: Output<'a>) -> Result<Self> {
        // If kubelet made this directory for the pod, all users have access to it.
        files::make_private(Path::new(paths::RUN))?;
        let ready = Ready::not_yet(wanted.ready_file)?;
        let log = driver_log::directory();
        files::make_private(&log)?;
        let now = Instant::now();
        let post =
            |home: &DriverHome| Post { home: home.clone(), schedule: Schedule::new(now), standing: None };
        let posts = wanted.homes.iter().map(post).collect();
        let tail = Tail::from_now(driver_log::path())?;
        let (homes, uninstall_on_exit) = (wanted.homes, wanted.uninstall_on_exit);
        let watches = Watches::new()?;
        let mut begun = Self { posts, homes, uninstall_on_exit, keeper, output, watches, log, tail, ready };
        begun.watches.renew(&begun.homes, &begun.log);
        begun.say(&Event::new("started").saying(concat!("flexvol ", env!("CARGO_PKG_VERSION"))));
        Ok(begun)
    }

    fn keep(&mut self, reaper: &Reaper) -> Result<()> {
        while !signal::interrupted() {
            self.work()?;
            let due = self.posts.iter().filter_map(|post| post.schedule.due()).min();
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            signal::wait_any_readable([self.watches.as_fd(), reaper.as_fd()], left)?;
            reaper.reap();
            self.take_changes()?;
        }
        Ok(())
    }

    /// Checks every driver that is due.
    fn work(&mut self) -> Result<()> {
        let mut looked = false;
        for number in 0..self.posts.len() {
            let now = Instant::now();
            let due = self.posts[number].schedule.due().is_some_and(|due| due <= now);
            if due && !signal::interrupted() {
                self.look(number)?;
                looked = true;
            }
        }
        if looked {
            // The directory of a driver that was just installed is new: others may have changed it
            // before it was watched.
            let now = Instant::now();
            for number in self.watches.renew(&self.homes, &self.log) {
                self.posts[number].schedule.changed(now);
            }
            self.tell_readiness()?;
        }
        Ok(())
    }

    fn look(&mut self, number: usize) -> Result<()> {
        let home = &self.homes[number];
        let put = self.keeper.put(home);
        if signal::interrupted() {
            // An error at this point comes from the signal.
            return Ok(());
        }
        if put.is_err() && files::is_removed(&home.plugin_dir) {
            return Err(lost(&home.plugin_dir).into());
        }
        let post = &mut self.posts[number];
        if let (Err(error), None) = (&put, &post.standing)
            && Refusal::reason_of(error) == Some(Reason::Usage)
        {
            // A wrong request does not become right by a retry.
            return put.map(drop);
        }
        let (ended, standing) = match &put {
            Ok(Put { changed: false, .. }) => (Ended::Well, Ok(())),
            Ok(_) => (Ended::Fixed, Ok(())),
            Err(error) => (Ended::Failed, Err(format!("{error:#}"))),
        };
        let event = match (&put, &standing) {
            (Ok(put), _) if put.changed || post.standing.is_none() => {
                Some(Event::new(put.word).saying(&put.message))
            }
            // A failure that repeats in the same way is reported once.
            (_, Err(why)) if post.standing.as_ref() != Some(&standing) => {
                Some(Event::new("failed").saying(why))
            }
            _ => None,
        };
        post.schedule.ended(Instant::now(), ended);
        post.standing = Some(standing);
        if let Some(event) = event {
            (self.output)(&event.about(home).to_line());
        }
        Ok(())
    }

    fn tell_readiness(&mut self) -> Result<()> {
        let ready = self.posts.iter().all(|post| matches!(post.standing, Some(Ok(()))));
        if self.ready.set(ready)? {
            self.say(&Event::new(if ready { "ready" } else { "not ready" }));
        }
        Ok(())
    }

    fn take_changes(&mut self) -> Result<()> {
        for change in self.watches.changes(&self.homes)? {
            match change {
                Change::Log(Some(name)) if !self.tail.concerns(&name) => {}
                Change::Log(Some(_)) => self.follow_log(Ok(())),
                Change::Log(None) => {
                    let made = files::make_private(&self.log);
                    self.watches.renew(&self.homes, &self.log);
                    self.follow_log(made);
                }
                Change::Driver(number) => self.posts[number].schedule.changed(Instant::now()),
                Change::PluginDir(path) if files::is_mount_root(&path) => return Err(lost(&path).into()),
                Change::PluginDir(path) => self.changed(|home| home.plugin_dir == path),
                Change::Anything => {
                    self.changed(|_| true);
                    self.follow_log(Ok(()));
                }
            }
        }
        Ok(())
    }

    /// Prints new lines of the log. If that fails, drivers are kept in place nevertheless.
    fn follow_log(&mut self, before: Result<()>) {
        let read = self.tail.read(&mut *self.output);
        if let Err(error) = before.and(read) {
            self.say(&Event::new("log lost").saying(&format!("{error:#}")));
        }
    }

    fn changed(&mut self, which: impl Fn(&DriverHome) -> bool) {
        let now = Instant::now();
        let posts = self.posts.iter_mut().filter(|post| which(&post.home));
        posts.for_each(|post| post.schedule.changed(now));
    }

    fn leave(&mut self, done: &Result<()>) {
        let _ = self.ready.set(false);
        let event = Event::new("leaving");
        match done {
            Ok(()) => self.say(&event),
            Err(error) => self.say(&event.saying(&format!("{error:#}"))),
        }
        if !self.uninstall_on_exit || done.is_err() {
            return;
        }
        signal::heeded();
        for home in &self.homes {
            let event = match self.keeper.remove(home) {
                Ok(()) => Event::new("removed").about(home),
                Err(error) => Event::new("not removed").about(home).saying(&format!("{error:#}")),
            };
            (self.output)(&event.to_line());
        }
    }

    fn say(&mut self, event: &Event<'_>) {
        (self.output)(&event.to_line());
    }
}

/// Returns the error for a plugin directory that was replaced. A pod sees the directory through a
/// mount of its own, and a mount stays on a directory that was removed or renamed on the host. Only
/// a new container sees the new one.
fn lost(plugin_dir: &Path) -> Failure {
    let text = format!(
        "{} was replaced on the host, and this container still holds the old one: restart the container",
        plugin_dir.display()
    );
    Failure::new(Code::Conflict, text)
}

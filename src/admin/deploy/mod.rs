//! Drivers put into the plugin directory and kept there: what process 1 of the image does.
//!
//! One thread and one poll(2), without a timer while all is well: it wakes when something in the
//! plugin directory or in the drivers' log changes, when a child ends, when it is told to stop.
//! Whether a driver is as it should be is not judged here: it is installed again, and an
//! installation that finds nothing to do writes nothing. So the changes that an installation makes
//! wake this process once more, and that is the end of it.
//!
//! * [`schedule`] says when a driver is looked at again, and keeps two deployments that want
//!   different things from outdoing each other.
//! * [`keeper`] installs.
//! * [`watches`] turns changes of directories into the numbers of drivers.
//! * [`tail`] follows the drivers' log, so that the pod's log is the drivers'.
//! * [`ready`] is the file that a readiness probe asks for.

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

/// Where one driver belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverHome {
    /// The driver.
    pub name: DriverName,
    /// The plugin directory.
    pub plugin_dir: PathBuf,
}

impl DriverHome {
    /// The driver's own directory.
    pub fn directory(&self) -> PathBuf {
        self.plugin_dir.join(self.name.directory())
    }
}

/// What putting a driver in its place came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// Whether anything had to be done.
    pub changed: bool,
    /// What, in a word.
    pub word: &'static str,
    /// Which version, and what an admin should know.
    pub message: String,
}

/// Who changes plugin directories.
pub trait Keeper {
    /// Puts a driver in its place, if it is not there as it should be.
    fn put(&mut self, home: &DriverHome) -> Result<Put>;

    /// Takes it out; refuses while its volumes are mounted.
    fn remove(&mut self, home: &DriverHome) -> Result<()>;
}

/// What is to be done besides keeping drivers in place.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The drivers, at least one.
    pub homes: Vec<DriverHome>,
    /// Written while all of them are in place.
    pub ready_file: PathBuf,
    /// Whether they are removed when this process is told to stop.
    pub uninstall_on_exit: bool,
}

/// Called with each line for people who collect logs.
pub type Output<'a> = &'a mut dyn FnMut(&str);

/// Keeps the drivers in place until the process is told to stop. An error is for whoever starts it
/// to start it again.
pub fn deploy(wanted: Wanted, keeper: &mut dyn Keeper, output: Output<'_>) -> Result<()> {
    signal::install()?;
    let reaper = Reaper::new()?;
    let mut deployment = Deployment::begin(wanted, keeper, output)?;
    let done = deployment.keep(&reaper);
    deployment.leave(&done);
    done
}

/// What became of one driver.
struct Post {
    home: DriverHome,
    schedule: Schedule,
    /// Whether it was in place when last looked at, and if not, why.
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
        // A directory that kubelet made for the pod is open to everybody.
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

    /// Looks at every driver that is due.
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
            // What was put in place is new, and so is its directory: others may have changed it
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
            // An error now is the signal's.
            return Ok(());
        }
        if put.is_err() && files::is_removed(&home.plugin_dir) {
            return Err(lost(&home.plugin_dir).into());
        }
        let post = &mut self.posts[number];
        if let (Err(error), None) = (&put, &post.standing)
            && Refusal::reason_of(error) == Some(Reason::Usage)
        {
            // What was asked for wrongly does not get better.
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
            // What keeps failing in the same way is said once.
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

    /// A log that cannot be read is no reason to leave drivers alone.
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

/// A pod holds the plugin directory by a mount of its own, and a mount stays on a directory that
/// was removed or renamed on the host. Only a new container sees the new one.
fn lost(plugin_dir: &Path) -> Failure {
    let text = format!(
        "{} was replaced on the host, and this container still holds the old one: restart the container",
        plugin_dir.display()
    );
    Failure::new(Code::Conflict, text)
}

//! Two node daemons that look at one plugin directory while its drivers come and go: in the end
//! each of them knows what is there, as the model does that made the changes.

use super::plugin_dir::{PluginDir, last};
use crate::report::{Dice, Report, is_full};
use crate::support::pace::deadline;
use flexvol::kubelet::scan::{Failed, Loaded};
use flexvol::prober::{Habits, Watcher};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const DRIVERS: usize = 40;

/// How long a prober may take to come to its end, on however slow a machine.
fn exit_wait() -> Duration {
    deadline(120)
}

/// An executable, and how its driver is known.
const EXECUTABLES: [(&str, &str); 5] = [
    ("good", "in service, attach: false"),
    ("attaching", "in service, attach: true"),
    ("bad", "no luck"),
    ("garbage", "invalid character"),
    ("missing", "unexpected end"),
];

/// What is there, by the name of its directory.
type World = BTreeMap<String, &'static str>;

/// One operation on the directory and on the model: a driver is installed at once or in steps,
/// replaced, moved away, or removed at once or in steps.
fn operate(dir: &PluginDir, world: &mut World, dice: &mut Dice, number: usize) {
    let name = format!("v~d{}", dice.roll(DRIVERS));
    let (executable, known) = EXECUTABLES[dice.roll(EXECUTABLES.len())];
    match (world.contains_key(&name), dice.roll(4)) {
        (false, 0 | 1) => dir.install(&name, executable),
        (false, _) => {
            fs::create_dir(dir.at(&name)).unwrap();
            symlink(dir.beside(executable), dir.at(&name).join(last(&name))).unwrap();
        }
        (true, 0) => dir.replace(&name, executable),
        (true, away) => {
            match away {
                1 => dir.remove(&name),
                2 => fs::remove_dir_all(dir.at(&name)).unwrap(),
                _ => fs::rename(dir.at(&name), dir.beside(&format!("away-{number}"))).unwrap(),
            }
            world.remove(&name);
            return;
        }
    }
    world.insert(name, known);
}

/// In the words of the model.
fn word(name: &str, known: &Result<Loaded, Failed>) -> &'static str {
    let logged = match known {
        Ok(loaded) => {
            assert_eq!(loaded.name.to_string(), name.replace('~', "/"));
            return EXECUTABLES[usize::from(loaded.capabilities.attach)].1;
        }
        Err(failed) => &failed.logged,
    };
    EXECUTABLES[2..]
        .iter()
        .map(|each| each.1)
        .find(|word| logged.contains(word))
        .unwrap_or_else(|| panic!("{logged}"))
}

fn world_of(watcher: &Watcher) -> World {
    let known = |(name, known): (&std::ffi::OsString, &Result<Loaded, Failed>)| {
        let name = name.to_str().unwrap();
        (name.to_owned(), word(name, known))
    };
    watcher.table().iter().map(known).collect()
}

/// Looks until all is done and it knows the world, or patience is over; what it knows then.
fn look(dir: &PluginDir, done: &AtomicBool, world: &std::sync::Mutex<World>) -> (World, u64) {
    let habits = Habits { period: Duration::from_millis(50), ..Habits::default() };
    let mut watcher = Watcher::new(&dir.path, habits).unwrap();
    let mut since = Instant::now();
    loop {
        watcher.next(Duration::from_millis(100)).unwrap();
        if !done.load(Ordering::Relaxed) {
            since = Instant::now();
        } else if world_of(&watcher) == *world.lock().unwrap() || since.elapsed() > exit_wait() {
            return (world_of(&watcher), watcher.stats().probes);
        }
    }
}

#[test]
fn two_daemons_know_the_same_world_in_the_end() {
    let operations = if is_full() { 10_000 } else { 1000 };
    let dir = PluginDir::new();
    dir.script("attaching", r#"echo '{"status":"Success"}'"#);
    dir.script("garbage", "echo garbage");
    let (done, made, world) =
        (AtomicBool::new(false), AtomicUsize::new(0), std::sync::Mutex::new(World::new()));
    let mut report = Report::begin("race", "two-daemons", "changes", operations);
    let ends = std::thread::scope(|scope| {
        let first = scope.spawn(|| look(&dir, &done, &world));
        // This one begins halfway, or, on a machine that is slow enough, when all is done.
        let second = scope.spawn(|| {
            while made.load(Ordering::Relaxed) < operations / 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
            look(&dir, &done, &world)
        });
        let mut dice = Dice::of("two daemons");
        for number in 0..operations {
            operate(&dir, &mut world.lock().unwrap(), &mut dice, number);
            made.store(number + 1, Ordering::Relaxed);
            report.tried(None);
            std::thread::sleep(Duration::from_micros(u64::try_from(dice.roll(2000)).unwrap()));
        }
        done.store(true, Ordering::Relaxed);
        [first.join().unwrap(), second.join().unwrap()]
    });
    let world = world.into_inner().unwrap();
    println!("NOTE two daemons: {} drivers in the end, {:?} probes", world.len(), [ends[0].1, ends[1].1]);
    assert!(!world.is_empty());
    for (known, _) in ends {
        assert_eq!(known, world);
    }
    report.end();
}

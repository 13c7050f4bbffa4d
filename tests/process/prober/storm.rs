//! A thousand drivers that come, change and go while ten thousand changes a second are made: the
//! final table is what a fresh scan finds, and no second sees more than one probe.

use super::plugin_dir::{PluginDir, last};
use crate::report::Dice;
use flexvol::kubelet::scan::{Failed, Finding, Loaded, scan, terms};
use flexvol::prober::{Habits, Stats, Watcher};
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const DRIVERS: usize = 1000;
const A_SECOND: u64 = 10_000;
const ALL: u64 = 12 * A_SECOND;

const EXECUTABLES: [&str; 5] = ["good", "attaching", "bad", "garbage", "missing"];

/// One change of a driver: it is installed, in one step or in several, replaced, moved or removed.
fn change(dir: &PluginDir, dice: &mut Dice) {
    let name = format!("v~d{}", dice.roll(DRIVERS));
    let executable = EXECUTABLES[dice.roll(EXECUTABLES.len())];
    let there = dir.at(&name).exists();
    match dice.roll(5) {
        _ if !there && dice.roll(2) == 0 => dir.install(&name, executable),
        _ if !there => {
            fs::create_dir(dir.at(&name)).unwrap();
            symlink(dir.beside(executable), dir.at(&name).join(last(&name))).unwrap();
        }
        0 => fs::remove_dir_all(dir.at(&name)).unwrap(),
        1 => {
            let other = format!("v~d{}", dice.roll(DRIVERS));
            let (here, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
            let _ = rustix::fs::renameat_with(here, dir.at(&name), here, dir.at(&other), flags);
        }
        _ => dir.replace(&name, executable),
    }
}

/// One change that is none to a driver, but may look like one.
fn noise(dir: &PluginDir, dice: &mut Dice) {
    let name = format!("v~d{}", dice.roll(DRIVERS));
    let file = ["data", ".data", "more", ".more"][dice.roll(4)];
    let path = if dice.roll(10) == 0 { dir.at(".noise") } else { dir.at(&name).join(file) };
    match dice.roll(3) {
        0 => drop(File::create(path)),
        1 => drop(File::options().append(true).open(path).and_then(|mut file| file.write_all(b"x"))),
        _ => drop(fs::set_permissions(path, Permissions::from_mode([0o600, 0o644][dice.roll(2)]))),
    }
}

/// Makes all changes, none before its time.
fn rage(dir: &PluginDir) {
    let (mut dice, mut made) = (Dice::of("storm"), 0);
    let start = Instant::now();
    while made < ALL {
        let due = A_SECOND * u64::try_from(start.elapsed().as_millis()).unwrap() / 1000;
        while made < due.min(ALL) {
            if made.is_multiple_of(50) {
                change(dir, &mut dice);
            } else {
                noise(dir, &mut dice);
            }
            made += 1;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What is in service or failing, and how, of the watch and of the scan in the same words.
fn words(known: &Result<Loaded, Failed>) -> String {
    match known {
        Ok(loaded) => format!("{} {:?}", loaded.name, loaded.capabilities),
        Err(failed) => failed.logged.clone(),
    }
}

fn fresh(dir: &PluginDir) -> BTreeMap<String, String> {
    let found = scan(&dir.path, &terms()).unwrap().found.into_iter();
    let known = found.filter_map(|each| {
        let known = match each.finding {
            Finding::Loaded(loaded) => Ok(loaded),
            Finding::Failed(failed) => Err(failed),
            Finding::Ignored(_) => return None,
        };
        Some((each.directory.into_string().unwrap(), words(&known)))
    });
    known.collect()
}

/// To the end of the storm and of what it left to be done. Notes after what and before what each
/// probe began.
fn watch(watcher: &mut Watcher, raging: &AtomicBool) -> Vec<(Instant, Instant)> {
    let mut begun = Vec::new();
    let mut quiet = None::<Instant>;
    while raging.load(Ordering::Relaxed) || quiet.is_none_or(|since| since.elapsed() < Duration::from_secs(2))
    {
        let (before, start) = (watcher.stats(), Instant::now());
        // One step at a time, so that no probe begins unseen.
        watcher.next(Duration::ZERO).unwrap();
        let after = watcher.stats();
        assert!(after.probes - before.probes <= 1);
        if after.probes > before.probes {
            begun.push((start, Instant::now()));
        }
        if after.looks > before.looks || after.changes > before.changes {
            quiet = None;
        } else {
            quiet.get_or_insert_with(Instant::now);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    begun
}

#[test]
fn nothing_is_lost_and_no_second_has_two_probes() {
    let dir = PluginDir::new();
    dir.script("attaching", r#"echo '{"status":"Success"}'"#);
    dir.script("garbage", "echo garbage");
    for number in 0..DRIVERS {
        dir.install(&format!("v~d{number}"), EXECUTABLES[number % 3]);
    }
    let raging = AtomicBool::new(true);
    let mut watcher = Watcher::new(&dir.path, Habits::default()).unwrap();
    let start = Instant::now();
    let begun = std::thread::scope(|scope| {
        scope.spawn(|| {
            rage(&dir);
            raging.store(false, Ordering::Relaxed);
        });
        watch(&mut watcher, &raging)
    });
    let took = start.elapsed();
    let table: BTreeMap<_, _> = watcher
        .table()
        .iter()
        .map(|(name, known)| (name.to_str().unwrap().to_owned(), words(known)))
        .collect();
    let fresh = fresh(&dir);
    let stats @ Stats { changes, probes, .. } = watcher.stats();
    println!("{ALL} changes made, {took:?} in all: {stats:?}");
    let differing: Vec<_> = fresh.iter().filter(|(name, words)| table.get(*name) != Some(words)).collect();
    assert!(differing.is_empty(), "{differing:?}");
    assert_eq!(table.len(), fresh.len());
    let with = |text: &str| fresh.values().filter(|words| words.contains(text)).count();
    let kinds = ["attach: true", "attach: false", "no luck", "invalid character", "unexpected end"].map(with);
    assert!(kinds.iter().all(|count| *count > 20), "{kinds:?}");
    assert!(changes > ALL / 4, "{changes}");
    let close = begun.windows(2).map(|pair| pair[1].1 - pair[0].0).min().unwrap();
    assert!(close >= Duration::from_secs(1), "two probes within {close:?}");
    assert!(probes <= took.as_secs() + 2, "{probes} probes in {took:?}");
}

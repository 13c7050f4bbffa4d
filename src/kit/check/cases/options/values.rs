//! Values that users may write into their options.

use crate::check::answer::Meant;
use crate::check::attempt::{Attempt, Looks, plainly};
use crate::check::evidence::{Played, Stopped};
use crate::check::given::Nature;
use crate::check::staging::{make_directory, put};
use crate::check::subject::Subject;
use flexvol_kubelet::PodVolume;
use flexvol_protocol::Access;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Key of a user that no driver knows.
const UNKNOWN_KEY: &str = "check.example/unknown";

/// Limit for the number of options that are tried; of more, some are chosen at random.
const MOST_KEYS: usize = 6;

/// Owner that no volume has.
const STRANGER: u32 = 54_321;

/// Path up to the root, from wherever a driver begins.
const UP: &str = "../../../../../../../../../../../../..";

/// Place in the options where a user's text may stand.
#[derive(Clone, Debug)]
pub(in crate::check::cases) enum TextPlace {
    /// Value of an option that was given.
    Value(String),
    /// `fsType`, which the API server does not check.
    FsType,
    /// Value of an option that no driver knows.
    Unknown,
    /// Name of such an option.
    Key,
}

impl TextPlace {
    /// Returns the volume with a text at this place.
    pub(in crate::check::cases) fn with(&self, mut volume: PodVolume, text: &str) -> PodVolume {
        let own = &mut volume.options.own;
        match self {
            Self::Value(key) => drop(own.insert(key.clone(), text.to_owned())),
            Self::FsType => volume.options.fs_type = Some(text.to_owned()),
            Self::Unknown => drop(own.insert(UNKNOWN_KEY.to_owned(), text.to_owned())),
            Self::Key => drop(own.insert(text.to_owned(), "x".to_owned())),
        }
        volume
    }
}

impl fmt::Display for TextPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(key) => write!(f, "option {key:?}"),
            Self::FsType => f.write_str("fsType"),
            Self::Unknown => f.write_str("an option nobody knows"),
            Self::Key => f.write_str("the name of an option"),
        }
    }
}

/// Returns the keys that the author gave values to, but not too many.
fn keys(subject: &mut Subject<'_>) -> Result<Vec<String>, Stopped> {
    let mut keys: Vec<_> = subject.volume()?.options.own.into_keys().collect();
    if keys.len() > MOST_KEYS {
        subject.random.shuffle(&mut keys);
        keys.truncate(MOST_KEYS);
    }
    Ok(keys)
}

/// Returns all places.
pub(in crate::check::cases) fn places(subject: &mut Subject<'_>) -> Result<Vec<TextPlace>, Stopped> {
    let values = keys(subject)?.into_iter().map(TextPlace::Value);
    Ok(values.chain([TextPlace::Unknown, TextPlace::Key, TextPlace::FsType]).collect())
}

/// Reports whether a message mentions an option, in any spelling.
pub(in crate::check::cases) fn names(message: &str, key: &str) -> bool {
    let plain = |text: &str| -> String {
        text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    };
    plain(message).contains(&plain(key))
}

pub(super) fn shell(subject: &mut Subject<'_>) -> Played {
    let canary = PathBuf::from(format!("/check-{:08x}", subject.random.u32(..)));
    let act = format!("touch {}", canary.display());
    let places = places(subject)?;
    let end = Subject::budget();
    let mut tries: Vec<_> = texts(&act, subject.repeat() > 1)
        .into_iter()
        .flat_map(|text| places.iter().map(move |place| (place.clone(), text.clone())))
        .collect();
    for _ in 1..subject.repeat() {
        let place = places[subject.random.usize(..places.len())].clone();
        tries.push((place, salad(&act, &mut subject.random)));
    }
    for (place, text) in tries {
        if Instant::now() > end {
            break;
        }
        let volume = place.with(subject.volume()?, &text);
        let attempt = subject.attempt(&volume, &plainly)?;
        subject.clear(&volume)?;
        if canary.exists() {
            fs::remove_file(&canary)?;
            return Err(attempt.answer.fails(format!("{place} was carried out by a shell: {text:?}")));
        }
    }
    Ok(())
}

/// Builds texts that make a shell act inside quotes of either kind and outside quotes.
/// With `one_by_one`, also builds each of them alone, for a driver that handles some.
fn texts(act: &str, one_by_one: bool) -> Vec<String> {
    let dollar = format!("$({act})'$({act})'");
    let backtick = format!("`{act}`'`{act}`'");
    // No blank is in it, because the text may be cut there.
    let semicolon = format!("x;{act};'x;{act};'\"x;{act};\"").replace("touch ", ">");
    let line = format!("x\n{act}\n");
    let all = format!("{dollar}`{act}`{semicolon}\n{act}\n");
    if one_by_one { vec![all, dollar, backtick, semicolon, line] } else { vec![all] }
}

/// Builds a random text of characters that have a meaning to some program.
fn salad(act: &str, random: &mut fastrand::Rng) -> String {
    let signs = [
        "'", "\"", "`", "\\", "*", "%s%n", "-", "--", ",", "=", "\n", " ", "../", "${IFS}", "#", "~", "!",
        "?", "{}", "x", "\t", "&&", "||", "(", ")", "$",
    ];
    let acts =
        [format!("$({act})"), format!(";{act};"), format!("|{act}|"), format!("&{act}&"), format!("`{act}`")];
    let mut salad = String::new();
    for _ in 0..random.usize(3..9) {
        salad.push_str(signs[random.usize(..signs.len())]);
        if random.usize(..3) == 0 {
            salad.push_str(&acts[random.usize(..acts.len())]);
        }
    }
    salad
}

pub(super) fn injection(subject: &mut Subject<'_>) -> Played {
    let mut volume = subject.volume()?;
    if !subject.given.is(Nature::ReadOnly) {
        volume.options.access = Some(Access::ReadWrite);
    }
    let usual = subject.usual_looks_of(&volume)?;
    let own = volume.options.own.clone();
    let lists = subject.given.lists.clone();
    let values = keys(subject)?.into_iter().filter(|key| !lists.contains(key)).map(TextPlace::Value);
    let end = Subject::budget();
    for place in values.chain([TextPlace::FsType]) {
        let given = match &place {
            TextPlace::Value(key) => own.get(key).cloned().unwrap_or_default(),
            _ => volume.options.fs_type.clone().unwrap_or_default(),
        };
        for text in spoilt(&given, subject.repeat() > 1) {
            if Instant::now() > end {
                return Ok(());
            }
            let access = volume.options.access;
            let mut volume = place.with(subject.volume()?, &text);
            volume.options.access = access;
            let attempt = subject.attempt(&volume, &plainly)?;
            if let Some(injected) = injected(&attempt, &usual) {
                return Err(attempt.answer.fails(format!("with {text:?} as {place} {injected}")));
            }
            subject.clear(&volume)?;
        }
    }
    Ok(())
}

/// Builds values with an addition that mount would take for more of its own options.
fn spoilt(given: &str, all: bool) -> Vec<String> {
    let mut texts = vec![format!("{given},ro"), format!("{given},suid,dev"), format!("{given} -o ro")];
    if all {
        texts.extend([format!("{given},uid={STRANGER}"), "-oro".to_owned(), "--help".to_owned()]);
    }
    texts
}

/// Describes a property of a successful mount that was not asked for.
fn injected(attempt: &Attempt, usual: &Looks) -> Option<String> {
    if !attempt.answer.is_success() {
        return None;
    }
    let Some(looks) = &attempt.looks else {
        return Some("it said Success, and nothing is mounted".to_owned());
    };
    if let Some(flag) = looks.lost_protection(usual) {
        return Some(format!("the volume is no longer mounted {flag}"));
    }
    if looks.is_read_only() && !usual.is_read_only() {
        return Some("the volume is read-only, as nobody but mount was told".to_owned());
    }
    (looks.owner.0 == STRANGER).then(|| "the volume belongs to another user".to_owned())
}

/// Directory of the node that no driver should use, and the paths that lead to it.
pub(super) struct Elsewhere {
    directory: PathBuf,
    name: String,
}

impl Elsewhere {
    pub(super) fn make(subject: &mut Subject<'_>) -> Result<Self, Stopped> {
        let name = format!("check-{:08x}", subject.random.u32(..));
        let directory = Path::new("/").join(&name);
        make_directory(&directory)?;
        put(&directory.join("file"), &name)?;
        Ok(Self { directory, name })
    }

    /// Returns paths from the root and from below, to what exists and to what does not.
    pub(super) fn ways(&self, given: &str) -> [String; 3] {
        let name = &self.name;
        [format!("{UP}/{name}"), format!("{UP}/{name}/new"), format!("{given}/{UP}/{name}/new")]
    }

    /// Describes what an attempt did to the directory.
    pub(super) fn touched(&self, volume: &PodVolume) -> Result<Option<String>, Stopped> {
        let shown = volume.target()?.as_path().join("file");
        if fs::read_to_string(shown).is_ok_and(|text| text == self.name) {
            return Ok(Some("the pod sees a directory of the node that is none of it".to_owned()));
        }
        let names: Vec<_> = fs::read_dir(&self.directory)?.flatten().map(|entry| entry.file_name()).collect();
        let kept = fs::read_to_string(self.directory.join("file")).is_ok_and(|text| text == self.name);
        Ok(match names.as_slice() {
            [_] if kept => None,
            _ if kept => Some("something was made in a directory of the node that is none of it".to_owned()),
            _ => Some("a file of the node is gone, or changed".to_owned()),
        })
    }

    pub(super) fn remove(self) -> Result<(), Stopped> {
        Ok(fs::remove_dir_all(self.directory)?)
    }
}

pub(super) fn paths(subject: &mut Subject<'_>) -> Played {
    let end = Subject::budget();
    for key in keys(subject)? {
        let elsewhere = Elsewhere::make(subject)?;
        let volume = subject.volume()?;
        let given = volume.options.own.get(&key).cloned().unwrap_or_default();
        let place = TextPlace::Value(key);
        let open = format!("/{}", elsewhere.name);
        // Some drivers accept any directory of the node.
        let (_, what) = walk(subject, &place, &open, &elsewhere)?;
        for way in elsewhere.ways(&given) {
            if what.is_some() || Instant::now() > end {
                break;
            }
            if let (attempt, Some(what)) = walk(subject, &place, &way, &elsewhere)? {
                return Err(attempt.answer.fails(format!("with {way:?} as {place} {what}")));
            }
        }
        elsewhere.remove()?;
    }
    Ok(())
}

/// Tries a path. Also returns what happened to the directory, if anything: then the driver may be
/// unable to unmount the volume.
fn walk(
    subject: &mut Subject<'_>,
    place: &TextPlace,
    way: &str,
    elsewhere: &Elsewhere,
) -> Result<(Attempt, Option<String>), Stopped> {
    let volume = place.with(subject.volume()?, way);
    let attempt = subject.attempt(&volume, &plainly)?;
    let touched = elsewhere.touched(&volume)?;
    if touched.is_some() {
        // An error of this cleanup does not count against the driver.
        let _ = subject.clear(&volume);
        return Ok((attempt, touched));
    }
    subject.clear(&volume)?;
    Ok((attempt, elsewhere.touched(&volume)?))
}

pub(super) fn missing(subject: &mut Subject<'_>) -> Played {
    let keys: Vec<_> = subject.volume()?.options.own.into_keys().collect();
    for key in keys {
        let mut volume = subject.volume()?;
        volume.options.own.remove(&key);
        let attempt = subject.attempt(&volume, &plainly)?;
        if attempt.answer.is_success() {
            subject.clear(&volume)?;
            continue;
        }
        let answer = attempt.answer.refuses(&format!("option {key:?} is missing: it is to be named"))?;
        if !names(answer.message(), &key) {
            return Err(answer.fails(format!("option {key:?} is missing, and the message does not name it")));
        }
        if attempt.looks.is_some() {
            return Err(answer.fails(format!("option {key:?} is missing, and something is mounted")));
        }
        subject.clear(&volume)?;
    }
    Ok(())
}

pub(super) fn unknown_value(subject: &mut Subject<'_>) -> Played {
    const VALUES: [&str; 7] = ["check-nonsense", " 5 ", "", "true", "0", "1e3", "-1"];
    let values = if subject.repeat() > 1 { &VALUES[..] } else { &VALUES[..2] };
    let end = Subject::budget();
    for key in keys(subject)? {
        let place = TextPlace::Value(key);
        for value in values {
            if Instant::now() > end {
                return Ok(());
            }
            same_twice(subject, &place, value)?;
        }
    }
    Ok(())
}

fn same_twice(subject: &mut Subject<'_>, place: &TextPlace, value: &str) -> Result<(), Stopped> {
    let mut before: Option<(Meant, Option<Looks>)> = None;
    for _ in 0..2 {
        let volume = place.with(subject.volume()?, value);
        let attempt = subject.attempt(&volume, &plainly)?;
        let (answer, looks) = (attempt.answer, attempt.looks);
        if answer.is_success() && looks.is_none() {
            return Err(
                answer.fails(format!("with {value:?} as {place} it said Success, and nothing is mounted"))
            );
        }
        let changed = before.as_ref().is_some_and(|(meant, seen)| match (meant, &answer.meant) {
            (Meant::Success(_), Meant::Success(_)) => looks
                .as_ref()
                .zip(seen.as_ref())
                .is_some_and(|(now, then)| now.difference(then, false).is_some()),
            (before, now) => std::mem::discriminant(before) != std::mem::discriminant(now),
        });
        if changed {
            return Err(
                answer.fails(format!("with {value:?} as {place} the second outcome is not the first"))
            );
        }
        before = Some((answer.meant, looks));
        subject.clear(&volume)?;
    }
    Ok(())
}

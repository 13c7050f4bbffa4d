//! Ways in which options may be written.

use crate::check::attempt::{Looks, Spelling, plainly};
use crate::check::evidence::{Played, Stopped};
use crate::check::spelling::{all_escaped, object, pairs, quoted, spacious, with_member, with_value};
use crate::check::staging::remove_directory;
use crate::check::subject::Subject;
use flexvol_kubelet::PodVolume;
use flexvol_protocol::{Options, Verb};

/// Key that no kubelet sends yet.
const NEW_KEY: &str = "kubernetes.io/check.new";

/// Case about new keys, for cases that need one.
const UNKNOWN_KEYS: &str = "options::unknown_keys";

/// Key of a user that no driver knows.
const UNKNOWN_KEY: &str = "check.example/unknown";

/// Every character that Go escapes.
const ESCAPES: &str = "<a> & \"b\" \\ \u{2028}\u{2029}\n\r\t\u{8}\u{c}\u{1}/";

/// Text in both directions, with a combining character, with characters beyond the first plane, and
/// with the character that replaces invalid bytes.
const SCRIPTS: &str = "ملف\u{202e} e\u{301} 京都 👩\u{200d}💻 \u{fffd}";

/// Beginnings of characters beyond ASCII when UTF-8 is read as Latin-1.
const MANGLED: [&str; 4] = ["Ù\u{85}", "Ì\u{81}", "ä º", "ð\u{9f}"];

/// Size of the options, in bytes: with the final NUL, hardly less than execve(2) takes.
const LONG: usize = 127 << 10;

pub(super) fn escapes(subject: &mut Subject<'_>) -> Played {
    let usual = subject.usual_looks()?;
    let volume = subject.volume()?;
    let how = "with every character of keys and values as a \\u escape";
    subject.must_look(&usual, &volume, &|options| all_escaped(options).into(), how)?;
    must_ignore(subject, &usual, ESCAPES, "beside a new key with all that Go escapes")
}

pub(super) fn unknown_keys(subject: &mut Subject<'_>) -> Played {
    let usual = subject.usual_looks()?;
    let volume = with_new_key(subject.volume()?, "x");
    subject.must_look(&usual, &volume, &plainly, "beside a new key of kubernetes.io/")?;
    for key in [UNKNOWN_KEY, ""] {
        let mut volume = subject.volume()?;
        volume.options.own.insert(key.to_owned(), "x".to_owned());
        must_look_or_refuse(subject, &usual, &volume, &format!("beside the key {key:?}"))?;
    }
    Ok(())
}

pub(super) fn empty_fs_type(subject: &mut Subject<'_>) -> Played {
    let given = subject.volume()?.options.fs_type.filter(|name| !name.is_empty());
    let usual = subject.usual_looks()?;
    let without = |options: &Options| {
        let members = pairs(options).into_iter().filter(|(key, _)| key != "kubernetes.io/fsType");
        object(members.map(|(key, value)| (quoted(&key), quoted(&value)))).into()
    };
    let spellings: [(Spelling<'_>, &str); 2] =
        [(&plainly, "with an empty kubernetes.io/fsType"), (&without, "without kubernetes.io/fsType")];
    for (spelling, how) in spellings {
        let mut volume = subject.volume()?;
        volume.options.fs_type = None;
        if given.is_none() {
            subject.must_look(&usual, &volume, spelling, how)?;
            continue;
        }
        let attempt = subject.attempt(&volume, spelling)?;
        // A driver that has no default may say so.
        if !(attempt.answer.is_failure() && super::values::names(attempt.answer.message(), "fsType")) {
            attempt.answer.succeeds(&format!("{how} the driver must take its default or ask for it"))?;
        }
        subject.clear(&volume)?;
    }
    Ok(())
}

pub(super) fn order_and_blanks(subject: &mut Subject<'_>) -> Played {
    let usual = subject.usual_looks()?;
    let backwards = |options: &Options| {
        let members = pairs(options).into_iter().rev();
        object(members.map(|(key, value)| (quoted(&key), quoted(&value)))).into()
    };
    let spacious = |options: &Options| spacious(options).into();
    let spellings: [(Spelling<'_>, &str); 2] =
        [(&backwards, "with the keys backwards"), (&spacious, "with blanks and line breaks")];
    for (spelling, how) in spellings {
        let volume = subject.volume()?;
        subject.must_look(&usual, &volume, spelling, how)?;
    }
    Ok(())
}

pub(super) fn long(subject: &mut Subject<'_>) -> Played {
    let usual = subject.usual_looks()?;
    let plain = with_new_key(subject.volume()?, "");
    let room = LONG - plain.mount_call()?.options().map_or(0, |options| options.to_json().len()).min(LONG);
    must_ignore(subject, &usual, &"x".repeat(room), "with 127 KiB of options")?;
    let mut volume = subject.volume()?;
    let key = volume.options.own.keys().next().cloned().unwrap_or_else(|| UNKNOWN_KEY.to_owned());
    volume.options.own.insert(key.clone(), "x".repeat(room));
    let attempt = subject.attempt(&volume, &plainly)?;
    if !attempt.answer.is_success() {
        attempt.answer.refuses(&format!("127 KiB in {key:?} must be taken or refused"))?;
    }
    subject.clear(&volume)
}

pub(super) fn malformed(subject: &mut Subject<'_>) -> Played {
    let spoil = |options: &Options| {
        let good = options.to_json();
        let open = good.trim_end_matches('}');
        vec![
            ("no options at all", String::new()),
            ("a blank", " ".to_owned()),
            ("an object without its end", open.to_owned()),
            ("an object cut in the middle", good.chars().take(good.len() / 2).collect()),
            ("an object and something after it", format!("{good}x")),
            ("two objects", format!("{good}{good}")),
            ("an array", format!("[{good}]")),
            ("a string", quoted(&good)),
            ("quotes of the wrong kind", good.replace('"', "'")),
            ("keys without quotes", good.replace("\":", ":").replace("{\"", "{").replace(",\"", ",")),
            ("a comma too many", format!("{open},}}")),
        ]
    };
    must_refuse(subject, &spoil)
}

pub(super) fn strings_only(subject: &mut Subject<'_>) -> Played {
    let spoil = |options: &Options| {
        let keys = options.own.keys().map(String::as_str).chain(["kubernetes.io/readwrite"]);
        let values =
            [("a number", "1"), ("true", "true"), ("a list", "[\"rw\"]"), ("an object", "{\"a\":\"b\"}")];
        let spoilt = keys.flat_map(|key| values.map(|(what, value)| (what, with_value(options, key, value))));
        spoilt.collect()
    };
    must_refuse(subject, &spoil)
}

pub(super) fn duplicate_keys(subject: &mut Subject<'_>) -> Played {
    subject.use_once()?;
    let mut volume = subject.volume()?;
    volume.options.access = Some(flexvol_protocol::Access::ReadWrite);
    let twice = |options: &Options| with_member(options, "kubernetes.io/readwrite", "\"ro\"").into();
    let attempt = subject.attempt(&volume, &twice)?;
    if !attempt.answer.is_failure() {
        let answer = attempt.answer.succeeds("readwrite is rw first and ro last")?;
        if attempt.looks.is_some_and(|looks| !looks.is_read_only()) {
            return Err(answer.fails("readwrite is rw first and ro last, and the volume is writable"));
        }
    }
    subject.clear(&volume)
}

pub(super) fn unicode(subject: &mut Subject<'_>) -> Played {
    let usual = subject.usual_looks()?;
    must_ignore(subject, &usual, SCRIPTS, "beside a new key in several scripts")?;
    let end = Subject::budget();
    let places = super::values::places(subject)?;
    let fewer = if subject.repeat() > 1 { 0 } else { 2 };
    for place in places.iter().take(places.len() - fewer) {
        if std::time::Instant::now() > end {
            break;
        }
        let volume = place.with(subject.volume()?, SCRIPTS);
        let attempt = subject.attempt(&volume, &plainly)?;
        if !attempt.answer.is_success() {
            let answer =
                attempt.answer.refuses(&format!("{place} in several scripts must be taken or refused"))?;
            if let Some(mangled) = MANGLED.iter().find(|mangled| answer.message().contains(**mangled)) {
                return Err(answer
                    .fails(format!("the message mangles {place}: {mangled:?} is UTF-8 read as Latin-1")));
            }
        }
        subject.clear(&volume)?;
    }
    Ok(())
}

fn with_new_key(mut volume: PodVolume, value: &str) -> PodVolume {
    volume.options.reserved.insert(NEW_KEY.to_owned(), value.to_owned());
    volume
}

/// Fails if a new key with this value changes anything. Blocks the case if no new key is taken.
fn must_ignore(subject: &mut Subject<'_>, usual: &Looks, value: &str, how: &str) -> Result<(), Stopped> {
    let volume = with_new_key(subject.volume()?, value);
    let Err(failed) = subject.must_look(usual, &volume, &plainly, how) else { return Ok(()) };
    let volume = with_new_key(subject.volume()?, "x");
    subject.attempt(&volume, &plainly)?.answer.or_blocked(UNKNOWN_KEYS)?;
    Err(failed)
}

/// Fails if an option without a meaning changes anything. The driver may refuse users' options.
fn must_look_or_refuse(
    subject: &mut Subject<'_>,
    usual: &Looks,
    volume: &PodVolume,
    how: &str,
) -> Result<(), Stopped> {
    let attempt = subject.attempt(volume, &plainly)?;
    let difference = match &attempt.looks {
        _ if attempt.answer.is_failure() => None,
        None => Some("nothing is mounted".to_owned()),
        Some(looks) => looks.difference(usual, subject.facts.keeps_data),
    };
    if !attempt.answer.is_failure() {
        let answer = attempt.answer.succeeds(&format!("{how} the options mean the same, or are refused"))?;
        if let Some(difference) = difference {
            return Err(answer.fails(format!("{how} the options mean the same, but {difference}")));
        }
    }
    subject.clear(volume)
}

/// Function that spoils options in several ways; names what is wrong with each.
type Spoilt<'a> = &'a dyn Fn(&Options) -> Vec<(&'static str, String)>;

/// Fails unless each is refused and leaves nothing, by `mount` if the driver has it.
fn must_refuse(subject: &mut Subject<'_>, spoil: Spoilt<'_>) -> Played {
    let volume = subject.volume()?;
    let mounts = subject.facts.has(Verb::Mount) || !subject.attaches();
    if mounts {
        subject.stage(&volume)?;
    }
    let options = volume.mount_call()?.options().cloned().unwrap_or_default();
    for (what, text) in spoil(&options) {
        let spelling = |_: &Options| text.clone().into();
        let attempt = if mounts {
            subject.attempt_mount(&volume, &spelling)?
        } else {
            subject.attempt(&volume, &spelling)?
        };
        let answer = attempt.answer.refuses(&format!("the options are {what}, which is to be refused"))?;
        if attempt.looks.is_some() {
            return Err(
                answer.fails(format!("the options are {what}: it said Failure, and something is mounted"))
            );
        }
        // The directory must be removed, unless the driver has done so.
        let _ = remove_directory(volume.target()?.as_path());
    }
    subject.clear(&volume)
}

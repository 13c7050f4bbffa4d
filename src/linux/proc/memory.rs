//! Protection of this process's memory from others: in core dumps, in the arguments it was started
//! with, and in freed memory.

pub use crate::raw::Wiping;

use crate::raw;
use anyhow::{Context, Result};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use std::ffi::OsString;
use std::fs::{File, read_to_string};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileExt as _;
use zeroize::Zeroizing;

/// Character that replaces a secret.
const MASKED: u8 = b'*';

/// Fields of /proc/self/stat, counted after the name, with the begin and the end of the arguments
/// (`proc_pid_stat(5)`: fields 48 and 49).
const BEGIN: usize = 45;
const END: usize = 46;

/// Disables core dumps of this process and of those that it starts: a file must not show secrets.
///
/// The limit is one byte, not zero: a program that collects cores gets one from the kernel with any
/// limit except this one.
pub fn refuse_dumps() {
    let limit = |bytes| setrlimit(Resource::Core, Rlimit { current: Some(bytes), maximum: Some(bytes) });
    // An error means that the limit is zero and must not be raised.
    let _ = limit(1).or_else(|_| limit(0));
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Gives the unused memory of this thread's stack back to the kernel. A thread that waits for long
/// calls this first: what is left on the stack of ended calls, a secret perhaps, is gone, and many
/// such threads need less memory.
pub fn release_unused_stack() {
    raw::release_unused_stack();
}

/// Overwrites each argument of this process that contains `mark`.
/// In /proc/PID/cmdline, which everybody on the node can read, only the values of the JSON keys
/// with the mark are overwritten: the rest shows for whom this process works.
///
/// Fails without /proc; the copies in this process are overwritten in any case.
pub fn forget_arguments(arguments: &mut [OsString], mark: &[u8]) -> Result<()> {
    let marked = arguments.iter_mut().filter(|argument| holds(argument.as_encoded_bytes(), mark));
    let forgotten = marked.map(|argument| drop(Zeroizing::new(std::mem::take(argument).into_vec()))).count();
    if forgotten == 0 { Ok(()) } else { forget_shown(mark).context("take secrets out of the arguments") }
}

fn forget_shown(mark: &[u8]) -> Result<()> {
    let stat = read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').context("no stat")?;
    let field =
        |index| fields.split_ascii_whitespace().nth(index).and_then(|field| field.parse::<u64>().ok());
    let (begin, end) = field(BEGIN).zip(field(END)).context("no place")?;
    let memory = File::options().read(true).write(true).open("/proc/self/mem")?;
    let mut shown = Zeroizing::new(vec![0; usize::try_from(end.saturating_sub(begin))?]);
    memory.read_exact_at(&mut shown, begin)?;
    for argument in shown.split_mut(|byte| *byte == 0).filter(|argument| holds(argument, mark)) {
        mask_values(argument, mark);
    }
    Ok(memory.write_all_at(&shown, begin)?)
}

/// Masks the value in `"<mark>key":"value"`. If the text has another form, masks all that follows.
fn mask_values(text: &mut [u8], mark: &[u8]) {
    let mut rest = text;
    while let Some(at) = rest.windows(mark.len().max(1)).position(|part| part == mark) {
        rest = &mut rest[at..];
        let quote = |from: usize, text: &[u8]| {
            text.get(from..)
                .and_then(|text| text.iter().position(|byte| *byte == b'"'))
                .map(|at| from + at + 1)
        };
        let value = quote(0, rest).filter(|end| rest[*end..].starts_with(b":\""));
        let Some((begin, end)) = value.and_then(|end| Some((end + 2, quote(end + 2, rest)?))) else {
            return rest.fill(MASKED);
        };
        rest[begin..end - 1].fill(MASKED);
        rest = &mut rest[end..];
    }
}

fn holds(text: &[u8], mark: &[u8]) -> bool {
    text.windows(mark.len().max(1)).any(|part| part == mark)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::process::{Ended, Worker};

    /// Runs `work` in a process of its own: the flags are for whole processes.
    fn elsewhere(work: impl FnOnce() -> String) -> String {
        match Worker::start(work).unwrap().wait(crate::pace::deadline(30)) {
            Ended::Replied(line) => line,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_values_are_masked() {
        let masked = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            mask_values(&mut bytes, b"s/");
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(
            masked(r#"{"a":"b","s/k":"QUJD","s/l":"","c":"d"}"#),
            r#"{"a":"b","s/k":"****","s/l":"","c":"d"}"#
        );
        for (odd, expected) in [
            ("s/k", "***"),
            (r#"{"s/k" : "QUJD"}"#, "{\"**************"),
            (r#"{"s/k":"QUJD"#, "{\"**********"),
            ("", ""),
        ] {
            assert_eq!(masked(odd), expected);
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the stack of a thread")]
    fn unused_stack_is_given_back() {
        fn deep() -> usize {
            let left = std::hint::black_box([7_u8; 16 << 10]);
            left.as_ptr().addr()
        }
        let resident = |at: usize| {
            let (page, mut entry) = (rustix::param::page_size(), [0; 8]);
            let map = File::open("/proc/self/pagemap").unwrap();
            map.read_exact_at(&mut entry, (at / page * 8) as u64).unwrap();
            u64::from_ne_bytes(entry) >> 63 == 1
        };
        let seen = std::thread::spawn(move || {
            let left = deep();
            let before = resident(left);
            release_unused_stack();
            (before, resident(left))
        });
        assert_eq!(seen.join().unwrap(), (true, false));
    }

    #[test]
    fn no_core_is_left() {
        let limits = elsewhere(|| {
            refuse_dumps();
            let dumpable = rustix::process::dumpable_behavior().unwrap();
            let soft = rustix::process::getrlimit(Resource::Core).current;
            format!("{dumpable:?} {}\n", soft.is_some_and(|bytes| bytes <= 1))
        });
        assert_eq!(limits, "NotDumpable true\n");
    }

    #[test]
    fn an_argument_is_gone_for_everybody() {
        let shown = || std::fs::read("/proc/self/cmdline").unwrap();
        let name = std::env::args_os().next().unwrap();
        let there = elsewhere(move || {
            let mark = name.as_encoded_bytes().to_vec();
            let mut arguments = [OsString::from("kept"), name];
            forget_arguments(&mut arguments, &mark).unwrap();
            let (first, masked) = (shown()[0], holds(&shown(), &mark));
            format!("{arguments:?} {} {masked}\n", char::from(first))
        });
        assert_eq!(there, "[\"kept\", \"\"] * false\n");
        assert!(forget_arguments(&mut [OsString::from("kept")], b"secret").is_ok());
    }
}

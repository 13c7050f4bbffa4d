//! The proof that making a file system destroys nothing.
//!
//! There is no other proof than to see that every byte is zero: signatures can be unknown or
//! damaged, and the database that lives directly on a device has none. Whatever cannot be read
//! counts as not blank.

use crate::block::block_device::is_late;
use crate::block::block_status::Zeros;
use crate::block::signature::identify;
use crate::block::window::Window;
use crate::fs::bytes::{read_at, size_of};
use crate::proc::deadline::Deadline;
use anyhow::{Context, Result};
use flexvol_protocol::failure::{Code, Failure};
use rustix::fs::{Advice, FileType, SeekFrom, fadvise, fstat, fsync, seek};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

const CHUNK: usize = 1 << 20;
const BLOCK: usize = 4096;

/// `Ok` if and only if every byte of the window of `fd`, a regular file or a block device, is zero.
///
/// Fails with `Conflict` naming what is there: the signature, or else the offset of the first other
/// byte within the window; with `Timeout` if it takes longer than `deadline`; and with the cause if
/// something cannot be read. Holes of a file are skipped where the file system tells of them
/// (lseek(2), `SEEK_DATA`). Reads everything else at the speed of the storage: who calls this must
/// have checked the size against the deadline of kubelet.
pub fn prove_blank(fd: BorrowedFd<'_>, window: &Window, deadline: &Deadline) -> Result<()> {
    let total = size_of(fd).context("learn the size")?;
    let (start, size) = window.within(total)?;
    if let Some(found) = identify(fd, window)? {
        return Err(occupied(found.describe()).into());
    }
    prove_zero(fd, start..start + size, start, deadline)
}

/// Every byte of the range; offsets in messages are counted from `origin`.
fn prove_zero(
    fd: BorrowedFd<'_>,
    Range { start, end }: Range<u64>,
    origin: u64,
    deadline: &Deadline,
) -> Result<()> {
    let sparse = FileType::from_raw_mode(fstat(fd)?.st_mode) == FileType::RegularFile;
    let mut buffer = vec![0; CHUNK];
    let mut at = start;
    while at < end {
        deadline.check("proving that nothing is lost by a new file system")?;
        at = if sparse { next_data(fd, at, end)? } else { at };
        let length = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
        prove_chunk(fd, at, &mut buffer[..length], origin)?;
        at += length as u64;
    }
    Ok(())
}

/// Samples are of a larger device; of this one they are all of it.
pub const READ_WHOLE: u64 = 1 << 30;

/// Of a larger one these, where every file system, partition table and volume manager has
/// something; and as many places between as [`SAMPLES`] says.
const HEAD: u64 = 64 << 20;
const TAIL: u64 = 16 << 20;
const SAMPLES: u64 = 128;

/// So much is read between two looks at the clock: no more, or what is slow uses up the reserve.
const STRETCH: u64 = CHUNK as u64;

/// What a call keeps of its time for what comes after the proof, or a quarter of it if that is
/// less.
const RESERVE: Duration = Duration::from_secs(20);

/// How often it is noted how far a proof is.
const NOTED: Duration = Duration::from_secs(1);

/// How much of a device is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every byte from here on: those before were zero when an earlier call read them.
    From(u64),
    /// Of a device of more than 1 GiB the first 64 MiB, the last 16 MiB, and 1 MiB at each of 128
    /// places between. That is no proof.
    Samples,
}

/// Like [`prove_blank`] for a block device that may be too large to be read in a call's time: how
/// far the proof is gets noted, for the next call to go on from there, and it is unfinished
/// (`Timeout`) while there is still time to clean up.
///
/// Each call reads a mebibyte at least. What earlier calls have read is looked at again by samples
/// and by its signature, and so is what storage says to be `zeros`; else that is not read.
pub fn prove_device_blank(
    fd: BorrowedFd<'_>,
    scope: Scope,
    zeros: &Zeros,
    note: &dyn Fn(u64),
    deadline: &Deadline,
) -> Result<()> {
    let total = size_of(fd).context("learn the size")?;
    // Another node may have written since it was read into the cache.
    let _ = fadvise(fd, 0, None, Advice::DontNeed);
    if let Some(found) = identify(fd, &Window::default())? {
        return Err(occupied(found.describe()).into());
    }
    let Scope::From(from) = scope else {
        return looked_at(total).try_for_each(|range| prove_zero(fd, range, 0, deadline));
    };
    let from = from.min(total);
    let reserve = RESERVE.min(deadline.remaining() / 4);
    let (end, proven) = prove_on(fd, from..total, zeros, note, deadline, reserve);
    // Last, so that every call gets further, and they are fresh when the device is formatted.
    let trusted = from.max(zeros.end().min(total));
    let again = deadline.sooner(if proven.is_ok() { Duration::ZERO } else { reserve / 2 });
    let sampled = looked_at(total)
        .filter(|range| range.start < trusted)
        .map(|range| range.start..range.end.min(trusted))
        .try_for_each(|range| prove_zero(fd, range, 0, &again));
    note_unless_occupied(sampled.and(proven), end, total, note)
}

/// How far a proof is counts for the next call, unless there is something.
fn note_unless_occupied(proven: Result<()>, end: u64, total: u64, note: &dyn Fn(u64)) -> Result<()> {
    let late = match proven {
        Ok(()) => None,
        Err(error) if is_late(&error) => Some(unfinished(end, total)),
        Err(error) => return Err(error),
    };
    note(end);
    late.map_or(Ok(()), |failure| Err(failure.into()))
}

/// Reads on until the reserve is all that remains of the time, and says how far it came: a stretch
/// at least.
fn prove_on(
    fd: BorrowedFd<'_>,
    Range { start, end }: Range<u64>,
    zeros: &Zeros,
    note: &dyn Fn(u64),
    deadline: &Deadline,
    reserve: Duration,
) -> (u64, Result<()>) {
    let (mut at, mut noted) = (start, Instant::now());
    loop {
        let unknown = zeros.first_unknown(at..end);
        if unknown.is_empty() {
            return (end, Ok(()));
        }
        at = unknown.start;
        let next = unknown.end.min(at + STRETCH);
        if let Err(error) = prove_zero(fd, at..next, 0, deadline) {
            return (at, Err(error));
        }
        // No one reads it again, and the node has better use for its memory.
        let _ = fadvise(fd, at, NonZeroU64::new(next - at), Advice::DontNeed);
        at = next;
        if at < end && deadline.remaining() < reserve {
            return (at, Err(unfinished(at, end).into()));
        }
        if noted.elapsed() >= NOTED {
            note(at);
            noted = Instant::now();
        }
    }
}

fn unfinished(at: u64, end: u64) -> Failure {
    let mebibytes = |bytes: u64| bytes >> 20;
    let text = format!(
        "not yet proven to be blank: {} of {} MiB are zero: the next call goes on there, \
         wait for kubelet to try again, or let the admin set policy.allowSampling",
        mebibytes(at),
        mebibytes(end)
    );
    Failure::new(Code::Timeout, text)
}

/// The samples of a device.
fn looked_at(total: u64) -> impl Iterator<Item = Range<u64>> {
    let (head, tail) = if total <= READ_WHOLE { (total, 0) } else { (HEAD, TAIL) };
    let samples = if tail == 0 { 0 } else { SAMPLES };
    let stride = (total - head - tail) / SAMPLES;
    let between = (0..samples).map(move |sample| head + sample * stride).map(|at| at..at + CHUNK as u64);
    std::iter::once(0..head).chain(between).chain(std::iter::once(total - tail..total))
}

/// Writes to the device what the page cache has for it, and has it read from there again: what
/// could not be written stays in the cache and looks as if it had been, and the error, which
/// fsync(2) tells once, may be another process's.
pub fn settle(device: BorrowedFd<'_>) -> Result<()> {
    fsync(device).context("write to the device what is meant for it")?;
    fadvise(device, 0, None, Advice::DontNeed).context("forget what was read of the device")
}

/// A digest of all that is not zero in the samples of a device, and of where it is: as long as that
/// is the same, nothing has mounted or formatted the device elsewhere. A device of up to 1 GiB has
/// no one written to.
pub fn digest_of_device(fd: BorrowedFd<'_>, deadline: &Deadline) -> Result<[u8; 32]> {
    let total = size_of(fd).context("learn the size")?;
    let (mut digest, mut buffer) = (Sha256::new(), vec![0; CHUNK]);
    digest.update(total.to_le_bytes());
    for at in looked_at(total).flat_map(|range| range.step_by(CHUNK)) {
        deadline.check("looking at what a device holds")?;
        let filled = read_at(fd, at, &mut buffer).with_context(|| format!("read at offset {at}"))?;
        for (index, block) in buffer[..filled].chunks(BLOCK).enumerate() {
            if first_other(block).is_some() {
                digest.update((at + (index * BLOCK) as u64).to_le_bytes());
                digest.update(block);
            }
        }
    }
    Ok(digest.finalize().into())
}

fn prove_chunk(fd: BorrowedFd<'_>, at: u64, chunk: &mut [u8], start: u64) -> Result<()> {
    let context = || format!("read at offset {}", at - start);
    let filled = read_at(fd, at, chunk).with_context(context)?;
    if filled < chunk.len() {
        return Err(Failure::new(Code::Conflict, "it became shorter while it was looked at").into());
    }
    match first_other(chunk) {
        None => Ok(()),
        Some(index) => Err(occupied(&format!("data at offset {}", at - start + index as u64)).into()),
    }
}

/// Where the next data may be, `end` if there is none; `at` itself where that is unknown.
fn next_data(fd: BorrowedFd<'_>, at: u64, end: u64) -> Result<u64> {
    match seek(fd, SeekFrom::Data(at)) {
        Ok(data) => Ok(data.clamp(at, end)),
        Err(Errno::NXIO) => Ok(end),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(at),
        Err(errno) => Err(errno).with_context(|| format!("look for data from offset {at} on")),
    }
}

/// In blocks: or-ing a whole block is several times faster than asking byte by byte.
fn first_other(chunk: &[u8]) -> Option<usize> {
    let other = |block: &[u8]| block.iter().fold(0, |all, byte| all | byte) != 0;
    let block = chunk.chunks(BLOCK).position(other)? * BLOCK;
    chunk[block..].iter().position(|byte| *byte != 0).map(|index| block + index)
}

fn occupied(what: &str) -> Failure {
    let fix = "nothing is formatted over it, wipe it if it is not needed (wipefs -a, blkdiscard -z)";
    Failure::new(Code::Conflict, format!("holds {what}: {fix}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::loop_device::LoopDevice;
    use crate::errno::to_failure;
    use crate::proc::namespace;
    use crate::wording::wording;
    use std::cell::Cell;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    const MEBIBYTE: u64 = 1 << 20;

    fn sparse(size: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        file
    }

    fn prove(file: &File, offset: u64, size: Option<u64>) -> Result<(), Failure> {
        let deadline = Deadline::after(Duration::from_mins(1));
        prove_blank(file.as_fd(), &Window { offset, size }, &deadline).map_err(to_failure)
    }

    #[test]
    fn zeros_are_blank_however_they_are_stored() {
        let file = sparse(8 * MEBIBYTE + 3);
        assert_eq!(prove(&file, 0, None), Ok(()));
        file.write_all_at(&vec![0; 3 << 20], 1000).unwrap();
        assert_eq!(prove(&file, 0, None), Ok(()));
    }

    #[test]
    fn a_terabyte_of_hole_takes_no_time() {
        // Read, it would take longer than the deadline.
        assert_eq!(prove(&sparse(1 << 40), 0, None), Ok(()));
    }

    #[test]
    fn one_byte_anywhere_is_found() {
        for at in [0, 1, 4095, 4096, MEBIBYTE - 1, MEBIBYTE, 5 * MEBIBYTE + 77, 8 * MEBIBYTE + 2] {
            let file = sparse(8 * MEBIBYTE + 3);
            file.write_all_at(&[1], at).unwrap();
            let failure = prove(&file, 0, None).unwrap_err();
            assert_eq!(failure.code(), Code::Conflict);
            assert!(failure.message().starts_with(&format!("holds data at offset {at}: ")), "{failure}");
        }
    }

    #[test]
    fn only_the_window_counts() {
        let file = sparse(4 * MEBIBYTE);
        file.write_all_at(&[1], MEBIBYTE - 1).unwrap();
        file.write_all_at(&[1], 3 * MEBIBYTE).unwrap();
        assert_eq!(prove(&file, MEBIBYTE, Some(2 * MEBIBYTE)), Ok(()));
        assert!(prove(&file, MEBIBYTE, Some(2 * MEBIBYTE + 1)).is_err());
        assert!(prove(&file, MEBIBYTE - 1, Some(2 * MEBIBYTE)).is_err());
        assert_eq!(prove(&file, 5 * MEBIBYTE, None).unwrap_err().code(), Code::BadOptions);
    }

    #[test]
    fn names_what_it_knows() {
        let file = sparse(MEBIBYTE);
        file.write_all_at(b"XFSB", 0).unwrap();
        assert!(
            prove(&file, 0, None)
                .unwrap_err()
                .message()
                .starts_with(&["holds ", wording("xfs-held"), ": "].concat())
        );
    }

    #[test]
    fn not_proven_in_time_is_not_blank() {
        let file = sparse(MEBIBYTE);
        let deadline = Deadline::after(Duration::ZERO);
        let error = prove_blank(file.as_fd(), &Window::default(), &deadline).unwrap_err();
        assert_eq!(to_failure(error).code(), Code::Timeout);
    }

    #[test]
    fn devices_are_read_to_the_end() {
        let file = sparse(4 * MEBIBYTE);
        let whole = Window::default();
        let device = match LoopDevice::attach(file.as_fd(), Path::new("/blank"), &whole, false, false) {
            Ok(device) => device,
            Err(error) => return println!("SKIP blank devices: {error:#}"),
        };
        let deadline = Deadline::after(Duration::from_mins(1));
        assert!(prove_blank(device.fd(), &whole, &deadline).is_ok());
        rustix::io::pwrite(device.fd(), &[7], 4 * MEBIBYTE - 1).unwrap();
        let error = prove_blank(device.fd(), &whole, &deadline).unwrap_err();
        assert!(error.to_string().starts_with("holds data at offset 4194303: "), "{error:#}");
    }

    fn prove_device(file: &File, scope: Scope, allowed: Duration) -> (Result<(), Failure>, Option<u64>) {
        let noted = Cell::new(None);
        let deadline = Deadline::after(allowed);
        let proven =
            prove_device_blank(file.as_fd(), scope, &Zeros::default(), &|at| noted.set(Some(at)), &deadline);
        (proven.map_err(to_failure), noted.get())
    }

    const LARGE: u64 = 40 << 30;

    #[test]
    fn of_large_devices_every_byte_is_read() {
        let minute = Duration::from_mins(1);
        assert_eq!(prove_device(&sparse(LARGE), Scope::From(0), minute), (Ok(()), Some(LARGE)));
        let stride = (LARGE - HEAD - TAIL) / SAMPLES;
        for at in [0, HEAD - 1, HEAD, 66 * MEBIBYTE, HEAD + stride - 1, HEAD + 127 * stride, LARGE - 1] {
            let file = sparse(LARGE);
            file.write_all_at(&[1], at).unwrap();
            let message = prove_device(&file, Scope::From(0), minute).0.unwrap_err().message();
            assert!(message.starts_with(&format!("holds data at offset {at}: ")), "{message}");
        }
    }

    #[test]
    fn what_storage_says_to_be_zero_is_only_sampled() {
        let deadline = Deadline::after(Duration::from_mins(1));
        let is_blank = |at: u64, zeros: &[(u64, u64)]| {
            let (file, mut known) = (sparse(LARGE), Zeros::default());
            file.write_all_at(&[1], at).unwrap();
            assert!(zeros.iter().all(|(start, end)| known.add(*start..*end)));
            prove_device_blank(file.as_fd(), Scope::From(0), &known, &|_| (), &deadline).is_ok()
        };
        let (at, end) = (20 << 30, [(20 << 30, LARGE)]);
        assert!(is_blank(at, &end));
        assert!(!is_blank(at - 1, &end), "before it");
        assert!(!is_blank(LARGE - 1, &end), "in a sample");
        assert!(is_blank(at, &[(0, at - 1), (at, at + 1), (at + 2, LARGE)]));
        assert!(!is_blank(at + 1, &[(0, at - 1), (at, at + 1), (at + 2, LARGE)]), "between");
    }

    #[test]
    fn what_earlier_calls_have_read_is_only_sampled() {
        let minute = Duration::from_mins(1);
        let stride = (LARGE - HEAD - TAIL) / SAMPLES;
        for (at, found) in [(0, true), (HEAD, true), (HEAD + CHUNK as u64, false), (HEAD + 3 * stride, true)]
        {
            let file = sparse(LARGE);
            file.write_all_at(&[1], at).unwrap();
            let (proven, noted) = prove_device(&file, Scope::From(20 << 30), minute);
            assert_eq!((proven.is_err(), noted != Some(LARGE)), (found, found), "{at}");
        }
        // A signature counts wherever an earlier call was.
        let file = sparse(LARGE);
        file.write_all_at(b"XFSB", 0).unwrap();
        assert!(prove_device(&file, Scope::From(LARGE), minute).0.is_err());
    }

    #[test]
    fn a_proof_that_ends_early_says_how_far_it_is() {
        let file = sparse(LARGE);
        // Blocks that are there have to be read.
        for at in (0..64).map(|index| index * 16 * MEBIBYTE) {
            file.write_all_at(&[0; 4096], at).unwrap();
        }
        let (mut from, mut calls) = (0, 0);
        // Each has more time than the one before: on any machine the first end early, and a later
        // one does not.
        let mut allowed = Duration::from_millis(1);
        loop {
            match prove_device(&file, Scope::From(from), allowed) {
                (Ok(()), noted) => break assert_eq!(noted, Some(LARGE)),
                (Err(failure), noted) => {
                    assert_eq!(failure.code(), Code::Timeout, "{failure}");
                    // One whose time is over before it reads gets no further, and none goes back.
                    assert!(noted.is_none_or(|at| at >= from), "{noted:?} after {from}");
                    if noted.is_some() {
                        assert!(failure.message().contains("MiB are zero"), "{failure}");
                    }
                    from = noted.unwrap_or(from);
                }
            }
            (allowed, calls) = (allowed + allowed / 8, calls + 1);
        }
        assert!(calls > 1, "one call was enough");
    }

    #[test]
    fn samples_are_of_every_part() {
        let blank = |file: &File| {
            prove_device(file, Scope::Samples, Duration::from_mins(1)).0.map_err(|failure| failure.message())
        };
        assert_eq!(blank(&sparse(LARGE)), Ok(()));
        let stride = (LARGE - HEAD - TAIL) / SAMPLES;
        for at in [0, HEAD - 1, HEAD + stride, HEAD + 127 * stride + MEBIBYTE - 1, LARGE - TAIL, LARGE - 1] {
            let file = sparse(LARGE);
            file.write_all_at(&[1], at).unwrap();
            assert!(blank(&file).unwrap_err().starts_with(&format!("holds data at offset {at}: ")), "{at}");
        }
        let small = sparse(MEBIBYTE);
        small.write_all_at(&[1], MEBIBYTE / 2).unwrap();
        assert!(blank(&small).is_err());
    }

    #[test]
    fn what_cannot_be_read_is_not_blank() {
        let directory = File::open("/").unwrap();
        assert!(prove(&directory, 0, None).is_err());
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(MEBIBYTE).unwrap();
        let writer = File::options().write(true).open(file.path()).unwrap();
        assert!(prove(&writer, 0, None).is_err());
    }

    /// A device whose writes fail after a while: its file's file system is full.
    #[test]
    fn what_never_reached_a_device_is_not_on_it() {
        let full = || -> Result<()> {
            namespace::enter()?;
            namespace::cover("small", Path::new("/mnt"), Some(MEBIBYTE))?;
            let file = File::options().read(true).write(true).create_new(true).open("/mnt/file")?;
            file.set_len(4 * MEBIBYTE)?;
            let device =
                LoopDevice::attach(file.as_fd(), Path::new("/mnt/file"), &Window::default(), false, false)?;
            let mkfs = File::options().write(true).open(device.path())?;
            mkfs.write_all_at(&vec![1; 3 << 20], 0)?;
            assert!(mkfs.sync_all().is_err(), "everything fits");
            let at_the_end = |opened: &File| -> Result<u8> {
                let mut byte = [0];
                opened.read_exact_at(&mut byte, (3 << 20) - 1)?;
                Ok(byte[0])
            };
            // The error was told; whoever looks now finds in the cache what is nowhere else.
            let later = File::open(device.path())?;
            assert_eq!(at_the_end(&later)?, 1);
            settle(later.as_fd())?;
            assert_eq!(at_the_end(&later)?, 0);
            Ok(())
        };
        match full().map_err(to_failure) {
            Err(denied) if denied.code() == Code::Denied => println!("SKIP devices that fail: {denied}"),
            done => done.unwrap(),
        }
    }
}

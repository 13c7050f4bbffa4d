//! Proof that a new file system destroys no data.
//!
//! The only proof is that every byte is zero: signatures can be unknown or damaged, and a database
//! directly on a device has no signature. A part that cannot be read counts as not blank.

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
/// Fails with `Conflict` and names the data: the signature, or else the offset of the first other
/// byte within the window. Fails with `Timeout` after `deadline`, and with the cause if a part
/// cannot be read. Skips holes of a file if the file system reports them (lseek(2), `SEEK_DATA`).
/// Reads the rest at the speed of the storage: the caller must have compared the size with
/// kubelet's deadline.
pub fn prove_blank(fd: BorrowedFd<'_>, window: &Window, deadline: &Deadline) -> Result<()> {
    let total = size_of(fd).context("learn the size")?;
    let (start, size) = window.within(total)?;
    if let Some(found) = identify(fd, window)? {
        return Err(occupied(found.describe()).into());
    }
    prove_zero(fd, start..start + size, start, deadline)
}

/// Checks every byte of the range. Offsets in messages are counted from `origin`.
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

/// Size up to which the samples are the whole device, in bytes.
pub const READ_WHOLE: u64 = 1 << 30;

/// Samples of a larger device: its head and tail, where every file system, partition table and
/// volume manager has data, and as many places between as [`SAMPLES`] says.
const HEAD: u64 = 64 << 20;
const TAIL: u64 = 16 << 20;
const SAMPLES: u64 = 128;

/// Bytes to read between two checks of the clock: with more, slow storage would use up the reserve.
const STRETCH: u64 = CHUNK as u64;

/// Part of a call's time for the work after the proof; a quarter of the time if that is less.
const RESERVE: Duration = Duration::from_secs(20);

/// Interval for noting the progress of a proof.
const NOTED: Duration = Duration::from_secs(1);

/// Part of a device to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every byte from here on: an earlier call read the bytes before as zero.
    From(u64),
    /// For a device of more than 1 GiB: the first 64 MiB, the last 16 MiB, and 1 MiB at each of 128
    /// places between. This is not a proof.
    Samples,
}

/// Does the same as [`prove_blank`] for a block device that may be too large for the time of one
/// call. It notes its progress, so that the next call continues there. It ends unfinished
/// (`Timeout`) while there is still time to clean up.
///
/// Each call reads at least one mebibyte. Parts that earlier calls have read, and parts that the
/// storage reports as `zeros`, are checked only by samples and by the signature.
pub fn prove_device_blank(
    fd: BorrowedFd<'_>,
    scope: Scope,
    zeros: &Zeros,
    note: &dyn Fn(u64),
    deadline: &Deadline,
) -> Result<()> {
    let total = size_of(fd).context("learn the size")?;
    // Another node may have written since the cache was filled.
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
    // Samples come last: every call makes progress, and they are recent at the formatting.
    let trusted = from.max(zeros.end().min(total));
    let again = deadline.sooner(if proven.is_ok() { Duration::ZERO } else { reserve / 2 });
    let sampled = looked_at(total)
        .filter(|range| range.start < trusted)
        .map(|range| range.start..range.end.min(trusted))
        .try_for_each(|range| prove_zero(fd, range, 0, &again));
    note_unless_occupied(sampled.and(proven), end, total, note)
}

/// Notes the progress of a proof for the next call, unless data was found.
fn note_unless_occupied(proven: Result<()>, end: u64, total: u64, note: &dyn Fn(u64)) -> Result<()> {
    let late = match proven {
        Ok(()) => None,
        Err(error) if is_late(&error) => Some(unfinished(end, total)),
        Err(error) => return Err(error),
    };
    note(end);
    late.map_or(Ok(()), |failure| Err(failure.into()))
}

/// Reads until only the reserve remains of the time, but at least one stretch.
/// Returns the position that it has reached.
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
        // This data is not read again, and the node has better use for its memory.
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

/// Returns the samples of a device.
fn looked_at(total: u64) -> impl Iterator<Item = Range<u64>> {
    let (head, tail) = if total <= READ_WHOLE { (total, 0) } else { (HEAD, TAIL) };
    let samples = if tail == 0 { 0 } else { SAMPLES };
    let stride = (total - head - tail) / SAMPLES;
    let between = (0..samples).map(move |sample| head + sample * stride).map(|at| at..at + CHUNK as u64);
    std::iter::once(0..head).chain(between).chain(std::iter::once(total - tail..total))
}

/// Writes the page cache of the device to it, and drops the cache, so that the device is read
/// again. Data that could not be written stays in the cache and looks as if it were written, and
/// the error, which fsync(2) reports once, may have gone to another process.
pub fn settle(device: BorrowedFd<'_>) -> Result<()> {
    fsync(device).context("write to the device what is meant for it")?;
    fadvise(device, 0, None, Advice::DontNeed).context("forget what was read of the device")
}

/// Returns a digest of all data in the samples of a device that is not zero, and of its position.
/// As long as it is the same, no other node has mounted or formatted the device. For a device of up
/// to 1 GiB, it proves that no data was written at all.
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

/// Returns the next offset that may have data, `end` without any; `at` itself if this is unknown.
fn next_data(fd: BorrowedFd<'_>, at: u64, end: u64) -> Result<u64> {
    match seek(fd, SeekFrom::Data(at)) {
        Ok(data) => Ok(data.clamp(at, end)),
        Err(Errno::NXIO) => Ok(end),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(at),
        Err(errno) => Err(errno).with_context(|| format!("look for data from offset {at} on")),
    }
}

/// Searches in blocks: or-ing a whole block is several times faster than checking byte by byte.
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
        // Reading it would take longer than the deadline.
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
        // A signature counts, however far an earlier call has come.
        let file = sparse(LARGE);
        file.write_all_at(b"XFSB", 0).unwrap();
        assert!(prove_device(&file, Scope::From(LARGE), minute).0.is_err());
    }

    #[test]
    fn a_proof_that_ends_early_says_how_far_it_is() {
        let file = sparse(LARGE);
        // Allocated blocks have to be read.
        for at in (0..64).map(|index| index * 16 * MEBIBYTE) {
            file.write_all_at(&[0; 4096], at).unwrap();
        }
        let (mut from, mut calls) = (0, 0);
        // Each call has more time than the one before: on any machine, the first ones end early and
        // a later one does not.
        let mut allowed = Duration::from_millis(1);
        loop {
            match prove_device(&file, Scope::From(from), allowed) {
                (Ok(()), noted) => break assert_eq!(noted, Some(LARGE)),
                (Err(failure), noted) => {
                    assert_eq!(failure.code(), Code::Timeout, "{failure}");
                    // A call without time to read makes no progress, but none goes back.
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

    /// The writes of this device fail after a while: the file system of its file is full.
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
            // The error was reported; a later reader finds data in the cache that is nowhere else.
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

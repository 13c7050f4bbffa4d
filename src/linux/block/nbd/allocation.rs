//! Block status of an export, from its server: the context `base:allocation` of NBD's protocol
//! document.
//!
//! A separate connection asks, because the kernel's cannot, and ends after the last answer.

use super::{ACK, Talk, answer, ask, begin_options, go, take};
use crate::block::block_status::Zeros;
use crate::proc::deadline::Deadline;
use anyhow::{Result, ensure};
use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;

/// Options: replies in pieces, and contexts to ask about.
const STRUCTURED_REPLY: u32 = 8;
const SET_META_CONTEXT: u32 = 10;

/// Answer to that option: a context and its number.
const META_CONTEXT: u32 = 4;

const CONTEXT: &str = "base:allocation";

/// Magic numbers of a request, and of a reply in pieces.
const REQUEST: u32 = 0x2560_9513;
const PIECE: u32 = 0x668e_33ef;

/// Commands.
const DISCONNECT: u16 = 2;
const BLOCK_STATUS: u16 = 7;

/// Kind of a piece about blocks, and flag of the last piece.
const OF_BLOCKS: u16 = 5;
const LAST: u16 = 1;

/// Flag of blocks that read as zero.
const ZERO: u32 = 2;

/// Size of the range in one request, in bytes: a multiple of every block size.
const STEP: u64 = 1 << 30;

/// Limit for a piece, in bytes.
const LONGEST: u32 = 2 << 20;

/// Returns the ranges of the export that read as zero, as far as its server knows and time allows.
/// An older server knows none.
#[must_use]
pub fn zeros(socket: OwnedFd, name: &str, deadline: &Deadline) -> Zeros {
    let mut zeros = Zeros::default();
    // Answers before an error count.
    let _ = ask_all(&mut Talk { socket: socket.into(), deadline }, name, &mut zeros);
    zeros
}

fn ask_all(talk: &mut (impl Read + Write), name: &str, zeros: &mut Zeros) -> Result<()> {
    begin_options(talk)?;
    ask(talk, STRUCTURED_REPLY, &[])?;
    ensure!(answer(talk, STRUCTURED_REPLY)?.0 == ACK, "no replies in pieces");
    let context = negotiate(talk, name)?;
    let Some(export) = go(talk, name)? else { return Ok(()) };
    let mut at = 0;
    while at < export.size {
        let wanted = at..export.size.min(at + STEP);
        at = ask_one(talk, context, wanted, zeros)?;
    }
    let asked_all = request(DISCONNECT, 0..0)?;
    Ok(talk.write_all(&asked_all)?)
}

/// Returns the number of the context for this connection.
fn negotiate(talk: &mut (impl Read + Write), name: &str) -> Result<u32> {
    let length = |text: &str| u32::try_from(text.len()).map(u32::to_be_bytes);
    let one = 1_u32.to_be_bytes();
    let wish = [&length(name)?, name.as_bytes(), &one, &length(CONTEXT)?, CONTEXT.as_bytes()].concat();
    ask(talk, SET_META_CONTEXT, &wish)?;
    let mut context = None;
    loop {
        match answer(talk, SET_META_CONTEXT)? {
            (META_CONTEXT, data) => {
                let (number, named) = data.split_first_chunk().unwrap_or((&[0; 4], &[]));
                ensure!(named == CONTEXT.as_bytes(), "a context that nobody asked for");
                context = Some(u32::from_be_bytes(*number));
            }
            (ACK, _) => return context.ok_or_else(|| anyhow::anyhow!("no such context")),
            (kind, _) => anyhow::bail!("no contexts: {kind:#x}"),
        }
    }
}

fn request(command: u16, Range { start, end }: Range<u64>) -> Result<Vec<u8>> {
    let length = u32::try_from(end - start)?;
    let begin = [&REQUEST.to_be_bytes()[..], &[0, 0], &command.to_be_bytes()].concat();
    // The cookie is the beginning of the range.
    Ok([&begin[..], &start.to_be_bytes(), &start.to_be_bytes(), &length.to_be_bytes()].concat())
}

/// Asks once. Returns the position that the server has reached: it may describe only a part.
fn ask_one(
    talk: &mut (impl Read + Write),
    context: u32,
    wanted: Range<u64>,
    zeros: &mut Zeros,
) -> Result<u64> {
    talk.write_all(&request(BLOCK_STATUS, wanted.clone())?)?;
    let mut at = wanted.start;
    loop {
        let magic = u32::from_be_bytes(take(talk)?);
        let (flags, kind) = (u16::from_be_bytes(take(talk)?), u16::from_be_bytes(take(talk)?));
        let (cookie, length) = (u64::from_be_bytes(take(talk)?), u32::from_be_bytes(take(talk)?));
        let is_its = magic == PIECE && cookie == wanted.start && length <= LONGEST;
        ensure!(is_its, "the server does not keep to the protocol");
        let mut said = vec![0; length as usize];
        talk.read_exact(&mut said)?;
        if kind == OF_BLOCKS {
            at = learn(&said, context, at..wanted.end, zeros)?;
        }
        if flags & LAST != 0 {
            ensure!(at > wanted.start, "nothing is said of the blocks");
            return Ok(at);
        }
    }
}

/// Reads a piece: the context's number, then length and state of one extent after the other.
/// The last extent may be longer than the request.
fn learn(said: &[u8], context: u32, Range { start, end }: Range<u64>, zeros: &mut Zeros) -> Result<u64> {
    let (words, _) = said.as_chunks::<4>();
    let mut words = words.iter().map(|word| u32::from_be_bytes(*word));
    ensure!(words.next() == Some(context), "blocks of another context");
    let mut at = start;
    while let (Some(length), Some(state)) = (words.next(), words.next()) {
        let next = end.min(at + u64::from(length));
        if state & ZERO != 0 {
            ensure!(zeros.add(at..next), "more pieces than are worth keeping");
        }
        at = next;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::super::{GREETING, REPLY, UNSUPPORTED, by_socket};
    use super::*;
    use std::fs::File;
    use std::io::Cursor;
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    /// Server that sends this, whatever it receives.
    struct Script(Cursor<Vec<u8>>);

    impl Read for Script {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn option(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
        let length = u32::try_from(data.len()).unwrap();
        [&REPLY.to_be_bytes()[..], &option.to_be_bytes(), &kind.to_be_bytes(), &length.to_be_bytes(), data]
            .concat()
    }

    fn piece(flags: u16, kind: u16, cookie: u64, words: &[u32]) -> Vec<u8> {
        let said: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let length = u32::try_from(said.len()).unwrap();
        let head =
            [&PIECE.to_be_bytes()[..], &flags.to_be_bytes(), &kind.to_be_bytes(), &cookie.to_be_bytes()];
        [&head.concat()[..], &length.to_be_bytes(), &said].concat()
    }

    fn hears(pieces: &[Vec<u8>]) -> (Zeros, bool) {
        let context = [&7_u32.to_be_bytes()[..], CONTEXT.as_bytes()].concat();
        let export = [&[0, 0][..], &(STEP + 4096).to_be_bytes(), &[0, 5]].concat();
        let begin = [
            [&GREETING[..], &[0, 3]].concat(),
            option(STRUCTURED_REPLY, ACK, &[]),
            option(SET_META_CONTEXT, META_CONTEXT, &context),
            option(SET_META_CONTEXT, ACK, &[]),
            option(super::super::GO, super::super::INFO, &export),
            option(super::super::GO, ACK, &[]),
        ];
        let mut zeros = Zeros::default();
        let all = begin.concat().into_iter().chain(pieces.concat()).collect();
        let asked = ask_all(&mut Script(Cursor::new(all)), "web", &mut zeros);
        (zeros, asked.is_ok())
    }

    const GIBIBYTE: u32 = 1 << 30;

    #[test]
    fn extents_add_up() {
        let (half, rest) = (GIBIBYTE / 2, u64::from(GIBIBYTE) / 2);
        let (zeros, all) = hears(&[
            piece(LAST, OF_BLOCKS, 0, &[7, half, 3]),
            piece(0, OF_BLOCKS, rest, &[7, 4096, 0]),
            piece(LAST, 0, rest, &[]),
            // The extent is longer than the request.
            piece(LAST, OF_BLOCKS, rest + 4096, &[7, GIBIBYTE, 2]),
        ]);
        assert!(all, "{zeros:?}");
        assert_eq!(zeros.first_unknown(0..STEP + 4096), rest..rest + 4096);
        assert_eq!((zeros.end(), hears(&[]).0), (STEP + 4096, Zeros::default()));
    }

    #[test]
    fn what_is_not_said_is_not_zero() {
        for wrong in [
            piece(LAST, OF_BLOCKS, 0, &[8, GIBIBYTE, 3]),
            piece(LAST, OF_BLOCKS, 1, &[7, GIBIBYTE, 3]),
            piece(LAST, OF_BLOCKS, 0, &[7]),
            piece(LAST, OF_BLOCKS, 0, &[7, 0, 3]),
            piece(LAST, 0x8001, 0, &[22]),
            piece(LAST, OF_BLOCKS, 0, &[7, GIBIBYTE, 3])[..30].to_vec(),
        ] {
            assert_eq!(hears(std::slice::from_ref(&wrong)), (Zeros::default(), false), "{wrong:?}");
        }
        // A hole that is not marked as zero.
        assert_eq!(hears(&[piece(LAST, OF_BLOCKS, 0, &[7, GIBIBYTE, 1])]).0, Zeros::default());
        let old = [[&GREETING[..], &[0, 3]].concat(), option(STRUCTURED_REPLY, UNSUPPORTED, &[])].concat();
        assert!(ask_all(&mut Script(Cursor::new(old)), "web", &mut Zeros::default()).is_err());
    }

    #[test]
    fn a_server_knows_where_an_image_has_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (image, socket) = (directory.path().join("image"), directory.path().join("socket"));
        let file = File::create_new(&image).unwrap();
        file.set_len(1 << 40).unwrap();
        file.write_all_at(&[1; 4096], 5 << 30).unwrap();
        // The server ends with its first client.
        #[expect(clippy::disallowed_methods, reason = "the server of a test")]
        let started = Command::new("qemu-nbd")
            .args(["--format=raw", "--read-only", "--export-name=web"])
            .args([Path::new("--socket"), &socket, &image])
            .stdin(Stdio::null())
            .spawn();
        let Ok(mut server) = started else { return println!("SKIP block status: there is no qemu-nbd") };
        while !socket.exists() {
            assert!(server.try_wait().unwrap().is_none(), "qemu-nbd has ended");
            std::thread::sleep(Duration::from_millis(10));
        }
        let found = zeros(by_socket(&socket).unwrap(), "web", &Deadline::after(Duration::from_mins(1)));
        server.wait().unwrap();
        let data = found.first_unknown(0..1 << 40);
        assert!(data.contains(&(5 << 30)) && data.end - data.start <= 1 << 20, "{found:?}");
        assert!(found.first_unknown(data.end..1 << 40).is_empty(), "{found:?}");
    }
}

//! Partitions of a disk image: beginning and end of number N.
//!
//! The kernel could tell (`LO_FLAGS_PARTSCAN`), but then device nodes of all partitions come and go
//! with udev, and a device with partitions in use does not clear itself. So the tables are read
//! here: the MBR with its chain of extended boot records, and the GPT (UEFI specification, 5.3).
//! Images come from tenants, so all data in them is checked before use: sums cannot overflow, loops
//! end, tables are bounded, partitions lie in the image.

use crate::block::window::{SECTOR, Window};
use crate::fs::bytes;
use anyhow::{Context, Result};
use flexvol_protocol::failure::{Code, Failure};
use std::io;
use std::os::fd::BorrowedFd;

/// Number of the first logical partition, as the kernel counts.
const FIRST_LOGICAL: u32 = 5;

/// Limit for logical partitions: more are a loop. The kernel stops at 256 partitions altogether.
const MOST_LOGICAL: u32 = 128;

/// Limit for a GPT that is read, in bytes. The usual one has 128 entries of 128 bytes: 16 KiB.
const LARGEST_TABLE: u64 = 1 << 20;

/// A partition that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Number as in `/dev/sda3`.
    pub number: u32,
    /// Position in the image.
    pub window: Window,
}

/// Returns the window of partition `number`, counted from 1, of an image file or a whole disk.
///
/// Fails with `NotFound` and the existing numbers. Fails with `BadOptions` if there is no table, it
/// is damaged, or the partition reaches past the end of the image.
pub fn partition_window(image: BorrowedFd<'_>, number: u32) -> Result<Window> {
    let size = bytes::size_of(image).context("learn the size of the image")?;
    let partitions = partitions_in(size, |at, buffer| bytes::read_at(image, at, buffer))?;
    Ok(select(&partitions, number, size)?)
}

/// Reports whether the table has another partition over the same bytes.
/// This matters only for formatting: disks that boot from a CD are made like this on purpose.
pub fn overlaps_another(image: BorrowedFd<'_>, number: u32) -> Result<bool> {
    let size = bytes::size_of(image).context("learn the size of the image")?;
    let partitions = partitions_in(size, |at, buffer| bytes::read_at(image, at, buffer))?;
    let own = select(&partitions, number, size)?;
    let overlaps = |other: &Partition| {
        let end = |window: Window| window.offset.saturating_add(window.size.unwrap_or(u64::MAX));
        other.number != number && other.window.offset < end(own) && own.offset < end(other.window)
    };
    Ok(partitions.iter().any(overlaps))
}

/// Returns all partitions of an image of `size` bytes (the pure core).
/// `read_at` fills the buffer from an offset on and returns the number of bytes, less only at the
/// end. Windows may reach past the end: only the requested one must not.
pub fn partitions_in(
    size: u64,
    read_at: impl FnMut(u64, &mut [u8]) -> io::Result<usize>,
) -> Result<Vec<Partition>> {
    let mut image = Image { size, read_at };
    let record = image.record(0)?.ok_or_else(|| Failure::options("the image has no partition table"))?;
    if record.iter().all(|entry| entry.kind != PROTECTIVE) {
        return image.mbr(&record);
    }
    for sector in [SECTOR, 4096] {
        let header = image.bytes(sector, 92)?;
        if header.starts_with(b"EFI PART") {
            return image.gpt(sector, &header);
        }
    }
    Err(damaged("there is no header in sector 1"))
}

fn select(partitions: &[Partition], number: u32, size: u64) -> Result<Window, Failure> {
    let Some(found) = partitions.iter().find(|partition| partition.number == number) else {
        let numbers: Vec<_> = partitions.iter().map(|partition| partition.number.to_string()).collect();
        let there = if numbers.is_empty() { "none".to_owned() } else { numbers.join(", ") };
        return Err(Failure::new(
            Code::NotFound,
            format!("no partition {number} in the image: there is {there}"),
        ));
    };
    found.window.within(size).map_err(|_| {
        let text = format!("partition {number} reaches past the end of the image: is the image complete");
        Failure::options(text)
    })?;
    Ok(found.window)
}

/// Type of the only entry in the MBR of a disk with GPT.
const PROTECTIVE: u8 = 0xee;

/// Types of an entry that leads to further records.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];

/// One of the four entries of a boot record, in sectors.
#[derive(Clone, Copy)]
struct Entry {
    kind: u8,
    start: u32,
    count: u32,
}

impl Entry {
    fn parse(bytes: &[u8]) -> Self {
        Self { kind: bytes[4], start: u32_at(bytes, 8), count: u32_at(bytes, 12) }
    }

    fn is_extended(self) -> bool {
        EXTENDED.contains(&self.kind) && self.count > 0
    }

    fn is_used(self) -> bool {
        self.kind != 0 && self.count > 0 && !self.is_extended()
    }

    /// Returns the partition, `base` sectors further. 2^33 sectors in bytes do not overflow.
    fn partition(self, number: u32, base: u64) -> Partition {
        let (offset, size) = ((base + u64::from(self.start)) * SECTOR, u64::from(self.count) * SECTOR);
        Partition { number, window: Window { offset, size: Some(size) } }
    }
}

struct Image<R> {
    size: u64,
    read_at: R,
}

impl<R: FnMut(u64, &mut [u8]) -> io::Result<usize>> Image<R> {
    fn mbr(&mut self, record: &[Entry; 4]) -> Result<Vec<Partition>> {
        let mut partitions: Vec<_> = (1..)
            .zip(record)
            .filter(|(_, entry)| entry.is_used())
            .map(|(number, entry)| entry.partition(number, 0))
            .collect();
        if let Some(extended) = record.iter().find(|entry| entry.is_extended()) {
            self.logical(u64::from(extended.start), &mut partitions)?;
        }
        Ok(partitions)
    }

    /// Follows the chain. The first used entry of a record is relative to the record itself, the
    /// link to the next record is relative to the beginning of the extended partition.
    fn logical(&mut self, base: u64, partitions: &mut Vec<Partition>) -> Result<()> {
        let (mut at, mut number) = (base, FIRST_LOGICAL);
        for _ in 0..MOST_LOGICAL {
            let Some(record) = self.record(at)? else { return Ok(()) };
            for entry in record.iter().filter(|entry| entry.is_used()) {
                partitions.push(entry.partition(number, at));
                number += 1;
            }
            match record.iter().find(|entry| entry.is_extended()) {
                Some(next) => at = base + u64::from(next.start),
                None => return Ok(()),
            }
        }
        Err(Failure::options("the image's chain of logical partitions does not end").into())
    }

    /// Returns the boot record in a sector; `None` without one.
    fn record(&mut self, sector: u64) -> Result<Option<[Entry; 4]>> {
        let bytes = self.bytes(sector * SECTOR, 512)?;
        let entry = |index: usize| Entry::parse(&bytes[446 + 16 * index..]);
        Ok((bytes[510..] == [0x55, 0xaa]).then(|| [entry(0), entry(1), entry(2), entry(3)]))
    }

    fn gpt(&mut self, sector: u64, header: &[u8]) -> Result<Vec<Partition>> {
        let (start, size, count) = self.gpt_place(sector, header)?;
        let table = self.bytes(start, size * count)?;
        if crc32(&table) != u32_at(header, 88) {
            return Err(damaged("the checksum of the entries is wrong"));
        }
        let entries = (1..).zip(table.chunks_exact(size)).filter(|(_, entry)| entry[..16] != [0; 16]);
        entries.map(|(number, entry)| gpt_partition(number, entry, sector)).collect()
    }

    /// Returns the position of the entries, the size of one, and their number, all checked.
    fn gpt_place(&mut self, sector: u64, header: &[u8]) -> Result<(u64, usize, usize)> {
        let length = u32_at(header, 12);
        if !(92..=512).contains(&length) {
            return Err(damaged(&format!("its header claims to have {length} bytes")));
        }
        let mut whole = self.bytes(sector, length as usize)?;
        whole[16..20].fill(0);
        if crc32(&whole) != u32_at(header, 16) {
            return Err(damaged("the checksum of the header is wrong"));
        }
        let (count, size) = (u32_at(header, 80), u32_at(header, 84));
        if size < 128 || u64::from(size) * u64::from(count) > LARGEST_TABLE {
            return Err(damaged(&format!("it claims to have {count} entries of {size} bytes")));
        }
        let start = u64_at(header, 72).checked_mul(sector).filter(|start| *start < self.size);
        Ok((start.ok_or_else(|| damaged("its entries are not in the image"))?, size as usize, count as usize))
    }

    /// Reads bytes; past the end they are zeros.
    fn bytes(&mut self, at: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        if at < self.size {
            let filled = (self.read_at)(at, &mut bytes)
                .with_context(|| format!("read the partition table at offset {at}"))?;
            bytes[filled..].fill(0);
        }
        Ok(bytes)
    }
}

fn gpt_partition(number: u32, entry: &[u8], sector: u64) -> Result<Partition> {
    let (first, last) = (u64_at(entry, 32), u64_at(entry, 40));
    let count = last.checked_sub(first).and_then(|count| count.checked_add(1));
    let window =
        || Some(Window { offset: first.checked_mul(sector)?, size: Some(count?.checked_mul(sector)?) });
    let window = window().ok_or_else(|| damaged(&format!("partition {number} is from {first} to {last}")))?;
    Ok(Partition { number, window })
}

fn damaged(how: &str) -> anyhow::Error {
    Failure::options(format!("the image's gpt is damaged, {how}: fix it with gdisk")).into()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    (0..4).fold(0, |value, index| value | u32::from(bytes[at + index]) << (8 * index))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Computes CRC-32 as in ethernet and zip, bit by bit: a table of partitions is small.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::to_failure;
    use crate::proc::deadline::Deadline;
    use crate::proc::helper::{HostRunner, Invocation, Runner as _};
    use crate::wording::{wording, wording_of};
    use flexvol_protocol::secret::Secret;
    use proptest::prelude::*;
    use std::os::fd::AsFd;
    use std::time::Duration;

    const MEBIBYTE: u64 = 1 << 20;

    fn partitions(image: &[u8]) -> Result<Vec<Partition>> {
        partitions_in(image.len() as u64, |at, buffer| {
            let rest = image.get(usize::try_from(at).unwrap()..).unwrap_or_default();
            let length = rest.len().min(buffer.len());
            buffer[..length].copy_from_slice(&rest[..length]);
            Ok(length)
        })
    }

    /// Returns the image that sfdisk makes from a script.
    fn made(script: &str) -> Option<Vec<u8>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64 * MEBIBYTE).unwrap();
        let helper = Invocation::of("sfdisk");
        if HostRunner.find("sfdisk").is_err() {
            println!("SKIP sfdisk images: not installed");
            return None;
        }
        let deadline = Deadline::after(Duration::from_mins(1));
        let helper = helper.args(["-q"]).args([file.path()]);
        helper.stdin(Secret::new(script.into())).run_to_success(&deadline).unwrap();
        Some(std::fs::read(file.path()).unwrap())
    }

    fn windows(image: &[u8]) -> Vec<(u32, u64, u64)> {
        let partitions = partitions(image).unwrap();
        partitions
            .iter()
            .map(|found| (found.number, found.window.offset, found.window.size.unwrap()))
            .collect()
    }

    #[test]
    fn crc32_is_the_usual_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn mbr_with_logical_partitions() {
        let script = "label: dos\n1: start=2048,size=4096\n3: start=8192,size=65536,type=5\n\
                      5: start=10240,size=2048\n6: start=14336,size=2048\n7: start=20480,size=4096\n";
        let Some(image) = made(script) else { return };
        let expected = [
            (1, MEBIBYTE, 2 * MEBIBYTE),
            (5, 5 * MEBIBYTE, MEBIBYTE),
            (6, 7 * MEBIBYTE, MEBIBYTE),
            (7, 10 * MEBIBYTE, 2 * MEBIBYTE),
        ];
        assert_eq!(windows(&image), expected);
    }

    #[test]
    fn gpt() {
        let script = "label: gpt\n1: start=2048,size=4096\n4: start=8192,size=2048\n";
        let Some(mut image) = made(script) else { return };
        assert_eq!(windows(&image), [(1, MEBIBYTE, 2 * MEBIBYTE), (4, 4 * MEBIBYTE, MEBIBYTE)]);
        image[1024 + 32] ^= 1;
        assert!(partitions(&image).unwrap_err().to_string().contains(wording("entries-checksum")));
        image[512 + 72] ^= 1;
        assert!(partitions(&image).unwrap_err().to_string().contains(wording("header-checksum")));
        image[512] = 0;
        assert!(partitions(&image).unwrap_err().to_string().contains("no header"));
    }

    #[test]
    fn gpt_of_a_disk_with_large_sectors() {
        let mut image = record(&[(PROTECTIVE, 1, u32::MAX)]);
        image.resize(3 * 4096, 0);
        let put =
            |image: &mut Vec<u8>, at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        put(&mut image, 8192, &[7; 16]);
        put(&mut image, 8192 + 32, &512_u64.to_le_bytes());
        put(&mut image, 8192 + 40, &767_u64.to_le_bytes());
        let table = crc32(&image[8192..8192 + 128]);
        put(&mut image, 4096, b"EFI PART");
        put(&mut image, 4096 + 12, &92_u32.to_le_bytes());
        put(&mut image, 4096 + 72, &2_u64.to_le_bytes());
        put(&mut image, 4096 + 80, &[1, 0, 0, 0, 128, 0, 0, 0]);
        put(&mut image, 4096 + 88, &table.to_le_bytes());
        let header = crc32(&image[4096..4096 + 92]);
        put(&mut image, 4096 + 16, &header.to_le_bytes());
        assert_eq!(windows(&image), [(1, 2 * MEBIBYTE, MEBIBYTE)]);
    }

    #[test]
    fn selects_what_is_within() {
        let Some(image) = made("label: gpt\n1: start=2048,size=4096\n4: start=8192,size=2048\n") else {
            return;
        };
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &image, 0).unwrap();
        let window = Window { offset: MEBIBYTE, size: Some(2 * MEBIBYTE) };
        assert_eq!(partition_window(file.as_fd(), 1).unwrap(), window);
        let failure = to_failure(partition_window(file.as_fd(), 2).unwrap_err());
        assert_eq!(failure.code(), Code::NotFound);
        assert_eq!(failure.message(), wording_of("no-such-partition", ["2", "1, 4"]));
        file.set_len(2 * MEBIBYTE).unwrap();
        let failure = to_failure(partition_window(file.as_fd(), 1).unwrap_err());
        assert_eq!(failure.code(), Code::BadOptions);
    }

    #[test]
    fn no_table() {
        for image in [vec![], vec![0; 511], vec![0; 4096]] {
            assert_eq!(partitions(&image).unwrap_err().to_string(), wording("no-partition-table"));
        }
    }

    fn record(entries: &[(u8, u32, u32)]) -> Vec<u8> {
        let mut record = vec![0; 512];
        for (index, (kind, start, count)) in entries.iter().enumerate() {
            let entry = &mut record[446 + 16 * index..][..16];
            entry[4] = *kind;
            entry[8..12].copy_from_slice(&start.to_le_bytes());
            entry[12..].copy_from_slice(&count.to_le_bytes());
        }
        record[510..].copy_from_slice(&[0x55, 0xaa]);
        record
    }

    #[test]
    fn a_chain_that_bites_its_tail_ends() {
        let mut image = record(&[(5, 1, 100)]);
        image.extend(record(&[(0x83, 1, 1), (5, 0, 100)]));
        assert!(partitions(&image).unwrap_err().to_string().contains("does not end"));
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let image = record(&[(0x83, u32::MAX, u32::MAX), (5, u32::MAX, u32::MAX)]);
        let found = partitions(&image).unwrap();
        assert_eq!(found.len(), 1);
        assert!(select(&found, 1, image.len() as u64).is_err());
    }

    proptest! {
        #[test]
        fn hostile_tables_never_panic(
            noise in prop::collection::vec(any::<u8>(), 2048),
            header in prop::collection::vec(any::<u8>(), 76),
            count in 0..300_u32, size in 0..300_u32, protective: bool,
        ) {
            let mut image = noise;
            if protective {
                image[..512].copy_from_slice(&record(&[(PROTECTIVE, 1, u32::MAX)]));
                image[512..604].fill(0);
                image[512..520].copy_from_slice(b"EFI PART");
                image[524..528].copy_from_slice(&92_u32.to_le_bytes());
                image[536..604].copy_from_slice(&header[..68]);
                image[584..592].copy_from_slice(&2_u64.to_le_bytes());
                image[592..596].copy_from_slice(&count.to_le_bytes());
                image[596..600].copy_from_slice(&size.to_le_bytes());
                let table = image[1024..].iter().copied().chain(std::iter::repeat(0));
                let table: Vec<_> = table.take((count * size) as usize).collect();
                image[600..604].copy_from_slice(&crc32(&table).to_le_bytes());
                let crc = crc32(&image[512..604]);
                image[528..532].copy_from_slice(&crc.to_le_bytes());
            } else {
                image[510..512].copy_from_slice(&[0x55, 0xaa]);
            }
            if let Ok(found) = partitions(&image) {
                for partition in &found {
                    if let Ok(window) = select(&found, partition.number, image.len() as u64) {
                        prop_assert!(window.within(image.len() as u64).is_ok());
                    }
                }
            }
        }
    }
}

//! Follower of a log that others append to and rotate when it is full: `tail -F`, line by line.

use anyhow::{Context, Result};
use flexvol_linux::fs::append;
use flexvol_linux::fs::files::{self, File};
use flexvol_node::driver_log::LINE_LIMIT;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A log, followed from now on.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    /// File that the path named at the last check.
    current: Option<Part>,
    /// Rotated file: a process that still has it open may write another line to it.
    previous: Option<Part>,
}

impl Tail {
    /// Starts at the end of the present file. The log need not exist yet.
    pub fn from_now(path: PathBuf) -> Result<Self> {
        let mut current = Part::open(&path)?;
        if let Some(part) = &mut current {
            part.reader.seek(SeekFrom::End(0)).with_context(|| format!("read {}", path.display()))?;
        }
        Ok(Self { path, current, previous: None })
    }

    /// Reports whether a file of that name, in the log's directory, is part of the log.
    pub fn concerns(&self, name: &Path) -> bool {
        [self.path.clone(), append::previous(&self.path)]
            .iter()
            .any(|path| path.file_name() == Some(name.as_os_str()))
    }

    /// Hands out every new complete line, oldest first. Skips lines that are too long or not text.
    pub fn read(&mut self, mut line: impl FnMut(&str)) -> Result<()> {
        for part in [&mut self.previous, &mut self.current].into_iter().flatten() {
            part.read(&mut line).with_context(|| format!("read {}", self.path.display()))?;
        }
        let there = identity(&self.path);
        if there.or(identity(&append::previous(&self.path))).is_none() {
            // The log was removed, not rotated. The kernel reports the removal of a directory only
            // once no file of it is open.
            (self.previous, self.current) = (None, None);
        } else if self.current.as_ref().map(|part| part.identity) != there {
            // This file was read to its end above; later calls read it again.
            self.previous = self.current.take().or(self.previous.take());
            self.catch_up(&mut line)?;
        }
        Ok(())
    }

    /// Opens the files after a rotation. After two rotations there is a file that was never read.
    fn catch_up(&mut self, line: &mut impl FnMut(&str)) -> Result<()> {
        let known = self.previous.as_ref().map(|part| part.identity);
        let aside = append::previous(&self.path);
        if identity(&aside) != known {
            self.previous = Part::open(&aside)?.or(self.previous.take());
        }
        self.current = Part::open(&self.path)?;
        for part in [&mut self.previous, &mut self.current].into_iter().flatten() {
            part.read(line).with_context(|| format!("read {}", self.path.display()))?;
        }
        Ok(())
    }
}

/// One file of the log.
#[derive(Debug)]
struct Part {
    reader: BufReader<File>,
    identity: (u64, u64),
    /// Start of an incomplete line; no longer extended once the line is too long.
    begun: Vec<u8>,
    too_long: bool,
}

impl Part {
    /// Opens a file; `None` if it is missing or not a regular file.
    fn open(path: &Path) -> Result<Option<Self>> {
        let file = match files::open_itself(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.with_context(|| format!("open {}", path.display()))?,
        };
        let stat = file.metadata()?;
        let reader = BufReader::with_capacity(LINE_LIMIT, file);
        let part = Self { reader, identity: (stat.dev(), stat.ino()), begun: Vec::new(), too_long: false };
        Ok(stat.is_file().then_some(part))
    }

    fn read(&mut self, line: &mut impl FnMut(&str)) -> io::Result<()> {
        self.rewind_if_cut()?;
        loop {
            let bytes = self.reader.fill_buf()?;
            if bytes.is_empty() {
                return Ok(());
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(bytes.len(), |end| end + 1);
            self.too_long |= self.begun.len() + taken > LINE_LIMIT;
            if !self.too_long {
                self.begun.extend_from_slice(&bytes[..taken]);
            }
            self.reader.consume(taken);
            if end.is_some() {
                if let (false, Ok(text)) = (self.too_long, str::from_utf8(&self.begun)) {
                    line(text);
                }
                self.begun.clear();
                self.too_long = false;
            }
        }
    }

    /// Starts again from the beginning if the file was truncated.
    fn rewind_if_cut(&mut self) -> io::Result<()> {
        let at = self.reader.stream_position()?;
        if self.reader.get_ref().metadata()?.len() < at {
            self.reader.seek(SeekFrom::Start(0))?;
            self.begun.clear();
            self.too_long = false;
        }
        Ok(())
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().ok().map(|stat| (stat.dev(), stat.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn new(tail: &mut Tail) -> Vec<String> {
        let mut lines = Vec::new();
        tail.read(|line| lines.push(line.trim_end().to_owned())).unwrap();
        lines
    }

    #[test]
    fn what_was_there_before_is_not_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        append::line(&path, "old\n", 99).unwrap();
        let mut tail = Tail::from_now(path.clone()).unwrap();
        append::line(&path, "new\n", 99).unwrap();
        assert_eq!(new(&mut tail), ["new"]);
        assert_eq!(new(&mut tail), [""; 0]);
        assert!(tail.concerns(Path::new("log")) && tail.concerns(Path::new("log.1")));
        assert!(!tail.concerns(Path::new("log.2")));
    }

    #[test]
    fn a_log_that_begins_later_is_told_from_its_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut tail = Tail::from_now(path.clone()).unwrap();
        assert_eq!(new(&mut tail), [""; 0]);
        append::line(&path, "first\n", 99).unwrap();
        assert_eq!(new(&mut tail), ["first"]);
    }

    #[test]
    fn every_line_across_many_rotations_is_told_once_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut tail = Tail::from_now(path.clone()).unwrap();
        let mut lines = Vec::new();
        for number in 0..500 {
            append::line(&path, &format!("{number}\n"), 100).unwrap();
            if number % 7 == 0 {
                lines.extend(new(&mut tail));
            }
        }
        lines.extend(new(&mut tail));
        let expected: Vec<_> = (0..500).map(|number| number.to_string()).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_part_that_came_and_went_between_two_looks_is_told_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        append::line(&path, "0\n", 2).unwrap();
        let mut tail = Tail::from_now(path.clone()).unwrap();
        append::line(&path, "1\n", 99).unwrap();
        append::line(&path, "2\n", 2).unwrap();
        append::line(&path, "3\n", 2).unwrap();
        assert_eq!(new(&mut tail), ["1", "2", "3"]);
        assert_eq!(new(&mut tail), [""; 0]);
    }

    #[test]
    fn a_line_that_came_late_to_the_file_put_aside_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        append::line(&path, "1\n", 99).unwrap();
        let mut tail = Tail::from_now(path.clone()).unwrap();
        let mut late = File::options().append(true).open(&path).unwrap();
        append::line(&path, "2\n", 1).unwrap();
        assert_eq!(new(&mut tail), ["2"]);
        late.write_all(b"late\n").unwrap();
        assert_eq!(new(&mut tail), ["late"]);
    }

    #[test]
    fn a_line_is_told_when_it_is_whole_and_no_longer_than_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut file = File::create(&path).unwrap();
        let mut tail = Tail::from_now(path.clone()).unwrap();
        file.write_all(b"be").unwrap();
        assert_eq!(new(&mut tail), [""; 0]);
        file.write_all(b"gun\nx").unwrap();
        assert_eq!(new(&mut tail), ["begun"]);
        file.write_all(&vec![b'x'; 3 * LINE_LIMIT]).unwrap();
        file.write_all(b"\n\xff\xfe\nnext\n").unwrap();
        assert_eq!(new(&mut tail), ["next"]);
        file.set_len(0).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.write_all(b"cut\n").unwrap();
        assert_eq!(new(&mut tail), ["cut"]);
        file.write_all(&vec![b'x'; 3 * LINE_LIMIT]).unwrap();
        assert_eq!(new(&mut tail), [""; 0]);
        file.set_len(0).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.write_all(b"cut within a long line\n").unwrap();
        assert_eq!(new(&mut tail), ["cut within a long line"]);
    }
}

//! `watch SPELLINGS`: the parts of a secret, for `grep -F -f`; SPELLINGS is a file with one
//! spelling a line. `watch SPELLINGS PLUGINS`: looks for them, in the guest, until that file is
//! gone; then says how often it looked, and line by line who had a part. PLUGINS is the directory
//! of the drivers, which kubelet starts with the secret.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a part of the tests"
)]

#[path = "../support/watch.rs"]
mod watch;

use std::io::Write as _;
use std::path::PathBuf;
use std::{env, fs, io};

fn main() {
    let mut words = env::args_os().skip(1).map(PathBuf::from);
    let spellings = words.next().expect("watch SPELLINGS [PLUGINS]");
    let text = fs::read(&spellings).unwrap();
    let parts = watch::Parts::of(text.split(|byte| *byte == b'\n'));
    let Some(drivers) = words.next() else {
        return io::stdout().write_all(&parts.lines()).unwrap();
    };
    let seen = watch::Watch { parts: &parts, excused: Vec::new(), drivers }.until(|| !spellings.exists());
    println!("looks {}", seen.looks);
    seen.found.iter().for_each(|found| println!("{found}"));
}

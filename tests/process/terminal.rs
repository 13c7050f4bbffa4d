//! What a command prints at a terminal fits it, and what is piped is whole.

use crate::support::BINARY;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::Read as _;
use std::process::Command;

/// What it prints at a terminal of so many columns, without colours.
fn at_terminal(columns: u16, words: &[&str]) -> Vec<String> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    tcsetwinsize(&ours, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs = File::options().read(true).write(true).open(name).unwrap();
    let mut command = Command::new(BINARY);
    command.args(words).env("NO_COLOR", "1").env("TERM", "xterm").stdout(theirs);
    let mut child = command.spawn().unwrap();
    // It holds the other side as well.
    drop(command);
    let (mut bytes, mut ours) = (Vec::new(), File::from(ours));
    // Its end is an error: nobody has the other side any more.
    let _ = ours.read_to_end(&mut bytes);
    child.wait().unwrap();
    String::from_utf8(bytes).unwrap().lines().map(|line| line.trim_end().to_owned()).collect()
}

fn widest(lines: &[String]) -> usize {
    lines.iter().map(|line| line.chars().count()).max().unwrap()
}

#[test]
fn tables_and_text_fit() {
    let long = ["explain-error", "mount.nfs: access denied by server while mounting nas:/export"];
    for words in [&["doctor", "--list"][..], &["drivers"], &["validate", "--rules"], &long] {
        for columns in [50, 72] {
            let lines = at_terminal(columns, words);
            assert!(lines.len() > 2 && widest(&lines) <= columns.into(), "{words:?} {columns}: {lines:#?}");
        }
    }
}

#[test]
fn what_is_piped_is_whole() {
    let piped = Command::new(BINARY).args(["doctor", "--list"]).env("COLUMNS", "40").output().unwrap();
    let piped: Vec<_> = String::from_utf8(piped.stdout).unwrap().lines().map(str::to_owned).collect();
    assert!(widest(&piped) > 72 && !piped.concat().contains('…'), "{piped:#?}");
    // Where it fits, a terminal has the same.
    assert_eq!(at_terminal(300, &["doctor", "--list"]), piped);
}

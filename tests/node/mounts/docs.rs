//! Every command that README.md and the pages of docs/ show is run, and says what the page says
//! that it says.
//!
//! A block ```` ```console ```` holds lines `$ command` (continued by `> `), each with what it
//! prints. All commands of a page are run by one shell, one after the other, on a node of their
//! own: `docs/node.sh`, in a mount and process namespace, then the page's `setup` where there is
//! one: the shell stands in a copy of the directory of its name here.
//!
//! In what a page shows, a line `…` stands for any lines and `…` within a line for any text; widths
//! of columns, durations and hashes are not compared. A command with nothing below it may print
//! anything. Each must succeed, but the last of a block ```` ```console exit=N ````.

mod blocks;
mod shown;

use crate::support::pace::slow_seconds;
use blocks::{Command, commands};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Seconds that all commands of a page may take.
const LIMIT: u64 = 300;

fn root() -> &'static Path {
    Path::new(ROOT)
}

/// README.md and everything below docs/.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md")];
    let mut directories = vec![root().join("docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// `README`, `docs/drivers/nfs`.
fn name(page: &Path) -> String {
    page.strip_prefix(root()).unwrap().with_extension("").display().to_string()
}

/// The program whose commands are shown: a release where there is one.
fn binary() -> PathBuf {
    std::env::var_os("FLEXVOL_RELEASE").unwrap_or_else(|| env!("CARGO_BIN_EXE_flexvol").into()).into()
}

/// Whether a page's commands need `flexvold`, which is of a package of its own, and is not built.
fn lacks_daemon(commands: &[Command]) -> bool {
    let daemon = |command: &Command| command.text.split_whitespace().any(|word| word == "flexvold");
    commands.iter().any(daemon) && !binary().with_file_name("flexvold").exists()
}

/// Runs the commands; what each printed, and its exit status.
fn run(page: &str, commands: &[Command]) -> Vec<(String, i32)> {
    let directory = tempfile::tempdir().unwrap();
    for (index, command) in commands.iter().enumerate() {
        fs::write(directory.path().join(format!("{index}.command")), &command.text).unwrap();
    }
    let output = process::Command::new("timeout")
        .args(["--kill-after=5", &slow_seconds(LIMIT).to_string()])
        .args([
            "unshare",
            "--mount",
            "--propagation=private",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .arg("bash")
        .arg(root().join("tests/node/mounts/docs/node.sh"))
        .args([directory.path(), &root().join("tests/node/mounts/docs").join(page), &binary()])
        .arg(commands.len().to_string())
        .stdin(process::Stdio::null())
        .output()
        .unwrap();
    let read = |index: usize, what: &str| {
        let file = directory.path().join(format!("{index}.{what}"));
        fs::read(&file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    };
    let result = |index| {
        let status = read(index, "status").map(|status| status.trim().parse().unwrap());
        let status = status.unwrap_or_else(|_| panic!("{page}: the shell ended before it: {output:?}"));
        (read(index, "output").unwrap(), status)
    };
    (0..commands.len()).map(result).collect()
}

/// What is wrong with the page; nothing if it is true.
fn faults(page: &Path) -> String {
    let text = fs::read_to_string(page).unwrap();
    let name = name(page);
    let commands = commands(&text).unwrap_or_else(|error| panic!("{name}.md:{error}"));
    let mut faults = String::new();
    if commands.is_empty() {
        return faults;
    }
    if lacks_daemon(&commands) {
        println!(
            "SKIP docs::every_command_says_what_the_page_shows: {name}.md needs flexvold, which is not built"
        );
        return faults;
    }
    for (command, (printed, status)) in commands.iter().zip(run(&name, &commands)) {
        let at = format!("{name}.md:{}: $ {}", command.line, command.text);
        if status != command.status {
            let _ = writeln!(faults, "{at}\nexit status {status}, not {}\n{printed}", command.status);
        } else if let Some(line) = shown::first_difference(&command.output, &printed) {
            let _ = writeln!(
                faults,
                "{at}\nthe page shows, and it does not come:\n{line}\nit printed:\n{printed}"
            );
        }
    }
    faults
}

#[test]
fn every_command_says_what_the_page_shows() {
    if !nix::unistd::geteuid().is_root() {
        return println!(
            "SKIP docs::every_command_says_what_the_page_shows: needs root for a mount namespace"
        );
    }
    let pages = pages();
    let (first, second) = pages.split_at(pages.len() / 2);
    let all = |pages: &[PathBuf]| pages.iter().map(|page| faults(page)).collect::<String>();
    let faults = std::thread::scope(|scope| {
        let beside = scope.spawn(|| all(first));
        all(second) + &beside.join().unwrap()
    });
    assert!(faults.is_empty(), "{faults}");
}

/// A page that leads nowhere is not found by whoever needs it.
#[test]
fn links_lead_to_files() {
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            assert!(page.parent().unwrap().join(file).exists(), "{}: there is no {link}", page.display());
        }
    }
}

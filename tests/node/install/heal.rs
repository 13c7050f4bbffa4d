//! What was installed is put back, whatever became of it; what is foreign stays as it is.

use super::node::{Answer, Node, script};
use crate::support::wording::wording;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

/// What became of the executable.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Program {
    Whole,
    Gone,
    Emptied,
    Truncated,
    /// Another file with our first bytes.
    Prefix,
    /// Bytes that nobody can run, in the same file.
    Garbled,
    Foreign,
    /// Copied over ours, so it is the same file.
    ForeignInPlace,
    Link,
    Directory,
}

/// What became of the side file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Whole,
    Edited,
    Unstamped,
    Gone,
    Emptied,
    Garbled,
    /// JSON, but no side file.
    Mistaken,
    Link,
}

const PROGRAMS: [Program; 10] = [
    Program::Whole,
    Program::Gone,
    Program::Emptied,
    Program::Truncated,
    Program::Prefix,
    Program::Garbled,
    Program::Foreign,
    Program::ForeignInPlace,
    Program::Link,
    Program::Directory,
];

const SIDES: [Side; 8] = [
    Side::Whole,
    Side::Edited,
    Side::Unstamped,
    Side::Gone,
    Side::Emptied,
    Side::Garbled,
    Side::Mistaken,
    Side::Link,
];

/// A script longer than what a receipt has of it.
fn driver() -> String {
    script("\"attach\":false") + &"# filler\n".repeat(100)
}

fn foreign() -> String {
    script("\"fsGroup\":false") + &"# somebody's\n".repeat(9)
}

struct Installed<'a> {
    node: &'a Node,
    binary: PathBuf,
}

impl<'a> Installed<'a> {
    fn new(node: &'a Node) -> Self {
        let binary = node.file("driver", &driver());
        node.file_quietly("policy", r#"{"maxSize":"7Mi"}"#);
        Self { node, binary }
    }

    fn home(&self) -> PathBuf {
        self.node.plugins().join("v~d")
    }

    fn program(&self) -> PathBuf {
        self.home().join("d")
    }

    fn side_file(&self) -> PathBuf {
        self.home().join(".flexvol.json")
    }

    fn receipt(&self) -> PathBuf {
        let entry = fs::read_dir(self.node.state().join("installed")).unwrap().next().unwrap();
        entry.unwrap().path()
    }

    fn install(&self, more: &[&str]) -> Answer {
        self.node.install(&[&["v/d", "--binary", self.binary.to_str().unwrap()], more].concat())
    }

    /// As new, with an option and a policy.
    fn begin(&self) {
        for place in [self.node.plugins(), self.node.state()] {
            let _ = fs::remove_dir_all(place);
        }
        fs::create_dir(self.node.plugins()).unwrap();
        let policy = self.node.path("policy");
        assert_eq!(
            self.install(&["--set", "a=b", "--policy", policy.to_str().unwrap()]).action(),
            "installed"
        );
    }

    fn damage(&self, program: Program, side: Side) {
        let (path, other) = (self.program(), self.home().join("other"));
        let renamed = |text: &str| {
            fs::write(&other, text).unwrap();
            fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
            fs::rename(&other, &path).unwrap();
        };
        let open = || fs::File::options().write(true).open(&path).unwrap();
        match program {
            Program::Whole => {}
            Program::Gone => fs::remove_file(&path).unwrap(),
            Program::Emptied => open().set_len(0).unwrap(),
            Program::Truncated => open().set_len(300).unwrap(),
            Program::Prefix => renamed(&driver()[..300]),
            Program::Garbled => fs::write(&path, [0xff; 400]).unwrap(),
            Program::Foreign => renamed(&foreign()),
            Program::ForeignInPlace => fs::write(&path, foreign()).unwrap(),
            Program::Link => {
                fs::remove_file(&path).unwrap();
                symlink("/bin/true", &path).unwrap();
            }
            Program::Directory => {
                fs::remove_file(&path).unwrap();
                fs::create_dir(&path).unwrap();
            }
        }
        let path = self.side_file();
        let mut said: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        said["options"]["a"] = "edited".into();
        match side {
            Side::Whole => {}
            Side::Edited => fs::write(&path, said.to_string()).unwrap(),
            Side::Unstamped => {
                said.as_object_mut().unwrap().remove("hash");
                fs::write(&path, said.to_string()).unwrap();
            }
            Side::Gone => fs::remove_file(&path).unwrap(),
            Side::Emptied => fs::write(&path, "").unwrap(),
            Side::Garbled => fs::write(&path, &said.to_string()[..40]).unwrap(),
            Side::Mistaken => {
                said["policy"]["maxSise"] = "1Mi".into();
                fs::write(&path, said.to_string()).unwrap();
            }
            Side::Link => {
                fs::rename(&path, self.node.path("secret")).unwrap();
                symlink(self.node.path("secret"), &path).unwrap();
            }
        }
    }

    /// What is there, in words that change when it does.
    fn content(&self) -> Vec<String> {
        let seen = |path: &Path| {
            format!("{:?} {:?}", fs::read_link(path).ok(), fs::read(path).map(|b| b.len()).ok())
        };
        [self.program(), self.side_file()].iter().map(|path| seen(path)).collect()
    }

    fn is_whole(&self, option: Option<&str>) {
        assert_eq!(fs::read_to_string(self.program()).unwrap(), driver());
        self.node.init("v/d");
        let said: Value = serde_json::from_slice(&fs::read(self.side_file()).unwrap()).unwrap();
        assert_eq!(said["options"]["a"].as_str(), option, "{said}");
        assert_eq!(said["policy"]["maxSize"].as_str(), option.map(|_| "7Mi"), "{said}");
        assert!(said["hash"].is_string());
        assert_eq!(self.node.litter(), [""; 0]);
        assert_eq!(self.install(&[]).action(), "unchanged");
    }
}

/// What is to come of it, as the table in `plugin_dir::receipt` says. The option that is left, or a
/// refusal.
fn expected(program: Program, side: Side, receipt: bool) -> Result<Option<&'static str>, ()> {
    use Program::{Directory, Foreign, ForeignInPlace, Gone, Link};
    match (program, side) {
        (Link | Directory, _) | (_, Side::Link | Side::Mistaken) => Err(()),
        (_, Side::Whole) => Ok(Some("b")),
        (_, Side::Edited) => Ok(Some("edited")),
        // Nothing is left of it.
        (Gone, Side::Gone) if !receipt => Ok(None),
        (Foreign | ForeignInPlace, _) => Err(()),
        _ if !receipt => Err(()),
        (_, Side::Unstamped) => Ok(Some("edited")),
        _ => Ok(Some("b")),
    }
}

fn every_state(node: &Node, mut so: impl FnMut(&Installed<'_>, Program, Side, bool)) {
    let installed = Installed::new(node);
    for program in PROGRAMS {
        for side in SIDES {
            for receipt in [true, false] {
                println!("{program:?} {side:?}, receipt {receipt}");
                installed.begin();
                installed.damage(program, side);
                if !receipt {
                    fs::remove_dir_all(node.state()).unwrap();
                }
                so(&installed, program, side, receipt);
            }
        }
    }
}

#[test]
fn what_was_installed_is_put_back_and_nothing_else_is_touched() {
    let Some(node) = Node::new("heal::what_was_installed_is_put_back_and_nothing_else_is_touched") else {
        return;
    };
    every_state(&node, |installed, program, side, receipt| {
        let before = installed.content();
        let answer = installed.install(&[]);
        if let Ok(option) = expected(program, side, receipt) {
            assert_eq!(answer.status, 0, "{answer:?}");
            installed.is_whole(option);
        } else {
            let message = answer.error(4);
            assert!(message.starts_with("v/d"), "{message}");
            assert_eq!(installed.content(), before);
        }
    });
}

#[test]
fn what_was_installed_can_be_uninstalled_whatever_became_of_it() {
    use Program::{Emptied, Garbled, Gone, Truncated, Whole};
    let Some(node) = Node::new("heal::what_was_installed_can_be_uninstalled_whatever_became_of_it") else {
        return;
    };
    every_state(&node, |installed, program, side, receipt| {
        let before = installed.content();
        let answer = node.uninstall(&["v/d"]);
        let is_stamped = matches!(side, Side::Whole | Side::Edited);
        // Of a prefix only who has the whole knows that it is one, as `install` does.
        let is_left = matches!(program, Whole | Gone | Emptied | Truncated | Garbled);
        let is_plain = is_stamped && matches!(program, Whole | Gone);
        let is_nothing = (program, side) == (Gone, Side::Gone);
        if is_plain || is_nothing || receipt && is_left && !matches!(side, Side::Link | Side::Mistaken) {
            assert_eq!(answer.action(), "removed");
            assert_eq!(node.listing(), [""; 0]);
            assert!(!node.state().join("installed").exists() || installed_nothing(&node));
        } else {
            answer.error(4);
            assert_eq!(installed.content(), before);
        }
    });
}

fn installed_nothing(node: &Node) -> bool {
    fs::read_dir(node.state().join("installed")).unwrap().count() == 0
}

#[test]
fn an_emptied_or_removed_directory_comes_back_with_its_settings() {
    let Some(node) = Node::new("heal::an_emptied_or_removed_directory_comes_back_with_its_settings") else {
        return;
    };
    let installed = Installed::new(&node);
    for empty in [true, false] {
        installed.begin();
        fs::remove_dir_all(installed.home()).unwrap();
        if empty {
            fs::create_dir(installed.home()).unwrap();
        }
        assert_eq!(installed.install(&[]).action(), "installed");
        installed.is_whole(Some("b"));
        // What an admin takes away is gone.
        assert_eq!(node.uninstall(&["v/d"]).action(), "removed");
        assert!(installed_nothing(&node));
        assert_eq!(installed.install(&[]).action(), "installed");
        installed.is_whole(None);
    }
    // Somebody else's removal, then ours: nothing of it comes back.
    installed.begin();
    fs::remove_dir_all(installed.home()).unwrap();
    assert_eq!(node.uninstall(&["v/d"]).action(), "not there");
    assert_eq!(installed.install(&[]).action(), "installed");
    installed.is_whole(None);
    // Another driver of that name.
    installed.begin();
    fs::remove_dir_all(installed.home()).unwrap();
    assert_eq!(node.install(&["v/d=tmpfs"]).action(), "installed");
    assert!(!fs::read_to_string(installed.side_file()).unwrap().contains("\"a\""));
}

type Spoil<'a> = &'a dyn Fn(&Path);

#[test]
fn what_somebody_could_have_written_is_no_receipt() {
    let Some(node) = Node::new("heal::what_somebody_could_have_written_is_no_receipt") else { return };
    let installed = Installed::new(&node);
    let spoilt: [(&str, Spoil<'_>); 7] = [
        ("readable", &|path| fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap()),
        ("owned", &|path| std::os::unix::fs::chown(path, Some(1234), None).unwrap()),
        ("garbled", &|path| fs::write(path, "{\"settings\":{").unwrap()),
        ("emptied", &|path| fs::write(path, "").unwrap()),
        ("too large", &|path| fs::File::options().write(true).open(path).unwrap().set_len(1 << 24).unwrap()),
        ("a link", &|path| {
            let away = path.parent().unwrap().parent().unwrap().join("away");
            fs::rename(path, &away).unwrap();
            symlink(away, path).unwrap();
        }),
        ("an open directory", &|path| {
            fs::set_permissions(path.parent().unwrap(), fs::Permissions::from_mode(0o777)).unwrap();
        }),
    ];
    for (how, spoil) in spoilt {
        println!("{how}");
        installed.begin();
        spoil(&installed.receipt());
        assert_eq!(installed.install(&[]).action(), "unchanged", "{how}");
        // It is rewritten.
        fs::remove_file(installed.side_file()).unwrap();
        assert_eq!(installed.install(&[]).action(), "repaired", "{how}");
        installed.begin();
        spoil(&installed.receipt());
        fs::remove_file(installed.side_file()).unwrap();
        assert!(installed.install(&[]).error(4).contains("--take-over"), "{how}");
    }
}

#[test]
fn a_receipt_is_its_owner_s_alone_and_of_one_plugin_directory() {
    let Some(node) = Node::new("heal::a_receipt_is_its_owner_s_alone_and_of_one_plugin_directory") else {
        return;
    };
    let installed = Installed::new(&node);
    installed.begin();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let receipt = installed.receipt();
    assert_eq!((mode(&receipt), mode(receipt.parent().unwrap())), (0o600, 0o700));
    // Another plugin directory with a driver of that name, by hand.
    let second = node.path("second");
    fs::create_dir(&second).unwrap();
    node.file("second/v~d/d", &driver());
    let mut other = std::process::Command::new(super::node::command());
    other
        .args(["install", "--json", "v/d", "--binary"])
        .arg(&installed.binary)
        .arg("--plugin-dir")
        .arg(&second);
    let answer = super::node::answer(other.arg("--state-dir").arg(node.state()));
    assert!(answer.error(4).contains("--take-over"));
}

#[test]
fn what_an_admin_changed_since_is_what_comes_back() {
    let Some(node) = Node::new("heal::what_an_admin_changed_since_is_what_comes_back") else { return };
    let installed = Installed::new(&node);
    installed.begin();
    let said = fs::read_to_string(installed.side_file()).unwrap().replace("\"b\"", "\"mine\"");
    fs::write(installed.side_file(), said).unwrap();
    assert_eq!(installed.install(&[]).action(), "unchanged");
    fs::remove_file(installed.side_file()).unwrap();
    assert_eq!(installed.install(&[]).action(), "repaired");
    installed.is_whole(Some("mine"));
    // A mistake is told.
    let said = fs::read_to_string(installed.side_file()).unwrap();
    fs::write(installed.side_file(), said.replace("maxSize", "maxSise")).unwrap();
    assert!(installed.install(&[]).error(4).contains("maxSise"));
    // What is no JSON is replaced, and not lost.
    let said = said.replace("\"hash\"", "hash");
    fs::write(installed.side_file(), &said).unwrap();
    let repaired = installed.install(&[]);
    assert_eq!(repaired.action(), "repaired");
    let told = repaired.json["warnings"][0].as_str().unwrap();
    let kept = told.split(wording("kept-in")).nth(1).unwrap();
    assert_eq!(fs::read_to_string(kept).unwrap(), said);
    installed.is_whole(Some("mine"));
    assert_eq!(node.uninstall(&["v/d"]).action(), "removed");
    assert!(installed_nothing(&node));
}

#[test]
fn what_is_being_written_is_left_alone() {
    let Some(node) = Node::new("heal::what_is_being_written_is_left_alone") else { return };
    let installed = Installed::new(&node);
    for (path, begun) in [(installed.side_file(), "{"), (installed.program(), "")] {
        installed.begin();
        fs::remove_file(installed.side_file()).unwrap();
        let mut writer = fs::File::create(&path).unwrap();
        std::io::Write::write_all(&mut writer, begun.as_bytes()).unwrap();
        assert!(installed.install(&[]).error(4).contains("--take-over"), "{path:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), begun);
        drop(writer);
        assert_eq!(installed.install(&[]).action(), "repaired", "{path:?}");
        installed.is_whole(Some("b"));
    }
}

/// What a take-over keeps is somebody else's, not what is left of ours.
#[test]
fn our_own_damaged_driver_is_not_kept_as_a_foreign_one() {
    let Some(node) = Node::new("heal::our_own_damaged_driver_is_not_kept_as_a_foreign_one") else { return };
    let installed = Installed::new(&node);
    installed.begin();
    installed.damage(Program::Truncated, Side::Gone);
    assert_eq!(installed.install(&["--take-over"]).action(), "repaired");
    assert!(!node.state().join("replaced").exists());
    installed.damage(Program::Foreign, Side::Gone);
    assert_eq!(installed.install(&["--take-over"]).action(), "taken over");
    assert_eq!(fs::read_dir(node.state().join("replaced/v~d")).unwrap().count(), 1);
    // And back, also with our own side file gone; then it is not ours.
    fs::remove_file(installed.side_file()).unwrap();
    assert_eq!(node.install(&["v/d", "--roll-back"]).action(), "rolled back");
    assert_eq!(fs::read_to_string(installed.program()).unwrap(), foreign());
    assert!(installed_nothing(&node) && installed.install(&[]).error(4).contains("--take-over"));
}

/// What was lost of an older version comes back as the newer one.
#[test]
fn an_upgrade_heals_and_keeps_the_settings() {
    let Some(node) = Node::new("heal::an_upgrade_heals_and_keeps_the_settings") else { return };
    let mut installed = Installed::new(&node);
    let old = node.file("old", &(script("") + &"# older\n".repeat(100)));
    let new = installed.binary.clone();
    for program in [Program::Whole, Program::Gone, Program::Emptied, Program::Truncated, Program::Garbled] {
        for side in [Side::Gone, Side::Garbled, Side::Unstamped] {
            installed.binary.clone_from(&old);
            installed.begin();
            installed.damage(program, side);
            installed.binary.clone_from(&new);
            let done = if (program, side) == (Program::Gone, Side::Gone) { "installed" } else { "upgraded" };
            assert_eq!(installed.install(&[]).action(), done, "{program:?} {side:?}");
            installed.is_whole(Some(if side == Side::Unstamped { "edited" } else { "b" }));
        }
    }
}

/// A disk without room costs the receipt, not the driver.
#[test]
fn a_node_without_room_for_receipts_has_its_drivers() {
    let Some(node) = Node::new("heal::a_node_without_room_for_receipts_has_its_drivers") else { return };
    let installed = Installed::new(&node);
    installed.begin();
    fs::remove_dir_all(node.state()).unwrap();
    fs::create_dir(node.state()).unwrap();
    let size = Some("size=4k,nr_inodes=2");
    nix::mount::mount(Some("t"), &node.state(), Some("tmpfs"), nix::mount::MsFlags::empty(), size).unwrap();
    let told = installed.install(&["--set", "a=c"]);
    assert_eq!(told.action(), "configured");
    assert!(told.json["warnings"][0].as_str().unwrap().contains(wording("not-noted")), "{told:?}");
    nix::mount::umount2(&node.state(), nix::mount::MntFlags::MNT_DETACH).unwrap();
    assert_eq!(installed.install(&[]).action(), "unchanged");
    fs::remove_file(installed.side_file()).unwrap();
    assert_eq!(installed.install(&[]).action(), "repaired");
    installed.is_whole(Some("c"));
}

/// As long as a directory may be called.
#[test]
fn a_driver_with_a_long_name_comes_back_too() {
    let Some(node) = Node::new("heal::a_driver_with_a_long_name_comes_back_too") else { return };
    let name = format!("{0}.{0}.{0}/{0}", "d".repeat(63));
    assert_eq!(node.install(&[&format!("{name}=tmpfs"), "--set", "size=7Mi"]).action(), "installed");
    let side_file = node.plugins().join(name.replace('/', "~")).join(".flexvol.json");
    fs::remove_file(&side_file).unwrap();
    let repaired = node.install(&[&name]);
    assert_eq!(repaired.action(), "repaired");
    assert!(fs::read_to_string(&side_file).unwrap().contains("7Mi"));
    assert_eq!(node.uninstall(&[&name]).action(), "removed");
    assert!(installed_nothing(&node));
}

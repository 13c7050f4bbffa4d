//! The readers of `flexvol` and `flexvol-kit`; `tests/pure/hostile` gives them the committed
//! inputs.
//!
//! A reader must come back: no panic, no endless loop, no memory without bound. Where more is
//! promised (what is read is written back the same, a refusal is one bounded line), that is
//! asserted here.

use flexvol::drivers;
use flexvol::executor::record::Record;
use flexvol::failure::{Failure, MESSAGE_LIMIT};
use flexvol::file_system::FileSystem;
use flexvol::installed::Installed;
use flexvol::kubelet::locate::command_line::{self, Program};
use flexvol::kubelet::locate::configuration::Files;
use flexvol::kubelet::locate::interpret;
use flexvol::kubelet::release::Release;
use flexvol::mkfs_options;
use flexvol::mount_options::{self, MountFlags};
use flexvol::objects::{Objects, Secrets};
use flexvol::profiles;
use flexvol::protocol::{Call, DriverName, DriverStatus, Options, Reply, TargetPath, Verb};
use flexvol::quantity::Quantity;
use flexvol::side_file;
use flexvol::sys::block::{disk_image, nbd, partition, qmp, signature};
use flexvol::sys::errno::to_failure;
use flexvol::sys::mount::mount_table;
use flexvol::sys::net::network;
use flexvol::validate::{KnownDrivers, Source, validate};
use flexvol::yaml;
use std::ffi::{OsStr, OsString};
use std::io::{self, Cursor, Read, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// What reads foreign bytes.
pub type Reader = fn(&[u8]);

/// All of them, by the names of their targets and corpora.
pub const READERS: &[(&str, Reader)] = &[
    ("argv", argv),
    ("options", options),
    ("plan", plan),
    ("reply", reply),
    ("mount_table", mounts),
    ("kubelet_configuration", kubelet_configuration),
    ("process_title", process_title),
    ("yaml", any_yaml),
    ("objects", objects),
    ("side_file", side_file),
    ("names", names),
    ("signature", any_signature),
    ("partitions", partitions),
    ("image_header", image_header),
    ("nbd", any_nbd),
    ("dns", dns),
    ("qmp", any_qmp),
    ("words", words),
    ("records", records),
];

/// The bytes between NULs, as exec(2) passes arguments.
fn arguments(bytes: &[u8]) -> Vec<OsString> {
    bytes.split(|byte| *byte == 0).map(|word| OsStr::from_bytes(word).to_owned()).collect()
}

/// Kubelet's words to a driver. What is understood is said again in the same way.
fn argv(bytes: &[u8]) {
    let words = arguments(bytes);
    let Some(verb) = words.first().and_then(|word| Verb::parse(word)) else { return };
    match Call::parse(verb, &words[1..]) {
        Ok(call) => assert_eq!(Call::parse(verb, &call.to_arguments()[1..]), Ok(call)),
        Err(failure) => is_one_line(&failure),
    }
}

/// Kubelet's JSON.
fn options(bytes: &[u8]) {
    match Options::parse(OsStr::from_bytes(bytes)) {
        Ok(options) => assert_eq!(Options::parse(options.to_json()), Ok(options)),
        Err(failure) => is_one_line(&failure),
    }
}

/// The first byte chooses the driver or the dialect; then come side file, verb and arguments, with
/// NULs between.
pub fn plan(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let words = arguments(rest);
    let [settings, verb, arguments @ ..] = words.as_slice() else { return };
    let settings = settings.to_str().filter(|text| !text.is_empty()).unwrap_or("{}");
    let (Ok(mut settings), Some(verb)) = (side_file::parse(settings), Verb::parse(verb)) else {
        return;
    };
    let choice = usize::from(*choice) % (drivers::ALL.len() + profiles::ALL.len());
    let chosen = if let Some(driver) = drivers::ALL.get(choice) {
        *driver
    } else {
        let profile = profiles::ALL[choice - drivers::ALL.len()];
        settings.profile = Some(profile.name.to_owned());
        profile.driver
    };
    let call =
        if verb == Verb::Init { Err(Failure::call("nothing to plan")) } else { Call::parse(verb, arguments) };
    let planned = call.and_then(|call| {
        let installed = Installed::new(chosen, None, settings);
        if !installed.verbs().contains(verb) {
            return Err(Failure::call("it lacks the verb"));
        }
        let plan = installed.plan(&call)?;
        installed.settings.policy.check(&plan)?;
        Ok(plan)
    });
    match planned {
        Ok(plan) => assert!(serde_json::to_string(&plan).is_ok()),
        Err(failure) => is_one_line(&failure),
    }
}

/// A driver's answer, as kubelet's side reads it.
fn reply(bytes: &[u8]) {
    if let Ok(status) = DriverStatus::parse(bytes) {
        status.outcome();
    }
    let text = String::from_utf8_lossy(bytes);
    Release::told(&text);
    if let Some(reply) = Reply::from_line(&text) {
        let line = reply.to_line();
        assert!(line.ends_with("}\n") && line.lines().count() == 1, "{line:?}");
        assert!(DriverStatus::parse(line.as_bytes()).is_ok(), "{line:?}");
    }
}

/// The mount table, whose paths anybody with a mount namespace chooses.
fn mounts(bytes: &[u8]) {
    let entries = mount_table::parse_all(bytes);
    assert!(entries.len() <= bytes.split(|byte| *byte == b'\n').count());
}

/// One text, whatever file is asked for.
struct Everywhere<'a>(&'a str);

impl Files for Everywhere<'_> {
    fn read(&self, _: &Path) -> Result<Option<String>, Failure> {
        Ok(Some(self.0.to_owned()))
    }

    fn list(&self, directory: &Path) -> Result<Vec<(String, bool)>, Failure> {
        let depth = directory.components().count();
        Ok(vec![("a.conf".to_owned(), false), ("b.d".to_owned(), depth < 40)])
    }
}

const PROGRAMS: &[Program] = &[
    Program::Kubelet,
    Program::K3s,
    Program::Kubelite,
    Program::MicroShift,
    Program::EdgeCore,
    Program::Origin,
    Program::ControllerManager,
];

/// Kubelet's files, in each of the forms in which a distribution keeps them.
fn kubelet_configuration(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let files = Everywhere(&text);
    let words = ["--config=/a", "--config-dir=/c", "--kubelet-args-file=/d"].map(str::to_owned);
    for program in PROGRAMS {
        let told = interpret::kubelet(*program, &words, Path::new("/"), &files).map(drop);
        told.unwrap_or_else(|failure| is_one_line(&failure));
        let told = interpret::manager(*program, &words, Path::new("/"), &files).map(drop);
        told.unwrap_or_else(|failure| is_one_line(&failure));
    }
    let told = interpret::manifests(&files).map(drop);
    told.unwrap_or_else(|failure| is_one_line(&failure));
}

/// The words of a process that may call itself kubelet.
fn process_title(bytes: &[u8]) {
    let words: Vec<_> =
        bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    for executable in [None, Some(Path::new("/usr/bin/kubelet"))] {
        if let Some((program, rest)) = command_line::recognise(&words, executable) {
            let told = interpret::kubelet(program, &rest, Path::new("/"), &Everywhere("")).map(drop);
            told.unwrap_or_else(|failure| is_one_line(&failure));
        }
    }
}

/// YAML of anybody.
fn any_yaml(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match yaml::parse(&text) {
        Ok(documents) => documents.iter().for_each(|document| {
            // JSON is YAML.
            let json = document.to_string();
            assert_eq!(yaml::parse(&json).ok().as_deref(), Some(std::slice::from_ref(document)), "{json}");
        }),
        Err(failure) => is_one_line(&failure),
    }
}

/// Kubernetes objects: what `validate`, `call` and `pod` make of them.
fn objects(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut objects = Objects::default();
    match objects.add(&text) {
        Ok(()) => drop(objects.used(Path::new("/k"), Secrets::IfThere)),
        Err(failure) => is_one_line(&failure),
    }
    let report = validate(&[Source { name: "x.yaml", text: &text }], &KnownDrivers::default());
    for finding in report.findings {
        let line = finding.to_string();
        assert!(!line.chars().any(char::is_control), "{line:?}");
    }
}

/// A side file, which may be a foreign driver's. What is read is written and read back.
fn side_file(bytes: &[u8]) {
    match side_file::parse(&String::from_utf8_lossy(bytes)) {
        Ok(settings) => {
            let text = serde_json::to_string(&settings).expect("JSON");
            assert_eq!(side_file::parse(&text), Ok(settings), "{text}");
        }
        Err(failure) => is_one_line(&failure),
    }
}

/// Names of directories, quantities, targets.
fn names(bytes: &[u8]) {
    if let Ok(name) = DriverName::from_directory(OsStr::from_bytes(bytes)) {
        assert_eq!(DriverName::from_directory(name.directory()), Ok(name));
    }
    if let Ok(target) = TargetPath::parse(OsStr::from_bytes(bytes)) {
        assert!(target.as_path().is_absolute());
        assert!(target.as_path().components().all(|part| part != std::path::Component::ParentDir));
    }
    let text = String::from_utf8_lossy(bytes);
    let _ = (Quantity::parse(&text), DriverName::parse(&text));
}

/// The size of an image, by its first eight bytes, and what it holds.
fn image(bytes: &[u8]) -> Option<(u64, &[u8])> {
    bytes.split_first_chunk().map(|(size, content)| (u64::from_le_bytes(*size), content))
}

/// Reads an image that ends before it should.
fn read_at(content: &[u8], at: u64, buffer: &mut [u8]) -> usize {
    let rest = usize::try_from(at).ok().and_then(|at| content.get(at..)).unwrap_or_default();
    let length = rest.len().min(buffer.len());
    buffer[..length].copy_from_slice(&rest[..length]);
    length
}

/// What a disk says it is.
fn any_signature(bytes: &[u8]) {
    if let Some((size, content)) = image(bytes) {
        let _ = signature::identify_in(size, |at, buffer| Ok(read_at(content, at, buffer)));
    }
}

/// A partition table.
fn partitions(bytes: &[u8]) {
    let Some((size, content)) = image(bytes) else { return };
    let found = partition::partitions_in(size, |at, buffer| Ok(read_at(content, at, buffer)));
    for partition in found.into_iter().flatten() {
        if let Ok((offset, length)) = partition.window.within(size) {
            assert!(offset.checked_add(length).is_some_and(|end| end <= size), "{partition:?} of {size}");
        }
    }
}

/// The header of a disk image: one that is taken names no other file.
fn image_header(bytes: &[u8]) {
    if disk_image::refuse_foreign_header(bytes).is_ok() {
        assert!(bytes.starts_with(b"QFI\xfb") && bytes[8..16] == [0; 8]);
    }
}

/// A server that says these bytes, whatever it is told.
struct Server<'a>(Cursor<&'a [u8]>);

impl Read for Server<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Server<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A server of block devices.
fn any_nbd(bytes: &[u8]) {
    if let Err(error) = nbd::greet(&mut Server(Cursor::new(bytes)), "export") {
        is_one_line(&to_failure(error));
    }
}

/// A nameserver.
fn dns(bytes: &[u8]) {
    let id = bytes.first_chunk().map_or(0, |id| u16::from_be_bytes(*id));
    let _ = network::answer(id, bytes);
}

/// The program that serves a tenant's disk image.
fn any_qmp(bytes: &[u8]) {
    let _ = qmp::answer(&mut Cursor::new(bytes));
}

/// A tenant's words for mount and mkfs. No comma gets through.
fn words(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for kind in [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Btrfs, FileSystem::Squashfs] {
        let words: Vec<_> = text.split(' ').map(str::to_owned).collect();
        let _ = mkfs_options::validate(kind, &words);
        if let Ok((_, options)) = mount_options::parse(&text, MountFlags::DEFAULT, kind.rules()) {
            for option in options {
                let text = format!("{}{}", option.key, option.value.unwrap_or_default());
                assert!(!text.contains([',', '\0', '\n']), "{text:?}");
            }
        }
    }
}

/// Our own files in memory, half written.
fn records(bytes: &[u8]) {
    if let Ok(record) = serde_json::from_slice::<Record>(bytes) {
        let text = serde_json::to_string(&record).expect("JSON");
        assert_eq!(serde_json::from_str::<Record>(&text).ok(), Some(record));
    }
}

/// What becomes an Event of a pod.
fn is_one_line(failure: &Failure) {
    let message = failure.message();
    assert!(message.len() <= MESSAGE_LIMIT, "{} bytes", message.len());
    assert!(!message.is_empty() && !message.chars().any(char::is_control), "{message:?}");
}

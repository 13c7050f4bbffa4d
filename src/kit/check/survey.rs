//! Survey of the driver: the first life cycle of a volume, in a sandbox of its own, while nothing
//! is wrong.

use super::answer::{Answer, Meant};
use super::evidence::Stopped;
use super::facts::Facts;
use super::given::Given;
use super::in_time::Pace;
use super::left::{self, Left};
use super::staging::put;
use super::subject::{NODE, Subject};
use crate::sandbox::{Inside, Isolation};
use flexvol_kubelet::{PodVolume, Verdict};
use flexvol_linux::mount::mount_table;
use flexvol_protocol::ordered::filled;
use flexvol_protocol::{Call, Capabilities, Verb};
use rustix::fs::statvfs;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

/// File that is looked for at the next mount.
const FILE: &str = "check";

/// Learns all facts. A failure is no error here: there are cases about it.
pub(super) fn survey(given: &Given, inside: &Inside) -> Facts {
    let mut facts = Facts::default();
    let nothing = Facts::default();
    let mut subject = Subject::new(given, &nothing, inside, given.seed);
    let init = subject.call(&Call::Init);
    learn_capabilities(&init, &mut facts);
    facts.attaches = facts.init_works && facts.says_attach && has_an_attachment(&mut subject);
    // Without a sandbox the mount would be on the machine itself.
    let answers = if given.volume.is_some() && inside.isolation() != Isolation::None {
        let known = facts.clone();
        let mut subject = Subject::new(given, &known, inside, given.seed);
        match live(&mut subject, &mut facts) {
            Ok(()) => facts.mounts = true,
            Err(stopped) => facts.why_not = words(stopped),
        }
        subject.answers().to_vec()
    } else {
        Vec::new()
    };
    facts.clean = answers.iter().chain([&init]).all(|answer| !answer.is_success() || answer.is_readable());
    let lingers = |answer: &Answer| answer.run.exited.is_some() && answer.run.closed.is_none();
    facts.lingers = answers.iter().chain([&init]).any(lingers);
    // No mount waits for the answer to `getvolumename`.
    let aside = Verb::GetVolumeName.name();
    let hangs = |answer: &Answer| answer.was_stopped() && !answer.unclear && answer.asked.verb() != aside;
    facts.hangs = answers.iter().any(hangs);
    facts.busy = subject.is_unclear() || answers.iter().any(|answer| answer.unclear);
    let meant = |wanted: fn(&Meant) -> bool| {
        let verbs = answers.iter().filter(|answer| wanted(&answer.meant)).map(|answer| answer.asked.verb());
        filled::<BTreeSet<_>, _>(verbs).into_iter().map(str::to_owned).collect()
    };
    facts.verbs = meant(|meant| !matches!(meant, Meant::NotSupported | Meant::Nothing));
    facts.lacks = meant(|meant| *meant == Meant::NotSupported);
    facts
}

/// Reports whether the driver has a verb of an attachment.
/// None has an effect without its arguments.
pub(super) fn has_an_attachment(subject: &mut Subject<'_>) -> bool {
    [Verb::Attach, Verb::WaitForAttach, Verb::MountDevice]
        .into_iter()
        .any(|verb| subject.words(&[verb.name()]).meant != Meant::NotSupported)
}

fn learn_capabilities(init: &Answer, facts: &mut Facts) {
    let meant = init.status().and_then(|status| status.capabilities);
    facts.loads = matches!(&init.verdict, Verdict::Success(status) if status.capabilities.is_some());
    let capabilities = meant.unwrap_or(Capabilities::KUBELET_DEFAULT);
    facts.init_works = init.is_success();
    facts.says_attach = capabilities.attach;
    facts.fs_group = capabilities.fs_group;
    facts.supports_metrics = capabilities.supports_metrics;
    facts.requires_fs_resize = capabilities.requires_fs_resize;
    facts.selinux_relabel = capabilities.selinux_relabel;
}

/// Plays two pods, one after the other.
fn live(subject: &mut Subject<'_>, facts: &mut Facts) -> Result<(), Stopped> {
    let first = subject.volume()?;
    subject.call(&Call::GetVolumeName { options: first.device_options() });
    let before = subject.inside.processes()?;
    facts.mount_took = milliseconds(subject.bring_up(&first)?.took());
    // Daemons are the processes that remain after those that only release something.
    std::thread::sleep(Pace::recent().limit(Duration::from_millis(20)));
    let after = subject.inside.processes()?;
    facts.daemons = after.into_iter().filter(|each| !before.contains(each)).map(|(_, line)| line).collect();
    let target = first.target()?;
    facts.modes = modes(subject, &first)?;
    look(target.as_path(), facts)?;
    if subject.attaches() {
        let (options, node) = (first.device_options(), NODE.to_owned());
        subject.call(&Call::IsAttached { options, node });
    }
    if facts.requires_fs_resize {
        ask_to_expand(subject, &first, facts.size)?;
    }
    subject.take_down(&first)?;
    facts.litters = !Left::look(subject)?.is_only_files();
    let after_first = left::files(subject)?;
    let unmounts = subject.answers().iter().filter(|answer| answer.asked.verb() == Verb::Unmount.name());
    facts.unmount_took = unmounts.map(|answer| milliseconds(answer.took())).max().unwrap_or_default();
    let second = subject.volume()?;
    subject.bring_up(&second)?;
    facts.keeps_data = second.target()?.as_path().join(FILE).exists();
    subject.take_down(&second)?;
    if facts.keeps_data || !facts.writable {
        facts.keeps = left::kept(&after_first, &left::files(subject)?, &first.pod_uid);
    }
    Ok(())
}

/// Returns modes by path: of the root of a mounted volume, of its entries, and of everything that
/// was made for it elsewhere.
pub(super) fn modes(subject: &Subject<'_>, volume: &PodVolume) -> Result<BTreeMap<String, u32>, Stopped> {
    let mode_of = |path: &Path| {
        let found = path.symlink_metadata().ok().filter(|found| !found.is_symlink())?;
        Some(found.permissions().mode() & 0o7777)
    };
    let mut modes = BTreeMap::new();
    let target = volume.target()?;
    modes.extend(mode_of(target.as_path()).map(|mode| (String::new(), mode)));
    let inside = std::fs::read_dir(&target)?.filter_map(Result::ok);
    modes.extend(inside.filter_map(|entry| {
        Some((format!("{} in the volume", entry.file_name().display()), mode_of(&entry.path())?))
    }));
    let made = subject.inside.changed()?;
    let made = made.into_iter().filter(|path| !left::is_note(path));
    modes.extend(made.filter_map(|path| Some((path.display().to_string(), mode_of(&path)?))));
    Ok(modes)
}

fn look(target: &Path, facts: &mut Facts) -> Result<(), Stopped> {
    if let Some(entry) = mount_table::at(target)? {
        facts.file_system = entry.file_system;
    }
    facts.writable = put(&target.join(FILE), "written by the first pod").is_ok();
    let figures = statvfs(target)?;
    facts.size = figures.f_blocks.saturating_mul(figures.f_frsize);
    Ok(())
}

/// Asks to expand to the present size, only to learn whether the driver has the verb.
fn ask_to_expand(subject: &mut Subject<'_>, volume: &PodVolume, size: u64) -> Result<(), Stopped> {
    let size = volume.capacity.unwrap_or(size);
    let volume = PodVolume { capacity: Some(size), ..volume.clone() };
    let device = subject.device().to_owned();
    subject.call(&volume.expand_call(&device, size)?);
    Ok(())
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn words(stopped: Stopped) -> String {
    match stopped {
        Stopped::Failed(evidence) | Stopped::Blocked(_, evidence) => evidence.problem,
        Stopped::Skipped(why) => why,
        Stopped::Broken(error) => format!("{error:#}"),
    }
}

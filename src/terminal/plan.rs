//! Text form of a plan, for people.

use crate::screen::{Screen, Tone};
use anyhow::Result;
use flexvol_model::plan::{
    Checkout, Cluster, Daemon, Dialect, DirectoryOnShare, Goal, MountFrom, Overlay, Plan, Reach, Share,
    Source, Step, StoreStep, Upper, Word,
};
use flexvol_protocol::TargetPath;
use flexvol_protocol::mount_options::MountFlags;
use flexvol_protocol::quantity::Quantity;
use std::collections::BTreeMap;
use std::path::Path;

/// Prints the goal, the steps and the policy's decision.
pub fn print(screen: &mut Screen, plan: &Plan, refusal: Option<&str>) -> Result<()> {
    screen.heading(&format!("goal: {}", goal(&plan.goal)))?;
    for (index, step) in plan.steps.iter().enumerate() {
        screen.line(&format!("{:>2}. {}", index + 1, describe(step)))?;
        if let Some(undo) = step.undo() {
            screen.line(&format!("    undo: {undo}"))?;
        }
    }
    let policy = match refusal {
        None => screen.paint(Tone::Good, "allowed"),
        Some(why) => format!("{}: {why}", screen.paint(Tone::Bad, "refused")),
    };
    screen.line(&format!("policy: {policy}"))
}

fn goal(goal: &Goal) -> String {
    match goal {
        Goal::Mounted { target, view } => {
            let source = match &view.source {
                Source::Name(name) => name.clone(),
                Source::Share { source, servers } => source.with(&servers.join("|")),
                Source::Node(path) => path.display().to_string(),
                Source::Image(file) => format!("the file system in {}", file.display()),
                Source::Store(store) => format!("the file system on {store}"),
                Source::Identity(name) => format!("what the command mounts for {name}"),
                Source::Clone { repository, .. } => format!("a clone of {repository}"),
                Source::Csi { driver, handle } => format!("volume {handle} of CSI driver {driver}"),
                Source::Any => "what the command mounts".to_owned(),
            };
            format!("{source} at {target}, {}", view.access.word())
        }
        Goal::Unmounted { target } => format!("nothing mounted at {target}"),
        Goal::Ended { target } => format!("nothing mounted at {target}, and no process that served it"),
        Goal::Performed => "every step done".to_owned(),
    }
}

fn published(step: &Step) -> String {
    match step {
        Step::CsiPublish { socket, volume, .. } => {
            let driver = &volume.driver;
            let what = match &volume.from {
                Some(from) => format!("a volume of {from}, in its own words for it"),
                None => volume.handle.clone(),
            };
            format!("have the CSI driver {driver} publish {what}, by the agent ({})", socket.display())
        }
        Step::CsiUnpublish { socket, .. } => {
            format!("have its CSI driver unpublish it, by the agent ({})", socket.display())
        }
        Step::CsiExpand { socket, volume, size } => {
            let (driver, size) = (&volume.driver, Quantity(*size));
            format!("tell the CSI driver {driver} that it has {size}, by the agent ({})", socket.display())
        }
        _ => String::new(),
    }
}

fn describe(step: &Step) -> String {
    match step {
        Step::PrepareTarget { target } => format!("make sure {target} is there and free"),
        Step::MakeDirectory { path, owner } => {
            let path = path.display();
            format!(
                "make {path} if it is missing, mode {:04o}, owner {}:{}",
                owner.mode, owner.uid, owner.gid
            )
        }
        Step::ExpectMount { path } => format!("go on only if something is mounted at {}", path.display()),
        Step::ExpectStaged { staged, source } => {
            format!("go on only if what is mounted at {staged}, if anything, is {source}")
        }
        Step::CreateImage { file, size, allocation } => {
            let how = format!("{allocation:?}").to_lowercase();
            format!("make {} of {} if it is missing, {how}", file.display(), Quantity(*size))
        }
        Step::AttachLoop { file, .. } => format!("attach {} to a loop device", file.display()),
        Step::Store(step) => device(step),
        Step::Hold { socket, hold } => holding(socket, hold),
        Step::Release { socket, .. } => format!("release what was held for it ({})", socket.display()),
        Step::CsiPublish { .. } | Step::CsiUnpublish { .. } | Step::CsiExpand { .. } => published(step),
        Step::Answer { device } => format!("answer {device}"),
        Step::ShowStaged { target, staged, flags } => format!("bind {staged} to {target} ({flags})"),
        Step::Format { file_system, .. } => format!("format it as {} if it is blank", file_system.name()),
        Step::CheckFileSystem { .. } => "check the file system unless it is in use".to_owned(),
        Step::Mount { target, file_system, from, flags, options } => {
            let options: Vec<_> = options.iter().map(ToString::to_string).collect();
            let what = mounted(file_system.as_deref(), from);
            format!("mount {what} at {target} ({flags}) {}", options.join(",")).trim_end().to_owned()
        }
        Step::Reach(reach) => reaching(reach),
        Step::MakeDirectoryOnShare { missing, .. } => making(missing),
        Step::ReachCluster(cluster) => monitors(cluster),
        Step::MountShare { target, share, missing, otherwise } => {
            let made = missing.as_deref().map(|missing| format!("; {}", making(missing)));
            shared(target, share, otherwise.as_deref()) + &made.unwrap_or_default()
        }
        Step::MountFiles { target, flags, files, owner, .. } => {
            let names: Vec<_> = files.iter().map(|file| file.name.as_str()).collect();
            format!("mount {} at {target} ({flags}), mode {:04o}", names.join(", "), owner.mode)
        }
        Step::MountOverlay { target, overlay } => layered(target, overlay),
        Step::Bind { target, source, flags, .. } => bound(target, source, *flags),
        Step::Run(run) => format!("run {}", words(&run.argv)),
        Step::Checkout(checkout) => cloned(checkout),
        Step::Serve(daemon) => {
            let (from, target, flags) = (&daemon.from, &daemon.target, daemon.flags);
            format!("serve {from} at {target} ({flags}) by {} {}", daemon.program, words(&daemon.words))
        }
        Step::EndDaemon { target, patience, .. } => {
            format!("unmount everything at {target} and end its daemon, after {patience} s at the latest")
        }
        Step::Unmount { target } => format!("unmount everything at {target}"),
        Step::GrowImage { size, .. } => format!("grow the image to {}", Quantity(*size)),
        Step::GrowFileSystem { target } => format!("grow the file system at {target}"),
    }
}

fn holding(socket: &Path, hold: &BTreeMap<String, String>) -> String {
    let word = |key: &str| hold.get(key).map_or("", String::as_str);
    let whom = match (word("access"), word("fence")) {
        ("ro", _) => "every pod that writes",
        (_, "node") => "the pods of every other node",
        _ => "every other pod",
    };
    format!("hold {}, away from {whom} ({})", word("handle"), socket.display())
}

fn mounted<'a>(file_system: Option<&'a str>, from: &'a MountFrom) -> &'a str {
    match (file_system, from) {
        (Some(kind), _) => kind,
        (None, MountFrom::Name(name)) => name,
        (None, MountFrom::AttachedDevice) => "whatever file system it holds",
    }
}

/// Describes a step on a block device from elsewhere.
fn device(step: &StoreStep) -> String {
    match step {
        StoreStep::Attach { attachment, .. } => {
            format!("attach {} unless it is attached", attachment.store)
        }
        StoreStep::Find { store, .. } => format!("take the device of {store} that is on the node"),
        StoreStep::Decrypt(_) => "open its encryption".to_owned(),
        StoreStep::Grow { size } => format!("grow the device to {}", Quantity(*size)),
        StoreStep::Detach { target } => {
            format!("detach the device that was attached for {target}, unless others use it")
        }
        StoreStep::Unstage { staged } => {
            format!(
                "unmount what was mounted for the node at {staged} while the driver attached, unless a pod uses it"
            )
        }
    }
}

fn cloned(checkout: &Checkout) -> String {
    let place = match checkout.size {
        None => "on the node's disk".to_owned(),
        Some(size) => format!("in {} of memory", Quantity(size)),
    };
    let Checkout { target, repository, revision, flags, directory, .. } = checkout;
    let what = directory.as_ref().map_or_else(|| "it".to_owned(), |below| below.display().to_string());
    format!("clone {revision} of {repository} {place} and show {what} at {target} ({flags})")
}

fn layered(target: &TargetPath, overlay: &Overlay) -> String {
    let lower: Vec<_> = overlay.lower.iter().map(|path| path.display().to_string()).collect();
    let upper = match &overlay.upper {
        Upper::Memory(None) => "memory".to_owned(),
        Upper::Memory(Some(size)) => format!("{} of memory", Quantity(*size)),
        Upper::Directory(path) => path.display().to_string(),
    };
    format!("mount {upper} above {} at {target} ({})", lower.join(", "), overlay.flags)
}

fn reaching(reach: &Reach) -> String {
    let servers = reach.servers.join(", then ");
    match reach.patience {
        0 => format!("look up {servers}"),
        patience => format!("connect to port {} of {servers}, for {patience} s each", reach.port),
    }
}

fn shared(target: &TargetPath, share: &Share, otherwise: Option<&Daemon>) -> String {
    let options: Vec<_> = share.options.iter().map(ToString::to_string).collect();
    let kinds: Vec<_> = share.dialects.iter().map(dialect).collect();
    let (source, flags, kinds, options) = (&share.source, share.flags, kinds.join(" or "), options.join(","));
    let otherwise = otherwise.map(|daemon| format!("; without, by {}", daemon.program)).unwrap_or_default();
    format!("mount {source} at {target} ({flags}) as {kinds}: {options}{otherwise}")
}

fn making(DirectoryOnShare { share, path, owner }: &DirectoryOnShare) -> String {
    format!("make {} in {} if it is missing, mode {:04o}", path.display(), share.source, owner.mode)
}

fn monitors(cluster: &Cluster) -> String {
    let monitors: Vec<_> = cluster.monitors.iter().map(ToString::to_string).collect();
    let monitors = monitors.join(", then ");
    match cluster.patience {
        0 => format!("look up {monitors}"),
        patience => format!("connect to {monitors}, for {patience} s each"),
    }
}

fn dialect(dialect: &Dialect) -> String {
    let options: Vec<_> = dialect.options.iter().map(ToString::to_string).collect();
    [&[dialect.file_system.to_owned()], &*options].concat().join(" ")
}

fn words(words: &[Word]) -> String {
    words.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn bound(target: &TargetPath, source: &Path, flags: MountFlags) -> String {
    format!("bind {} to {target} ({flags})", source.display())
}

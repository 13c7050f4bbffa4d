//! `exec`: any script as a safe driver.
//!
//! The side file names the command for each verb. flexvol adds the deadline, the lock, the check of
//! the mount table before and after, the rollback and the reply. There is no shell, so no option
//! can become a command:
//!
//! ```json
//! {"driver": "exec", "exec": {
//!     "commands": {"mount": ["/usr/local/bin/mount-share", "{option.server}", "{target}", "{secret.password}"]},
//!     "options": ["server"], "fileSystem": "fuse.sharefs"}}
//! ```
//!
//! Placeholders, replaced in each word of a command separately:
//!
//! * `{target}` `{device}` `{node}` `{newBytes}` `{oldBytes}`: the verb's own arguments;
//! * `{volume}` `{fsType}` `{access}` (`ro` or `rw`), `{option.NAME}`: in verbs that get options
//!   from kubelet;
//! * `{fsGroup}` `{pod.name}` `{pod.namespace}` `{pod.uid}` `{serviceAccount}`: in `mount` only;
//! * `{secret.KEY}`, in `mount` only and at the end of an argument: the path of a file that only
//!   the command can read and that disappears when the command ends.
//!
//! A `?` before the closing brace (`{option.port?}`) drops the whole argument if there is no value.
//! `{{` and `}}` are a literal brace. A value may not begin an argument with `-`, so that no tenant
//! can add a flag. A placeholder without `?` for which its verb never has a value is reported at
//! the first `mount`, not when a pod ends.
//!
//! With `exec.capabilities.attach`, a command for `mountdevice` is required: without it, kubelet
//! would format and mount the device itself, and flexvol could not tell which volume the mount
//! belongs to. kubelet shows what `mountdevice` mounted to every pod whose volume has the same
//! name, and two volumes can have the same name. `exec.identity` names the volume as its storage
//! does, for example `"identity": "{option.server}/{option.share}"`. If another volume is mounted
//! for the node, `mount` and `expandfs` fail. Without `exec.identity`, volumes with different
//! options are different volumes.
//!
//! A command succeeds if it exits with 0; otherwise its output is the reason for the failure.
//! `attach` and `waitforattach` print the device, `isattached` prints `true` or `false`,
//! `getvolumename` prints the name: one line on standard output and nothing else. `unmount` is
//! optional: flexvol always unmounts what the command leaves at the target.
//!
//! A mount by the command gets nosuid and nodev, unless `policy.allowSuid` and `policy.allowDev`
//! say otherwise. It is read-only if the volume is, even if the command ignores `{access}`.
//! Stricter flags that the command set stay.
//!
//! A daemon that the command starts and leaves running, as FUSE does, inherits no descriptors of
//! kubelet, but stays in kubelet's cgroup: a restart of kubelet's service kills it and its mount is
//! dead, unless the command itself starts it with `systemd-run --scope`.

pub mod settings;
mod template;

pub use settings::ExecSettings;

/// Name of the driver, and of its key in the side file.
pub const NAME: &str = "exec";

use crate::driver::{Driver, Example, Growth, Request};
use crate::plan::{Answer, FileSystems, Goal, Plan, Run, Source, Step, View, Word};
use crate::schema::{OptionSpec, did_you_mean};
use crate::settings::{SIDE_FILE, Settings};
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::mount_options::MountFlags;
use flexvol_protocol::ordered::filled;
use flexvol_protocol::text::hex;
use flexvol_protocol::volume_dir::VolumeDir;
use flexvol_protocol::{Access, Capabilities, Options, TargetPath, Verb, VerbSet};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The driver.
pub struct Exec;

impl Driver for Exec {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "the admin's own commands, made safe"
    }

    fn hint(&self) -> Option<String> {
        let text = "The admin's side file .flexvol.json beside the executable says which command serves which verb: \
            {\"driver\": \"exec\", \"exec\": {\"commands\": {\"mount\": [\"/usr/local/bin/mount-share\", \
            \"{option.server}\", \"{target}\"]}, \"options\": [\"server\"]}}";
        Some(text.to_owned())
    }

    fn instead_of_attach(&self) -> Option<&'static str> {
        Some("set exec.capabilities.attach instead")
    }

    fn is_configured(&self, settings: &Settings) -> bool {
        settings.exec.is_some()
    }

    fn declared<'a>(&self, settings: &'a Settings) -> Option<&'a BTreeSet<String>> {
        settings.exec.as_ref().map(|exec| &exec.options)
    }

    fn example(&self) -> Example {
        Example { option: Some(("share", "web")), ..Example::default() }
    }

    /// Returns no options: the side file's `exec.options` names them.
    fn options(&self) -> &'static [OptionSpec] {
        &[]
    }

    fn verbs(&self, settings: &Settings) -> VerbSet {
        let own = settings.exec.iter().flat_map(|exec| exec.commands.keys());
        own.filter_map(|name| Verb::parse(name.as_ref()))
            .fold(VerbSet::MOUNTING, |set, verb| set.union(VerbSet::of(&[verb])))
    }

    fn capabilities(&self, settings: &Settings) -> Capabilities {
        settings.exec.as_ref().map(|exec| exec.capabilities).unwrap_or_default().into()
    }

    /// Returns the first word of every command.
    fn programs<'a>(&self, settings: &'a Settings) -> Vec<&'a str> {
        let commands = settings.exec.iter().flat_map(|exec| exec.commands.values());
        let programs: BTreeSet<_> = filled(commands.filter_map(|words| words.first()).map(String::as_str));
        // A program name with a placeholder is known only together with a volume.
        programs.into_iter().filter(|program| !program.contains(['{', '}'])).collect()
    }

    /// Checks every command: a mistake in `unmount` must not stay hidden until the first pod ends.
    fn check(&self, settings: &Settings) -> Result<()> {
        let config = config(settings)?;
        for (name, words) in &config.commands {
            let verb = Verb::parse(name.as_ref());
            verb.into_iter().try_for_each(|verb| template::check(verb, words))?;
        }
        config.identity.as_deref().map_or(Ok(()), template::check_identity)?;
        refuse_unknown(settings.options.keys(), config)?;
        check_capabilities(config)
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let values = Values::default().target(target).options(request.options);
        mounting(Verb::Mount, target, request, &values)
    }

    fn unmount(&self, target: &TargetPath, settings: &Settings) -> Result<Plan> {
        unmounting(Verb::Unmount, target, settings)
    }

    fn expand_fs(&self, target: &TargetPath, growth: &Growth<'_>, request: &Request<'_>) -> Result<Plan> {
        let values = Values::default()
            .target(target)
            .options(request.options)
            .set("device", growth.device)
            .set("newBytes", growth.new_bytes.to_string())
            .set("oldBytes", growth.old_bytes.to_string());
        let grown = performed(run(Verb::ExpandFs, request.settings, &values)?);
        let staged = VolumeDir::of(target).staged().unwrap_or_else(|| target.clone());
        let expected = Step::ExpectStaged { staged, source: identity(request)? };
        let expected = stages(request.settings).then_some(expected);
        Ok(Plan { steps: expected.into_iter().chain(grown.steps).collect(), ..grown })
    }

    fn get_volume_name(&self, request: &Request<'_>) -> Result<Plan> {
        let values = Values::default().options(request.options);
        Ok(performed(run(Verb::GetVolumeName, request.settings, &values)?))
    }

    fn attach(&self, node: &str, request: &Request<'_>) -> Result<Plan> {
        let values = Values::default().options(request.options).set("node", node);
        Ok(performed(run(Verb::Attach, request.settings, &values)?))
    }

    fn detach(&self, volume: &str, node: &str, settings: &Settings) -> Result<Plan> {
        let values = Values::default().set("volume", volume).set("node", node);
        Ok(performed(run(Verb::Detach, settings, &values)?))
    }

    fn wait_for_attach(&self, device: &str, request: &Request<'_>) -> Result<Plan> {
        let values = Values::default().options(request.options).set("device", device);
        Ok(performed(run(Verb::WaitForAttach, request.settings, &values)?))
    }

    fn is_attached(&self, node: &str, request: &Request<'_>) -> Result<Plan> {
        let values = Values::default().options(request.options).set("node", node);
        Ok(performed(run(Verb::IsAttached, request.settings, &values)?))
    }

    fn mount_device(&self, target: &TargetPath, device: &str, request: &Request<'_>) -> Result<Plan> {
        let values = Values::default().target(target).options(request.options).set("device", device);
        mounting(Verb::MountDevice, target, request, &values)
    }

    fn unmount_device(&self, target: &TargetPath, settings: &Settings) -> Result<Plan> {
        unmounting(Verb::UnmountDevice, target, settings)
    }

    fn expand_volume(&self, target: &Path, growth: &Growth<'_>, request: &Request<'_>) -> Result<Plan> {
        let values = Values::default()
            .options(request.options)
            .set("target", target.to_string_lossy())
            .set("newBytes", growth.new_bytes.to_string())
            .set("oldBytes", growth.old_bytes.to_string());
        Ok(performed(run(Verb::ExpandVolume, request.settings, &values)?))
    }
}

fn refuse_unknown<'a>(keys: impl IntoIterator<Item = &'a String>, config: &ExecSettings) -> Result<()> {
    let known = |key: &String| key.is_empty() || key.contains('/') || config.options.contains(key);
    let Some(key) = keys.into_iter().find(|key| !known(key)) else { return Ok(()) };
    let near = did_you_mean(key, config.options.iter().map(String::as_str));
    let hint = near.map(|near| format!("did you mean {near:?}?"));
    let hint = hint.unwrap_or_else(|| format!("{SIDE_FILE} lists the known ones in exec.options"));
    Err(Failure::options(format!("unknown option {key:?}: {hint}")))
}

/// Checks that the commands match the capabilities that `init` promises: kubelet calls no verb that
/// is not promised, and waits forever for a promised verb that is missing.
fn check_capabilities(config: &ExecSettings) -> Result<()> {
    let has = |verb: Verb| config.commands.contains_key(verb.name());
    let complain = |text: String| Err(Failure::options(format!("{SIDE_FILE}: {text}")));
    let capabilities = config.capabilities;
    match VerbSet::ATTACHING.iter().find(|verb| has(*verb)) {
        Some(verb) if !capabilities.attach => complain(format!(
            "exec.commands.{verb} is never run: set exec.capabilities.attach, or leave the command out"
        )),
        _ if capabilities.attach && !has(Verb::Attach) => {
            complain("exec.capabilities.attach needs exec.commands.attach: add it".into())
        }
        _ if capabilities.attach && !has(Verb::MountDevice) => complain(
            "exec.capabilities.attach needs exec.commands.mountdevice: without it kubelet formats and mounts the \
             device by itself, and shows it to every pod whose volume has the same name, which flexvol cannot compare"
                .into(),
        ),
        _ if capabilities.requires_fs_resize && !has(Verb::ExpandFs) => {
            complain("exec.capabilities.requiresFSResize needs exec.commands.expandfs: add it".into())
        }
        _ => Ok(()),
    }
}

/// Returns a step that checks the volume that is mounted for the node: kubelet shows what
/// `mountdevice` mounted to every pod whose volume has the same name.
fn expect_staged(target: &TargetPath, request: &Request<'_>) -> Result<Option<Step>> {
    let staged = VolumeDir::of(target).staged();
    let source = identity(request)?;
    Ok(staged.filter(|_| stages(request.settings)).map(|staged| Step::ExpectStaged { staged, source }))
}

/// Limit for the name of a volume, in bytes, so that its record can be read back.
const LONGEST_NAME: usize = 1024;

/// Reports whether a command mounts the volume once for the node.
fn stages(settings: &Settings) -> bool {
    settings.exec.as_ref().is_some_and(|exec| exec.commands.contains_key(Verb::MountDevice.name()))
}

/// Returns what identifies the volume: `exec.identity` of the admin, or else all its options.
fn identity(request: &Request<'_>) -> Result<Source> {
    let config = config(request.settings)?;
    let values = Values::default().options(request.options);
    let named =
        config.identity.as_deref().map(|word| template::fill_word(word, &values)).transpose()?.flatten();
    Ok(match named {
        Some(Word::Text(name)) if name.len() > LONGEST_NAME => {
            let text = format!(
                "exec.identity makes a name of more than {LONGEST_NAME} bytes of these options: shorten them"
            );
            return Err(Failure::options(text));
        }
        Some(Word::Text(name)) => Source::Identity(name),
        _ if !stages(request.settings) => Source::Any,
        _ => {
            let mut digest = Sha256::new();
            for part in request.options.own.iter().flat_map(|(key, value)| [key, value]) {
                digest.update(part.len().to_le_bytes());
                digest.update(part);
            }
            Source::Identity(format!("a volume with options of digest {}", hex(&digest.finalize())))
        }
    })
}

fn mounting(verb: Verb, target: &TargetPath, request: &Request<'_>, values: &Values<'_>) -> Result<Plan> {
    let run = Run {
        mounts: Some(target.clone()),
        flags: Some(flags(request)),
        ..run(verb, request.settings, values)?
    };
    Ok(Plan {
        goal: Goal::Mounted { target: target.clone(), view: view(request)? },
        steps: [Step::PrepareTarget { target: target.clone() }]
            .into_iter()
            .chain(expect_staged(target, request)?)
            .chain([Step::Run(run)])
            .collect(),
    })
}

/// Returns the flags of the mount. The admin decides on the command, and on nosuid and nodev: the
/// policy can remove them for all volumes of the driver.
fn flags(request: &Request<'_>) -> MountFlags {
    let policy = &request.settings.policy;
    MountFlags {
        read_only: request.options.access() == Access::ReadOnly,
        suid: policy.allow_suid,
        dev: policy.allow_dev,
        ..MountFlags::DEFAULT
    }
}

/// Plans an unmount. The command is optional; flexvol's own unmount always follows it.
fn unmounting(verb: Verb, target: &TargetPath, settings: &Settings) -> Result<Plan> {
    let mut plan = Plan::unmount(target);
    if config(settings).and_then(|config| command(verb, config)).is_ok() {
        let run = run(verb, settings, &Values::default().target(target))?;
        plan.steps.insert(0, Step::Run(Run { unmounts: Some(target.clone()), ..run }));
    }
    Ok(plan)
}

fn performed(run: Run) -> Plan {
    Plan { goal: Goal::Performed, steps: vec![Step::Run(run)] }
}

fn view(request: &Request<'_>) -> Result<View> {
    let file_system = config(request.settings)?.file_system.clone().map(FileSystems::One);
    Ok(View { file_system, source: identity(request)?, access: request.options.access() })
}

fn config(settings: &Settings) -> Result<&ExecSettings> {
    settings.exec.as_ref().ok_or_else(|| {
        Failure::options(format!("{SIDE_FILE} has no \"exec\": say there which commands serve the verbs"))
    })
}

fn command(verb: Verb, config: &ExecSettings) -> Result<&[String]> {
    config
        .commands
        .get(verb.name())
        .map(Vec::as_slice)
        .filter(|words| !words.is_empty())
        .ok_or_else(|| Failure::options(format!("{SIDE_FILE}: exec.commands has no {verb}: add one")))
}

fn run(verb: Verb, settings: &Settings, values: &Values<'_>) -> Result<Run> {
    let config = config(settings)?;
    values.refuse_unknown(config)?;
    let argv = template::fill(command(verb, config)?, values)?;
    let answer = match verb {
        Verb::Attach | Verb::WaitForAttach => Answer::Device,
        Verb::IsAttached => Answer::Attached,
        Verb::GetVolumeName => Answer::VolumeName,
        _ => Answer::Nothing,
    };
    let secrets = values.given.map(|options| options.secrets.clone()).unwrap_or_default();
    let secrets_on_stdin = config.secrets_on_stdin;
    Ok(Run { argv, secrets, secrets_on_stdin, mounts: None, flags: None, unmounts: None, answer })
}

/// Values of the placeholders in one call.
#[derive(Default)]
struct Values<'a> {
    plain: BTreeMap<&'static str, String>,
    given: Option<&'a Options>,
}

impl<'a> Values<'a> {
    fn set(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.plain.insert(key, value.into());
        self
    }

    fn target(self, target: &TargetPath) -> Self {
        self.set("target", target.to_string())
    }

    fn options(mut self, options: &'a Options) -> Self {
        let pod = &options.pod;
        let known = [
            ("volume", options.volume_name.clone()),
            ("fsType", options.fs_type().map(str::to_owned)),
            ("fsGroup", options.fs_group.as_ref().map(|group| group.gid.to_string())),
            ("pod.name", pod.name.clone()),
            ("pod.namespace", pod.namespace.clone()),
            ("pod.uid", pod.uid.clone()),
            ("serviceAccount", pod.service_account.clone()),
        ];
        self.plain.extend(known.into_iter().filter_map(|(key, value)| Some((key, value?))));
        self.given = Some(options);
        self.set("access", options.access().word())
    }

    fn refuse_unknown(&self, config: &ExecSettings) -> Result<()> {
        refuse_unknown(self.given.iter().flat_map(|options| options.own.keys()), config)
    }

    /// Returns the value of a placeholder, or `None` if the call has none.
    fn value(&self, name: &str) -> Option<&str> {
        let value = match name.strip_prefix("option.") {
            Some(key) => self.given.and_then(|options| options.own.get(key)),
            None => self.plain.get(name),
        };
        value.map(String::as_str).filter(|value| !value.is_empty())
    }

    fn has_secret(&self, key: &str) -> bool {
        self.given.is_some_and(|options| options.secrets.contains_key(key))
    }
}

//! `exec`: any script as a safe driver.
//!
//! The side file says which command serves which verb; the deadline, the lock, the look at the mount table before and after, the undo
//! and the reply are flexvol's. There is no shell, so no option can become a command:
//!
//! ```json
//! {"driver": "exec", "exec": {
//!     "commands": {"mount": ["/usr/local/bin/mount-share", "{option.server}", "{target}", "{secret.password}"]},
//!     "options": ["server"], "fileSystem": "fuse.sharefs"}}
//! ```
//!
//! Placeholders: `{target}` `{device}` `{volume}` `{node}` `{fsType}` `{access}` (`ro` or `rw`) `{fsGroup}` `{newBytes}` `{oldBytes}`
//! `{pod.name}` `{pod.namespace}` `{pod.uid}` `{serviceAccount}`, `{option.NAME}`, and, at the end of an argument, `{secret.KEY}`: the path of a
//! file only the command can read and that is gone with it. A `?` before the brace (`{option.port?}`) drops the whole argument when there is no value. A
//! value may not begin an argument with `-`, so that no tenant can add a flag.
//!
//! A command succeeds by exiting with 0; what it prints is the reason when it does not. `attach` and `waitforattach`
//! print the device, `isattached` prints `true` or `false`, `getvolumename` the name. `unmount` is optional: whatever the
//! command does, flexvol unmounts what is left at the target.

use crate::driver::{Driver, Request};
use crate::failure::{Failure, Result};
use crate::plan::{Answer, Goal, Plan, Run, Source, Step, View, Word};
use crate::protocol::{Call, Capabilities, Options, TargetPath, Verb, VerbSet};
use crate::schema::{OptionSpec, did_you_mean};
use crate::settings::{self, SIDE_FILE, Settings};
use std::collections::BTreeMap;

/// The driver.
pub struct Exec;

impl Driver for Exec {
    fn name(&self) -> &'static str {
        "exec"
    }

    fn summary(&self) -> &'static str {
        "commands of the admin's own, made safe"
    }

    /// None of its own: the side file's `exec.options` names them.
    fn options(&self) -> &'static [OptionSpec] {
        &[]
    }

    fn verbs(&self, settings: &Settings) -> VerbSet {
        let own = settings.exec.iter().flat_map(|exec| exec.commands.keys());
        let always = const { VerbSet::of(&[Verb::Init, Verb::Mount, Verb::Unmount]) };
        own.filter_map(|name| Verb::parse(name.as_ref()))
            .fold(always, |set, verb| set.union(VerbSet::of(&[verb])))
    }

    fn capabilities(&self, settings: &Settings) -> Capabilities {
        settings.exec.as_ref().map(|exec| exec.capabilities).unwrap_or_default().into()
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let values = Values::default().target(target).options(request.options);
        let run = Run { mounts: Some(target.clone()), ..run(Verb::Mount, request.settings, &values)? };
        Ok(Plan {
            goal: Goal::Mounted { target: target.clone(), view: view(request)? },
            steps: vec![Step::PrepareTarget { target: target.clone() }, Step::Run(run)],
        })
    }

    fn unmount(&self, target: &TargetPath, settings: &Settings) -> Result<Plan> {
        let mut plan = Plan::unmount(target);
        if command(Verb::Unmount, settings).is_ok() {
            let run = run(Verb::Unmount, settings, &Values::default().target(target))?;
            plan.steps.insert(0, Step::Run(Run { unmounts: Some(target.clone()), ..run }));
        }
        Ok(plan)
    }

    fn expand_fs(&self, target: &TargetPath, new_bytes: u64, request: &Request<'_>) -> Result<Plan> {
        let values =
            Values::default().target(target).options(request.options).set("newBytes", new_bytes.to_string());
        performed(run(Verb::ExpandFs, request.settings, &values)?)
    }

    fn other(&self, call: &Call, settings: &Settings) -> Result<Plan> {
        let run = run(call.verb(), settings, &Values::of(call))?;
        match call {
            Call::MountDevice { target, options, .. } => {
                let view = view(&Request { options, settings })?;
                let steps = vec![
                    Step::PrepareTarget { target: target.clone() },
                    Step::Run(Run { mounts: Some(target.clone()), ..run }),
                ];
                Ok(Plan { goal: Goal::Mounted { target: target.clone(), view }, steps })
            }
            Call::UnmountDevice { target } => {
                let mut plan = Plan::unmount(target);
                plan.steps.insert(0, Step::Run(Run { unmounts: Some(target.clone()), ..run }));
                Ok(plan)
            }
            _ => performed(run),
        }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the tail of functions that can fail")]
fn performed(run: Run) -> Result<Plan> {
    Ok(Plan { goal: Goal::Performed, steps: vec![Step::Run(run)] })
}

fn view(request: &Request<'_>) -> Result<View> {
    let file_system = config(request.settings)?.file_system.clone();
    Ok(View { file_system, source: Source::Any, access: request.options.access() })
}

fn config(settings: &Settings) -> Result<&settings::Exec> {
    settings.exec.as_ref().ok_or_else(|| {
        Failure::options(format!("{SIDE_FILE} has no \"exec\": say there which commands serve the verbs"))
    })
}

fn command(verb: Verb, settings: &Settings) -> Result<&Vec<String>> {
    config(settings)?
        .commands
        .get(verb.name())
        .filter(|argv| !argv.is_empty())
        .ok_or_else(|| Failure::options(format!("{SIDE_FILE}: exec.commands has no {verb}: add one")))
}

fn run(verb: Verb, settings: &Settings, values: &Values<'_>) -> Result<Run> {
    let config = config(settings)?;
    values.refuse_unknown(config)?;
    let argv = command(verb, settings)?
        .iter()
        .filter_map(|word| values.fill(word).transpose())
        .collect::<Result<_>>()?;
    let answer = match verb {
        Verb::Attach | Verb::WaitForAttach => Answer::Device,
        Verb::IsAttached => Answer::Attached,
        Verb::GetVolumeName => Answer::VolumeName,
        _ => Answer::Nothing,
    };
    let secrets = values.given.map(|options| options.secrets.clone()).unwrap_or_default();
    Ok(Run { argv, secrets, secrets_on_stdin: config.secrets_on_stdin, mounts: None, unmounts: None, answer })
}

/// What the placeholders stand for in one call.
#[derive(Default)]
struct Values<'a> {
    plain: BTreeMap<&'static str, String>,
    given: Option<&'a Options>,
}

impl<'a> Values<'a> {
    fn of(call: &'a Call) -> Self {
        let values = match call {
            Call::Attach { node, .. } | Call::IsAttached { node, .. } => {
                Self::default().set("node", node.clone())
            }
            Call::Detach { volume, node } => {
                Self::default().set("volume", volume.clone()).set("node", node.clone())
            }
            Call::WaitForAttach { device, .. } => Self::default().set("device", device.clone()),
            Call::MountDevice { target, device, .. } => {
                Self::default().target(target).set("device", device.clone())
            }
            Call::ExpandVolume { target, new_bytes, old_bytes, .. } => Self::default()
                .set("target", target.to_string_lossy().into_owned())
                .set("newBytes", new_bytes.to_string())
                .set("oldBytes", old_bytes.to_string()),
            Call::UnmountDevice { target } => Self::default().target(target),
            _ => Self::default(),
        };
        match call.options() {
            Some(options) => values.options(options),
            None => values,
        }
    }

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

    fn refuse_unknown(&self, config: &settings::Exec) -> Result<()> {
        let own = self.given.iter().flat_map(|options| options.own.keys());
        let known = |key: &String| key.is_empty() || key.contains('/') || config.options.contains(key);
        match own.into_iter().find(|key| !known(key)) {
            Some(key) => {
                let near = did_you_mean(key, config.options.iter().map(String::as_str));
                let hint = near.map(|near| format!("did you mean {near:?}?"));
                let hint =
                    hint.unwrap_or_else(|| format!("{SIDE_FILE} lists the known ones in exec.options"));
                Err(Failure::options(format!("unknown option {key:?}: {hint}")))
            }
            None => Ok(()),
        }
    }

    /// One argument with its placeholders filled in; `None` when an optional one has no value.
    fn fill(&self, word: &str) -> Result<Option<Word>> {
        let Some((before, key)) = word.strip_suffix('}').and_then(|word| word.rsplit_once("{secret.")) else {
            return Ok(self.fill_text(word)?.map(Word::Text));
        };
        let (key, optional) = key.strip_suffix('?').map_or((key, false), |key| (key, true));
        if self.given.is_some_and(|options| options.secrets.contains_key(key)) {
            return Ok(self.fill_text(before)?.map(|before| Word::Secret { before, key: key.into() }));
        }
        if optional { Ok(None) } else { Err(missing(&format!("secret.{key}"))) }
    }

    fn fill_text(&self, word: &str) -> Result<Option<String>> {
        let (mut filled, mut rest) = (String::new(), word);
        while let Some((before, name, after)) = placeholder(rest) {
            filled.push_str(before);
            let (name, optional) = name.strip_suffix('?').map_or((name, false), |name| (name, true));
            match self.value(name)? {
                Some(value) if filled.is_empty() && value.starts_with('-') => {
                    return Err(Failure::options(format!(
                        "the value of {{{name}}} must not begin with \"-\""
                    )));
                }
                Some(value) => filled.push_str(&value),
                None if optional => return Ok(None),
                None => return Err(missing(name)),
            }
            rest = after;
        }
        filled.push_str(rest);
        if filled.contains('\0') {
            return Err(Failure::options("an option holds a NUL byte: no command can be given one"));
        }
        Ok(Some(filled))
    }

    fn value(&self, name: &str) -> Result<Option<String>> {
        let own =
            |key: &str| self.given.and_then(|options| options.own.get(key)).filter(|value| !value.is_empty());
        if let Some(key) = name.strip_prefix("option.") {
            return Ok(own(key).cloned());
        }
        if !KNOWN.contains(&name) {
            return Err(Failure::options(format!("{SIDE_FILE}: exec knows no placeholder {{{name}}}")));
        }
        Ok(self.plain.get(name).filter(|value| !value.is_empty()).cloned())
    }
}

/// The placeholders without a prefix.
const KNOWN: &[&str] = &[
    "target",
    "device",
    "volume",
    "node",
    "fsType",
    "access",
    "fsGroup",
    "newBytes",
    "oldBytes",
    "pod.name",
    "pod.namespace",
    "pod.uid",
    "serviceAccount",
];

/// The text before the first `{name}`, the name, and the text after it.
fn placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once('{')?;
    let (name, after) = rest.split_once('}')?;
    Some((before, name, after))
}

fn missing(name: &str) -> Failure {
    match name.split_once('.') {
        Some(("option", key)) => {
            Failure::options(format!("option {key:?} is missing: add it to flexVolume.options"))
        }
        Some(("secret", key)) => Failure::options(format!(
            "secret key {key:?} is missing: add it to the Secret, and check secretRef and that its type is the driver's name"
        )),
        _ => Failure::call(format!("this call has no {{{name}}}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(json: &str) -> Options {
        Options::parse(json).unwrap()
    }

    fn filled(word: &str, json: &str) -> Result<Option<Word>> {
        let options = options(json);
        Values::default().set("target", "/t").options(&options).fill(word)
    }

    fn text(word: &str, json: &str) -> Option<String> {
        match filled(word, json).unwrap_or_else(|failure| panic!("{word}: {failure}")) {
            Some(Word::Text(text)) => Some(text),
            None => None,
            word => panic!("{word:?}"),
        }
    }

    const GIVEN: &str = r#"{"a":"1","b":"{target}","c":"","d":"-x","e":"=-x","kubernetes.io/pvOrVolumeName":"v","kubernetes.io/secret/k":"aHVudGVyMg==","kubernetes.io/secret/a.b":""}"#;

    #[test]
    fn words_without_placeholders_stay() {
        for word in ["", "plain", "}", "a}b", "{", "a{b", "$1", "-x", "ü", "}{"] {
            assert_eq!(text(word, GIVEN).as_deref(), Some(word));
        }
    }

    #[test]
    fn placeholders_are_filled_once() {
        for (word, expected) in [
            ("{target}", "/t"),
            ("{option.a}{option.a}", "11"),
            ("x{option.b}y", "x{target}y"),
            ("{option.a}{", "1{"),
            ("{access},{volume}", "rw,v"),
            ("--d={option.d}", "--d=-x"),
            ("{option.a}{option.d}", "1-x"),
            ("{option.e}", "=-x"),
            ("{option.b?}", "{target}"),
        ] {
            assert_eq!(text(word, GIVEN).as_deref(), Some(expected), "{word}");
        }
    }

    #[test]
    fn an_optional_one_without_value_drops_its_argument() {
        for word in
            ["{option.c?}", "--c={option.c?}", "{option.none?}", "{fsGroup?}", "{device?}", "{secret.none?}"]
        {
            assert_eq!(filled(word, GIVEN), Ok(None), "{word}");
        }
        assert_eq!(filled("{option.none?}{secret.k}", GIVEN), Ok(None));
    }

    #[test]
    fn a_secret_is_the_end_of_its_argument() {
        let secret =
            |before: &str, key: &str| Ok(Some(Word::Secret { before: before.into(), key: key.into() }));
        assert_eq!(filled("{secret.k}", GIVEN), secret("", "k"));
        assert_eq!(filled("--p={option.a}:{secret.k?}", GIVEN), secret("--p=1:", "k"));
        assert_eq!(filled("{secret.a.b}", GIVEN), secret("", "a.b"));
        for word in
            ["{secret.k}x", "{secret.k}{option.a}", "{secret.k}{secret.k}", "{secret.}", "{secret.none}"]
        {
            assert!(filled(word, GIVEN).is_err(), "{word}");
        }
    }

    #[test]
    fn no_value_begins_an_argument_with_a_dash() {
        for word in ["{option.d}", "{option.d?}", "{option.d}x"] {
            assert!(
                filled(word, GIVEN).unwrap_err().message().contains("must not begin with \"-\""),
                "{word}"
            );
        }
        assert!(filled("{option.d}{secret.k}", GIVEN).is_err());
    }

    #[test]
    fn what_is_missing_or_unknown_is_named() {
        for (word, expected) in [
            ("{option.none}", "option \"none\" is missing"),
            ("{option.}", "option \"\" is missing"),
            ("{fsGroup}", "this call has no {fsGroup}"),
            ("{}", "exec knows no placeholder {}"),
            ("{Target}", "exec knows no placeholder {Target}"),
            ("{target }", "exec knows no placeholder {target }"),
            ("{target??}", "exec knows no placeholder {target?}"),
            ("{secret.none}", "secret key \"none\" is missing"),
        ] {
            let message = filled(word, GIVEN).unwrap_err().message();
            assert!(message.contains(expected), "{word}: {message}");
        }
        assert!(filled("x{option.a}", r#"{"a":"b\u0000"}"#).unwrap_err().message().contains("NUL"));
    }
}

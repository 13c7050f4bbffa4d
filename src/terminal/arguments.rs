//! Call as a person types it, for `run` and `plan`.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Args, Command};
use flexvol_linux::errno::to_failure;
use flexvol_linux::fs::files;
use flexvol_model::driver::Driver;
use flexvol_model::drivers::{self, VENDOR};
use flexvol_model::installed::Installed;
use flexvol_model::installed::Meaning;
use flexvol_model::profiles::{self, Profile};
use flexvol_model::settings::{SIDE_FILE, SIZE_LIMIT, Settings};
use flexvol_model::side_file;
use flexvol_protocol::failure::{Code, Failure, Result};
use flexvol_protocol::ordered::filled;
use flexvol_protocol::secret::Secret;
use flexvol_protocol::{Access, Argument, Call, DriverName, FsGroup, FsGroupSpelling, Options, PodRef, Verb};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Driver, verb, arguments, and conveniences for the options.
#[derive(Args)]
pub struct CallArguments {
    /// The driver
    #[arg(value_parser = parser())]
    driver: &'static dyn Driver,
    /// Verb to call: init, mount, unmount, expandfs, …
    pub verb: OsString,
    /// The verb's arguments, in kubelet's order; the options JSON may be left out
    arguments: Vec<OsString>,
    /// Act as if installed in this directory: kubelet's directories of other drivers are refused
    #[arg(long = "as", value_name = "VENDOR~DRIVER", value_parser = directory)]
    directory: Option<DriverName>,
    /// Options as this driver spells them (flexvol drivers --profiles); also taken from --as
    #[arg(long, value_name = "PROFILE", value_parser = profile_or_none())]
    profile: Option<String>,
    /// Read this side file (.flexvol.json): default options, policy, deadlines
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    #[command(flatten)]
    volume: VolumeArguments,
}

/// Options of a volume, as a PV or pod has them.
#[derive(Args)]
#[command(next_help_heading = "Options of the volume, instead of the options JSON")]
pub struct VolumeArguments {
    /// One of flexVolume.options; may be repeated
    #[arg(short = 'o', long = "option", value_name = "KEY=VALUE", value_parser = pair)]
    options: Vec<(String, String)>,
    /// Mount read-only
    #[arg(long)]
    ro: bool,
    /// The pod's fsGroup
    #[arg(long, value_name = "GID", value_parser = clap::value_parser!(u32).range(..i64::from(u32::MAX)))]
    fs_group: Option<u32>,
    /// flexVolume.fsType
    #[arg(long, value_name = "TYPE")]
    fs_type: Option<String>,
    /// One key of the Secret, from a file: everybody can see a command line
    #[arg(long = "secret", value_name = "KEY=@FILE", value_parser = secret_file)]
    secrets: Vec<(String, PathBuf)>,
}

/// Completes and corrects the names of drivers.
pub fn parser() -> impl TypedValueParser<Value = &'static dyn Driver> {
    let names = drivers::ALL.iter().map(|driver| PossibleValue::new(driver.name()).help(driver.summary()));
    PossibleValuesParser::new(names).try_map(|name| drivers::find(&name).ok_or("no such driver"))
}

/// Does the same, and also accepts a volume's name for a driver: `flexvol/tmpfs`, or a profile.
pub fn subject() -> impl TypedValueParser<Value = Meaning> {
    let own = drivers::ALL.iter().map(|driver| PossibleValue::new(driver.name()).help(driver.summary()));
    let all = PossibleValuesParser::new(own.chain(profile_names().map(|name| name.hide(true))));
    WithVendor(all.try_map(|name| Meaning::find(&name).ok_or("no such driver")))
}

/// Parser that also accepts the names that `install` gives to drivers.
#[derive(Clone)]
struct WithVendor<P>(P);

impl<P: TypedValueParser> TypedValueParser for WithVendor<P> {
    type Value = P::Value;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<P::Value, clap::Error> {
        let bare = value.to_str().and_then(|name| name.strip_prefix(VENDOR)?.strip_prefix('/'));
        self.0.parse_ref(command, argument, bare.map_or(value, OsStr::new))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        self.0.possible_values()
    }
}

/// Completes and corrects the names of profiles.
pub fn profile_parser() -> impl TypedValueParser<Value = &'static Profile> {
    PossibleValuesParser::new(profile_names()).try_map(|name| profiles::find(&name).ok_or("no such profile"))
}

/// Does the same, and also accepts a word for no profile.
pub fn profile_or_none() -> PossibleValuesParser {
    let none = PossibleValue::new(profiles::NONE).help("flexvol's own options");
    PossibleValuesParser::new(profile_names().chain([none]))
}

fn profile_names() -> impl Iterator<Item = PossibleValue> {
    profiles::ALL.iter().map(|profile| PossibleValue::new(profile.name).help(profile.summary))
}

fn directory(text: &str) -> Result<DriverName> {
    DriverName::from_directory(text)
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE")?;
    if key.starts_with("kubernetes.io/") {
        return Err("keys of kubernetes.io are kubelet's: use --ro, --fs-type, --fs-group or --secret".into());
    }
    Ok((key.to_owned(), value.to_owned()))
}

fn secret_file(text: &str) -> Result<(String, PathBuf), String> {
    let file = text.split_once("=@").map(|(key, file)| (key.to_owned(), PathBuf::from(file)));
    file.ok_or_else(|| "name a file that holds the secret: KEY=@FILE".to_owned())
}

impl CallArguments {
    /// Returns the driver with its side file.
    pub fn installed(&self) -> Result<Installed> {
        let mut settings = self.settings.as_deref().map_or_else(|| Ok(Settings::default()), read_settings)?;
        let directory = self.directory.as_ref().map(DriverName::directory);
        settings.driver = Some(self.driver.name().to_owned());
        settings.profile = self.profile.clone().or(settings.profile);
        side_file::check(&settings).map_err(|why| of_file(self.settings.as_deref(), &why))?;
        Ok(Installed::new(self.driver, directory, settings))
    }

    /// Returns the typed arguments as a call of this verb.
    pub fn call(&self, verb: Verb) -> Result<Call> {
        too_few(verb, self.arguments.len()).map_or(Ok(()), Err)?;
        Call::parse(verb, &self.arguments()?)
    }

    /// Returns the arguments after the verb, with the options JSON: it is built here unless it was
    /// typed.
    pub fn arguments(&self) -> Result<Vec<OsString>> {
        self.volume.complete(&self.verb, &self.arguments, PodRef::default())
    }
}

/// Returns the position of the options, if nothing else is missing.
fn missing_options(verb: Verb, given: usize) -> Option<usize> {
    let wanted = verb.spec().arguments;
    let place = wanted.iter().position(|argument| *argument == Argument::Options)?;
    (given + 1 == wanted.len()).then_some(place)
}

/// Returns a failure if more is missing than the options, which are built.
fn too_few(verb: Verb, given: usize) -> Option<Failure> {
    let wanted = verb.spec().arguments;
    let others: Vec<_> = wanted.iter().filter(|argument| **argument != Argument::Options).collect();
    if others.len() == wanted.len() || given >= others.len() {
        return None;
    }
    let names: Vec<_> = others.iter().map(|argument| argument.name()).collect();
    let plural = if others.len() == 1 { "" } else { "s" };
    Some(Failure::call(format!(
        "{verb} needs {} argument{plural} ({}) beside the options, got {given}",
        others.len(),
        names.join(", ")
    )))
}

fn twice(verb: &OsStr) -> Failure {
    let text = "does not take the options given: leave out the options JSON, or --option and the like";
    Failure::call(format!("{} {text}", verb.to_string_lossy()))
}

/// Reads a side file that the user names.
pub fn read_settings(path: &Path) -> Result<Settings> {
    let text = files::read_small(path, SIZE_LIMIT).map_err(to_failure)?;
    let missing = || Failure::new(Code::NotFound, format!("there is no side file {}", path.display()));
    side_file::parse(&text.ok_or_else(missing)?).map_err(|why| of_file(Some(path), &why))
}

/// Shows a side file's error under the name that was typed: on a command line the file may have any
/// name, and there may be none at all.
fn of_file(path: Option<&Path>, why: &Failure) -> Failure {
    let message = why.message();
    let what = message.strip_prefix(SIDE_FILE).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&message);
    let file = path.map(|path| format!("{}: ", path.display())).unwrap_or_default();
    Failure::new(why.code(), format!("{file}{what}"))
}

impl VolumeArguments {
    /// Returns the arguments of a verb, with the options JSON in its place unless it was typed.
    /// Only `mount` gets the pod.
    pub fn complete(&self, verb: &OsStr, given: &[OsString], pod: PodRef) -> Result<Vec<OsString>> {
        let mut arguments = given.to_vec();
        let known = Verb::parse(verb);
        match known.and_then(|verb| missing_options(verb, arguments.len())) {
            Some(place) => {
                let target = arguments.iter().map(Path::new).find(|argument| argument.is_absolute());
                let name = target.and_then(Path::file_name);
                let pod = if known == Some(Verb::Mount) { pod } else { PodRef::default() };
                let json = Options { pod, ..self.to_options(name)? }.to_json();
                arguments.insert(place, json.into());
            }
            None if self.is_given() => {
                let few = known.and_then(|verb| too_few(verb, given.len()));
                return Err(few.unwrap_or_else(|| twice(verb)));
            }
            None => {}
        }
        Ok(arguments)
    }

    fn is_given(&self) -> bool {
        let words = !self.options.is_empty() || !self.secrets.is_empty() || self.fs_type.is_some();
        words || self.ro || self.fs_group.is_some()
    }

    /// Returns the options as kubelet would send them, with the volume's name taken from its
    /// directory.
    fn to_options(&self, name: Option<&OsStr>) -> Result<Options> {
        let secrets = self.secrets.iter().map(|(key, file)| Ok((key.clone(), read_secret(file)?)));
        let secrets = secrets.collect::<Result<Vec<_>>>()?;
        Ok(Options {
            fs_type: Some(self.fs_type.clone().unwrap_or_default()),
            access: Some(if self.ro { Access::ReadOnly } else { Access::ReadWrite }),
            volume_name: name.map(|name| name.to_string_lossy().into_owned()),
            fs_group: self.fs_group.map(|gid| FsGroup { gid, spelling: FsGroupSpelling::Current }),
            secrets: filled(secrets),
            own: filled(self.options.iter().cloned()),
            ..Options::default()
        })
    }
}

fn read_secret(file: &Path) -> Result<Secret> {
    files::read(file).map(Secret::new).map_err(|error| {
        let text = format!("read the secret in {}: {error}", file.display());
        Failure::new(Code::NotFound, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::wording_of;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        call: CallArguments,
    }

    fn arguments(line: &str) -> Result<Vec<String>> {
        let words = std::iter::once("flexvol").chain(line.split(' '));
        let line = Line::try_parse_from(words).map_err(|error| Failure::call(error.to_string()))?;
        let arguments = line.call.arguments()?;
        Ok(arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect())
    }

    #[test]
    fn the_options_go_where_kubelet_puts_them() {
        let json = r#"{"kubernetes.io/fsType":"","kubernetes.io/readwrite":"rw"}"#;
        assert_eq!(arguments("image attach node-1").unwrap(), [json, "node-1"]);
        let named = r#"{"kubernetes.io/fsType":"","kubernetes.io/pvOrVolumeName":"v","kubernetes.io/readwrite":"rw"}"#;
        assert_eq!(arguments("image mount /a/v").unwrap(), ["/a/v", named]);
        assert_eq!(arguments("image unmount /a/v").unwrap(), ["/a/v"]);
        assert_eq!(arguments("image mount /a/v {}").unwrap(), ["/a/v", "{}"]);
        assert_eq!(arguments("image frobnicate a b").unwrap(), ["a", "b"]);
    }

    #[test]
    fn the_options_are_not_counted_among_what_is_missing() {
        let few = |verb, given| too_few(verb, given).map(|why| why.message());
        let attach = wording_of("arguments-missing", ["attach", "node", "0"]);
        assert_eq!(few(Verb::Attach, 0).as_deref(), Some(attach));
        assert_eq!((few(Verb::Mount, 1), few(Verb::Mount, 3), few(Verb::Unmount, 0)), (None, None, None));
    }

    #[test]
    fn a_side_file_is_called_as_it_was_typed() {
        let why = side_file::parse("{").unwrap_err();
        let said = |path: Option<&str>| of_file(path.map(Path::new), &why).message();
        assert!(
            said(Some("/srv/bad.json")).starts_with("/srv/bad.json: EOF"),
            "{}",
            said(Some("/srv/bad.json"))
        );
        assert!(said(None).starts_with("EOF"), "{}", said(None));
    }

    #[test]
    fn conveniences_become_kubelet_s_keys() {
        let json = &arguments("image mount /v -o size=1Mi --option a=b=c --ro --fs-group 7 --fs-type xfs")
            .unwrap()[1];
        assert_eq!(
            json,
            concat!(
                r#"{"a":"b=c","kubernetes.io/fsType":"xfs","kubernetes.io/mounterArgs.FsGroup":"7","#,
                r#""kubernetes.io/pvOrVolumeName":"v","kubernetes.io/readwrite":"ro","size":"1Mi"}"#
            )
        );
    }

    #[test]
    fn contradictions_and_open_secrets_are_refused() {
        for (line, fix) in [
            ("image mount /v {} --ro", "leave out"),
            ("image unmount /v -o a=b", "leave out"),
            ("image mount -o a=b", wording_of("arguments-missing", ["mount", "target", "0"])),
            ("image mount /v -o kubernetes.io/readwrite=ro", "use --ro"),
            ("image mount /v --secret password=hunter2", "KEY=@FILE"),
            ("image mount /v --secret password=@/nowhere", "/nowhere"),
            ("imgae mount /v", "'image'"),
        ] {
            let message = arguments(line).unwrap_err().message();
            assert!(message.contains(fix), "{line}: {message}");
        }
    }
}

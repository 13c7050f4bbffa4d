//! `flexvol validate`: finds errors of volumes in files, or in the objects of a cluster.

mod cluster;
mod take_over;

use super::objects::{self, FILE_LIMIT};
use crate::validate::{
    Finding, Gathered, KnownDrivers, Outcome, Planned, RULES, Report, Severity, TakenOver,
};
use anyhow::{Context as _, Result};
use clap::Args;
use cluster::Cluster;
use flexvol_linux::errno::to_failure;
use flexvol_model::drivers;
use flexvol_model::installed::Meaning;
use flexvol_model::profiles;
use flexvol_model::settings::{SIDE_FILE, Settings};
use flexvol_protocol::DriverName;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::text::one_line;
use flexvol_terminal::arguments::read_settings;
use flexvol_terminal::exit::USAGE;
use flexvol_terminal::exit::say;
use flexvol_terminal::plan;
use flexvol_terminal::screen::{Screen, Tone, counted};
use serde_json::json;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check the volumes in YAML files or of a cluster: options, secrets, claims, policy, and planned
/// steps
#[derive(Args)]
#[command(after_help = "\
Reads what kubectl applies: PersistentVolume, PersistentVolumeClaim, Secret, Pod and whatever has
a pod template, also in lists and several documents; other kinds are left out. All files are taken
together: give a volume with its claim, its pod and its Secret, and more can be told.

What is wrong is said by file and line, with the fix. An error is refused by the API server, by
kubelet or by the driver, or is plainly a slip; a warning works, but not as it looks, or needs a
file that is not given. Volumes of other drivers are read in their own dialect, as the installed
driver would (flexvol drivers --profiles).
The drivers of a node may have side files with default options and a policy: name them, or the
defaults are taken. No value of a Secret is ever printed.

Examples:
  flexvol validate -f pv.yaml -f secret.yaml
  flexvol validate -f all.yaml --plan                        and what would be done on the node
  kubectl get pod,pvc,pv,secret -n shop -o yaml | flexvol validate -f -
  kubectl flexvol validate                                   what a cluster has, of any size
  flexvol validate --cluster --context prod                  the same, where flexvol is no plugin
  kubectl flexvol validate --take-over                       what flexvol would do otherwise
  flexvol validate -f pv.yaml --settings .flexvol.json
  flexvol validate -f pv.yaml --driver-dir /etc/kubernetes/volumeplugins
  flexvol validate -f pv.yaml --profile acme/share=fstab/cifs
  flexvol validate -f pv.yaml --json | jq -r '.findings[] | \"\\(.file):\\(.line) \\(.rule)\"'

Exit status: 0 no error (with --strict: and no warning), 1 errors, 2 it could not be done.")]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(super) struct Validate {
    /// YAML or JSON, or a directory of such files; may be repeated, - for standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE", num_args = 1..)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    cluster: Cluster,
    /// Plugin directory of a node: its side files are used, and missing drivers are reported
    #[arg(long, visible_alias = "plugin-dir", value_name = "DIR")]
    driver_dir: Option<PathBuf>,
    /// Side file (.flexvol.json) for one driver, or for each that it fits; may be repeated
    #[arg(long, value_name = "[VENDOR/DRIVER=]FILE", value_parser = side_file)]
    settings: Vec<(Option<DriverName>, PathBuf)>,
    /// flexvol's driver or profile for a name, if neither the name nor its side file identifies it
    #[arg(long, value_name = "VENDOR/DRIVER=NAME", value_parser = alias)]
    profile: Vec<(DriverName, Meaning)>,
    /// Show what would be done on the node for each volume, and what the policy says
    #[arg(long)]
    plan: bool,
    /// Only show the effects on the volumes if flexvol took them over from their drivers
    #[arg(long, conflicts_with = "plan")]
    take_over: bool,
    /// Fail for warnings too
    #[arg(long)]
    strict: bool,
    /// List the rules, and exit
    #[arg(long, conflicts_with_all = ["files", "plan", "take_over", "strict"])]
    rules: bool,
}

/// Origin of the objects.
enum Origin {
    Files(usize),
    Cluster { secrets_read: bool },
}

impl Origin {
    fn name(&self) -> String {
        match self {
            Self::Files(count) => counted(*count, "file"),
            Self::Cluster { secrets_read: true } => "the cluster".to_owned(),
            Self::Cluster { secrets_read: false } => {
                "the cluster; its Secrets were not checked, this user may not list them".to_owned()
            }
        }
    }
}

fn side_file(text: &str) -> Result<(Option<DriverName>, PathBuf), Failure> {
    match text.split_once('=') {
        Some((name, file)) => Ok((Some(DriverName::parse(name)?), file.into())),
        None => Ok((None, text.into())),
    }
}

fn alias(text: &str) -> Result<(DriverName, Meaning), Failure> {
    let wrong = |what: &str| Failure::options(format!("{what}: write VENDOR/DRIVER=NAME"));
    let (name, meaning) = text.split_once('=').ok_or_else(|| wrong(&format!("{text:?} has no \"=\"")))?;
    let all = || {
        let drivers = drivers::ALL.iter().map(|driver| driver.name());
        let all: Vec<_> = drivers.chain(profiles::ALL.iter().map(|profile| profile.name)).collect();
        all.join(", ")
    };
    let known = Meaning::find(meaning).ok_or_else(|| {
        Failure::options(format!("there is no driver or profile {meaning:?}: name one of {}", all()))
    })?;
    Ok((DriverName::parse(name)?, known))
}

impl Validate {
    /// Runs the command. `program` is the name by which the program was called.
    pub(super) fn run(&self, program: &OsStr, screen: &mut Screen) -> Result<ExitCode> {
        if self.rules {
            return print_rules(screen);
        }
        let read = self.gathered(program).and_then(|gathered| Ok((gathered, self.installed()?)));
        let ((gathered, origin), installed) = match read {
            Ok(read) => read,
            // Status 1 means errors in the files.
            Err(error) => {
                say(&to_failure(error).message(), screen.wants_json());
                return Ok(ExitCode::from(USAGE));
            }
        };
        let report = gathered.report(&installed);
        if self.take_over {
            return self.taken_over(screen, &report.taken_over);
        }
        if screen.wants_json() {
            self.json(screen, &report, &origin)?;
        } else {
            self.text(screen, &report, &origin)?;
        }
        let wrong = report.count(Severity::Error) > 0 || self.strict && !report.findings.is_empty();
        Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Returns all objects, and their origin.
    fn gathered(&self, program: &OsStr) -> Result<(Gathered, Origin)> {
        let mut gathered = Gathered::default();
        if !self.files.is_empty() {
            let mut paths = Vec::new();
            for path in &self.files {
                if path.is_dir() { paths.extend(manifests(path)?) } else { paths.push(path.clone()) }
            }
            paths.iter().try_for_each(|path| gather(&mut gathered, path))?;
            return Ok((gathered, Origin::Files(paths.len())));
        }
        if !self.cluster.is_meant(program) {
            let text = "nothing to check: name files with --filename, or say --cluster";
            return Err(Failure::new(Code::BadCall, text).into());
        }
        let secrets_read = self.cluster.gather(&mut gathered)?;
        Ok((gathered, Origin::Cluster { secrets_read }))
    }

    fn installed(&self) -> Result<KnownDrivers> {
        let mut installed = KnownDrivers::default();
        if let Some(directory) = &self.driver_dir {
            for (name, settings) in side_files(directory)? {
                installed.add(name, settings);
            }
            installed.set_directory(directory.display().to_string());
        }
        for (name, file) in &self.settings {
            let settings = read_settings(file)?;
            match name {
                Some(name) => installed.add(name.clone(), settings),
                None => installed.set_everywhere(settings),
            }
        }
        for (name, meaning) in &self.profile {
            installed.name(name.clone(), *meaning);
        }
        Ok(installed)
    }

    fn taken_over(&self, screen: &mut Screen, all: &[TakenOver]) -> Result<ExitCode> {
        if screen.wants_json() {
            screen.json(&json!(all))?;
        } else {
            take_over::print(screen, all)?;
        }
        let is_wrong = |what| self.strict || what != Outcome::Otherwise;
        let wrong = all.iter().flat_map(|driver| &driver.changes).any(|change| is_wrong(change.what));
        Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn json(&self, screen: &mut Screen, report: &Report, origin: &Origin) -> Result<()> {
        let mut all = json!({
            "findings": report.findings,
            "volumes": report.volumes,
            "errors": report.count(Severity::Error),
            "warnings": report.count(Severity::Warning),
        });
        if self.plan {
            all["plans"] = json!(report.plans);
        }
        if let Origin::Cluster { secrets_read } = origin {
            all["secretsRead"] = json!(secrets_read);
        }
        screen.json(&all)
    }

    fn text(&self, screen: &mut Screen, report: &Report, origin: &Origin) -> Result<()> {
        for finding in &report.findings {
            let line = line(screen, finding);
            screen.line(&line)?;
        }
        for planned in report.plans.iter().filter(|_| self.plan) {
            print_plan(screen, planned)?;
        }
        let (errors, warnings) = (report.count(Severity::Error), report.count(Severity::Warning));
        let tone = match (errors, warnings) {
            (0, 0) => Tone::Good,
            (0, _) => Tone::Warning,
            _ => Tone::Bad,
        };
        let sum = format!(
            "{}, {} in {} of {}",
            counted(errors, "error"),
            counted(warnings, "warning"),
            counted(report.volumes, "volume"),
            origin.name()
        );
        let sum = screen.paint(tone, &sum);
        screen.line(&sum)
    }
}

/// Gathers a whole file of a user. A larger file comes from a cluster, and is read object by
/// object.
fn gather(gathered: &mut Gathered, path: &Path) -> Result<()> {
    let name = objects::name(path);
    let context = || format!("read {name}");
    let (mut input, mut start) = (objects::open(path)?, Vec::new());
    input.by_ref().take(FILE_LIMIT as u64 + 1).read_to_end(&mut start).with_context(context)?;
    if start.len() <= FILE_LIMIT {
        let text = String::from_utf8(start).ok().with_context(|| format!("{name} is not UTF-8: fix it"))?;
        gathered.text(&name, &text);
        return Ok(());
    }
    let mut whole = BufReader::new(start.as_slice().chain(input));
    Ok(gathered
        .stream(&name, false, &mut whole)
        .map_err(|why| Failure::options(format!("{name}: {}", why.message())))?)
}

/// Returns the files of a directory that kubectl would apply.
pub(super) fn manifests(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))?;
    let is_one = |path: &PathBuf| {
        let ends = ["yaml", "yml", "json"];
        path.extension().is_some_and(|end| ends.iter().any(|known| end == *known)) && !path.is_dir()
    };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(is_one).collect();
    paths.sort();
    let none = || {
        Failure::new(Code::NotFound, format!("there is no .yaml, .yml or .json in {}", directory.display()))
    };
    if paths.is_empty() { Err(none().into()) } else { Ok(paths) }
}

fn line(screen: &Screen, Finding { file, line, severity, rule, message }: &Finding) -> String {
    let tone = if *severity == Severity::Error { Tone::Bad } else { Tone::Warning };
    let severity = screen.paint(tone, &severity.to_string());
    format!("{}: {severity}: {} [{rule}]", place(file, *line), one_line(message, usize::MAX))
}

/// Returns file and line; an object of a cluster has no line.
fn place(file: &str, line: usize) -> String {
    if line == 0 { file.to_owned() } else { format!("{file}:{line}") }
}

fn print_plan(screen: &mut Screen, planned: &Planned) -> Result<()> {
    let Planned { file, line, volume, pod, driver, kind, steps } = planned;
    for call in steps {
        let of = if driver.ends_with(&format!("/{kind}")) { String::new() } else { format!(" ({kind})") };
        screen.heading(&format!(
            "\n{}: {} of volume {volume} by {driver}{of}, for pod {pod}",
            place(file, *line),
            call.verb
        ))?;
        plan::print(screen, &call.plan, call.refusal.as_deref())?;
    }
    screen.line("")
}

fn print_rules(screen: &mut Screen) -> Result<ExitCode> {
    if screen.wants_json() {
        let rule = |rule: &crate::validate::Rule| json!({"rule": rule.id, "severity": rule.severity, "holds": rule.doc});
        screen.json(&RULES.iter().map(rule).collect::<Vec<_>>())?;
    } else {
        let head = ["RULE", "SEVERITY", "HOLDS"].map(str::to_owned);
        let row = |rule: &crate::validate::Rule| {
            [rule.id.to_owned(), rule.severity.to_string(), rule.doc.to_owned()]
        };
        screen.table(&std::iter::once(head).chain(RULES.iter().map(row)).collect::<Vec<_>>())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the settings of every driver in a plugin directory: its side file, or the defaults.
fn side_files(directory: &Path) -> Result<Vec<(DriverName, Settings)>> {
    let entries = fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))?;
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("read {}", directory.display()))?;
        // Kubelet, too, ignores directories whose name is no driver name.
        let Ok(name) = DriverName::from_directory(entry.file_name()) else { continue };
        let file = entry.path().join(SIDE_FILE);
        let settings = match read_settings(&file) {
            Ok(settings) => settings,
            Err(why) if why.code() == Code::NotFound => Settings::default(),
            Err(why) => return Err(why).with_context(|| file.display().to_string()),
        };
        all.push((name, settings));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_directory_the_manifests_are_read_in_their_order() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        assert!(manifests(directory.path()).unwrap_err().to_string().contains("there is no .yaml"));
        for name in ["b.yml", "a.yaml", "c.json", "README.md", "yaml"] {
            fs::File::create(at(name)).unwrap();
        }
        fs::create_dir(at("d.yaml")).unwrap();
        assert_eq!(manifests(directory.path()).unwrap(), [at("a.yaml"), at("b.yml"), at("c.json")]);
    }
}

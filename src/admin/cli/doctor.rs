//! `flexvol doctor`.

use crate::doctor::{self, CHECKS, Check, DoctorRequest, Examined, Finding, Severity};
use anyhow::Result;
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use flexvol_linux::proc::signal;
use flexvol_protocol::text::seconds;
use flexvol_terminal::probing::printable;
use flexvol_terminal::screen::{Screen, Tone, counted, wrap};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Indentation of the texts below a finding.
const INDENT: usize = 9;

/// List problems of this node, each with its cause and fix
#[derive(Args)]
#[command(after_help = "\
Looks at the plugin directory, at every driver as kubelet sees it, at what drivers need, at every volume, at kubelet's log and the \
drivers' own, and at what was left behind. Each check runs by itself and ends by itself; none needs a kubelet, and nothing is \
changed. Findings come worst first: an error makes volumes fail, a warning may, a note is worth knowing.

What can be fixed from here says so: --repair prints what would be done, --repair=now does it. That is dead mounts, volumes of pods \
that are gone, loop devices that nobody uses, credentials of volumes that are not mounted, leftovers of installers. No file of a \
volume is ever removed.

Examples:
  sudo flexvol doctor
  sudo flexvol doctor --repair            what could be fixed, and how
  sudo flexvol doctor --repair=now
  sudo flexvol doctor --check volumes --check leftovers
  kubectl logs … > log; flexvol doctor --kubelet-log log
  sudo flexvol doctor --json | jq -r '.findings[] | select(.severity == \"error\") | .id'

Exit status: 0 nothing is wrong (notes do not count), 1 something is (with --repair=now: still), 2 wrong usage.")]
pub(super) struct Doctor {
    /// Run only this check; may be repeated (see --list)
    #[arg(long, value_name = "CHECK", value_parser = PossibleValuesParser::new(CHECKS.iter().map(|check| check.name)))]
    check: Vec<String>,
    /// List the checks
    #[arg(long)]
    list: bool,
    /// The plugin directory; may be repeated [default: those that flexvol locate finds]
    #[arg(long, value_name = "DIR")]
    plugin_dir: Vec<PathBuf>,
    /// kubelet's own directory; may be repeated [default: all in use, mounted or recorded]
    #[arg(long, value_name = "DIR")]
    kubelet_root: Vec<PathBuf>,
    /// kubelet's log [default: /var/log/kubelet.log, or the journal of the last hour]
    #[arg(long, value_name = "FILE", value_parser = there)]
    kubelet_log: Option<PathBuf>,
    /// Execute no driver
    #[arg(long)]
    no_init: bool,
    /// Fix what can be fixed; without =now only print what would be done
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "dry")]
    repair: Option<Fixing>,
}

/// Mode of `--repair`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fixing {
    /// Print what would be done
    Dry,
    /// Do it
    Now,
}

/// Result of one repair.
struct Fixed {
    id: String,
    does: String,
    result: Option<Result<(), String>>,
}

impl Doctor {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        signal::install()?;
        if self.list {
            return list(screen);
        }
        let mut examined = self.examine(screen)?;
        let fixed = self.fix(&examined);
        if fixed.iter().any(|fixed| fixed.result.is_some()) {
            examined = self.examine(screen)?;
        }
        if screen.wants_json() {
            screen.json(&as_json(&examined, &fixed))?;
        } else {
            show(&examined, screen)?;
            fixed.iter().try_for_each(|each| show_fixed(each, screen))?;
            let hint = self.repair.filter(|_| fixed.is_empty()).map(|_| nothing_to_do(&examined));
            summary(&examined, hint, screen)?;
        }
        let wrong = doctor::in_order(&examined).iter().any(|finding| finding.severity != Severity::Note);
        Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn examine(&self, screen: &mut Screen) -> Result<Vec<Examined>> {
        let request = DoctorRequest {
            plugin_dir: self.plugin_dir.clone(),
            kubelet_root: self.kubelet_root.clone(),
            kubelet_log: self.kubelet_log.clone(),
            no_init: self.no_init,
        };
        let wanted =
            |check: &&Check| self.check.is_empty() || self.check.iter().any(|name| name == check.name);
        let mut examined = Vec::new();
        for check in CHECKS.iter().filter(wanted) {
            anyhow::ensure!(!signal::interrupted(), "interrupted");
            screen.passing(&format!("looking at {}", check.name))?;
            examined.push(doctor::examine(check, &request));
        }
        Ok(examined)
    }

    fn fix(&self, examined: &[Examined]) -> Vec<Fixed> {
        let Some(when) = self.repair else { return Vec::new() };
        let repairs = doctor::in_order(examined)
            .into_iter()
            .filter_map(|finding| Some((finding, finding.repair.as_ref()?)));
        let fix = |(finding, repair): (&Finding, &doctor::Repair)| {
            let carry_out = || repair.carry_out().map_err(|error| printable(&format!("{error:#}")));
            let result = (when == Fixing::Now).then(carry_out);
            Fixed { id: finding.id.clone(), does: repair.to_string(), result }
        };
        repairs.map(fix).collect()
    }
}

/// Fails if a file that the admin names is not there: the name may be misspelt.
fn there(path: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    match path.metadata() {
        Ok(_) => Ok(path),
        Err(error) => Err(format!("{error}: name a file, or leave it out")),
    }
}

fn list(screen: &mut Screen) -> Result<ExitCode> {
    if screen.wants_json() {
        let all = CHECKS.iter().map(|check| json!({"check": check.name, "about": check.about}));
        screen.json(&all.collect::<Vec<_>>())?;
    } else {
        let heading = ["CHECK", "LOOKS AT"].map(str::to_owned);
        let rows = CHECKS.iter().map(|check| [check.name.to_owned(), check.about.to_owned()]);
        screen.table(&std::iter::once(heading).chain(rows).collect::<Vec<_>>())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(examined: &[Examined], screen: &mut Screen) -> Result<()> {
    for finding in doctor::in_order(examined) {
        let (tone, word) = match finding.severity {
            Severity::Error => (Tone::Bad, "error"),
            Severity::Warning => (Tone::Warning, "warning"),
            Severity::Note => (Tone::Heading, "note"),
        };
        let head = screen.paint(tone, &format!("{word:<8} {}", finding.id));
        screen.line(&head)?;
        screen.text(&wrap(&printable(&finding.evidence), INDENT, screen.width()))?;
        let fix = screen.paint(Tone::Good, &format!("{:>8}", "fix"));
        screen.text(&format!(
            "{fix} {}",
            wrap(&printable(&finding.fix), INDENT, screen.width()).trim_start()
        ))?;
    }
    for (each, why) in examined.iter().filter_map(|each| Some((each, each.unable.as_ref()?))) {
        let head = screen.paint(Tone::Warning, &format!("{:<8} {}", "unable", each.check));
        screen.line(&format!("{head}: {}", printable(why)))?;
    }
    Ok(())
}

fn show_fixed(fixed: &Fixed, screen: &mut Screen) -> Result<()> {
    let does = printable(&fixed.does);
    let line = match &fixed.result {
        None => format!("{} would {does}", screen.paint(Tone::Warning, "repair  ")),
        Some(Ok(())) => format!("{} {does}", screen.paint(Tone::Good, "repaired")),
        Some(Err(why)) => format!("{} to {does}: {why}", screen.paint(Tone::Bad, "failed  ")),
    };
    screen.line(&line)
}

/// Returns the reason why `--repair` has nothing to do.
fn nothing_to_do(examined: &[Examined]) -> &'static str {
    if doctor::in_order(examined).is_empty() {
        "; there is nothing to fix"
    } else {
        "; none of it can be fixed from here: do what each fix says"
    }
}

/// Prints the last line: the numbers of findings, and `hint`, or the number of possible repairs.
fn summary(examined: &[Examined], hint: Option<&str>, screen: &mut Screen) -> Result<()> {
    let findings = doctor::in_order(examined);
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings, notes) = (count(Severity::Error), count(Severity::Warning), count(Severity::Note));
    let repairs = findings.iter().filter(|finding| finding.repair.is_some()).count();
    let took: Duration = examined.iter().map(|each| each.took).sum();
    let tone = if errors + warnings == 0 { Tone::Good } else { Tone::Bad };
    let line = format!(
        "{}, {}, {} of {} in {} s",
        counted(errors, "error"),
        counted(warnings, "warning"),
        counted(notes, "note"),
        counted(examined.len(), "check"),
        seconds(took, 1)
    );
    let line = screen.paint(tone, &line);
    let repairs = match repairs {
        0 => String::new(),
        _ => format!("; --repair=now fixes {repairs} of them, --repair says how"),
    };
    screen.line(&format!("{line}{}", hint.unwrap_or(&repairs)))
}

fn as_json(examined: &[Examined], fixed: &[Fixed]) -> Value {
    let fixed = fixed.iter().map(|each| {
        let error = each.result.as_ref().and_then(|result| result.as_ref().err());
        json!({"id": each.id, "does": each.does, "done": matches!(each.result, Some(Ok(()))), "error": error})
    });
    json!({
        "findings": doctor::in_order(examined),
        "repairs": fixed.collect::<Vec<_>>(),
        "checks": examined.iter().map(|each| json!({
            "check": each.check,
            "seconds": each.took.as_secs_f64(),
            "findings": each.findings.len(),
            "unable": each.unable,
        })).collect::<Vec<_>>(),
    })
}

//! `flexvol check list`: lists the cases.

use super::arguments::Selection;
use crate::check::Case;
use anyhow::Result;
use clap::Args;
use flexvol_terminal::screen::Screen;
use std::process::ExitCode;

/// List the cases, and what each requires of a driver
#[derive(Args)]
#[command(after_help = "\
Scope: all drivers; those with a volume to mount; that attach; that leave a daemon running; that
have expandfs; whose volume gets secrets. CONFORMANCE.md says what each case follows from.

Examples:
  flexvol check list -t 'mount::*'
  flexvol check list --json | jq -r '.[] | select(.level == \"must\") | .id + \": \" + .reason'

Exit status: 0, or 2 for a pattern that means no case.")]
pub(super) struct List {
    #[command(flatten)]
    selection: Selection,
}

impl List {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        let cases = self.selection.chosen()?.reported;
        if screen.wants_json() {
            screen.json(&cases.iter().map(|case| case.to_json()).collect::<Vec<_>>())?;
        } else {
            let heading = ["ID", "LEVEL", "SCOPE", "WHAT HOLDS"].map(str::to_owned);
            let rows: Vec<_> = std::iter::once(heading).chain(cases.into_iter().map(row)).collect();
            screen.table(&rows)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn row(case: &Case) -> [String; 4] {
    [case.id.to_owned(), case.level.to_string(), case.scope.to_string(), case.claim.to_owned()]
}

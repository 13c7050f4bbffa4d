//! `flexvol plan`: shows what a call would do, without doing it.

use super::run::lacks;
use anyhow::Result;
use clap::Args;
use flexvol_model::agent::settings;
use flexvol_protocol::Verb;
use flexvol_protocol::failure::Failure;
use flexvol_terminal::arguments::CallArguments;
use flexvol_terminal::exit::NOT_SUPPORTED;
use flexvol_terminal::exit::say;
use flexvol_terminal::plan::print;
use flexvol_terminal::screen::Screen;
use serde_json::json;
use std::process::ExitCode;

/// Show the steps of a call and how each is undone, without changing anything
#[derive(Args)]
#[command(after_help = "\
Examples:
  flexvol plan tmpfs mount /mnt -o size=16Mi
  flexvol plan bind mount /mnt -o source=/srv/web --settings /srv/side-file.json
  flexvol plan image expandfs '' /mnt 2147483648 1073741824 -o file=web.img --json

Exit status: 0 possible, 1 wrong options or against the policy, 2 wrong usage, 3 Not supported.")]
pub(super) struct PlanCall {
    #[command(flatten)]
    call: CallArguments,
}

impl PlanCall {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        let installed = self.call.installed()?;
        let verbs = installed.verbs();
        let Some(verb) = Verb::parse(&self.call.verb).filter(|verb| verbs.contains(*verb)) else {
            let text = lacks(&installed, &self.call.verb.to_string_lossy());
            say(&text, screen.wants_json());
            return Ok(ExitCode::from(NOT_SUPPORTED));
        };
        if verb == Verb::Init {
            return Err(
                Failure::call("init does nothing but answer: see it with `flexvol run DRIVER init`").into()
            );
        }
        let call = self.call.call(verb)?;
        let plan = installed.plan(&call)?;
        let (_, mut notes) = installed.understood(&call)?;
        notes.extend(installed.idle(verb, &plan).map(str::to_owned));
        if let Some(agent) = settings(&installed.settings.agent)?.filter(|agent| agent.runs) {
            notes.push(format!("carried out by the node's agent ({})", agent.socket));
        }
        let refusal = installed.settings.policy.check(&plan).err().map(|why| why.message());
        if screen.wants_json() {
            screen.json(&json!({"plan": plan, "refusal": refusal, "notes": notes}))?;
        } else {
            print(screen, &plan, refusal.as_deref())?;
            notes.iter().try_for_each(|note| screen.line(&format!("note: {note}")))?;
        }
        Ok(if refusal.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

//! `flexvol run`: runs one verb of one driver, as kubelet would call it.

use anyhow::Result;
use clap::Args;
use flexvol_model::installed::Installed;
use flexvol_node::skeleton;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::{Call, Fields, Reply, Verb};
use flexvol_terminal::arguments::CallArguments;
use flexvol_terminal::capabilities;
use flexvol_terminal::exit::NOT_SUPPORTED;
use flexvol_terminal::exit::say;
use flexvol_terminal::progress;
use flexvol_terminal::screen::Screen;
use std::ffi::OsString;
use std::process::ExitCode;

/// Run one verb of a driver on this node, as kubelet would
#[derive(Args)]
#[command(after_help = "\
Examples:
  flexvol run tmpfs init
  sudo flexvol run tmpfs mount /mnt -o size=16Mi --fs-group 2000
  sudo flexvol run tmpfs unmount /mnt
  sudo flexvol run image mount /mnt '{\"file\":\"web.img\",\"size\":\"1Gi\"}' --json

With --json the output is the driver's reply, byte for byte what kubelet would read.
Exit status: 0 Success, 1 Failure, 2 wrong usage, 3 Not supported.")]
pub(super) struct RunCall {
    #[command(flatten)]
    call: CallArguments,
}

impl RunCall {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        let (installed, arguments) = (self.call.installed()?, self.call.arguments()?);
        let progress = progress::show(screen);
        let reply = skeleton::perform(&installed, &self.call.verb, &arguments);
        drop(progress);
        if screen.wants_json() {
            screen.text(&reply.to_line())?;
            return Ok(status(&reply));
        }
        match &reply {
            Reply::Success(fields) => screen.text(&self.done(&arguments, fields))?,
            Reply::Failure(message) => return Err(Failure::new(Code::Internal, message.clone()).into()),
            Reply::NotSupported => {
                let text = lacks(&installed, &self.call.verb.to_string_lossy());
                say(&text, false);
            }
        }
        Ok(status(&reply))
    }

    /// Describes the state after the call.
    fn done(&self, arguments: &[OsString], fields: &Fields) -> String {
        let call = Verb::parse(&self.call.verb).and_then(|verb| Call::parse(verb, arguments).ok());
        match (call, fields) {
            (Some(Call::Mount { target, .. }), _) => format!("mounted at {target}\n"),
            (Some(Call::Unmount { target }), _) => format!("nothing is mounted at {target} now\n"),
            (Some(Call::ExpandFs { target, .. }), _) => format!("{target} has grown\n"),
            (_, Fields { capabilities: Some(held), .. }) => {
                let lines = capabilities::all(*held)
                    .map(|(name, value, doc)| format!("{name:<16} {value:<5} {doc}\n"));
                lines.concat()
            }
            (_, Fields { device: Some(device), .. }) => format!("device {device}\n"),
            (_, Fields { attached: Some(attached), .. }) => format!("attached: {attached}\n"),
            (_, Fields { volume_name: Some(name), .. }) => format!("volume {name}\n"),
            _ => "done\n".to_owned(),
        }
    }
}

fn status(reply: &Reply) -> ExitCode {
    match reply {
        Reply::Success(_) => ExitCode::SUCCESS,
        Reply::Failure(_) => ExitCode::FAILURE,
        Reply::NotSupported => ExitCode::from(NOT_SUPPORTED),
    }
}

/// Returns the message that a driver does not have a verb, with the verbs that it has.
pub(super) fn lacks(installed: &Installed, verb: &str) -> String {
    let verbs: Vec<_> = installed.verbs().iter().map(Verb::name).collect();
    format!("{} does not have the verb {verb:?}: it has {}", installed.driver.name(), verbs.join(", "))
}

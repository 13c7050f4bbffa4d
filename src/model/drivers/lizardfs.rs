//! `lizardfs`: a directory of a `LizardFS` cluster, through mfsmount.

use super::fuse::{self, Host, RemotePath};
use super::share::Port;
use crate::driver::{Driver, Needs, Request};
use crate::plan::{Daemon, Plan, Source, Word};
use crate::schema::{OptionSpec, SecretSpec};
use crate::settings::Settings;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::mount_options::{Rule, Value};
use flexvol_protocol::{Capabilities, TargetPath};

/// The driver.
pub struct Lizardfs;

crate::options! {
    /// Options of a PV.
    pub struct LizardfsOptions {
        /// The master.
        server: Host = "server" { aliases: ["host", "mfsmaster"], example: "mfsmaster" },
        /// Port of the master server.
        port: Port = "port" { aliases: ["mfsport"], default: "9421" },
        /// The directory. The default is the root.
        path: RemotePath = "path" { aliases: ["mfssubfolder"] },
        /// Comma list of further flags and options of mfsmount.
        mount_options: Option<String> = "mountOptions" { aliases: ["mountoptions"], example: "noexec" },
    }
}

const PASSWORD: SecretSpec =
    SecretSpec { keys: &["mfspassword", "password"], doc: "the password of the export", example: false };

/// Options of mfsmount that a tenant may set.
const RULES: &[Rule] = &[
    Rule("mfswritecachesize", Value::Number),
    Rule("mfsattrcacheto", Value::Number),
    Rule("mfsentrycacheto", Value::Number),
    Rule("mfsdirentrycacheto", Value::Number),
    Rule("mfsioretries", Value::Number),
    Rule("mfschunkserverreadto", Value::Number),
    Rule("mfschunkserverwriteto", Value::Number),
];

impl Driver for Lizardfs {
    fn name(&self) -> &'static str {
        "lizardfs"
    }

    fn summary(&self) -> &'static str {
        "a directory of LizardFS"
    }

    fn needs(&self) -> Needs {
        Needs::FUSE
    }

    fn options(&self) -> &'static [OptionSpec] {
        LizardfsOptions::SPECS
    }

    fn secrets(&self) -> &'static [SecretSpec] {
        &[PASSWORD]
    }

    fn capabilities(&self, _: &Settings) -> Capabilities {
        Capabilities::NONE
    }

    fn programs<'a>(&self, _: &'a Settings) -> Vec<&'a str> {
        vec!["mfsmount"]
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let options = LizardfsOptions::parse(&request.options.own)?;
        let (flags, further) = fuse::further(options.mount_options.as_deref(), request.options, RULES)?;
        let path = format!("/{}", options.path.0.trim_matches('/'));
        if path.contains(',') {
            return Err(Failure::options(
                "option \"path\" must not hold a comma: mfsmount would take it for two options",
            ));
        }
        let mut config = fuse::content(format!(
            "mfsmaster={}\nmfsport={}\nmfssubfolder={path}\n",
            options.server.0, options.port.0
        ));
        if let Some(password) = fuse::secret_line(request.options, &PASSWORD)? {
            if password.expose().contains(&b',') {
                return Err(Failure::options(
                    "secret key \"mfspassword\" must not hold a comma: mfsmount cannot read it",
                ));
            }
            config = config.text("mfspassword=").secret(&password).text("\n");
        }
        let daemon = Daemon {
            words: [
                fuse::texts([target.to_string(), "-f".into(), "-o".into()]),
                vec![Word::File { before: "mfscfgfile=".into(), name: "mfsmount.cfg" }],
                fuse::options(["allow_other"]),
                fuse::options(fuse::flag_words(flags)),
                fuse::options(further),
            ]
            .concat(),
            files: [("mfsmount.cfg", config)].into(),
            servers: vec![options.server.0.clone()],
            ..fuse::daemon("mfsmount", &format!("{}:{path}", options.server.0), target, flags)
        };
        Ok(fuse::mount("", Source::Any, daemon))
    }

    fn unmount(&self, target: &TargetPath, _: &Settings) -> Result<Plan> {
        Ok(Plan::end_daemon(target, fuse::WRITING_BACK))
    }
}

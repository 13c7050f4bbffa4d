//! `glusterfs`: a volume of GlusterFS, or a directory of one.

use super::fuse::{self, Plain};
use super::share::{Servers, SubDirectory};
use crate::driver::{Driver, Needs, Request};
use crate::plan::{Daemon, Plan, Source, Word};
use crate::schema::OptionSpec;
use crate::settings::Settings;
use flexvol_protocol::failure::Result;
use flexvol_protocol::mount_options::{Rule, Value};
use flexvol_protocol::{Capabilities, TargetPath};

/// The driver.
pub struct Glusterfs;

crate::options! {
    /// Options of a PV.
    pub struct GlusterfsOptions {
        /// The servers, separated by commas; if one does not answer, the next is tried.
        servers: Servers = "servers" { aliases: ["server", "cluster", "host"], example: "gluster-1.example.com,gluster-2.example.com" },
        /// The volume.
        volume: Plain = "volume" { aliases: ["path", "glusterVolume"], example: "web" },
        /// A directory of the volume.
        sub_dir: Option<SubDirectory> = "subDir" { aliases: ["dir", "subPath"] },
        /// Comma list of further flags and options of glusterfs.
        mount_options: Option<String> = "mountOptions" { aliases: ["mountoptions"], example: "noexec" },
    }
}

/// Options of glusterfs that a tenant may set: each is one of its long options.
const RULES: &[Rule] = &[
    Rule("direct-io-mode", Value::OneOf(&["enable", "disable", "auto"])),
    Rule("attribute-timeout", Value::Number),
    Rule("entry-timeout", Value::Number),
    Rule("negative-timeout", Value::Number),
    Rule("acl", Value::None),
    Rule("use-readdirp", Value::OneOf(&["yes", "no"])),
];

/// Name of the log file. glusterfs opens it by its path, again and again.
const LOG: &str = "log";

impl Driver for Glusterfs {
    fn name(&self) -> &'static str {
        "glusterfs"
    }

    fn summary(&self) -> &'static str {
        "a volume of GlusterFS"
    }

    fn needs(&self) -> Needs {
        Needs::FUSE
    }

    fn options(&self) -> &'static [OptionSpec] {
        GlusterfsOptions::SPECS
    }

    fn capabilities(&self, _: &Settings) -> Capabilities {
        Capabilities::NONE
    }

    fn programs<'a>(&self, _: &'a Settings) -> Vec<&'a str> {
        vec!["glusterfs"]
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let options = GlusterfsOptions::parse(&request.options.own)?;
        let (flags, further) = fuse::further(options.mount_options.as_deref(), request.options, RULES)?;
        let servers = &options.servers.0;
        let bare = servers.iter().map(|server| server.trim_matches(['[', ']']));
        let kernel: Vec<_> = fuse::flag_words(flags).into_iter().filter(|word| word != "ro").collect();
        let daemon = Daemon {
            words: [
                fuse::texts(["--no-daemon", "--log-level=ERROR", "--process-name=fuse"]),
                vec![Word::File { before: "--log-file=".into(), name: LOG }],
                fuse::texts(bare.map(|server| format!("--volfile-server={server}"))),
                fuse::texts([format!("--volfile-id={}", options.volume.0)]),
                fuse::texts(
                    options.sub_dir.iter().map(|path| format!("--subdir-mount=/{}", path.0.display())),
                ),
                fuse::texts(flags.read_only.then_some("--read-only")),
                fuse::texts((!kernel.is_empty()).then(|| format!("--fuse-mountopts={}", kernel.join(",")))),
                fuse::texts(further.iter().map(|option| format!("--{option}"))),
                fuse::texts([target.to_string()]),
            ]
            .concat(),
            servers: servers.clone(),
            log: LOG,
            ..fuse::daemon(
                "glusterfs",
                &format!("{}:/{}", servers.join(","), options.volume.0),
                target,
                flags,
            )
        };
        Ok(fuse::mount("fuse.glusterfs", Source::Any, daemon))
    }

    fn unmount(&self, target: &TargetPath, _: &Settings) -> Result<Plan> {
        Ok(Plan::end_daemon(target, fuse::EXIT_WAIT))
    }
}

//! `sshfs`: a directory of any machine with an SSH server.
//!
//! The identity of the server must be known: from `hostKey`, or from `knownHosts` of the volume or
//! of its Secret. A key or a password comes from the Secret. ssh reads neither the node's
//! configuration nor root's keys.

use super::fuse::{self, Host, Plain, RemotePath};
use super::share::Port;
use super::ssh::{self, HostKeyCheck, HostKeys, Identity};
use crate::driver::{Driver, Needs, Request};
use crate::plan::{Content, Daemon, Plan, Source, Word};
use crate::schema::{Id, Mode, OptionSpec, OptionValue, SecretSpec};
use crate::settings::Settings;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::mount_options::{Rule, Value};
use flexvol_protocol::{Capabilities, Options, TargetPath};

/// The driver.
pub struct Sshfs;

crate::options! {
    /// Options of a PV.
    pub struct SshfsOptions {
        /// The machine with the files.
        server: Host = "server" { aliases: ["host"], example: "files.example.com" },
        /// Port of its SSH server.
        port: Port = "port" { default: "22" },
        /// The directory; a relative one begins in the user's home, which is also the default.
        path: RemotePath = "path" { aliases: ["share"] },
        /// User name for the server.
        user: Plain = "user" { aliases: ["username"], default: "root" },
        /// The server's public host key, such as `ssh-ed25519 AAAA...`; several are separated by
        /// commas. One line of `ssh-keyscan SERVER` without its first word.
        host_key: Option<HostKeys> = "hostKey" { example: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPlaceholderPlaceholderPlaceholderPlacehold" },
        /// Lines of a `known_hosts` file, instead of `hostKey` or the Secret's `known_hosts`.
        known_hosts: Option<String> = "knownHosts" {},
        /// Host key check of the server: strict, or off for a network where servers are not forged.
        host_key_check: HostKeyCheck = "hostKeyCheck" { default: "strict" },
        /// Owner shown for all files. The default is what the server says.
        uid: Option<Id> = "uid" {},
        /// Group shown for all files. The default is the pod's fsGroup, else what the server says.
        gid: Option<Id> = "gid" {},
        /// Permission bits cleared in the modes shown. The default is 0007 with an fsGroup, else
        /// none.
        umask: Option<Mode> = "umask" {},
        /// Show the login user's files as root's: user, or none.
        idmap: IdMap = "idmap" { default: "none" },
        /// Permission check: by the kernel, from the owners and modes shown, or by the server,
        /// which gives every user of the pod the rights of the login user.
        permissions: Permissions = "permissions" { default: "kernel" },
        /// Compress what is sent.
        compression: bool = "compression" { default: "false" },
        /// Comma list of further flags and options of sshfs.
        mount_options: Option<String> = "mountOptions" { aliases: ["mountoptions"], example: "noexec" },
    }
}

const PASSWORD: SecretSpec =
    SecretSpec { keys: &["password", "passwd", "pass"], doc: "password instead of a key", example: false };

/// Options of sshfs that a tenant may set.
const RULES: &[Rule] = &[
    Rule("cache", Value::OneOf(&["yes", "no"])),
    Rule("dir_cache", Value::OneOf(&["yes", "no"])),
    Rule("dcache_timeout", Value::Number),
    Rule("dcache_max_size", Value::Number),
    Rule("kernel_cache", Value::None),
    Rule("auto_cache", Value::None),
    Rule("direct_io", Value::None),
    Rule("no_readahead", Value::None),
    Rule("sshfs_sync", Value::None),
    Rule("disable_hardlink", Value::None),
    Rule("transform_symlinks", Value::None),
    Rule("max_conns", Value::Number),
];

/// Translation of owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdMap {
    /// No translation.
    None,
    /// The user that logs in becomes root on the node.
    User,
}

impl OptionValue for IdMap {
    const KIND: &'static str = "none or user";

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "user" => Ok(Self::User),
            _ => Err(format!("{text:?} is not {}", Self::KIND)),
        }
    }
}

/// Side that checks permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permissions {
    /// The node, for each user of a pod.
    Kernel,
    /// The server, for the user that logs in.
    Server,
}

impl OptionValue for Permissions {
    const KIND: &'static str = "kernel or server";

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "kernel" => Ok(Self::Kernel),
            "server" => Ok(Self::Server),
            _ => Err(format!("{text:?} is not {}", Self::KIND)),
        }
    }
}

impl Driver for Sshfs {
    fn name(&self) -> &'static str {
        "sshfs"
    }

    fn summary(&self) -> &'static str {
        "a directory of a machine with an SSH server"
    }

    fn needs(&self) -> Needs {
        Needs { programs: &["sshfs", "ssh"], ..Needs::FUSE }
    }

    fn options(&self) -> &'static [OptionSpec] {
        SshfsOptions::SPECS
    }

    fn secrets(&self) -> &'static [SecretSpec] {
        &[ssh::PRIVATE_KEY, PASSWORD, ssh::KNOWN_SERVERS]
    }

    fn capabilities(&self, _: &Settings) -> Capabilities {
        Capabilities::NONE
    }

    fn programs<'a>(&self, _: &'a Settings) -> Vec<&'a str> {
        vec!["sshfs", "ssh"]
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let options = SshfsOptions::parse(&request.options.own)?;
        let list = options.mount_options.as_deref();
        let (flags, further) = fuse::further(list, request.options, RULES)?;
        let source = format!("{}@{}:{}", options.user.0, options.server.0, options.path.0);
        let mut daemon = Daemon {
            words: [
                fuse::texts([source.clone(), target.to_string(), "-f".into()]),
                vec![Word::Text("-F".into()), Word::File { before: String::new(), name: ssh::CONFIG }],
                fuse::options(["reconnect", "allow_other"]),
                fuse::options(match (options.idmap, options.permissions) {
                    (IdMap::User, _) => Some("idmap=user"),
                    (IdMap::None, Permissions::Kernel) => Some("default_permissions"),
                    (IdMap::None, Permissions::Server) => None,
                }),
                fuse::options(fuse::flag_words(flags)),
                fuse::options(fuse::owner_words(
                    options.uid,
                    options.gid,
                    options.umask,
                    (request.options, fuse::BY_KERNEL),
                )),
                fuse::options(further),
            ]
            .concat(),
            servers: vec![options.server.0.clone()],
            ..fuse::daemon("sshfs", &source, target, flags)
        };
        identify(&options, request.options, &mut daemon)?;
        Ok(fuse::mount("fuse.sshfs", Source::Name(source), daemon))
    }

    fn unmount(&self, target: &TargetPath, _: &Settings) -> Result<Plan> {
        Ok(Plan::end_daemon(target, fuse::EXIT_WAIT))
    }
}

/// Configures the server's identity and the login.
fn identify(options: &SshfsOptions, volume: &Options, daemon: &mut Daemon) -> Result<()> {
    let compression = if options.compression { "yes" } else { "no" };
    let identity = Identity {
        keys: options.host_key.as_ref(),
        lines: options.known_hosts.as_deref(),
        check: options.host_key_check,
    };
    let further = format!("Port {}\nCompression {compression}\n", options.port.0);
    let (mut config, known) = identity.config(&further, volume)?;
    let key = fuse::secret(volume, &ssh::PRIVATE_KEY)?;
    let password = fuse::secret_line(volume, &PASSWORD)?;
    config = match (key, password) {
        (Some(key), None) => {
            daemon.files.insert(ssh::KEY, Content::default().secret(key).text("\n"));
            ssh::with_key(config)
        }
        (None, Some(password)) => {
            daemon.stdin = Some(Content::default().secret(&password).text("\n"));
            daemon.words.extend(fuse::options(["password_stdin"]));
            config.text("PubkeyAuthentication no\nNumberOfPasswordPrompts 1\n")
        }
        (Some(_), Some(_)) => {
            return Err(Failure::options("secret has a key and a password: keep one of them"));
        }
        (None, None) => {
            return Err(Failure::options(
                "secret has neither \"ssh-privatekey\" nor \"password\": name one in flexVolume.secretRef that has",
            ));
        }
    };
    daemon.files.insert(ssh::CONFIG, config);
    daemon.files.insert(ssh::KNOWN_HOSTS, known);
    Ok(())
}

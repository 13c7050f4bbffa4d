//! `sshfs`: a directory of any machine with an SSH server.
//!
//! Who the server is must be known: by `hostKey`, or by `knownHosts` of the volume or of its Secret. A key or a
//! password comes by the Secret. ssh reads neither the node's configuration nor root's keys.

use super::fuse::{self, Host, Plain, RemotePath};
use super::share::Port;
use crate::driver::{Driver, Request};
use crate::failure::{Failure, Result};
use crate::mount_options::{Rule, Value};
use crate::plan::{Content, Daemon, Piece, Plan, Source, Word};
use crate::protocol::{Capabilities, Options, TargetPath};
use crate::schema::{Id, Mode, OptionSpec, OptionValue, SecretSpec};
use crate::settings::Settings;

/// The driver.
pub struct Sshfs;

crate::options! {
    /// What a PV may say.
    pub struct SshfsOptions {
        /// The machine with the files.
        server: Host = "server" { aliases: ["host"], example: "files.example.com" },
        /// Port of its SSH server.
        port: Port = "port" { default: "22" },
        /// The directory; a relative one begins in the user's home, which is also the default.
        path: RemotePath = "path" { aliases: ["share"] },
        /// Who logs in.
        user: Plain = "user" { aliases: ["username"], default: "root" },
        /// The server's public host key, such as `ssh-ed25519 AAAA...`; several are separated by commas. One
        /// line of `ssh-keyscan SERVER` without its first word.
        host_key: Option<HostKeys> = "hostKey" { example: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPlaceholderPlaceholderPlaceholderPlacehold" },
        /// Lines of a `known_hosts` file instead. The Secret's key `known_hosts` is as good.
        known_hosts: Option<String> = "knownHosts" {},
        /// Whether the server must be who it says it is: strict, or off for a network where nobody lies.
        host_key_check: HostKeyCheck = "hostKeyCheck" { default: "strict" },
        /// Whom the files are shown to belong to. The default is what the server says.
        uid: Option<Id> = "uid" {},
        /// The same for the group. The default is the pod's fsGroup, else what the server says.
        gid: Option<Id> = "gid" {},
        /// Which permissions all files are shown without. The default is 0007 with an fsGroup, else theirs.
        umask: Option<Mode> = "umask" {},
        /// Show the files of the user who logs in as root's: user, or none.
        idmap: IdMap = "idmap" { default: "none" },
        /// Compress what is sent.
        compression: bool = "compression" { default: "false" },
        /// Comma list of further flags and options of sshfs.
        mount_options: Option<String> = "mountOptions" { aliases: ["mountoptions"], example: "noexec" },
    }
}

const PRIVATE_KEY: SecretSpec = SecretSpec {
    keys: &["ssh-privatekey", "privateKey", "privatekey", "sshKey", "key"],
    doc: "private key in OpenSSH's form, without a passphrase",
    example: true,
};

const PASSWORD: SecretSpec =
    SecretSpec { keys: &["password", "passwd", "pass"], doc: "password instead of a key", example: false };

pub(super) const KNOWN_SERVERS: SecretSpec = SecretSpec {
    keys: &["known_hosts", "knownHosts"],
    doc: "lines of a known_hosts file instead of an option",
    example: false,
};

/// What a tenant may say to sshfs.
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

/// Under which name the server's key is looked up, whatever its address and port.
const ALIAS: &str = "volume-server";

/// Public keys as ssh-keyscan prints them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKeys(Vec<String>);

impl OptionValue for HostKeys {
    const KIND: &'static str = "public host key";

    fn parse(text: &str) -> Result<Self, String> {
        let keys = text.split([',', '\n']).map(str::trim).filter(|key| !key.is_empty());
        let keys: Vec<_> = keys.map(host_key).collect::<Option<_>>().unwrap_or_default();
        if keys.is_empty() {
            Err(format!("{text:?} is not of the form \"ssh-ed25519 AAAA...\""))
        } else {
            Ok(Self(keys))
        }
    }
}

/// Type and key, and no comment.
fn host_key(text: &str) -> Option<String> {
    let mut words = text.split(' ').filter(|word| !word.is_empty());
    let (kind, key) = (words.next()?, words.next()?);
    let of_kind = |c: char| c.is_ascii_alphanumeric() || "-@.".contains(c);
    let of_key = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
    let good = kind.starts_with(|c: char| c.is_ascii_lowercase())
        && kind.chars().all(of_kind)
        && key.chars().all(of_key);
    good.then(|| format!("{kind} {key}"))
}

/// Whether the host key is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKeyCheck {
    /// A server with another key is refused.
    Strict,
    /// Any server will do.
    Off,
}

impl OptionValue for HostKeyCheck {
    const KIND: &'static str = "strict or off";

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "strict" | "yes" => Ok(Self::Strict),
            "off" | "no" => Ok(Self::Off),
            _ => Err(format!("{text:?} is not {}", Self::KIND)),
        }
    }
}

/// How owners are translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdMap {
    /// Not at all.
    None,
    /// Who logs in is root here.
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

impl Driver for Sshfs {
    fn name(&self) -> &'static str {
        "sshfs"
    }

    fn summary(&self) -> &'static str {
        "a directory of a machine with an SSH server"
    }

    fn options(&self) -> &'static [OptionSpec] {
        SshfsOptions::SPECS
    }

    fn secrets(&self) -> &'static [SecretSpec] {
        &[PRIVATE_KEY, PASSWORD, KNOWN_SERVERS]
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
                vec![Word::Text("-F".into()), Word::File { before: String::new(), name: CONFIG }],
                fuse::options(["reconnect", "allow_other"]),
                fuse::options(
                    match options.idmap {
                        IdMap::None => "default_permissions",
                        IdMap::User => "idmap=user",
                    }
                    .split(' '),
                ),
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
        Ok(Plan::end_daemon(target, fuse::PATIENCE))
    }
}

/// The files of ssh.
const CONFIG: &str = "ssh_config";
const KNOWN_HOSTS: &str = "known_hosts";
const KEY: &str = "key";

/// Says to the program who the server is and who we are.
fn identify(options: &SshfsOptions, volume: &Options, daemon: &mut Daemon) -> Result<()> {
    let mut config = fuse::content(format!(
        "Host *\nPort {}\nConnectTimeout 10\nServerAliveInterval 15\nServerAliveCountMax 3\nGlobalKnownHostsFile none\nIdentityAgent none\nIdentitiesOnly yes\nCompression {}\n",
        options.port.0,
        if options.compression { "yes" } else { "no" }
    ));
    let (known, check) = known_hosts(options, volume)?;
    config = config.text(check).text("UserKnownHostsFile ").piece(Piece::File(KNOWN_HOSTS)).text("\n");
    let key = fuse::secret(volume, &PRIVATE_KEY)?;
    let password = fuse::secret_line(volume, &PASSWORD)?;
    config = match (key, password) {
        (Some(key), None) => {
            daemon.files.insert(KEY, Content::default().secret(key).text("\n"));
            config.text("BatchMode yes\nIdentityFile ").piece(Piece::File(KEY)).text("\n")
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
    daemon.files.insert(CONFIG, config);
    daemon.files.insert(KNOWN_HOSTS, known);
    Ok(())
}

/// The file of known servers, and what the configuration says about it.
fn known_hosts(options: &SshfsOptions, volume: &Options) -> Result<(Content, &'static str)> {
    let strict = "StrictHostKeyChecking yes\n";
    let secret = fuse::secret(volume, &KNOWN_SERVERS)?;
    match (&options.host_key, &options.known_hosts, secret, options.host_key_check) {
        (.., HostKeyCheck::Off) => Ok((fuse::content(""), "StrictHostKeyChecking no\n")),
        (Some(keys), None, None, _) => {
            let lines = keys.0.iter().flat_map(|key| [ALIAS, " ", key, "\n"]);
            Ok((
                fuse::content(lines.collect::<String>()),
                "StrictHostKeyChecking yes\nHostKeyAlias volume-server\n",
            ))
        }
        (None, Some(text), None, _) => Ok((fuse::content(format!("{text}\n")), strict)),
        (None, None, Some(secret), _) => Ok((Content::default().secret(secret).text("\n"), strict)),
        (None, None, None, _) => Err(Failure::options(
            "nobody says which host key the server has: add option \"hostKey\" (what ssh-keyscan prints, without its first word)",
        )),
        _ => Err(Failure::options(
            "the host key is given twice: keep one of \"hostKey\", \"knownHosts\" and the secret's known_hosts",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_key_is_a_type_and_a_key() {
        let keys = |text| HostKeys::parse(text).map(|keys| keys.0);
        assert_eq!(keys("ssh-ed25519 AAAA+/= root@x").unwrap(), ["ssh-ed25519 AAAA+/="]);
        assert_eq!(
            keys("ssh-rsa AAAA, ecdsa-sha2-nistp256 BBBB\n").unwrap(),
            ["ssh-rsa AAAA", "ecdsa-sha2-nistp256 BBBB"]
        );
        for text in ["", ",", "AAAA", "ssh-rsa", "@revoked AAAA", "ssh-rsa AA*A", "-x AAAA", "a\tb c"] {
            assert!(keys(text).is_err(), "{text}");
        }
    }
}

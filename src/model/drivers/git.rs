//! `git`: a revision of a repository, cloned for each pod that mounts it.
//!
//! Each mount is a fresh clone for this mount alone, at the requested revision and never updated:
//! on the node's disk, or in memory. What pods write into it is removed with it. git sees nothing
//! of the node: no configuration, no hooks, no keys of root. Submodules are not cloned, because the
//! repository, not the volume, would name their servers.
//!
//! Capabilities: no attach; kubelet may chown to the fsGroup and set labels, because no other pod
//! has these files.

use super::fuse::{self, Plain};
use super::share::SubDirectory;
use super::ssh::{self, HostKeyCheck, HostKeys, Identity};
use super::{access, flags_alone};
use crate::driver::{Driver, Request};
use crate::plan::{Checkout, Content, Goal, Plan, Source, Step, View};
use crate::schema::{OptionSpec, OptionValue, SecretSpec};
use crate::server;
use crate::settings::Settings;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::quantity::Quantity;
use flexvol_protocol::secret::Secret;
use flexvol_protocol::{Capabilities, Options, TargetPath};
use std::collections::BTreeMap;

/// The driver.
pub struct Git;

crate::options! {
    /// Options of a PV.
    pub struct GitOptions {
        /// The repository: an address of https, http, ssh or git, or `user@host:path`; without a
        /// password.
        repository: Repository = "repository" { aliases: ["repo", "url"], example: "https://git.example.com/web.git" },
        /// A branch, a tag, or the whole id of a commit. The default is the server's own choice.
        revision: Revision = "revision" { aliases: ["branch", "tag", "commit", "ref"], default: "HEAD" },
        /// Number of commits of the history to fetch; 0 is all of them.
        depth: u32 = "depth" { default: "1" },
        /// A directory of the repository that is shown instead of the whole.
        sub_path: Option<SubDirectory> = "subPath" { aliases: ["subDir", "directory"] },
        /// Keep the clone in memory of at most this size, instead of on the node's disk. Needs
        /// Linux 5.12.
        size: Option<Quantity> = "size" {},
        /// User name for a web server; else the Secret's `username`.
        user: Option<Plain> = "user" { aliases: ["username"] },
        /// The SSH server's public host key, such as `ssh-ed25519 AAAA...`; several are separated
        /// by commas. One line of `ssh-keyscan SERVER` without its first word.
        host_key: Option<HostKeys> = "hostKey" {},
        /// Lines of a `known_hosts` file, instead of `hostKey` or the Secret's `known_hosts`.
        known_hosts: Option<String> = "knownHosts" {},
        /// Host key check of an SSH server: strict, or off for a network where servers are not
        /// forged.
        host_key_check: HostKeyCheck = "hostKeyCheck" { default: "strict" },
        /// Comma list of further flags: noexec, noatime, ro and the like.
        mount_options: Option<String> = "mountOptions" { aliases: ["mountoptions"], example: "noexec" },
    }
}

const USER: SecretSpec = SecretSpec {
    keys: &["username", "user"],
    doc: "user name for a web server, unless an option gives it",
    example: false,
};

const PASSWORD: SecretSpec = SecretSpec {
    keys: &["password", "token", "passwd", "pass"],
    doc: "the password or token for a web server",
    example: false,
};

const KEY: SecretSpec = SecretSpec {
    doc: "private key for an SSH server, without a passphrase",
    example: false,
    ..ssh::PRIVATE_KEY
};

const AUTHORITY: SecretSpec =
    SecretSpec { keys: &["ca.crt", "ca"], doc: "trusted CA certificates for a web server", example: false };

/// User name that is sent with a token: any name will do.
const ANYBODY: &str = "git";

/// Files of git's home directory. git itself looks for the first two names.
const CONFIG: &str = ".gitconfig";
const CREDENTIALS: &str = ".git-credentials";
const CERTIFICATES: &str = "ca.crt";

/// Protocol by which a repository is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Https,
    Http,
    Ssh,
    Git,
}

const PROTOCOLS: [(&str, Protocol); 4] =
    [("https", Protocol::Https), ("http", Protocol::Http), ("ssh", Protocol::Ssh), ("git", Protocol::Git)];

impl Protocol {
    fn name(self) -> &'static str {
        PROTOCOLS.iter().find(|(_, protocol)| *protocol == self).map_or("", |(name, _)| name)
    }

    fn is_web(self) -> bool {
        matches!(self, Self::Https | Self::Http)
    }
}

/// Address of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    /// Address in the form that git gets.
    text: String,
    protocol: Protocol,
    host: String,
    /// Host and port, for a web server's credentials.
    authority: String,
}

impl OptionValue for Repository {
    const KIND: &'static str = "address of a repository";

    /// Parses strictly: git itself also accepts unsafe addresses: files of the node, programs,
    /// options.
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is not an address such as https://git.example.com/web.git or git@git.example.com:web.git, without a password"
            )
        };
        let harmless = |c: char| !c.is_control() && !c.is_whitespace() && !"\"'`\\$<>|;*".contains(c);
        if text.starts_with('-') || !text.chars().all(harmless) {
            return Err(wrong());
        }
        let parsed = match text.split_once("://") {
            Some((scheme, rest)) => of_url(scheme, rest),
            None => of_ssh(text),
        };
        let (protocol, host, authority) = parsed.ok_or_else(wrong)?;
        Ok(Self { text: text.to_owned(), protocol, host, authority })
    }
}

/// Protocol, host, and host with port.
type GitHost = (Protocol, String, String);

fn of_url(scheme: &str, rest: &str) -> Option<GitHost> {
    let (_, protocol) = PROTOCOLS.iter().find(|(name, _)| *name == scheme)?;
    let (authority, path) = rest.split_once('/')?;
    let authority = match (authority.split_once('@'), protocol) {
        (Some((user, authority)), Protocol::Ssh) => user_is_plain(user).then_some(authority)?,
        (Some(_), _) => return None,
        (None, _) => authority,
    };
    let bracketed = authority.starts_with('[') || authority.matches(':').count() < 2;
    let (host, port) = server::host_and_port(authority).ok().filter(|_| bracketed)?;
    let port = port.map_or_else(String::new, |port| format!(":{port}"));
    (!path.is_empty()).then(|| (*protocol, host.clone(), format!("{host}{port}")))
}

/// Parses `user@host:path`.
fn of_ssh(text: &str) -> Option<GitHost> {
    let (whole, path) = match text.split_once("]:") {
        Some((host, path)) => (format!("{host}]"), path),
        None => text.split_once(':').map(|(host, path)| (host.to_owned(), path))?,
    };
    let host = match whole.split_once('@') {
        Some((user, host)) => user_is_plain(user).then_some(host)?,
        None => &whole,
    };
    let host = server::host(host).ok()?;
    (!path.is_empty() && !path.starts_with([':', '-'])).then(|| (Protocol::Ssh, host.clone(), host))
}

fn user_is_plain(user: &str) -> bool {
    !user.is_empty() && Plain::parse(user).is_ok() && !user.contains('@')
}

/// Name of a revision on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision(String);

impl OptionValue for Revision {
    const KIND: &'static str = "branch, tag or commit";

    /// Refuses text that git would not accept as a name, or would read as more than one name.
    fn parse(text: &str) -> Result<Self, String> {
        let odd = |c: char| c.is_control() || c.is_whitespace() || "~^:?*[\\+".contains(c);
        if text.starts_with(['-', '/', '.'])
            || text.contains("..")
            || text.contains("@{")
            || text.contains(odd)
        {
            return Err(format!("{text:?} is not the name of a branch or tag, or the id of a commit"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl Driver for Git {
    fn name(&self) -> &'static str {
        "git"
    }

    fn summary(&self) -> &'static str {
        "a clone of a repository"
    }

    fn options(&self) -> &'static [OptionSpec] {
        GitOptions::SPECS
    }

    fn secrets(&self) -> &'static [SecretSpec] {
        &[USER, PASSWORD, AUTHORITY, KEY, ssh::KNOWN_SERVERS]
    }

    fn capabilities(&self, _: &Settings) -> Capabilities {
        Capabilities { fs_group: true, selinux_relabel: true, ..Capabilities::NONE }
    }

    fn programs<'a>(&self, _: &'a Settings) -> Vec<&'a str> {
        vec!["git"]
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let volume = request.options;
        let options = GitOptions::parse(&volume.own)?;
        let flags = flags_alone(options.mount_options.as_deref(), volume, "a clone")?;
        let files = files(&options, request)?;
        let repository = options.repository.text;
        let directory = options.sub_path.map(|path| path.0);
        let source = Source::Clone { repository: repository.clone(), directory: directory.clone() };
        let checkout = Checkout {
            target: target.clone(),
            files,
            repository,
            revision: options.revision.0,
            depth: options.depth,
            directory,
            size: options.size.map(|size| size.0),
            servers: vec![options.repository.host],
            flags,
        };
        let view = View { file_system: None, source, access: access(flags) };
        Ok(Plan {
            goal: Goal::Mounted { target: target.clone(), view },
            steps: vec![Step::PrepareTarget { target: target.clone() }, Step::Checkout(checkout)],
        })
    }

    fn unmount(&self, target: &TargetPath, _: &Settings) -> Result<Plan> {
        Ok(Plan::end_daemon(target, 0))
    }
}

/// Returns the files of git's home directory.
fn files(options: &GitOptions, request: &Request<'_>) -> Result<BTreeMap<&'static str, Content>> {
    let protocol = options.repository.protocol;
    let mut config = format!(
        "[protocol]\n\tallow = never\n[protocol \"{}\"]\n\tallow = always\n[core]\n\thooksPath = /dev/null\n\tfsmonitor = false\n[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n[credential]\n\thelper =\n\thelper = store\n",
        protocol.name()
    );
    let mut files = if protocol.is_web() {
        web(options, request.options)?
    } else if protocol == Protocol::Ssh {
        config.push_str("[core]\n\tsshCommand = \"ssh -F \\\"$HOME/ssh_config\\\"\"\n");
        identified(options, request.options)?
    } else {
        BTreeMap::new()
    };
    if files.contains_key(CERTIFICATES) {
        config.push_str("[http]\n\tsslCAInfo = ~/ca.crt\n");
    }
    // A redirect could name the node itself, or a server that the admin has not allowed.
    if !request.settings.policy.allow_redirects {
        config.push_str("[http]\n\tfollowRedirects = false\n");
    }
    // Otherwise a server that asks for it gets a Kerberos ticket of root.
    config.push_str("[http]\n\temptyAuth = false\n");
    files.insert(CONFIG, fuse::content(config));
    Ok(files)
}

/// Returns the files for a web server: credentials and trusted certificates.
fn web(options: &GitOptions, volume: &Options) -> Result<BTreeMap<&'static str, Content>> {
    let mut files = BTreeMap::new();
    let user = match &options.user {
        Some(user) => Some(Secret::new(user.0.clone().into_bytes())),
        None => fuse::secret_line(volume, &USER)?,
    };
    match (user, fuse::secret_line(volume, &PASSWORD)?) {
        (user, Some(password)) => {
            let user = user.unwrap_or_else(|| Secret::new(ANYBODY.into()));
            let Repository { protocol, authority, .. } = &options.repository;
            let line = fuse::content(format!("{}://", protocol.name())).secret(&encoded(&user)).text(":");
            files.insert(CREDENTIALS, line.secret(&encoded(&password)).text(format!("@{authority}\n")));
        }
        (Some(_), None) => {
            return Err(Failure::options("secret lacks \"password\": add it, or leave the user out"));
        }
        (None, None) => {}
    }
    if let Some(certificates) = fuse::secret(volume, &AUTHORITY)? {
        files.insert(CERTIFICATES, Content::default().secret(certificates));
    }
    Ok(files)
}

/// Returns the files for an SSH server: configuration, known hosts and private key.
fn identified(options: &GitOptions, volume: &Options) -> Result<BTreeMap<&'static str, Content>> {
    let key = fuse::secret(volume, &ssh::PRIVATE_KEY)?.ok_or_else(|| {
        Failure::options(
            "secret lacks \"ssh-privatekey\": name one in flexVolume.secretRef that has, or use an address of https",
        )
    })?;
    let identity = Identity {
        keys: options.host_key.as_ref(),
        lines: options.known_hosts.as_deref(),
        check: options.host_key_check,
    };
    let (config, known) = identity.config("User git\n", volume)?;
    Ok([
        (ssh::CONFIG, ssh::with_key(config)),
        (ssh::KNOWN_HOSTS, known),
        (ssh::KEY, Content::default().secret(key).text("\n")),
    ]
    .into())
}

/// Encodes a secret for a URL, in which only letters and digits stand for themselves.
fn encoded(secret: &Secret) -> Secret {
    let byte = |byte: &u8| match byte {
        byte if byte.is_ascii_alphanumeric() => vec![*byte],
        byte => format!("%{byte:02X}").into_bytes(),
    };
    Secret::new(secret.expose().iter().flat_map(byte).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_of_a_server_and_has_no_option_in_it() {
        let host = |text: &str| Repository::parse(text).map(|repository| repository.host);
        for (text, expected) in [
            ("https://git.example.com/web.git", "git.example.com"),
            ("http://10.0.0.1:8080/a/b?c&d=%20", "10.0.0.1"),
            ("ssh://git@[fd00::7]:22/a", "[fd00::7]"),
            ("ssh://[fd00::7]/~a/b", "[fd00::7]"),
            ("git://git.example.com/a", "git.example.com"),
            ("git@git.example.com:a/b.git", "git.example.com"),
            ("git.example.com:/srv/a", "git.example.com"),
            ("git@[fd00::7]:a", "[fd00::7]"),
        ] {
            assert_eq!(host(text).as_deref(), Ok(expected), "{text}");
        }
        for text in [
            "",
            "/srv/a",
            "a",
            "file:///srv/a",
            "ext::sh -c id",
            "ext::sh",
            "fd::7",
            "-u:a",
            "--upload-pack=x:y",
            "ssh://-oProxyCommand=x/a",
            "ssh://a",
            "https://a",
            "https://a/",
            "https://u:p@a/b",
            "https://u@a/b",
            "http://a b/c",
            "ssh://u:p@a/b",
            "a:",
            "a:-x",
            "-a@b:c",
            "git@-oProxyCommand=x:y",
            "a:b\nc",
            "a:b;c",
            "a:$(b)",
            "HTTPS://a/b",
            "https://a:0/b",
            "git@a@b:c",
            "ssh://@a/b",
            "a\\b:c",
            "http::https://a/b",
        ] {
            assert!(host(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_revision_is_one_name() {
        for text in
            ["main", "v1.0", "refs/pull/7/head", "0123456789012345678901234567890123456789", "a@b", "é"]
        {
            assert!(Revision::parse(text).is_ok(), "{text}");
        }
        for text in [
            "-f",
            "--upload-pack=x",
            "a b",
            "a..b",
            "a:b",
            "+a",
            "a^",
            "a~1",
            "a@{1}",
            "*",
            "a\n",
            "/a",
            ".a",
        ] {
            assert!(Revision::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_password_is_no_part_of_an_address() {
        assert_eq!(encoded(&Secret::new(b"p,a@/:%\n\xff".to_vec())).expose(), b"p%2Ca%40%2F%3A%25%0A%FF");
    }
}

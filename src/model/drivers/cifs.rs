//! `cifs`: a share of an SMB server (Windows, Samba, a NAS), through the kernel's own client.
//!
//! The node needs no mount.cifs: the kernel takes each option separately, so a password may hold
//! any character but a line break, and no other process ever sees it. For Kerberos and for DFS the
//! kernel itself calls programs of the node's cifs-utils and keyutils.
//!
//! An SMB server knows nothing of the node's users: every file belongs to `uid` and `gid`. With an
//! fsGroup, `gid` is the fsGroup and the group may write, unless the options say otherwise.
//!
//! Capabilities: no attach; no chown, because there are no owners to change; no labels; no metrics,
//! because statfs hangs when the server is gone.

use super::share::{self, Address, Port, Servers, SubDirectory, reach, secret_text};
use super::{access, flags};
use crate::driver::{Driver, Needs, Request};
use crate::plan::{Dialect, Named, Plan, Share, ShareOption, ShareValue, Source, Step, View};
use crate::schema::{self, Id, Mode, OptionSpec, OptionValue, SecretSpec};
use crate::server;
use crate::settings::Settings;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::mount_options::{self, FsOption, Rule, Value};
use flexvol_protocol::secret::Secret;
use flexvol_protocol::{Capabilities, Options, TargetPath};

/// The driver.
pub struct Cifs;

crate::options! {
    /// Options of a PV.
    pub struct CifsOptions {
        /// The share, optionally with a directory in it: `//server/share/directory`.
        source: Option<Unc> = "source" { aliases: ["networkPath"], example: "//files.example.com/web" },
        /// Name or address of the server, instead of `source`. Of several, the first that answers
        /// is used.
        server: Option<Servers> = "server" { aliases: ["servers", "host"] },
        /// Name of the share, optionally with a directory in it, instead of `source`.
        share: Option<ShareName> = "share" {},
        /// A directory of the share to be mounted instead of it.
        sub_dir: Option<SubDirectory> = "subDir" { aliases: ["subdir", "subPath"] },
        /// Make `subDir` on the server if it is missing.
        create_sub_dir: bool = "createSubDir" { default: "false" },
        /// Version of the protocol. The default is the newest that the server speaks, from 2.1 on.
        version: Option<Version> = "version" { aliases: ["vers"], example: "3.1.1" },
        /// Domain or workgroup of the user; the key domain of the Secret wins.
        domain: Option<Name> = "domain" { aliases: ["workgroup"] },
        /// Log in as guest.
        guest: bool = "guest" { default: "false" },
        /// Owner shown for all files.
        uid: Option<Id> = "uid" {},
        /// Group shown for all files. The default is the pod's fsGroup.
        gid: Option<Id> = "gid" {},
        /// Mode shown for all files. The default is 0755, and 0770 with an fsGroup.
        file_mode: Option<Mode> = "fileMode" { aliases: ["file_mode"] },
        /// Mode shown for all directories. The default is that of files.
        dir_mode: Option<Mode> = "dirMode" { aliases: ["dir_mode"] },
        /// Port of the server. The default is 445.
        port: Option<Port> = "port" {},
        /// Nameserver that is asked for the servers' addresses: the cluster's DNS if they are
        /// Services. The default is the node's own resolver.
        nameserver: Option<Address> = "nameserver" { example: "10.96.0.10" },
        /// Seconds to wait for each server to accept a connection; 0 leaves that to the kernel.
        connect_timeout: u32 = "connectTimeout" { default: "5" },
        /// Authentication: ntlmssp, or krb5 with the node's credentials cache or keytab; ntlmsspi
        /// and krb5i sign every packet. The default is the server's choice.
        sec: Option<Security> = "sec" {},
        /// Owner of the credentials cache for Kerberos. The default is root.
        cruid: Option<Id> = "cruid" {},
        /// Comma list of further options: ro, seal, nobrl, actimeo=30, mfsymlinks and the like.
        mount_options: Option<String> = "mountOptions" { aliases: ["mountoptions", "opts"], example: "seal" },
    }
}

const USERNAME: SecretSpec = SecretSpec {
    keys: &["username", "user"],
    doc: "user name, unless guest or Kerberos is used",
    example: true,
};

const PASSWORD: SecretSpec = SecretSpec {
    keys: &["password", "pass", "passwd"],
    doc: "the password, of any characters but a line break",
    example: true,
};

const DOMAIN: SecretSpec = SecretSpec {
    keys: &["domain", "workgroup"],
    doc: "domain or workgroup of the user, instead of the option",
    example: false,
};

/// Mount options that a tenant may set: none changes the share or the user.
pub(crate) const RULES: &[Rule] = &[
    Rule("hard", Value::None),
    Rule("soft", Value::None),
    Rule("retrans", Value::Number),
    Rule("echo_interval", Value::Number),
    Rule("rsize", Value::Number),
    Rule("wsize", Value::Number),
    Rule("bsize", Value::Number),
    Rule("rasize", Value::Number),
    Rule("actimeo", Value::Number),
    Rule("acregmax", Value::Number),
    Rule("acdirmax", Value::Number),
    Rule("closetimeo", Value::Number),
    Rule("cache", Value::OneOf(&["none", "strict", "loose"])),
    Rule("seal", Value::None),
    Rule("sign", Value::None),
    Rule("nobrl", Value::None),
    Rule("brl", Value::None),
    Rule("forcemandatorylock", Value::None),
    Rule("mfsymlinks", Value::None),
    Rule("sfu", Value::None),
    Rule("nosfu", Value::None),
    Rule("noperm", Value::None),
    Rule("perm", Value::None),
    Rule("dynperm", Value::None),
    Rule("forceuid", Value::None),
    Rule("noforceuid", Value::None),
    Rule("forcegid", Value::None),
    Rule("noforcegid", Value::None),
    Rule("serverino", Value::None),
    Rule("noserverino", Value::None),
    Rule("posix", Value::None),
    Rule("noposix", Value::None),
    Rule("unix", Value::None),
    Rule("nounix", Value::None),
    Rule("mapposix", Value::None),
    Rule("mapchars", Value::None),
    Rule("nomapposix", Value::None),
    Rule("nocase", Value::None),
    Rule("ignorecase", Value::None),
    Rule("nodfs", Value::None),
    Rule("nosharesock", Value::None),
    Rule("persistenthandles", Value::None),
    Rule("nopersistenthandles", Value::None),
    Rule("resilienthandles", Value::None),
    Rule("noresilienthandles", Value::None),
    Rule("nohandlecache", Value::None),
    Rule("handlecache", Value::None),
    Rule("handletimeout", Value::Number),
    Rule("multichannel", Value::None),
    Rule("nomultichannel", Value::None),
    Rule("max_channels", Value::Number),
    Rule("user_xattr", Value::None),
    Rule("nouser_xattr", Value::None),
    Rule("acl", Value::None),
    Rule("noacl", Value::None),
    Rule("cifsacl", Value::None),
    Rule("modefromsid", Value::None),
    Rule("idsfromsid", Value::None),
    Rule("fsc", Value::None),
    Rule("nolease", Value::None),
    Rule("locallease", Value::None),
    Rule("strictsync", Value::None),
    Rule("nostrictsync", Value::None),
    Rule("rwpidforward", Value::None),
    Rule("posixpaths", Value::None),
    Rule("noposixpaths", Value::None),
    Rule("nomapchars", Value::None),
    Rule("setuids", Value::None),
    Rule("nosetuids", Value::None),
    Rule("nodelete", Value::None),
    Rule("min_enc_offload", Value::Number),
    Rule("snapshot", Value::Word),
    Rule("netbiosname", Value::Word),
    Rule("servern", Value::Word),
    Rule("iocharset", Value::Word),
    Rule("vers", Value::Instead("option version")),
    Rule("port", Value::Instead("option port")),
    Rule("sec", Value::Instead("option sec")),
    Rule("cruid", Value::Instead("option cruid")),
    Rule("uid", Value::Instead("option uid")),
    Rule("gid", Value::Instead("option gid")),
    Rule("file_mode", Value::Instead("option fileMode")),
    Rule("dir_mode", Value::Instead("option dirMode")),
    Rule("guest", Value::Instead("option guest")),
    Rule("domain", Value::Instead("option domain")),
    Rule("username", Value::Instead("the Secret's username")),
    Rule("user", Value::Instead("the Secret's username")),
    Rule("password", Value::Instead("the Secret's password")),
    Rule("pass", Value::Instead("the Secret's password")),
    Rule("credentials", Value::Instead("a Secret with username and password")),
    Rule("cred", Value::Instead("a Secret with username and password")),
    Rule("ip", Value::Instead("option server, whose addresses flexvol looks up and the policy is about")),
    Rule("addr", Value::Instead("option server, whose addresses flexvol looks up and the policy is about")),
    Rule("prefixpath", Value::Instead("option subDir")),
    Rule(
        "multiuser",
        Value::Instead(
            "one volume for each user, with a Secret of their own: the node has no keyring of pods' users",
        ),
    ),
    Rule(
        "backupuid",
        Value::Instead(
            "the rights of the Secret's user: files are not opened with backup intent for a user of the node",
        ),
    ),
    Rule(
        "backupgid",
        Value::Instead(
            "the rights of the Secret's user: files are not opened with backup intent for a group of the node",
        ),
    ),
];

/// Share as Windows writes it, with slashes or backslashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unc {
    server: String,
    path: ShareName,
}

impl OptionValue for Unc {
    const KIND: &'static str = "//server/share";

    fn parse(text: &str) -> Result<Self, String> {
        let plain = text.replace('\\', "/");
        let plain = plain.strip_prefix("smb:").or_else(|| plain.strip_prefix("cifs:")).unwrap_or(&plain);
        let missing = || format!("{text:?} is no share: write it like //files.example.com/web");
        let (host, path) =
            plain.strip_prefix("//").and_then(|rest| rest.split_once('/')).ok_or_else(missing)?;
        Ok(Self { server: server::host(host)?, path: ShareName::parse(path)? })
    }
}

/// Name of a share and the path below it, without slashes around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareName(String);

impl OptionValue for ShareName {
    const KIND: &'static str = "share";

    fn parse(text: &str) -> Result<Self, String> {
        let plain = text.replace('\\', "/");
        let parts: Vec<_> = plain.split('/').filter(|part| !part.is_empty()).collect();
        let odd = |part: &&&str| **part == "." || **part == ".." || part.contains(|c: char| c.is_control());
        match (parts.iter().find(odd), parts.is_empty()) {
            (Some(_), _) => Err(format!("{text:?} holds . or .. or a control character")),
            (None, true) => Err(format!("{text:?} names no share")),
            (None, false) => Ok(Self(parts.join("/"))),
        }
    }
}

/// Version of SMB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(&'static str);

impl OptionValue for Version {
    const KIND: &'static str = "3.1.1, 3.0.2, 3.0, 3, 2.1, 2.0, 1.0 or default";

    fn parse(text: &str) -> Result<Self, String> {
        let known = ["3.1.1", "3.11", "3.02", "3.0.2", "3.0", "3", "2.1", "2.0", "1.0", "default"];
        // The protocol's own name for this version; the kernel knows only the short name.
        let text = if text == "2.002" { "2.0" } else { text };
        let known = known.into_iter().find(|version| *version == text);
        known.map(Self).ok_or_else(|| format!("{text:?} is not {}", Self::KIND))
    }
}

/// Method of authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Security(&'static str);

impl OptionValue for Security {
    const KIND: &'static str = "ntlmssp, ntlmsspi, krb5, krb5i or none";

    fn parse(text: &str) -> Result<Self, String> {
        if ["ntlm", "ntlmi", "ntlmv2", "ntlmv2i"].contains(&text) {
            return Err(format!("{text:?} is gone from today's kernels: leave it out, or write ntlmssp"));
        }
        let known = ["ntlmssp", "ntlmsspi", "krb5", "krb5i", "none"].into_iter().find(|word| *word == text);
        known.map(Self).ok_or_else(|| format!("{text:?} is not {}", Self::KIND))
    }
}

/// Name without any character that could end it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(String);

impl OptionValue for Name {
    const KIND: &'static str = "name";

    fn parse(text: &str) -> Result<Self, String> {
        let plain = |c: char| c.is_alphanumeric() || "-._ ".contains(c);
        if text.chars().all(plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!("{text:?} is not a name"))
        }
    }
}

impl Driver for Cifs {
    fn name(&self) -> &'static str {
        "cifs"
    }

    fn summary(&self) -> &'static str {
        "a share of an SMB server"
    }

    fn needs(&self) -> Needs {
        Needs { file_system: Some("cifs"), ..Needs::NOTHING }
    }

    fn options(&self) -> &'static [OptionSpec] {
        CifsOptions::SPECS
    }

    fn secrets(&self) -> &'static [SecretSpec] {
        &[USERNAME, PASSWORD, DOMAIN]
    }

    fn capabilities(&self, _: &Settings) -> Capabilities {
        Capabilities::NONE
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let options = CifsOptions::parse(&request.options.own)?;
        let list = options.mount_options.as_deref().unwrap_or_default();
        let (flags, further) = mount_options::parse(list, flags(request.options), RULES)?;
        let (servers, base) = whereabouts(&options)?;
        let referred = request.settings.policy.follows_redirects();
        let further = if referred { further } else { without_referrals(further) };
        let whole = options.sub_dir.as_ref().map(|SubDirectory(sub)| format!("{base}/{}", sub.display()));
        let source = named(whole.as_ref().unwrap_or(&base));
        let share = Share {
            source: source.clone(),
            dialects: vec![Dialect { file_system: "cifs", options: further }],
            options: own_options(&options, request.options)?,
            flags,
        };
        let view = View {
            file_system: Some("cifs".into()),
            source: Source::Share { source, servers: servers.0.clone() },
            access: access(flags),
        };
        let port = options.port.map_or(445, |port| port.0);
        let find = Step::Reach(reach(&servers, port, options.nameserver, options.connect_timeout));
        let missing = options.sub_dir.as_ref().filter(|_| options.create_sub_dir);
        let missing = missing
            .map(|path| share::directory(Share { source: named(&base), ..share.clone() }, path, 0o777));
        let mount = Step::MountShare {
            target: target.clone(),
            share,
            missing: missing.map(Box::new),
            otherwise: None,
        };
        Ok(share::mounted(target, view, find, None, mount))
    }
}

/// Returns the servers, and the share with the path below it.
fn whereabouts(options: &CifsOptions) -> Result<(Servers, String)> {
    match (&options.source, &options.server, &options.share) {
        (Some(source), None, None) => Ok((Servers(vec![source.server.clone()]), source.path.0.clone())),
        (None, Some(servers), Some(share)) => Ok((servers.clone(), share.0.clone())),
        (None, None, None) => Err(Failure::options(schema::missing("source", "//files.example.com/web"))),
        (None, ..) => Err(Failure::options("options \"server\" and \"share\" need each other: give both")),
        _ => Err(Failure::options(
            "options \"source\" and \"server\" or \"share\" mean the same: keep one of them",
        )),
    }
}

/// Turns DFS off, because DFS sends clients to other servers.
fn without_referrals(mut further: Vec<FsOption>) -> Vec<FsOption> {
    if further.iter().all(|option| option.key != "nodfs") {
        further.push(FsOption::flag("nodfs"));
    }
    further
}

fn named(path: &str) -> Named {
    Named { before: "//", after: format!("/{path}") }
}

/// Returns the mount options that do not come from the tenant's own list.
fn own_options(options: &CifsOptions, volume: &Options) -> Result<Vec<ShareOption>> {
    let group = volume.fs_group.as_ref().map(|group| group.gid);
    let file_mode = options.file_mode.map(|mode| mode.0).or(group.map(|_| 0o770));
    let dir_mode = options.dir_mode.map(|mode| mode.0).or(file_mode);
    let octal = |key: &'static str| move |mode: u32| ShareOption::new(key, format_args!("{mode:04o}"));
    let given = [
        Some(ShareOption { key: "ip", value: ShareValue::Server }),
        options.port.map(|port| ShareOption::new("port", port.0)),
        options.version.map(|version| ShareOption::new("vers", version.0)),
        options.sec.map(|sec| ShareOption::new("sec", sec.0)),
        options.cruid.map(|uid| ShareOption::new("cruid", uid.0)),
        options.uid.map(|uid| ShareOption::new("uid", uid.0)),
        options.gid.map(|gid| gid.0).or(group).map(|gid| ShareOption::new("gid", gid)),
        group.map(|_| ShareOption::flag("forcegid")),
        file_mode.map(octal("file_mode")),
        dir_mode.map(octal("dir_mode")),
    ];
    Ok(given.into_iter().flatten().chain(login(options, volume)?).collect())
}

/// Returns the mount options of the login. An empty user name means no user.
fn login(options: &CifsOptions, volume: &Options) -> Result<Vec<ShareOption>> {
    let username = secret_text(volume, USERNAME.keys)?;
    let password = secret_text(volume, PASSWORD.keys)?;
    let domain = secret_text(volume, DOMAIN.keys)?;
    let domain =
        domain.or_else(|| options.domain.as_ref().map(|name| Secret::new(name.0.clone().into_bytes())));
    let username = match (username, options.guest) {
        (Some(_), true) => {
            return Err(Failure::options("option \"guest\": the Secret has a username: keep one of them"));
        }
        (_, true) => return Ok(vec![ShareOption::new("username", ""), ShareOption::new("password", "")]),
        (Some(username), false) => username,
        // The Kerberos ticket identifies the user.
        (None, false) if options.sec.is_some_and(|sec| sec.0.starts_with("krb5")) => return Ok(Vec::new()),
        (None, false) => {
            return Err(Failure::options(
                "the Secret has no username: name it in flexVolume.secretRef, of the type of the driver's name, or set option guest to true",
            ));
        }
    };
    let domain = domain.map(|domain| ShareOption::secret("domain", domain));
    // Without a password, the plan shows an empty one instead of `***`.
    let password = password.map(|password| ShareOption::secret("password", password));
    let password = password.unwrap_or_else(|| ShareOption::new("password", ""));
    let login = [ShareOption::secret("username", username), password];
    Ok(login.into_iter().chain(domain).collect())
}

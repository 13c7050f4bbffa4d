//! `nfs`: a directory that a server exports, through the kernel's own client.
//!
//! The node needs no mount.nfs. flexvol looks up names and checks that the server answers before it
//! calls the kernel, which would wait for minutes. mount.nfs is run only for Kerberos, or if option
//! `helper` asks for it.
//!
//! Mounts are hard: a program that reads or writes while the server is away waits until it is back.
//! The alternative, `soft` in `mountOptions`, loses writes without telling every program, so it
//! must be requested. Version 3 keeps file locks on the node (`nolock`), because locks on the
//! server need daemons that a node rarely runs; `lock` in `mountOptions` requests them.
//!
//! Capabilities: no attach; no chown by kubelet, which takes hours on a large export and fails
//! where root is squashed; no labels; no metrics, because statfs hangs when the server is gone.

use super::share::{self, Address, Port, Servers, SubDirectory, reach};
use super::{access, flags};
use crate::driver::{Driver, Needs, Request};
use crate::plan::{
    Answer, Dialect, Named, Plan, Run, Share, ShareOption, ShareValue, Source, Step, View, Word,
};
use crate::schema::{Mode, OptionSpec, OptionValue};
use crate::settings::Settings;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::mount_options::{self, FsOption, MountFlags, Rule, Value};
use flexvol_protocol::{Capabilities, TargetPath};
use std::path::{Component, Path};

/// The driver.
pub struct Nfs;

crate::options! {
    /// Options of a PV.
    pub struct NfsOptions {
        /// Name or address of the server. Of several, the first that answers is used: they must
        /// serve the same.
        server: Servers = "server" { aliases: ["servers", "host"], example: "nas.example.com" },
        /// The directory that the server exports, or one below it.
        path: ExportPath = "path" { aliases: ["share", "export"], example: "/exports/web" },
        /// A directory below `path` to be mounted instead of it.
        sub_dir: Option<SubDirectory> = "subDir" { aliases: ["subdir", "subPath"] },
        /// Make `subDir` on the server if it is missing.
        create_sub_dir: bool = "createSubDir" { default: "false" },
        /// Mode of the new `subDir`.
        mode: Mode = "mode" { default: "0777" },
        /// Version of the protocol. The default is the newest that the server speaks.
        version: Option<Version> = "version" { aliases: ["vers", "nfsvers"], example: "4.1" },
        /// Transport: tcp, or udp for version 3.
        protocol: Protocol = "protocol" { aliases: ["proto"], default: "tcp" },
        /// Port of the server. The default is 2049.
        port: Option<Port> = "port" {},
        /// Port of the server's mountd, for version 3 through a firewall. The default asks its
        /// rpcbind.
        mount_port: Option<Port> = "mountPort" { aliases: ["mountport"] },
        /// Nameserver that is asked for the servers' addresses: the cluster's DNS if they are
        /// Services. The default is the node's own resolver.
        nameserver: Option<Address> = "nameserver" { example: "10.96.0.10" },
        /// Seconds to wait for each server to accept a connection; 0 leaves that to the kernel,
        /// which waits for minutes.
        connect_timeout: u32 = "connectTimeout" { default: "5" },
        /// Security: sys trusts the node's user ids; krb5, krb5i (signed) and krb5p (encrypted)
        /// need a keytab and rpc.gssd on the node. The default is sys, and the server's choice
        /// where Kerberos is allowed.
        sec: Option<Security> = "sec" {},
        /// Use of the node's mount.nfs: auto uses it for Kerberos.
        helper: Helper = "helper" { default: "auto" },
        /// Comma list of further options: ro, noatime, soft, timeo=600, nconnect=4 and the like.
        mount_options: Option<String> = "mountOptions" { aliases: ["mountoptions"], example: "noatime,nconnect=4" },
    }
}

/// Mount options that a tenant may set: none changes the server or the export.
pub(crate) const RULES: &[Rule] = &[
    Rule("hard", Value::None),
    Rule("soft", Value::None),
    Rule("softerr", Value::None),
    Rule("softreval", Value::None),
    Rule("nosoftreval", Value::None),
    Rule("timeo", Value::Number),
    Rule("retrans", Value::Number),
    Rule("rsize", Value::Number),
    Rule("wsize", Value::Number),
    Rule("ac", Value::None),
    Rule("noac", Value::None),
    Rule("acregmin", Value::Number),
    Rule("acregmax", Value::Number),
    Rule("acdirmin", Value::Number),
    Rule("acdirmax", Value::Number),
    Rule("actimeo", Value::Number),
    Rule("cto", Value::None),
    Rule("nocto", Value::None),
    Rule("acl", Value::None),
    Rule("noacl", Value::None),
    Rule("lock", Value::None),
    Rule("nolock", Value::None),
    Rule("local_lock", Value::OneOf(&["all", "flock", "posix", "none"])),
    Rule("rdirplus", Value::None),
    Rule("nordirplus", Value::None),
    Rule("sharecache", Value::None),
    Rule("nosharecache", Value::None),
    Rule("resvport", Value::None),
    Rule("noresvport", Value::None),
    Rule("lookupcache", Value::OneOf(&["all", "none", "pos", "positive"])),
    Rule("migration", Value::None),
    Rule("nomigration", Value::None),
    Rule("nconnect", Value::Number),
    Rule("max_connect", Value::Number),
    Rule("fsc", Value::None),
    Rule("nofsc", Value::None),
    Rule("write", Value::OneOf(&["lazy", "eager", "wait"])),
    Rule("vers", Value::Instead("option version")),
    Rule("nfsvers", Value::Instead("option version")),
    Rule("proto", Value::Instead("option protocol")),
    Rule("tcp", Value::Instead("option protocol")),
    Rule("udp", Value::Instead("option protocol")),
    Rule("port", Value::Instead("option port")),
    Rule("mountport", Value::Instead("option mountPort")),
    Rule("sec", Value::Instead("option sec")),
    Rule("minorversion", Value::Instead("option version, as 4.1")),
    Rule("mountvers", Value::Instead("option version, from which it follows")),
    Rule("mountproto", Value::Instead("option protocol, from which it follows")),
    Rule("addr", Value::Instead("option server, whose addresses flexvol looks up and the policy is about")),
    Rule("mounthost", Value::Instead("option server, which is asked: the policy is about one server")),
    Rule("mountaddr", Value::Instead("option server, which is asked: the policy is about one server")),
];

/// Absolute path on the server. The server decides what is valid in it; only `..` and characters
/// that would end the path are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportPath(pub String);

impl OptionValue for ExportPath {
    const KIND: &'static str = "absolute path";

    fn parse(text: &str) -> Result<Self, String> {
        let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        let path = Path::new(text);
        if path.is_absolute() && path.components().all(plain) && !text.contains(['\0', '\n']) {
            return Ok(Self(text.to_owned()));
        }
        Err(format!("{text:?} is not an absolute path of the server, without .."))
    }
}

/// Version of NFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(&'static str);

/// Versions in the order in which they are tried, the newest first.
const VERSIONS: [&str; 4] = ["4.2", "4.1", "4.0", "3"];

impl OptionValue for Version {
    const KIND: &'static str = "4.2, 4.1, 4.0 or 3";

    fn parse(text: &str) -> Result<Self, String> {
        let meant = match text {
            "4" => "4.0",
            "3.0" => "3",
            text => text,
        };
        let known = VERSIONS.into_iter().find(|version| *version == meant);
        known.map(Self).ok_or_else(|| format!("{text:?} is not {}", Self::KIND))
    }
}

/// Transport protocol of NFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Always available.
    Tcp,
    /// For version 3, if kernel and server still support it.
    Udp,
}

impl Protocol {
    /// Returns the mount option. It differs from the value of `proto=`, which would select IPv4 as
    /// well. The protocol for mountd follows from it.
    fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

impl OptionValue for Protocol {
    const KIND: &'static str = "tcp or udp";

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "udp" => Ok(Self::Udp),
            _ => Err(format!("{text:?} is not {}", Self::KIND)),
        }
    }
}

/// Security flavour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Security(&'static str);

impl OptionValue for Security {
    const KIND: &'static str = "sys, krb5, krb5i or krb5p";

    fn parse(text: &str) -> Result<Self, String> {
        let known = ["sys", "krb5", "krb5i", "krb5p"].into_iter().find(|word| *word == text);
        known.map(Self).ok_or_else(|| format!("{text:?} is not {}", Self::KIND))
    }
}

/// Rule for using the mount helper of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Helper {
    /// If the kernel alone cannot mount.
    Auto,
    /// Even if the kernel alone can mount.
    Always,
    /// Not even if the kernel alone cannot mount.
    Never,
}

impl OptionValue for Helper {
    const KIND: &'static str = "auto, always or never";

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(format!("{text:?} is not {}", Self::KIND)),
        }
    }
}

impl Driver for Nfs {
    fn name(&self) -> &'static str {
        "nfs"
    }

    fn summary(&self) -> &'static str {
        "a directory of an NFS server"
    }

    fn needs(&self) -> Needs {
        Needs { file_system: Some("nfs"), ..Needs::NOTHING }
    }

    fn options(&self) -> &'static [OptionSpec] {
        NfsOptions::SPECS
    }

    fn capabilities(&self, _: &Settings) -> Capabilities {
        Capabilities::NONE
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let options = said(request)?;
        check(&options)?;
        let list = options.mount_options.as_deref().unwrap_or_default();
        let (flags, further) = mount_options::parse(list, flags(request.options), RULES)?;
        let (base, whole) = paths(&options);
        let (find, servers) = (find(&options), options.server.0.clone());
        let source = named(&whole);
        let view = View {
            file_system: None,
            source: Source::Share { source: source.clone(), servers },
            access: access(flags),
        };
        let missing = options.sub_dir.as_ref().filter(|_| options.create_sub_dir).map(|path| {
            share::directory(share(&options, named(&base), flags, &further), path, options.mode.0)
        });
        let share = share(&options, source.clone(), flags, &further);
        if wants_helper(&options) {
            let made = missing.map(|missing| Step::MakeDirectoryOnShare { share, missing });
            let mount = Step::Run(helper(target, &options, &source, flags, &further));
            return Ok(share::mounted(target, view, find, made, mount));
        }
        let missing = missing.map(Box::new);
        let mount = Step::MountShare { target: target.clone(), share, missing, otherwise: None };
        Ok(share::mounted(target, view, find, None, mount))
    }
}

/// Returns the options. Without `sec` the server chooses, and the kernel accepts Kerberos with the
/// node's own tickets: so `sec` is sys by default, unless the policy allows Kerberos.
fn said(request: &Request<'_>) -> Result<NfsOptions> {
    let options = NfsOptions::parse(&request.options.own)?;
    let without_ticket = (!request.settings.policy.allow_kerberos).then_some(Security("sys"));
    Ok(NfsOptions { sec: options.sec.or(without_ticket), ..options })
}

/// Fails if options contradict each other.
fn check(options: &NfsOptions) -> Result<()> {
    let four = options.version.is_some_and(|version| version.0 != "3");
    if four && options.protocol == Protocol::Udp {
        return Err(Failure::options(
            "option \"protocol\": udp is for version 3: leave it out, or ask for version 3",
        ));
    }
    if options.create_sub_dir && options.sub_dir.is_none() {
        return Err(Failure::options("option \"createSubDir\" needs \"subDir\": say what to make"));
    }
    Ok(())
}

fn find(options: &NfsOptions) -> Step {
    let port = options.port.map_or(2049, |port| port.0);
    // UDP has no connections that a server could accept.
    let patience = if options.protocol == Protocol::Udp { 0 } else { options.connect_timeout };
    Step::Reach(reach(&options.server, port, options.nameserver, patience))
}

/// Returns the export, and the whole path that is mounted.
fn paths(options: &NfsOptions) -> (String, String) {
    let base = options.path.0.clone();
    let whole = options
        .sub_dir
        .as_ref()
        .map(|SubDirectory(sub)| format!("{}/{}", base.trim_end_matches('/'), sub.display()));
    (base.clone(), whole.unwrap_or(base))
}

fn named(path: &str) -> Named {
    Named { before: "", after: format!(":{path}") }
}

fn share(options: &NfsOptions, source: Named, flags: MountFlags, further: &[FsOption]) -> Share {
    let wanted = |version: &&str| options.version.is_none_or(|only| only.0 == *version);
    // NFS over UDP ends at version 3.
    let speaks = |version: &&str| options.protocol == Protocol::Tcp || *version == "3";
    let versions = VERSIONS.into_iter().filter(wanted).filter(speaks);
    let dialects = versions.map(|version| dialect(version, options, further)).collect();
    let port = options.port.map(|port| ShareOption::new("port", port.0));
    let sec = options.sec.map(|sec| ShareOption::new("sec", sec.0));
    let address = ShareOption { key: "addr", value: ShareValue::Server };
    let client = ShareOption { key: "clientaddr", value: ShareValue::Client };
    let carrier = ShareOption::flag(options.protocol.word());
    Share {
        source,
        dialects,
        options: [Some(address), Some(client), Some(carrier), port, sec].into_iter().flatten().collect(),
        flags,
    }
}

/// Returns the options that only this version takes, and the tenant's.
fn dialect(version: &'static str, options: &NfsOptions, further: &[FsOption]) -> Dialect {
    let given = |key: &str| further.iter().any(|option| option.key == key);
    let mut own = vec![FsOption::new("vers", version)];
    if version == "3" {
        own.extend(options.mount_port.map(|port| FsOption::new("mountport", port.0)));
        own.extend((!given("lock") && !given("nolock")).then(|| FsOption::flag("nolock")));
    }
    let only_three = ["lock", "nolock", "acl", "noacl"];
    let fits = |option: &&FsOption| version == "3" || !only_three.contains(&option.key.as_str());
    own.extend(further.iter().filter(fits).cloned());
    Dialect { file_system: if version == "3" { "nfs" } else { "nfs4" }, options: own }
}

fn wants_helper(options: &NfsOptions) -> bool {
    match options.helper {
        Helper::Always => true,
        Helper::Never => false,
        Helper::Auto => options.sec.is_some_and(|sec| sec.0 != "sys"),
    }
}

/// Returns a call of mount.nfs, which looks up the name again and finds out the version itself.
fn helper(
    target: &TargetPath,
    options: &NfsOptions,
    source: &Named,
    flags: MountFlags,
    further: &[FsOption],
) -> Run {
    let given = [
        options.version.map(|version| FsOption::new("vers", version.0)),
        Some(FsOption::flag(options.protocol.word())),
        options.port.map(|port| FsOption::new("port", port.0)),
        options.mount_port.map(|port| FsOption::new("mountport", port.0)),
        options.sec.map(|sec| FsOption::new("sec", sec.0)),
    ];
    let words = given.into_iter().flatten().chain(further.iter().cloned()).map(|option| option.to_string());
    let list = std::iter::once(flags.to_string()).chain(words).collect::<Vec<_>>().join(",");
    let text = |text: &str| Word::Text(text.to_owned());
    Run {
        argv: vec![
            Word::Program("mount.nfs"),
            Word::Server(source.clone()),
            text(&target.to_string()),
            text("-o"),
            Word::Text(list),
        ],
        secrets: std::collections::BTreeMap::new(),
        secrets_on_stdin: false,
        mounts: Some(target.clone()),
        flags: Some(flags),
        unmounts: None,
        answer: Answer::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use flexvol_protocol::Options;

    #[test]
    fn no_server_asks_for_the_node_s_tickets() {
        let asked = |allow_kerberos: bool, helper: &str| {
            let own = [("server", "nas"), ("path", "/a"), ("helper", helper)];
            let own = own.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            let policy = Policy { allow_kerberos, ..Policy::default() };
            let settings = Settings { policy, ..Settings::default() };
            let options = Options { own, ..Options::default() };
            let target = TargetPath::parse("/var/lib/kubelet/pods/7/volumes/a~b/c".as_ref()).unwrap();
            let plan = Nfs.mount(&target, &Request { options: &options, settings: &settings }).unwrap();
            let plan = serde_json::to_string(&plan).unwrap();
            assert_eq!(plan.contains("mount.nfs"), helper == "always");
            plan.contains("sec=sys")
        };
        for helper in ["auto", "always"] {
            assert!(asked(false, helper) && !asked(true, helper), "{helper}");
        }
    }
}

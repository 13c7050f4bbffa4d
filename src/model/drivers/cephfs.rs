//! `cephfs`: a directory of a Ceph cluster's file system, through the kernel's own client, or
//! through ceph-fuse if the kernel has no such client.
//!
//! The kernel's client needs no program of Ceph. flexvol looks up the monitors' names and checks
//! that a monitor answers before it calls the kernel. The key is in the mount's data, which the
//! mount table does not show.
//!
//! A program that reads or writes while the cluster is away waits until it is back. A node that the
//! cluster has blocked meanwhile gets errors forever, unless `mountOptions` has
//! `recover_session=clean`, which loses data that was not written yet.

use super::ceph::{self, KEY, Mode, Monitors, NO_KEY};
use super::fuse::{self, Plain, RemotePath};
use super::share::{self, Address};
use crate::driver::{Driver, Instead, Needs, Request};
use crate::plan::{
    Content, Daemon, Dialect, FileSystems, Named, Piece, Plan, Share, ShareOption, Source, Step, View, Word,
};
use crate::schema::{OptionSpec, OptionValue, SecretSpec};
use crate::settings::Settings;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::mount_options::{self, Atime, FsOption, MountFlags, Rule, Value};
use flexvol_protocol::secret::Secret;
use flexvol_protocol::{Capabilities, TargetPath, Verb};

/// Type of ceph-fuse's mounts in the mount table.
const FUSE: &str = "fuse.ceph-fuse";

/// The driver.
pub struct Cephfs;

crate::options! {
    /// Options of a PV.
    pub struct CephfsOptions {
        /// The monitors, separated by commas, each with its port if that is not the default.
        monitors: Monitors = "monitors" { aliases: ["servers", "server"], example: "10.0.0.1:6789,10.0.0.2:6789" },
        /// The directory.
        path: RemotePath = "path" {},
        /// The file system, of a cluster that has several.
        fs_name: Option<Plain> = "fsName" { aliases: ["mdsNamespace"] },
        /// User name for the cluster.
        user: Plain = "user" { aliases: ["mountUser"], default: "admin" },
        /// Client that mounts: kernel, fuse (ceph-fuse of the node), or auto: the kernel if it has
        /// Ceph's file system.
        mounter: Mounter = "mounter" { default: "auto" },
        /// Version of the protocol for the kernel: legacy, crc, secure, prefer-crc or
        /// prefer-secure. The default is legacy, and prefer-crc if all monitors have port 3300.
        ms_mode: Option<Mode> = "msMode" {},
        /// Nameserver that is asked for the monitors' addresses: the cluster's DNS if they are
        /// Services. The default is the node's own resolver.
        nameserver: Option<Address> = "nameserver" {},
        /// Seconds to wait for each monitor to accept a connection; 0 leaves that to the kernel.
        connect_timeout: u32 = "connectTimeout" { default: "5" },
        /// Comma list of further flags, and for the kernel rsize=1048576 and the like.
        mount_options: Option<String> = "mountOptions" { aliases: ["mountoptions"], example: "noexec" },
    }
}

/// Mount options of the kernel that a tenant may set: none changes the cluster or the directory.
const RULES: &[Rule] = &[
    Rule("recover_session", Value::OneOf(&["no", "clean"])),
    Rule("rsize", Value::Number),
    Rule("wsize", Value::Number),
    Rule("rasize", Value::Number),
    Rule("caps_max", Value::Number),
    Rule("readdir_max_entries", Value::Number),
    Rule("readdir_max_bytes", Value::Number),
    Rule("acl", Value::None),
    Rule("noacl", Value::None),
    Rule("dcache", Value::None),
    Rule("nodcache", Value::None),
    Rule("dirstat", Value::None),
    Rule("nodirstat", Value::None),
    Rule("rbytes", Value::None),
    Rule("norbytes", Value::None),
    Rule("copyfrom", Value::None),
    Rule("nocopyfrom", Value::None),
    Rule("quotadf", Value::None),
    Rule("noquotadf", Value::None),
    Rule("wsync", Value::None),
    Rule("nowsync", Value::None),
    Rule("crc", Value::None),
    Rule("nocrc", Value::None),
];

/// Limit for the time in which the kernel asks monitors and metadata servers, in seconds.
const LONGEST: u64 = 60;

/// Client that mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounter {
    /// The kernel, if it can.
    Auto,
    /// The kernel.
    Kernel,
    /// ceph-fuse.
    Fuse,
}

impl OptionValue for Mounter {
    const KIND: &'static str = "auto, kernel or fuse";

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "kernel" => Ok(Self::Kernel),
            "fuse" => Ok(Self::Fuse),
            _ => Err(format!("{text:?} is not {}", Self::KIND)),
        }
    }
}

impl Driver for Cephfs {
    fn name(&self) -> &'static str {
        "cephfs"
    }

    fn summary(&self) -> &'static str {
        "a directory of a Ceph cluster"
    }

    fn needs(&self) -> Needs {
        Needs { instead: Some(Instead::FileSystem("ceph")), ..Needs::NOTHING }
    }

    fn options(&self) -> &'static [OptionSpec] {
        CephfsOptions::SPECS
    }

    fn secrets(&self) -> &'static [SecretSpec] {
        &[KEY]
    }

    fn capabilities(&self, _: &Settings) -> Capabilities {
        Capabilities::NONE
    }

    fn programs<'a>(&self, _: &'a Settings) -> Vec<&'a str> {
        vec!["ceph-fuse"]
    }

    /// Returns true: ceph-fuse serves some of the volumes, the kernel serves the others.
    fn serves(&self) -> bool {
        true
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let options = CephfsOptions::parse(&request.options.own)?;
        let key = fuse::secret_line(request.options, &KEY)?.ok_or_else(|| Failure::options(NO_KEY))?;
        if options.mounter == Mounter::Fuse {
            return by_fuse(target, &options, request, &key);
        }
        let list = options.mount_options.as_deref().unwrap_or_default();
        let (flags, further) = mount_options::parse(list, super::flags(request.options), RULES)?;
        let (cluster, mode) =
            ceph::cluster(&options.monitors, options.ms_mode, options.nameserver, options.connect_timeout);
        let mut own = vec![FsOption::new("name", &options.user.0)];
        let patience = request.settings.deadlines.of(Verb::Mount).as_secs() * 3 / 4;
        own.push(FsOption::new("mount_timeout", patience.clamp(1, LONGEST)));
        // Kernels before 5.8 know this option by no other name.
        own.extend(options.fs_name.as_ref().map(|name| FsOption::new("mds_namespace", &name.0)));
        own.extend(mode.map(|mode| FsOption::new("ms_mode", mode)));
        own.extend(further.iter().cloned());
        let share = Share {
            source: Named { before: "", after: format!(":{}", path(&options)) },
            dialects: vec![Dialect { file_system: "ceph", options: own }],
            options: vec![ShareOption::secret("secret", key.clone())],
            flags,
        };
        // ceph-fuse cannot take over options that only the kernel understands.
        let replaceable = options.mounter == Mounter::Auto && further.is_empty() && options.ms_mode.is_none();
        let daemon =
            daemon(target, &options, MountFlags { atime: Atime::Relative, diratime: true, ..flags }, &key);
        let otherwise = replaceable.then(|| Box::new(daemon));
        let either = otherwise.is_some().then_some(FileSystems::Either(["ceph", FUSE]));
        let view = View {
            file_system: either.or(Some("ceph".into())),
            source: Source::Any,
            access: super::access(flags),
        };
        let mount = Step::MountShare { target: target.clone(), share, missing: None, otherwise };
        Ok(share::mounted(target, view, Step::ReachCluster(cluster), None, mount))
    }

    fn unmount(&self, target: &TargetPath, _: &Settings) -> Result<Plan> {
        Ok(Plan::end_daemon(target, fuse::WRITING_BACK))
    }
}

fn path(options: &CephfsOptions) -> String {
    match options.path.0.trim_matches('/') {
        "" => "/".to_owned(),
        path => format!("/{path}"),
    }
}

fn by_fuse(
    target: &TargetPath,
    options: &CephfsOptions,
    request: &Request<'_>,
    key: &Secret,
) -> Result<Plan> {
    let (flags, _) = fuse::further(options.mount_options.as_deref(), request.options, &[])?;
    if flags.atime == Atime::Never {
        return Err(Failure::options("mountOptions: \"noatime\" has no meaning here: leave it out"));
    }
    Ok(fuse::mount(FUSE, Source::Any, daemon(target, options, flags, key)))
}

fn daemon(target: &TargetPath, options: &CephfsOptions, flags: MountFlags, key: &Secret) -> Daemon {
    let user = format!("client.{}", options.user.0);
    let addresses = options.monitors.0.iter().map(|(host, port)| match port {
        Some(port) => format!("{host}:{port}"),
        None => host.clone(),
    });
    let addresses = addresses.collect::<Vec<_>>().join(",");
    let file = |name| Word::File { before: String::new(), name };
    let config = fuse::content(format!(
        "[global]\nmon_host = {addresses}\nlog_file = /dev/null\nlog_to_stderr = true\nerr_to_stderr = true\nadmin_socket =\nclient_mount_timeout = 20\ncrash_dir =\nkeyring = "
    ));
    let path = path(options);
    Daemon {
        words: [
            fuse::texts(["-f", "--no-mon-config", "-n", &user, "-c"]),
            vec![file("ceph.conf"), Word::Text("-k".into()), file("keyring")],
            fuse::texts(["-r", &path]),
            fuse::texts(options.fs_name.iter().map(|name| format!("--client_fs={}", name.0))),
            fuse::options(fuse::flag_words(flags)),
            fuse::texts([target.to_string()]),
        ]
        .concat(),
        files: [
            ("ceph.conf", config.piece(Piece::File("keyring")).text("\n")),
            ("keyring", Content::default().text(format!("[{user}]\n\tkey = ")).secret(key).text("\n")),
        ]
        .into(),
        servers: options.monitors.0.iter().map(|(host, _)| host.clone()).collect(),
        futile: "ceph client failed with",
        ..fuse::daemon("ceph-fuse", &format!("{addresses}:{path}"), target, flags)
    }
}

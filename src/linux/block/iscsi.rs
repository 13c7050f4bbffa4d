//! iSCSI: the kernel's sessions and their disks (sysfs), and the programs of open-iscsi, which make
//! and end sessions.
//!
//! iscsiadm reads its settings from its database on the disk, /etc/iscsi or /var/lib/iscsi.
//! It takes passwords only as arguments, which everybody on the node can read, or from its
//! configuration. So it is run where a database of our own covers the node's: memory in a mount
//! namespace that ends with iscsiadm. Our database contains the node's configuration and our
//! settings, including passwords. Records of other programs are neither seen nor changed, and none
//! of ours is left. iscsid gets all data from iscsiadm, and after a restart from the kernel.
//!
//! The name of its interface, which the kernel remembers, distinguishes our session from others: it
//! is recognised even if our process is gone.

use crate::fs::directory::Directory;
use crate::fs::files;
use crate::proc::helper::{HelperExit, Invocation, Tools};
use crate::proc::namespace;
use anyhow::{Context, Result};
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::ordered;
use flexvol_protocol::secret::Secret;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Directory of the kernel's sessions.
const SESSIONS: &str = "/sys/class/iscsi_session";

/// Name of the interface of our sessions, which no other session has.
const INTERFACE: &str = "flexvol";

/// Possible directories of the database; the first one contains the configuration.
const DATABASES: [&str; 2] = ["/etc/iscsi", "/var/lib/iscsi"];

/// Files of it that are needed: the configuration, and the name of the node.
const FILES: [&str; 2] = ["iscsid.conf", "initiatorname.iscsi"];

/// Beginnings of the authentication settings of a session and of a discovery.
const METHODS: [&str; 2] = ["node.session.auth.", "discovery.sendtargets.auth."];

/// Limit for a configuration, in bytes.
const LARGEST: usize = 1 << 18;

/// Name and address of a target.
#[derive(Clone, Debug)]
pub struct Portal<'a> {
    /// The target's name.
    pub target: &'a str,
    /// The address at which it listens.
    pub address: SocketAddr,
}

/// Settings for a login.
#[derive(Clone, Debug)]
pub struct Login<'a> {
    /// Names and passwords, each with the setting that it is the value of.
    pub chap: &'a [(&'a str, &'a Secret)],
    /// Our own initiator name; `None` for that of the node.
    pub initiator: Option<&'a str>,
    /// Interface of the node's database whose settings ours takes over.
    pub interface: Option<&'a str>,
    /// Number of seconds without the target after which reads and writes fail.
    pub patience: u32,
}

/// A session of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session(PathBuf);

impl Session {
    /// Returns the sessions with this target.
    pub fn with(target: &str) -> Vec<Self> {
        let names = std::fs::read_dir(SESSIONS).into_iter().flatten().flatten();
        let sessions = names.map(|name| Self(name.path()));
        let mut sessions: Vec<_> =
            sessions.filter(|session| session.attribute("targetname").as_deref() == Some(target)).collect();
        ordered::sort(&mut sessions, Self::number);
        sessions
    }

    /// Returns the session that a disk belongs to, and the disk's unit.
    pub fn of_disk(disk: &Path) -> Option<(Self, Unit)> {
        entries(Path::new(SESSIONS)).into_iter().map(Self).find_map(|session| {
            let unit = session.units().into_iter().find(|unit| unit.disk().as_deref() == Some(disk))?;
            Some((session, unit))
        })
    }

    /// Reports whether its target answers.
    pub fn is_alive(&self) -> bool {
        self.attribute("state").as_deref() == Some("LOGGED_IN")
    }

    /// Reports whether we have made it.
    pub fn is_ours(&self) -> bool {
        self.attribute("ifacename").as_deref() == Some(INTERFACE)
    }

    /// Reports whether it goes to this portal, unless the portal has redirected us.
    pub fn goes_to(&self, address: SocketAddr) -> bool {
        let connection =
            Path::new("/sys/class/iscsi_connection").join(format!("connection{}:0", self.number()));
        let read = |name: &str| attribute(&connection.join(name));
        let host = read("persistent_address").and_then(|text| text.trim_matches(['[', ']']).parse().ok());
        let port = read("persistent_port").and_then(|text| text.parse().ok());
        host == Some(address.ip()) && port == Some(address.port())
    }

    /// Makes the kernel scan for a logical unit.
    pub fn scan(&self, lun: u16) -> Result<()> {
        let host = self.host().context("the session has no host")?;
        let path = Path::new("/sys/class/scsi_host").join(host).join("scan");
        put(&path, &format!("- - {lun}")).with_context(|| format!("write {}", path.display()))
    }

    /// Returns a logical unit of it.
    pub fn unit(&self, lun: u16) -> Option<Unit> {
        self.units().into_iter().find(|unit| unit.lun() == Some(lun.into()))
    }

    /// Returns all known units, in use or not.
    pub fn units(&self) -> Vec<Unit> {
        let targets = entries(&self.0.join("device")).into_iter().filter(|path| begins(path, "target"));
        let units = targets.flat_map(|target| entries(&target));
        units.filter(|path| path.join("scsi_level").exists()).map(Unit).collect()
    }

    /// Reports whether the session has to end with this unit: we have made it, and it has no other
    /// unit. A session that existed before must not be ended.
    pub fn ends_with(&self, lun: u16) -> bool {
        self.is_ours() && self.units().iter().all(|unit| unit.lun() == Some(lun.into()))
    }

    /// Ends the session, whatever the state of its server is.
    pub fn log_out(&self, tools: Tools<'_>) -> Result<()> {
        let number = self.number().to_string();
        // iscsiadm must find the interface, which only our database has.
        let nothing = Login { chap: &[], initiator: None, interface: None, patience: 0 };
        let outcome = namespace::privately(|| {
            cover_databases(&nothing)?;
            tools.run(iscsiadm().args(["-m", "session", "-r", &number, "-u"]))
        })?;
        match outcome.status.code() {
            // The session is gone.
            Some(0 | NO_SESSION | NO_OBJECTS) => Ok(()),
            _ if !self.0.exists() => Ok(()),
            _ => Err(explained(&outcome)),
        }
    }

    fn number(&self) -> u32 {
        let name = self.0.file_name().unwrap_or_default().to_string_lossy();
        name.trim_start_matches("session").parse().unwrap_or(u32::MAX)
    }

    /// Returns `host3`, from the path in /sys/devices.
    fn host(&self) -> Option<String> {
        let path = self.0.canonicalize().ok()?;
        let mut parts = path.components().filter_map(|part| part.as_os_str().to_str());
        parts.rfind(|part| part.starts_with("host")).map(str::to_owned)
    }

    fn attribute(&self, name: &str) -> Option<String> {
        attribute(&self.0.join(name))
    }
}

/// A logical unit of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit(PathBuf);

impl Unit {
    /// Returns its disk; `None` until there is one.
    pub fn disk(&self) -> Option<PathBuf> {
        entries(&self.0.join("block"))
            .first()
            .and_then(|path| Some(Path::new("/dev").join(path.file_name()?)))
    }

    /// Returns the identity of the disk, the same on every path to it.
    pub fn identity(&self) -> Option<String> {
        attribute(&self.0.join("wwid")).filter(|text| !text.is_empty())
    }

    /// Returns the multipath device above it.
    pub fn multipath(&self) -> Option<PathBuf> {
        let disk = self.disk()?;
        let holders = entries(&Path::new("/sys/class/block").join(disk.file_name()?).join("holders"));
        let mut maps = holders.iter().filter(|holder| {
            attribute(&holder.join("dm/uuid")).is_some_and(|uuid| uuid.starts_with("mpath-"))
        });
        maps.next().and_then(|map| Some(Path::new("/dev").join(map.file_name()?)))
    }

    /// Removes the device of multipathd, which is not in use any more.
    pub fn flush_multipath(&self, tools: Tools<'_>) -> Result<()> {
        let Some(map) = self.multipath() else { return Ok(()) };
        // By its name: for a path, multipath takes the name that udev has given it in /dev/mapper,
        // if any.
        let node = map.file_name().unwrap_or_default();
        let named = attribute(&Path::new("/sys/class/block").join(node).join("dm/name"));
        let name = named.unwrap_or_else(|| node.to_string_lossy().into_owned());
        tools.run_to_success(Invocation::of("multipath").args(["-f", &name])).map(drop)
    }

    /// Makes the multipath device above it take over its current size.
    pub fn resize_multipath(&self, tools: Tools<'_>) -> Result<()> {
        let Some(map) = self.multipath() else { return Ok(()) };
        let name = map.file_name().unwrap_or_default();
        let words = ["resize".as_ref(), "map".as_ref(), name];
        tools.run_to_success(Invocation::of("multipathd").args(words)).map(drop)
    }

    /// Makes the kernel read its size again.
    pub fn rescan(&self) -> Result<()> {
        self.write("rescan")
    }

    /// Makes the kernel forget it.
    pub fn forget(&self) -> Result<()> {
        if self.0.exists() { self.write("delete") } else { Ok(()) }
    }

    /// Returns the last part of `host:channel:id:lun`.
    fn lun(&self) -> Option<u64> {
        self.0.file_name()?.to_str()?.rsplit(':').next()?.parse().ok()
    }

    fn write(&self, name: &str) -> Result<()> {
        let path = self.0.join(name);
        match put(&path, "1") {
            Err(errno) if !matches!(errno, Errno::NOENT | Errno::NODEV) => {
                Err(errno).with_context(|| format!("write {}", path.display()))
            }
            _ => Ok(()),
        }
    }
}

fn put(path: &Path, text: &str) -> rustix::io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(file, text.as_bytes()).map(drop)
}

fn attribute(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn entries(path: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn begins(path: &Path, with: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(with))
}

/// Exit statuses of iscsiadm(8).
const NO_SESSION: i32 = 2;
const TIMEOUT: i32 = 8;
const EXISTS: i32 = 15;
const REFUSED: i32 = 19;
const NO_DAEMON: i32 = 20;
const NO_OBJECTS: i32 = 21;
const UNAUTHORIZED: i32 = 24;

fn iscsiadm() -> Invocation {
    Invocation::of("iscsiadm")
}

fn explained(outcome: &HelperExit) -> anyhow::Error {
    let failure = match outcome.status.code() {
        Some(NO_DAEMON) => {
            let text = "iscsid does not run on this node: start it (systemctl enable --now iscsid)";
            Failure::new(Code::ToolMissing, text)
        }
        Some(UNAUTHORIZED) => {
            let text = "the target refuses this node: correct the Secret's name and password, or let the target's list of initiators have the node's name";
            Failure::new(Code::Denied, text)
        }
        Some(REFUSED) => {
            let text = "the login ended: the target refuses it, or has not proved who it is: correct username_in and password_in of the Secret, or leave them out for a target that proves nothing";
            Failure::new(Code::Denied, text)
        }
        Some(TIMEOUT) => {
            let text =
                "the target does not log us in: check its name (iqn), and that it serves at this portal";
            Failure::new(Code::NotFound, text)
        }
        _ => return outcome.to_error("iscsiadm").into(),
    };
    failure.into()
}

/// Makes a session with a portal; an existing session is a success.
pub fn log_in(portal: &Portal<'_>, login: &Login<'_>, tools: Tools<'_>) -> Result<()> {
    namespace::privately(|| {
        cover_databases(login)?;
        let address = portal.address.to_string();
        let words = ["-m", "node", "-T", portal.target, "-p", &address, "-I", INTERFACE];
        let made = tools.run(iscsiadm().args(words).args(["-o", "new"]))?;
        if !made.success() {
            return Err(explained(&made));
        }
        let masked = login.chap.iter().map(|(_, secret)| *secret);
        let outcome = tools.run(iscsiadm().args(words).args(["--login"]).mask(masked))?;
        match outcome.status.code() {
            Some(0 | EXISTS) => Ok(()),
            _ => Err(explained(&outcome)),
        }
    })
}

/// Returns the other addresses of a target, as one of its portals reports them.
pub fn discover(portal: &Portal<'_>, login: &Login<'_>, tools: Tools<'_>) -> Result<Vec<SocketAddr>> {
    namespace::privately(|| {
        cover_databases(login)?;
        let address = portal.address.to_string();
        let words = ["-m", "discovery", "-t", "sendtargets", "-p", &address, "-I", INTERFACE];
        let masked = login.chap.iter().map(|(_, secret)| *secret);
        let asked = iscsiadm().args(words).args(["-o", "nonpersistent"]).mask(masked).answering();
        let outcome = tools.run(asked)?;
        if outcome.success() {
            Ok(discovered(&outcome.answer, portal.target))
        } else {
            Err(explained(&outcome))
        }
    })
}

/// Parses lines such as `10.0.0.7:3260,1 iqn.2020-01.com.example:web`.
fn discovered(answer: &str, target: &str) -> Vec<SocketAddr> {
    let of_target = |line: &str| {
        let (portal, name) = line.split_once(' ')?;
        let (address, _group) = portal.rsplit_once(',')?;
        address.parse().ok().filter(|_| name.trim() == target)
    };
    answer.lines().filter_map(of_target).collect()
}

/// Covers the databases with empty ones that contain the node's configuration.
fn cover_databases(login: &Login<'_>) -> Result<()> {
    let base = login.interface.map(node_s_interface).transpose()?;
    for database in DATABASES.map(Path::new).into_iter().filter(|path| path.is_dir()) {
        let [configuration, initiator] = FILES.map(|name| files::read_small(&database.join(name), LARGEST));
        let (configuration, initiator) = (configuration?.unwrap_or_default(), initiator?.unwrap_or_default());
        namespace::cover("flexvol", database, None)?;
        let directory = Directory::open(database)?.context("the database is gone")?;
        directory.create(FILES[0], 0o600)?.write_all(completed(&configuration, login).expose())?;
        directory.create(FILES[1], 0o600)?.write_all(initiator.as_bytes())?;
        let interfaces = database.join("ifaces");
        crate::fs::directory::make_private(&interfaces)?;
        let directory = Directory::open(&interfaces)?.context("the database is gone")?;
        let text = interface(base.as_deref(), login.initiator);
        directory.create(INTERFACE, 0o600)?.write_all(text.as_bytes())?;
    }
    Ok(())
}

/// Returns the text of an interface that the admin has made.
fn node_s_interface(name: &str) -> Result<String> {
    let paths = DATABASES.map(|database| Path::new(database).join("ifaces").join(name));
    let mut texts = paths.iter().filter_map(|path| files::read_small(path, LARGEST).ok()?);
    texts.next().ok_or_else(|| {
        let text = format!("the node has no iSCSI interface {name:?}: make it (iscsiadm -m iface), or leave iscsiInterface out");
        Failure::new(Code::NotFound, text).into()
    })
}

/// Returns the text of our interface, with the settings of another one.
fn interface(base: Option<&str>, initiator: Option<&str>) -> String {
    let own = ["iface.iscsi_ifacename", "iface.initiatorname"];
    let is_kept = |line: &&str| {
        let key = line.split('=').next().unwrap_or_default().trim();
        !(line.starts_with('#') || key == own[0] || initiator.is_some() && key == own[1])
    };
    let base = base.unwrap_or("iface.transport_name = tcp");
    let mut text = format!("{} = {INTERFACE}\n", own[0]);
    if let Some(initiator) = initiator {
        let _ = writeln!(text, "{} = {initiator}", own[1]);
    }
    text.extend(base.lines().filter(is_kept).map(|line| format!("{line}\n")));
    text
}

/// Returns the node's configuration with our settings.
fn completed(configuration: &str, login: &Login<'_>) -> Secret {
    let patience = login.patience.to_string();
    let short = login.patience.min(5).to_string();
    let set = [
        ("node.startup", "manual"),
        ("node.conn[0].startup", "manual"),
        // Only the volume's own unit is scanned: others may not be meant for this node.
        ("node.session.scan", "manual"),
        ("node.session.initial_login_retry_max", "1"),
        ("node.session.timeo.replacement_timeout", &patience),
        ("node.conn[0].timeo.login_timeout", "5"),
        ("node.conn[0].timeo.logout_timeout", "5"),
        ("node.conn[0].timeo.noop_out_interval", &short),
        ("node.conn[0].timeo.noop_out_timeout", &short),
    ];
    let is_set = |key: &str| {
        METHODS.iter().any(|start| key.starts_with(start)) || set.iter().any(|(name, _)| *name == key)
    };
    let kept =
        configuration.lines().filter(|line| !is_set(line.split('=').next().unwrap_or_default().trim()));
    let kept = kept.filter(|line| !line.starts_with('#'));
    let mut bytes: Vec<u8> = kept.flat_map(|line| [line.as_bytes(), b"\n"].concat()).collect();
    let mut line = |key: &str, value: &[u8]| bytes.extend([key.as_bytes(), b" = ", value, b"\n"].concat());
    for (key, value) in set {
        line(key, value.as_bytes());
    }
    for start in METHODS {
        let is_needed = login.chap.iter().any(|(key, _)| key.starts_with(start));
        line(&format!("{start}authmethod"), if is_needed { b"CHAP" } else { b"None" });
    }
    for (key, secret) in login.chap {
        line(key, secret.expose());
    }
    Secret::new(bytes)
}

/// Reports whether multipathd runs.
pub fn has_multipathd() -> bool {
    std::fs::read_to_string("/proc/net/unix").is_ok_and(|text| text.contains("/linux/storage/multipathd"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_completed() {
        let password = Secret::new(b"p,a\"s's $w!o\\rd".to_vec());
        let chap = [("node.session.auth.password", &password)];
        let login = Login { chap: &chap, initiator: None, interface: None, patience: 3 };
        let node_s = "# a comment\niscsid.startup = /bin/x\nnode.session.auth.authmethod = None\n\
            node.session.auth.password_in = x\nnode.session.scan = auto\nnode.conn[0].timeo.login_timeout = 15\n\
            discovery.sendtargets.auth.password = y\n";
        let text = String::from_utf8(completed(node_s, &login).expose().to_vec()).unwrap();
        assert!(text.starts_with("iscsid.startup = /bin/x\nnode.startup = manual\n"), "{text}");
        for set in [
            "node.session.auth.authmethod = CHAP\n",
            "node.session.auth.password = p,a\"s's $w!o\\rd\n",
            "discovery.sendtargets.auth.authmethod = None\n",
            "node.session.timeo.replacement_timeout = 3\n",
        ] {
            assert!(text.contains(set), "{set}: {text}");
        }
        for gone in ["scan = auto", "password_in", " = 15", "#", "= y"] {
            assert!(!text.contains(gone), "{gone}: {text}");
        }
    }

    /// Makes the kernel's directories for a session through this interface, with these units.
    #[expect(clippy::disallowed_methods, reason = "plain files of a test")]
    fn fake_session(interface: &str, units: &[u16]) -> (tempfile::TempDir, Session) {
        let root = tempfile::tempdir().unwrap();
        let session = root.path().join("session4");
        for lun in units {
            let unit = session.join(format!("device/target3:0:0/3:0:0:{lun}"));
            std::fs::create_dir_all(&unit).unwrap();
            std::fs::write(unit.join("scsi_level"), "7\n").unwrap();
        }
        std::fs::create_dir_all(&session).unwrap();
        std::fs::write(session.join("ifacename"), format!("{interface}\n")).unwrap();
        (root, Session(session))
    }

    #[test]
    fn only_the_last_unit_of_our_own_session_ends_it() {
        for (interface, units, ends) in [
            ("flexvol", &[1][..], true),
            // Its disk is gone, or has never appeared.
            ("flexvol", &[], true),
            ("flexvol", &[1, 2], false),
            ("flexvol", &[2], false),
            ("default", &[1], false),
            ("default", &[], false),
        ] {
            let (_root, session) = fake_session(interface, units);
            assert_eq!(session.ends_with(1), ends, "{interface} {units:?}");
        }
    }

    #[test]
    fn what_a_portal_says_of_others_is_left_out() {
        let answer = "10.0.0.7:3260,1 iqn.a\n[fd00::7]:3261,2 iqn.a\n10.0.0.8:3260,1 iqn.ab\nnonsense\n";
        let found: Vec<_> = discovered(answer, "iqn.a").iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.7:3260", "[fd00::7]:3261"]);
    }

    #[test]
    fn an_interface_has_the_settings_of_another() {
        let base =
            "# BEGIN\niface.iscsi_ifacename = eth\niface.net_ifacename = eth1\niface.initiatorname = iqn.b\n";
        assert_eq!(
            interface(Some(base), Some("iqn.a")),
            "iface.iscsi_ifacename = flexvol\niface.initiatorname = iqn.a\niface.net_ifacename = eth1\n"
        );
        assert!(interface(Some(base), None).contains("iqn.b"));
        assert_eq!(interface(None, None), "iface.iscsi_ifacename = flexvol\niface.transport_name = tcp\n");
    }
}

//! Policy of a node: what its admin allows tenants to ask for.
//!
//! Options come from anyone who may create pods or PVs, while the driver runs as root. The policy
//! is in the driver's side file and is checked on the finished [`Plan`], before its first step: a
//! driver cannot forget it. Paths are checked here as text and opened later below their root
//! without following any symlink, so text and file cannot disagree.

use crate::csi::volume::CsiVolume;
use crate::json_object::{members, plain};
use crate::paths;
use crate::plan::{
    Checkout, Daemon, Nbd, NbdServer, Overlay, Plan, Propagation, Source, Step, Store, StoreStep, Upper,
};
use crate::server;
use core::net::IpAddr;
use flexvol_protocol::failure::{Code, Failure, Result};
use flexvol_protocol::mount_options::MountFlags;
use flexvol_protocol::quantity::Quantity;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::marker::PhantomData;
use std::path::{Component, Path, PathBuf};

/// Default limit for the cache of one volume, in bytes.
const CACHE: u64 = 1 << 30;

/// Default limit for the memory of one volume's program, in bytes.
const MEMORY: u64 = 2 << 30;

/// Policy of the admin: `policy` in the side file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of the admin's, independent of the others")]
pub struct Policy {
    /// Directories of the node that may contain the source of `bind`. None by default: a bind of
    /// `/` exposes the whole node.
    pub bind_roots: Vec<PathBuf>,
    /// Directories in which `image` may use and create files. A relative `file` is resolved in the
    /// first.
    pub image_roots: Vec<PathBuf>,
    /// Directories that may contain a key for `rbd`. None by default: a tenant who may name a file
    /// there can log in with it.
    pub keyring_roots: Vec<PathBuf>,
    /// Servers that volumes may use: names, addresses, networks, `*.` and a domain, or `*` for any.
    /// If absent, any server is allowed, except the node itself, its link-local addresses and its
    /// cloud's metadata service. Those are allowed only if they are named here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub servers: Option<Vec<String>>,
    /// LVM volume groups that `lvm` may use, or `*` for any, including that of the node's own root.
    /// None by default.
    pub volume_groups: Vec<String>,
    /// CSI drivers whose volumes `csi` may show, or `*` for any. None by default: a tenant who
    /// names a volume there gets it.
    pub csi_drivers: Vec<String>,
    /// True if volumes may log in with Kerberos, which uses the node's own tickets and keytab.
    pub allow_kerberos: bool,
    /// True if `webdav` volumes without a Secret may log in with the node-wide secrets in davfs2's
    /// file.
    pub allow_node_secrets: bool,
    /// True if clients follow redirects to other servers, for clients that have a switch for it.
    pub allow_redirects: bool,
    /// True if tenants may lift nosuid.
    pub allow_suid: bool,
    /// True if tenants may lift nodev.
    pub allow_dev: bool,
    /// True if tenants may make mounts of a pod appear on the node.
    pub allow_shared: bool,
    /// True if samples are enough to format a device over 1 GiB, instead of a check of every byte.
    pub allow_sampling: bool,
    /// Limit for the size of a volume that the driver creates.
    #[serde(serialize_with = "size_text", skip_serializing_if = "Option::is_none")]
    pub max_size: Option<Quantity>,
    /// Limit for the cache of one volume's program on the node's disk. A smaller `max_size`
    /// overrides it.
    #[serde(serialize_with = "size_text", skip_serializing_if = "Option::is_none")]
    pub max_cache: Option<Quantity>,
    /// Memory limit for the program of one volume.
    #[serde(serialize_with = "size_text", skip_serializing_if = "Option::is_none")]
    pub max_memory: Option<Quantity>,
}

members!(Policy {
    "bindRoots" => bind_roots by list,
    "imageRoots" => image_roots by list,
    "keyringRoots" => keyring_roots by list,
    "servers" => servers by list_if_any,
    "volumeGroups" => volume_groups by list,
    "csiDrivers" => csi_drivers by list,
    "allowKerberos" => allow_kerberos by plain,
    "allowNodeSecrets" => allow_node_secrets by plain,
    "allowRedirects" => allow_redirects by plain,
    "allowSuid" => allow_suid by plain,
    "allowDev" => allow_dev by plain,
    "allowShared" => allow_shared by plain,
    "allowSampling" => allow_sampling by plain,
    "maxSize" => max_size by size,
    "maxCache" => max_cache by size,
    "maxMemory" => max_memory by size,
});

impl Default for Policy {
    fn default() -> Self {
        Self {
            bind_roots: Vec::new(),
            image_roots: vec![paths::IMAGES.into()],
            keyring_roots: Vec::new(),
            servers: None,
            volume_groups: Vec::new(),
            csi_drivers: Vec::new(),
            allow_kerberos: false,
            allow_node_secrets: false,
            allow_redirects: false,
            allow_suid: false,
            allow_dev: false,
            allow_shared: false,
            allow_sampling: false,
            max_size: None,
            max_cache: None,
            max_memory: None,
        }
    }
}

/// List, or a single text that stands for a list of one: `--set policy.bindRoots=/srv`.
struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + From<String>> Visitor<'de> for ListVisitor<T> {
    type Value = Vec<T>;

    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("a list of texts, or a text")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(vec![text.to_owned().into()])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list))
    }
}

struct List<T>(Vec<T>);

impl<'de, T: Deserialize<'de> + From<String>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListVisitor(PhantomData)).map(Self)
    }
}

#[inline(never)]
fn list<'de, T: Deserialize<'de> + From<String>, A: MapAccess<'de>>(
    place: &mut Vec<T>,
    values: &mut A,
) -> Result<(), A::Error> {
    let List(list) = values.next_value()?;
    *place = list;
    Ok(())
}

fn list_if_any<'de, A: MapAccess<'de>>(
    place: &mut Option<Vec<String>>,
    values: &mut A,
) -> Result<(), A::Error> {
    list(place.insert(Vec::new()), values)
}

#[inline(never)]
fn size<'de, A: MapAccess<'de>>(place: &mut Option<Quantity>, values: &mut A) -> Result<(), A::Error> {
    let text: String = values.next_value()?;
    *place = Some(Quantity::parse(&text).map_err(A::Error::custom)?);
    Ok(())
}

#[expect(clippy::ref_option, reason = "the signature is serde's")]
fn size_text<S: serde::Serializer>(size: &Option<Quantity>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&size.unwrap_or(Quantity(0)))
}

/// Path that the policy allows: one of the admin's roots and the rest below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Directory of the admin, who is responsible for symlinks in this path.
    pub root: PathBuf,
    /// Relative path of plain names, opened without following any symlink. Empty for the root
    /// itself.
    pub below: PathBuf,
}

impl Policy {
    /// Checks every step. The executor calls it before the first step.
    pub fn check(&self, plan: &Plan) -> Result<()> {
        plan.steps.iter().try_for_each(|step| self.check_step(step))
    }

    fn check_step(&self, step: &Step) -> Result<()> {
        match step {
            Step::MakeDirectory { path, .. } => self.bind_source(path).map(drop),
            Step::Bind { source, flags, propagation, .. } => {
                self.bind_source(source)?;
                self.check_flags(*flags).and(self.check_propagation(*propagation))
            }
            Step::MountOverlay { overlay, .. } => self.check_overlay(overlay),
            Step::AttachLoop { file, .. } => self.image(file).map(drop),
            Step::CreateImage { file, size, .. } => self.image(file).and(self.check_size(*size)),
            Step::GrowImage { size, .. } => self.check_size(*size),
            Step::Reach(reach) => {
                self.check_servers(&reach.servers).and(self.check_nameserver(reach.nameserver))
            }
            Step::ReachCluster(cluster) => {
                self.check_servers(&cluster.hosts()).and(self.check_nameserver(cluster.nameserver))
            }
            Step::MountShare { share, otherwise, .. } => {
                otherwise.as_ref().map_or(Ok(()), |daemon| self.check_servers(&daemon.servers))?;
                self.check_kerberos(share.has_ticket()).and(self.check_flags(share.flags))
            }
            Step::Store(step) => self.check_store_step(step),
            Step::ExpectStaged { source: Source::Store(store), .. } => self.check_store(store),
            Step::Mount { flags, .. } | Step::ShowStaged { flags, .. } | Step::MountFiles { flags, .. } => {
                self.check_flags(*flags)
            }
            Step::Run(run) => {
                self.check_kerberos(run.has_ticket())?;
                run.flags.map_or(Ok(()), |flags| self.check_flags(flags))
            }
            Step::Checkout(checkout) => self.check_checkout(checkout),
            Step::Serve(Daemon { servers, flags, .. }) => {
                self.check_servers(servers).and(self.check_flags(*flags))
            }
            Step::CsiPublish { volume, .. } | Step::CsiExpand { volume, .. } => self.check_csi(volume),
            Step::PrepareTarget { .. }
            | Step::MakeDirectoryOnShare { .. }
            | Step::Format { .. }
            | Step::Answer { .. }
            | Step::CheckFileSystem { .. }
            | Step::ExpectMount { .. }
            | Step::ExpectStaged { .. }
            | Step::Hold { .. }
            | Step::Release { .. }
            | Step::CsiUnpublish { .. }
            | Step::Unmount { .. }
            | Step::EndDaemon { .. }
            | Step::GrowFileSystem { .. } => Ok(()),
        }
    }

    /// Returns the root that allows this source of a bind.
    pub fn bind_source(&self, path: &Path) -> Result<Allowed> {
        below(path, &self.bind_roots, "bindRoots")
    }

    /// Returns the root that allows this image file.
    pub fn image(&self, file: &Path) -> Result<Allowed> {
        below(file, &self.image_roots, "imageRoots")
    }

    /// Returns the root that allows this key file.
    pub fn keyring(&self, file: &Path) -> Result<Allowed> {
        below(file, &self.keyring_roots, "keyringRoots")
    }

    /// Returns the limit for one volume's cache on the node's disk, in bytes.
    pub fn cache_limit(&self) -> u64 {
        let cache = self.max_cache.map_or(CACHE, |size| size.0);
        self.max_size.map_or(cache, |size| cache.min(size.0))
    }

    /// Returns the memory limit for the program of one volume, in bytes.
    pub fn memory_limit(&self) -> u64 {
        self.max_memory.map_or(MEMORY, |size| size.0)
    }

    /// Refuses sizes over the admin's limit.
    pub fn check_size(&self, bytes: u64) -> Result<()> {
        match self.max_size {
            Some(limit) if bytes > limit.0 => Err(denied(format!(
                "a size of {} is more than the node's policy allows ({limit}): ask for less, or let the admin raise policy.maxSize",
                Quantity(bytes)
            ))),
            _ => Ok(()),
        }
    }

    fn check_overlay(&self, overlay: &Overlay) -> Result<()> {
        overlay.lower.iter().try_for_each(|path| self.bind_source(path).map(drop))?;
        self.check_flags(overlay.flags)?;
        match &overlay.upper {
            Upper::Directory(path) => self.bind_source(path).map(drop),
            Upper::Memory(size) => self.check_memory(*size),
        }
    }

    /// Refuses a volume in memory without a size where sizes are limited.
    fn check_memory(&self, size: Option<u64>) -> Result<()> {
        match (size, self.max_size) {
            (Some(size), _) => self.check_size(size),
            (None, None) => Ok(()),
            (None, Some(limit)) => Err(Failure::options(format!(
                "this node limits sizes: give option \"size\", at most {limit}"
            ))),
        }
    }

    fn check_store_step(&self, step: &StoreStep) -> Result<()> {
        match step {
            StoreStep::Attach { attachment, .. } => self.check_store(&attachment.store),
            StoreStep::Find { store, .. } => self.check_store(store),
            StoreStep::Grow { size } => self.check_size(*size),
            StoreStep::Decrypt(_) | StoreStep::Detach { .. } | StoreStep::Unstage { .. } => Ok(()),
        }
    }

    fn check_store(&self, store: &Store) -> Result<()> {
        self.check_servers(&store.servers()).and(self.check_nameserver(store.nameserver()))?;
        match store {
            Store::Qcow2(image) | Store::Nbd(Nbd { from: NbdServer::Image { image, .. }, .. }) => {
                self.image(&image.file)?;
                image.size.map_or(Ok(()), |size| self.check_size(size))
            }
            Store::Rbd(image) => image.keyring.as_ref().map_or(Ok(()), |file| self.keyring(file).map(drop)),
            Store::Lvm(volume) => {
                self.check_volume_group(&volume.group)?;
                volume.size.map_or(Ok(()), |size| self.check_size(size))
            }
            Store::Nbd(_) | Store::Iscsi(_) => Ok(()),
        }
    }

    fn check_volume_group(&self, group: &str) -> Result<()> {
        let allowed = &self.volume_groups;
        if allowed.iter().any(|name| name == group || name == "*") {
            return Ok(());
        }
        Err(denied(format!(
            "volume group {group:?} is not allowed on this node: use one of {}, or let the admin add it to policy.volumeGroups",
            if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") }
        )))
    }

    fn check_csi(&self, volume: &CsiVolume) -> Result<()> {
        let has = |word: &str| volume.mount_flags.iter().any(|flag| flag == word);
        self.check_flags(MountFlags { suid: has("suid"), dev: has("dev"), ..MountFlags::DEFAULT })?;
        let (allowed, name) = (&self.csi_drivers, &volume.driver);
        if allowed.iter().any(|word| word == name || word == "*") {
            return Ok(());
        }
        Err(denied(format!(
            "the CSI driver {name:?} is not allowed on this node: use one of {}, or let the admin add it to policy.csiDrivers",
            if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") }
        )))
    }

    fn check_checkout(&self, checkout: &Checkout) -> Result<()> {
        self.check_servers(&checkout.servers).and(self.check_flags(checkout.flags))?;
        self.check_memory(checkout.size)
    }

    fn check_servers(&self, servers: &[String]) -> Result<()> {
        servers.iter().try_for_each(|server| self.check_server(server))
    }

    /// Refuses a server that the admin has not allowed.
    pub fn check_server(&self, server: &str) -> Result<()> {
        if self.names(server) {
            return Ok(());
        }
        if server::is_local(server) {
            return Err(local(server));
        }
        match &self.servers {
            Some(allowed) if !allowed.iter().any(|word| server::is_meant(word, server)) => {
                Err(denied(format!(
                    "server {server:?} is not allowed on this node: use one of {}, or let the admin add it to policy.servers",
                    if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") }
                )))
            }
            _ => Ok(()),
        }
    }

    /// Reports whether the admin names exactly this server.
    fn names(&self, server: &str) -> bool {
        self.servers.iter().flatten().any(|word| server::is_named(word, server))
    }

    /// Refuses an address that a server's name resolved to: a name server may answer with the
    /// node's own address.
    pub fn check_address(&self, server: &str, address: IpAddr) -> Result<()> {
        if !server::is_local_address(address) || self.names(server) || self.names(&address.to_string()) {
            return Ok(());
        }
        Err(local(&format!("{server} ({address})")))
    }

    /// A nameserver decides which server a name means, so it must be allowed like a server.
    fn check_nameserver(&self, nameserver: Option<IpAddr>) -> Result<()> {
        nameserver.map_or(Ok(()), |address| self.check_server(&address.to_string()))
    }

    /// Reports whether a client may be redirected to servers that were not checked by this policy.
    pub fn follows_redirects(&self) -> bool {
        let any = |words: &Vec<String>| words.iter().any(|word| word == "*");
        self.allow_redirects || self.servers.as_ref().is_none_or(any)
    }

    /// A ticket belongs to the node's root or to a user that the volume names, never to the tenant.
    fn check_kerberos(&self, has_ticket: bool) -> Result<()> {
        if has_ticket && !self.allow_kerberos {
            return Err(denied(
                "option \"sec\": Kerberos is not allowed on this node, whose own tickets and keytab it uses: log in with a Secret or without, or let the admin set policy.allowKerberos".into(),
            ));
        }
        Ok(())
    }

    fn check_flags(&self, flags: MountFlags) -> Result<()> {
        let lifted = [
            (flags.suid && !self.allow_suid, "suid", "allowSuid"),
            (flags.dev && !self.allow_dev, "dev", "allowDev"),
        ];
        match lifted.into_iter().find(|(lifted, ..)| *lifted) {
            Some((_, word, key)) => Err(denied(format!(
                "mountOptions: {word:?} is not allowed on this node: leave it out, or let the admin set policy.{key}"
            ))),
            None => Ok(()),
        }
    }

    /// A mount that propagates to the node hides what was at its mount point from all processes
    /// there.
    fn check_propagation(&self, propagation: Propagation) -> Result<()> {
        if propagation == Propagation::Bidirectional && !self.allow_shared {
            return Err(denied(
                "propagation: \"rshared\" is not allowed on this node: leave it out, or let the admin set policy.allowShared".into(),
            ));
        }
        Ok(())
    }
}

/// Returns the first root that contains `path`. Both are compared as text.
fn below(path: &Path, roots: &[PathBuf], key: &str) -> Result<Allowed> {
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if !path.is_absolute() || !path.components().all(plain) {
        return Err(Failure::options(format!(
            "{} is not a plain absolute path: write it from / on, without . and ..",
            path.display()
        )));
    }
    let found = roots.iter().find_map(|root| Some((root, path.strip_prefix(root).ok()?)));
    found.map(|(root, below)| Allowed { root: root.clone(), below: below.to_owned() }).ok_or_else(|| {
        denied(format!(
            "{} is not below a directory this node allows ({}): use one of those, or let the admin add it to policy.{key}",
            path.display(),
            listed(roots)
        ))
    })
}

fn local(server: &str) -> Failure {
    denied(format!(
        "server {server:?} is the node itself, its link or its cloud's metadata service: use another, or let the admin name it in policy.servers"
    ))
}

fn listed(roots: &[PathBuf]) -> String {
    match roots {
        [] => "there is none".into(),
        _ => roots.iter().map(|root| root.display().to_string()).collect::<Vec<_>>().join(", "),
    }
}

fn denied(message: String) -> Failure {
    Failure::new(Code::Denied, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Allocation, Goal, Region};
    use crate::wording::wording;

    fn policy() -> Policy {
        serde_json::from_str(r#"{"bindRoots":["/srv/a","/"],"maxSize":"1Gi"}"#).unwrap()
    }

    #[test]
    fn a_list_of_one_needs_no_brackets() {
        let policy = |text| serde_json::from_str::<Policy>(text).map_err(|error| error.to_string());
        let one = policy(r#"{"bindRoots": "/srv", "servers": "nas"}"#).unwrap();
        assert_eq!(one, policy(r#"{"bindRoots": ["/srv"], "servers": ["nas"]}"#).unwrap());
        let error = policy(r#"{"bindRoots": 1}"#).unwrap_err();
        assert!(error.contains(wording("texts-expected")), "{error}");
    }

    #[test]
    fn nothing_of_the_node_by_default() {
        let error = Policy::default().bind_source(Path::new("/srv/a")).unwrap_err();
        assert_eq!(error.code(), Code::Denied);
        assert!(error.message().contains("there is none") && error.message().contains("policy.bindRoots"));
    }

    #[test]
    fn the_first_root_that_holds_the_path() {
        let allowed = policy().bind_source(Path::new("/srv/a/b/c")).unwrap();
        assert_eq!(
            (allowed.root.as_path(), allowed.below.as_path()),
            (Path::new("/srv/a"), Path::new("b/c"))
        );
        assert_eq!(policy().bind_source(Path::new("/srv/ab")).unwrap().root, Path::new("/"));
        assert_eq!(policy().bind_source(Path::new("/srv/a")).unwrap().below, Path::new(""));
    }

    #[test]
    fn no_way_around_by_text() {
        for path in ["srv/a", "/srv/a/../../etc", "", "./srv/a", ".."] {
            assert_eq!(policy().bind_source(Path::new(path)).unwrap_err().code(), Code::BadOptions, "{path}");
        }
    }

    #[test]
    fn size_and_flags() {
        assert!(policy().check_size(1 << 30).is_ok());
        assert!(policy().check_size((1 << 30) + 1).unwrap_err().message().contains("policy.maxSize"));
        let suid = MountFlags { suid: true, ..MountFlags::DEFAULT };
        assert!(policy().check_flags(suid).unwrap_err().message().contains("policy.allowSuid"));
        assert!(Policy { allow_suid: true, ..policy() }.check_flags(suid).is_ok());
    }

    #[test]
    fn mounts_travel_to_the_node_only_if_the_admin_says_so() {
        let shared = Propagation::Bidirectional;
        assert!(policy().check_propagation(Propagation::HostToContainer).is_ok());
        assert!(policy().check_propagation(shared).unwrap_err().message().contains("policy.allowShared"));
        assert!(Policy { allow_shared: true, ..policy() }.check_propagation(shared).is_ok());
    }

    #[test]
    fn servers_are_those_the_admin_names() {
        let policy = Policy {
            servers: Some(vec!["NAS.example.com".into(), "*.lab.example.com".into(), "10.0.0.7".into()]),
            ..Policy::default()
        };
        let check = |servers: &[&str]| {
            policy.check_servers(&servers.iter().map(|server| (*server).to_owned()).collect::<Vec<_>>())
        };
        assert!(check(&["nas.example.com", "a.b.LAB.example.com", "10.0.0.7"]).is_ok());
        for server in ["lab.example.com", ".lab.example.com", "evil.com", "xnas.example.com", "10.0.0.70", ""]
        {
            let message = check(&["10.0.0.7", server]).unwrap_err().message();
            assert!(
                message.contains(&format!("{server:?}")) && message.contains("policy.servers"),
                "{message}"
            );
        }
        assert!(Policy::default().check_servers(&["anything".into()]).is_ok());
    }

    #[test]
    fn the_node_itself_is_a_server_only_by_name() {
        let policy = |servers: Option<&[&str]>| Policy {
            servers: servers.map(|all| all.iter().map(|server| (*server).to_owned()).collect()),
            ..Policy::default()
        };
        for server in ["127.0.0.1", "[::1]", "169.254.169.254", "localhost", "[::ffff:7f00:1]", "0.0.0.0"] {
            for words in [None, Some(&["*"][..]), Some(&["*.localhost", "127.0.0.2"][..])] {
                let message = policy(words).check_server(server).unwrap_err().message();
                assert!(
                    message.contains("the node itself") && message.contains("policy.servers"),
                    "{message}"
                );
            }
            assert!(policy(Some(&[server])).check_server(server).is_ok());
        }
        let [local, other] = ["127.0.0.1", "10.0.0.7"].map(|address| address.parse().unwrap());
        for words in [None, Some(&["*"][..]), Some(&["*.example.com"][..])] {
            assert!(policy(words).check_address("nas.example.com", local).is_err());
            assert!(policy(words).check_address("nas.example.com", other).is_ok());
        }
        for words in [["nas.example.com"], ["127.0.0.1"]] {
            assert!(policy(Some(&words)).check_address("nas.example.com", local).is_ok());
        }
    }

    /// The nameserver that answers for a name decides which server is used.
    #[test]
    fn a_nameserver_is_a_server() {
        let policy = Policy { servers: Some(vec!["nas".into(), "10.96.0.10".into()]), ..Policy::default() };
        assert!(policy.check_nameserver(Some("10.96.0.10".parse().unwrap())).is_ok());
        assert!(policy.check_nameserver(Some("10.0.0.1".parse().unwrap())).is_err());
        assert!(Policy::default().check_nameserver(Some("10.0.0.1".parse().unwrap())).is_ok());
        assert!(Policy::default().check_nameserver(Some("127.0.0.53".parse().unwrap())).is_err());
    }

    #[test]
    fn every_step_with_a_path_or_a_size_is_checked() {
        let outside = || Path::new("/etc/x").to_owned();
        let owner = crate::plan::Ownership { mode: 0, uid: 0, gid: 0 };
        let file = policy().image_roots[0].join("a");
        let steps = [
            Step::MakeDirectory { path: outside(), owner },
            Step::CreateImage { file: outside(), size: 1, allocation: Allocation::Sparse },
            Step::CreateImage { file, size: (1 << 30) + 1, allocation: Allocation::Full },
            Step::AttachLoop { file: outside(), region: Region::Whole, direct_io: false, read_only: true },
            Step::GrowImage { size: u64::MAX, allocation: Allocation::Sparse },
        ];
        let policy = Policy { bind_roots: vec!["/srv".into()], ..policy() };
        for step in steps {
            let plan = Plan {
                goal: Goal::Performed,
                steps: vec![Step::GrowImage { size: 1, allocation: Allocation::Sparse }, step],
            };
            assert_eq!(policy.check(&plan).unwrap_err().code(), Code::Denied, "{:?}", plan.steps);
        }
    }

    #[test]
    fn reads_what_it_writes() {
        for policy in [Policy::default(), policy()] {
            let text = serde_json::to_string(&policy).unwrap();
            assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), policy, "{text}");
        }
        assert!(serde_json::from_str::<Policy>(r#"{"maxSize":1}"#).is_err());
    }

    #[test]
    fn odd_roots_allow_no_more() {
        let policy = Policy { bind_roots: vec!["/srv/a/".into(), "rel".into()], ..Policy::default() };
        assert_eq!(policy.bind_source(Path::new("/srv/a")).unwrap().below, Path::new(""));
        for path in ["/srv", "/srv/a2", "/rel", "/"] {
            assert_eq!(policy.bind_source(Path::new(path)).unwrap_err().code(), Code::Denied, "{path}");
        }
    }
}

//! Steps of network shares: find the server, make a directory on it, mount it, and explain errors.

use super::context::{Context, Reached, open_place};
use super::daemon;
use super::undo::Undo;
use crate::hints::to_failure;
use anyhow::{Context as _, Result};
use flexvol_linux::errno::{Errno, code_of, errno_of};
use flexvol_linux::fs::openat_beneath;
use flexvol_linux::mount::{self, NewMount, Parameter, Value, Way};
use flexvol_linux::net::network;
use flexvol_model::diagnostics;
use flexvol_model::plan::{Daemon, Dialect, DirectoryOnShare, Reach, Share, ShareValue};
use flexvol_model::policy::Policy;
use flexvol_protocol::TargetPath;
use flexvol_protocol::failure::{Code, Failure};
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::time::Duration;

impl Reached {
    /// Returns a server whose name is its address and port.
    pub(super) fn at(address: SocketAddr, client: IpAddr) -> Self {
        Self { name: address.to_string(), address: address.ip().to_string(), client: client.to_string() }
    }
}

impl Context<'_> {
    /// Finds the first server that answers; if none does, the error says what each of them did.
    pub(super) fn reach(&mut self, reach: &Reach) -> Result<()> {
        let mut failures = Vec::new();
        for name in &reach.servers {
            let found = network::addresses(name, reach.nameserver, &self.deadline);
            let found = found.and_then(|found| allowed(&self.settings.policy, name, found));
            let is_known = found.is_ok();
            let found = found.with_context(|| format!("server {name}"));
            match found.and_then(|addresses| self.try_server(name, &addresses, reach)) {
                Ok(reached) => {
                    self.reached = Some(reached);
                    return Ok(());
                }
                Err(error) => failures.push((is_known, to_failure(error))),
            }
        }
        Err(unreached(failures).into())
    }

    /// Returns the first address of a server that answers.
    fn try_server(&self, name: &str, addresses: &[IpAddr], reach: &Reach) -> Result<Reached> {
        let mut last = None;
        for &address in addresses {
            match self.ask_for_us(address, reach) {
                Ok(client) => {
                    let (name, address) = (name.to_owned(), address.to_string());
                    return Ok(Reached { name, address, client: client.to_string() });
                }
                Err(error) => last = Some(error.context(format!("server {name} ({address})"))),
            }
        }
        Err(last.with_context(|| format!("server {name} has no address"))?)
    }

    /// Returns our address, as the server sees it.
    fn ask_for_us(&self, address: IpAddr, reach: &Reach) -> Result<IpAddr> {
        self.deadline.check("about to connect to the server")?;
        let address = SocketAddr::new(address, reach.port);
        match reach.patience {
            0 => network::route_to(address),
            seconds => network::connect(address, Duration::from_secs(seconds.into())),
        }
    }

    /// Returns the server that an earlier step has found.
    pub(super) fn reached(&self) -> Result<&Reached> {
        self.reached.as_ref().context("no server was looked for: the plan lacks a step")
    }

    pub(super) fn mount_share(
        &mut self,
        target: &TargetPath,
        share: &Share,
        missing: Option<&DirectoryOnShare>,
        otherwise: Option<&Daemon>,
    ) -> Result<Option<Undo>> {
        let place = open_place(target)?;
        let mounted = self.mount_or_make(share, missing, |new| mount::mount(new, &place, Way::Detached));
        match (mounted, otherwise) {
            (Err(error), Some(daemon)) if lacks_file_system(&error) => daemon::serve(self, daemon),
            (mounted, _) => {
                self.mount_id = Some(mounted?);
                Ok(Some(Undo::Unmount(target.clone())))
            }
        }
    }

    /// Makes the directory before a helper mounts: the helper's error is not a reliable reason.
    pub(super) fn make_unless_mountable(&self, share: &Share, missing: &DirectoryOnShare) -> Result<()> {
        self.mount_or_make(share, Some(missing), mount::detached).map(drop)
    }

    fn mount_or_make<T>(
        &self,
        share: &Share,
        missing: Option<&DirectoryOnShare>,
        act: impl Fn(&NewMount<'_>) -> Result<T>,
    ) -> Result<T> {
        let reached = self.reached()?;
        let Some(missing) = missing else { return each_dialect(share, reached, act) };
        let made = |act: &dyn Fn(&NewMount<'_>) -> Result<T>| each_dialect(share, reached, act);
        first_mounted(made, &act, || make_directory(missing, reached))
    }
}

/// Mounts, and makes the directory only if that fails: a server may export a directory, but neither
/// its parents nor the right to make anything there.
fn first_mounted<T>(
    mount: impl Fn(&dyn Fn(&NewMount<'_>) -> Result<T>) -> Result<T>,
    act: &dyn Fn(&NewMount<'_>) -> Result<T>,
    make: impl FnOnce() -> Result<()>,
) -> Result<T> {
    // An explained error has lost its errno, so the errno is kept here.
    let said = Cell::new(None);
    let heard = |new: &NewMount<'_>| act(new).inspect_err(|error| said.set(errno_of(error)));
    match mount(&heard) {
        // Servers return one or the other for a missing directory.
        Err(error) if matches!(said.get(), Some(Errno::NOENT | Errno::ACCESS)) => {
            make().map_err(|why| both(error, why))?;
            mount(act)
        }
        mounted => mounted,
    }
}

/// Makes the directory. The share is mounted only through a descriptor, and disappears with it.
fn make_directory(missing: &DirectoryOnShare, reached: &Reached) -> Result<()> {
    let DirectoryOnShare { share, path, owner } = missing;
    let root = each_dialect(share, reached, mount::detached)
        .with_context(|| format!("mount the share for a moment, to make {} in it", path.display()))?;
    openat_beneath::make_directories(root.as_fd(), path, *owner, *owner).map(drop)
}

/// Combines the error of a mount with the error of making the directory.
fn both(unmounted: anyhow::Error, unmade: anyhow::Error) -> anyhow::Error {
    let (unmounted, unmade) = (to_failure(unmounted), to_failure(unmade));
    Failure::new(unmounted.code(), format!("{}; {}", unmounted.message(), unmade.message())).into()
}

/// Returns the addresses of a server, if the policy allows all of them: a name server may return
/// any address.
pub(super) fn allowed(policy: &Policy, server: &str, addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>> {
    addresses.iter().try_for_each(|address| policy.check_address(server, *address))?;
    Ok(addresses)
}

/// Returns the failure that no server answers. `true` stands for a server whose address is known
/// and allowed; the failure of any other server already contains the fix.
fn unreached(failures: Vec<(bool, Failure)>) -> Failure {
    let (known, mut failures): (Vec<_>, Vec<_>) = failures.into_iter().partition(|(is_known, _)| *is_known);
    failures.extend(known);
    let code = failures.first().map_or(Code::BadOptions, |(_, failure)| failure.code());
    let texts: Vec<_> = failures.iter().map(|(_, failure)| failure.message()).collect();
    let fix = match failures.last() {
        Some((false, _)) => "",
        _ => ": check that it runs, and the network and firewalls between it and this node",
    };
    Failure::new(code, format!("{}{fix}", texts.join("; ")))
}

/// Tries one version of the protocol after the other, until the server supports one.
fn each_dialect<T>(share: &Share, reached: &Reached, act: impl Fn(&NewMount<'_>) -> Result<T>) -> Result<T> {
    let source = share.source.with(&reached.name);
    let mut unspoken = None;
    for dialect in &share.dialects {
        let parameters = parameters(share, dialect, reached);
        let new = NewMount {
            file_system: dialect.file_system,
            source: &source,
            flags: share.flags,
            superblock_read_only: false,
            options: &parameters,
        };
        match act(&new) {
            Err(error) if errno_of(&error) == Some(Errno::PROTONOSUPPORT) => unspoken = Some(error),
            Err(error) => return Err(explain(error, dialect.file_system, &source)),
            done => return done,
        }
    }
    let file_system = share.dialects.first().map_or("", |dialect| dialect.file_system);
    Err(explain(unspoken.context("the plan names no version of the protocol")?, file_system, &source))
}

fn parameters<'a>(share: &'a Share, dialect: &'a Dialect, reached: &'a Reached) -> Vec<Parameter<'a>> {
    let own = dialect.options.iter().map(Parameter::from);
    let common = share.options.iter().map(|option| Parameter {
        key: option.key,
        value: match &option.value {
            ShareValue::Word => Value::None,
            ShareValue::Text(text) => Value::Text(text),
            ShareValue::Secret(secret) => Value::Secret(secret),
            ShareValue::Server => Value::Text(&reached.address),
            ShareValue::Client => Value::Text(&reached.client),
        },
    });
    own.chain(common).collect()
}

/// Reports whether the kernel has no such file system, not even a module to load.
fn lacks_file_system(error: &anyhow::Error) -> bool {
    errno_of(error) == Some(Errno::NODEV) || code_of(error) == Code::ToolMissing
}

/// Adds the share and the fix to the kernel's error number and text.
fn explain(error: anyhow::Error, file_system: &str, source: &str) -> anyhow::Error {
    let Some(errno) = errno_of(&error) else { return error };
    match diagnostics::of_share(file_system, errno.raw_os_error()) {
        Some(known_error) => {
            let failure = to_failure(error.context(source.to_owned()));
            Failure::new(failure.code(), format!("{}: {}", failure.message(), known_error.hint())).into()
        }
        None => error.context(source.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::wording;
    use flexvol_model::plan::Named;
    use flexvol_protocol::mount_options::MountFlags;

    #[test]
    fn each_trouble_has_its_own_fix() {
        let refused = || (true, Failure::new(Code::NotFound, "server a (10.0.0.1): refuses connections"));
        let unknown = || (false, Failure::new(Code::NotFound, "server b: no such host: check the name"));
        let said = |failures| unreached(failures).message();
        assert_eq!(said(vec![unknown()]), "server b: no such host: check the name");
        assert!(said(vec![refused()]).starts_with("server a (10.0.0.1): refuses connections: check that it"));
        let both = said(vec![refused(), unknown()]);
        assert!(both.starts_with("server b: no such host: check the name; server a (10.0.0.1)"), "{both}");
        assert!(both.contains(&["refuses connections", wording("check-that-it-runs")].concat()), "{both}");
    }

    #[test]
    fn what_is_missing_is_made_and_mounted_after_all() {
        let dialect = Dialect { file_system: "nfs4", options: Vec::new() };
        let source = Named { before: "", after: ":/a/b".to_owned() };
        let share =
            Share { source, dialects: vec![dialect], options: Vec::new(), flags: MountFlags::DEFAULT };
        let reached = Reached::at("127.0.0.1:2049".parse().unwrap(), "127.0.0.1".parse().unwrap());
        let run = |errno: Errno, makes: bool| {
            let (made, tried) = (Cell::new(false), Cell::new(0));
            let act = |_: &NewMount<'_>| {
                tried.set(tried.get() + 1);
                if made.get() { Ok(()) } else { Err(anyhow::Error::new(errno).context("mount it")) }
            };
            let creating = || {
                made.set(makes);
                if makes { Ok(()) } else { Err(anyhow::Error::new(Errno::ROFS).context("make b")) }
            };
            let mounted = first_mounted(|act| each_dialect(&share, &reached, act), &act, creating);
            (mounted.map_err(|error| to_failure(error).message()), tried.get(), made.get())
        };
        for errno in [Errno::NOENT, Errno::ACCESS] {
            assert_eq!(run(errno, true), (Ok(()), 2, true));
            let (said, tried, _) = run(errno, false);
            let said = said.unwrap_err();
            assert!(tried == 1 && said.contains("mount it") && said.contains("make b: Read-only"), "{said}");
        }
        let (said, tried, made) = run(Errno::HOSTUNREACH, true);
        assert!(said.is_err() && tried == 1 && !made);
    }

    #[test]
    fn a_number_is_explained_for_its_kind_of_share() {
        let explained = |kind: &str, errno: Errno| {
            let error = anyhow::Error::new(errno).context("mount it on /a");
            let failure = to_failure(explain(error, kind, "nas:/b"));
            (failure.code(), failure.message())
        };
        let (code, message) = explained("cifs", Errno::ACCESS);
        assert!(code == Code::Denied && message.contains("Secret's username"), "{message}");
        assert!(message.starts_with("nas:/b: mount it on /a: "), "{message}");
        assert!(explained("nfs4", Errno::ACCESS).1.contains(wording("share-not-exported")));
        assert!(explained("nfs", Errno::NOENT).1.contains("showmount"));
        assert_eq!(explained("nfs", Errno::IO).1.matches("nas:/b").count(), 1);
        let other = explain(anyhow::anyhow!("no number"), "nfs", "nas:/b");
        assert_eq!(other.to_string(), "no number");
    }
}

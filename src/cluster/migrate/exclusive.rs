//! Lease for one migration in a cluster at a time: nothing is written without it.

use crate::controllers::blocking::Api;
use crate::controllers::lease::Election;
use anyhow::{Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Name of the lease, in the namespace where plans are kept.
const NAME: &str = "flexvol-migration";

/// Deadline for taking the lease: that of a killed run elsewhere ends after a quarter of a minute.
const LEASE_WAIT: Duration = Duration::from_secs(25);

/// Deadline for releasing the lease.
const RELEASE_WAIT: Duration = Duration::from_secs(5);

/// Lease that is held as long as this exists.
#[derive(Debug)]
pub struct Exclusive {
    lost: Arc<Mutex<Option<String>>>,
    ended: Arc<AtomicBool>,
    stop: Option<oneshot::Sender<()>>,
    over: Mutex<Receiver<()>>,
}

impl Exclusive {
    /// Takes the lease.
    ///
    /// # Errors
    ///
    /// Fails if another run has it, or if the API server does not answer.
    pub fn take(api: &Api, namespace: &str, identity: &str) -> Result<Self> {
        let (lost, ended) = (Arc::<Mutex<Option<String>>>::default(), Arc::<AtomicBool>::default());
        let (tell, heard) = sync_channel(1);
        let (stop, mut asked) = oneshot::channel();
        let (finish, over) = sync_channel(1);
        let (kept, namespace, identity) = (namespace, namespace.to_owned(), identity.to_owned());
        let (reason, flag) = (Arc::clone(&lost), Arc::clone(&ended));
        api.begin(move |client| async move {
            let leases = kube::Api::<Lease>::namespaced(client, &namespace);
            let mut election = Election::new(leases, NAME.to_owned(), identity);
            tokio::select! {
                () = election.win() => {}
                _ = &mut asked => return,
            }
            let _ = tell.send(());
            tokio::select! {
                held = election.hold() => {
                    let why = held.err().map(|error| format!("{error:#}"));
                    *reason.lock().unwrap_or_else(PoisonError::into_inner) = why;
                    flag.store(true, Ordering::SeqCst);
                }
                _ = asked => election.release().await,
            }
            let _ = finish.send(());
        });
        match heard.recv_timeout(LEASE_WAIT) {
            Ok(()) => Ok(Self { lost, ended, stop: Some(stop), over: Mutex::new(over) }),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                bail!(
                    "lease {NAME} in namespace {kept} is not free: another migration runs, or you may not write leases"
                )
            }
        }
    }

    /// Checks that the lease is still ours. Called before each write.
    ///
    /// # Errors
    ///
    /// Fails if the lease is lost.
    pub fn check(&self) -> Result<()> {
        let why = self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ensure!(!self.ended.load(Ordering::SeqCst), "{}: run it again", why.unwrap_or_default());
        Ok(())
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        drop(self.stop.take());
        let over = self.over.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = over.recv_timeout(RELEASE_WAIT);
    }
}

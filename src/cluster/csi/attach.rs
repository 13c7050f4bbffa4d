//! `ControllerPublishVolume` and `ControllerUnpublishVolume`: calls of `attach` and `detach`, which
//! get the node's name in Kubernetes.

use super::handle::Handle;
use super::program::{Answer, Budget};
use super::request::Attach;
use super::served::{Role, Served};
use flexvol_protocol::{Call, Options};
use tonic::Status;

impl Served {
    /// Attaches the volume, and returns the device on the node.
    pub(super) fn attach(&self, request: &Attach, budget: Budget) -> Result<String, Status> {
        self.check_controller()?;
        self.check_node(&request.node)?;
        let options = self.ground.of_attach(request)?;
        let id = &request.volume.id;
        let guard = self.locks.take(&[&format!("attach {id}")])?;
        let noted = self.journal.get(id).and_then(|entry| entry.attached.get(&request.node).cloned());
        if let Some(device) = noted
            && self.is_attached(&options, request, &guard, budget)?
        {
            return Ok(device);
        }
        // The volume may be attached from now on, whether or not the call succeeds.
        self.note(id, |entry| entry.attach(&request.node, ""))?;
        let call = Call::Attach { options, node: request.node.clone() };
        let device = match self.program.call(&call, &guard, budget)? {
            Answer::Done(status) => status.device,
            Answer::NotSupported => String::new(),
        };
        self.note(id, |entry| entry.attach(&request.node, &device))?;
        Ok(device)
    }

    /// Asks the driver whether an attached volume still is attached. Only a clear yes counts.
    fn is_attached(
        &self,
        options: &Options,
        request: &Attach,
        guard: &super::locks::Guard,
        budget: Budget,
    ) -> Result<bool, Status> {
        let call = Call::IsAttached { options: options.clone(), node: request.node.clone() };
        Ok(matches!(self.program.call(&call, guard, budget)?, Answer::Done(status) if status.attached))
    }

    /// Detaches the volume from a node, or from all known nodes.
    pub(super) fn detach(&self, id: &str, node: Option<String>, budget: Budget) -> Result<(), Status> {
        self.check_controller()?;
        // A volume without a name was never attached.
        let Some(Handle::Persistent(name)) = Handle::parse(id) else { return Ok(()) };
        let guard = self.locks.take(&[&format!("attach {id}")])?;
        let known = || self.journal.get(id).map(|entry| entry.attached.into_keys().collect());
        let nodes: Vec<_> = node.map_or_else(|| known().unwrap_or_default(), |node| vec![node]);
        for node in nodes {
            let call = Call::Detach { volume: name.clone(), node: node.clone() };
            self.program.call(&call, &guard, budget)?;
            self.journal.forget(id, |entry| drop(entry.attached.remove(&node)));
        }
        Ok(())
    }

    fn check_controller(&self) -> Result<(), Status> {
        if self.role.is_controller() && self.capabilities()?.attach {
            return Ok(());
        }
        Err(Status::unimplemented("the driver does not attach volumes"))
    }

    /// Fails if this process also serves its own node, and `node` is another one. A controller
    /// alone accepts all names: Kubernetes names only nodes that have registered.
    fn check_node(&self, node: &str) -> Result<(), Status> {
        if self.role == Role::Controller || node == self.node {
            return Ok(());
        }
        Err(Status::not_found(format!("there is no node {node:?} here: this is {:?}", self.node)))
    }
}

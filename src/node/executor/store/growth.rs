//! Growth of a store, and then of what lies on it.
//!
//! A store that only its server can enlarge is checked again. If it is still too small, the call
//! fails: after a success kubelet would record the new size and not ask again, and users would rely
//! on space that does not exist.

use super::{Attached, backend, luks, no_store, open_device};
use crate::executor::context::Context;
use anyhow::{Context as _, Result, bail};
use flexvol_linux::fs::bytes::size_of;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::quantity::Quantity;
use std::os::fd::AsFd;

/// Size of a device's largest block, in bytes: the part of a size after the last whole block is not
/// used.
const BLOCK: u64 = 4096;

impl Context<'_> {
    pub(super) fn grow_store(&self, size: u64) -> Result<()> {
        let Some(attached) = self.disk.device_as::<Attached>() else { bail!(no_store()) };
        let id = attached.record.id();
        let store = &attached.record.store;
        let below = match backend(store).find(&self.site(&id))? {
            Some(found) => found.path,
            None => bail!("{store} is gone: mount it again"),
        };
        backend(store).grow(&self.site(&id), &below, size)?;
        let (device, _) = open_device(&below, true)?;
        let is = size_of(device.as_fd()).with_context(|| format!("look how large {} is", below.display()))?;
        if is.saturating_add(BLOCK) <= size {
            let (is, wanted) = (Quantity(is), Quantity(size));
            let text = format!("{store} has {is}: let its server give it {wanted}, kubelet tries again");
            bail!(Failure::new(Code::Conflict, text));
        }
        if luks::is_open(&id) { luks::grow(&id, self.tools()) } else { Ok(()) }
    }
}

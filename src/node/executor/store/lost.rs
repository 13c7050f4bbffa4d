//! Device without a record, which may have been lost with all of /run/flexvol. The device's name,
//! or the owner of its session, tells that we have attached it.

use super::attachment_record::{AttachmentRecord, Id};
use super::{Found, Site, backend, iscsi, luks, lvm, nbd, rbd, wait_until_free};
use crate::executor::context::Context;
use anyhow::{Context as _, Result};
use flexvol_linux::block::block_device::number_of;
use flexvol_linux::block::iscsi::{Session, Unit};
use flexvol_linux::block::{device_mapper, nbd as kernel_nbd, rbd as kernel_rbd};
use flexvol_linux::mount::mount_table::{self, Entry};
use flexvol_linux::mount::place::{Look, Place};
use flexvol_linux::proc::helper::Tools;
use flexvol_linux::proc::process;
use flexvol_model::plan::{LogicalVolume, Store};
use flexvol_protocol::TargetPath;
use flexvol_protocol::ordered::filled;
use flexvol_protocol::volume_dir::VolumeDir;
use std::path::{Path, PathBuf};

/// Drivers of such devices.
const DRIVERS: [&str; 4] = [iscsi::DRIVER, lvm::DRIVER, nbd::DRIVER, rbd::DRIVER];

/// Returns the device to mount: the store's, or the layer above it.
pub(super) fn top(id: &Id, record: &AttachmentRecord) -> Option<PathBuf> {
    if luks::is_open(id) { Some(luks::path(id)) } else { record.device.clone() }
}

/// Returns the record of a store. If only its device exists, restores the record from its mounts.
pub(super) fn known(
    context: &Context<'_>,
    id: &Id,
    store: &Store,
    found: Option<&Found>,
) -> Result<Option<AttachmentRecord>> {
    match (AttachmentRecord::read(id), found) {
        (None, Some(found)) => restored(context, id, store, found).map(Some),
        (known, _) => Ok(known),
    }
}

/// Restores a record. If others have mounted the device, too, the record has no targets: the check
/// for other users refuses that.
fn restored(context: &Context<'_>, id: &Id, store: &Store, found: &Found) -> Result<AttachmentRecord> {
    let device = Some(found.path.clone());
    let ours = backend(store).is_ours(&context.site(id))?;
    let record =
        AttachmentRecord { device, encrypted: luks::is_open(id), ours, ..AttachmentRecord::new(id, store) };
    let number = top(id, &record).map_or(0, |top| number_of(top.as_os_str()));
    let is_of = |entry: &Entry| number != 0 && number_of(&entry.source) == number;
    let is_ours = |entry: &Entry| {
        TargetPath::parse(entry.target.as_os_str())
            .is_ok_and(|target| VolumeDir::of(&target).belongs_to(context.directory))
    };
    let mounts: Vec<_> = mount_table::read()?.into_iter().filter(is_of).collect();
    let targets = if mounts.iter().all(is_ours) { mounts } else { Vec::new() };
    Ok(AttachmentRecord { targets: filled(targets.into_iter().map(|entry| entry.target)), ..record })
}

/// Device below a mount that no record knows.
pub(in crate::executor) struct Lost {
    number: u64,
    top: PathBuf,
    layer: Option<String>,
    device: PathBuf,
}

/// Creator of a device, as the kernel tells.
enum Maker {
    Nbd(Id),
    Rbd(Id),
    Iscsi(Session, Unit),
    Lvm(LogicalVolume),
}

impl Lost {
    /// Returns what an unmount of this target may leave. Call it before: afterwards it cannot be
    /// found.
    pub(in crate::executor) fn at(driver: &str, target: &TargetPath) -> Result<Option<Self>> {
        if !DRIVERS.contains(&driver) {
            return Ok(None);
        }
        let look = Place::open(target)?.map(|place| place.look()).transpose()?;
        let Some(Look::Mount(mounted)) = look else { return Ok(None) };
        let Some(entry) = mount_table::by_id(mounted.id)? else { return Ok(None) };
        let number = number_of(&entry.source);
        if number == 0 {
            return Ok(None);
        }
        let top = PathBuf::from(&entry.source);
        let layer = device_mapper::layer(number).filter(|(name, _)| name.starts_with(OURS));
        let (layer, device) = layer.map_or((None, top.clone()), |(name, below)| (Some(name), below));
        let knows = |record: &AttachmentRecord| {
            record.device.as_ref() == Some(&device) || record.targets.contains(target.as_path())
        };
        let is_known = AttachmentRecord::all()?.iter().any(knows);
        let is_ours = layer.is_some() || maker(&device).is_some();
        Ok((is_ours && !is_known).then_some(Self { number, top, layer, device }))
    }

    /// Detaches the device, unless it is still mounted anywhere.
    pub(in crate::executor) fn let_go(&self, tools: Tools<'_>) -> Result<()> {
        let is_of = |entry: &Entry| number_of(&entry.source) == self.number;
        if mount_table::read()?.iter().any(is_of) {
            return Ok(());
        }
        wait_until_free(&self.top, tools.deadline)?;
        if let Some(layer) = &self.layer {
            luks::close_layer(layer, tools)?;
        }
        match maker(&self.device) {
            Some(maker) => {
                wait_until_free(&self.device, tools.deadline)?;
                maker.take_away(tools).with_context(|| format!("take {} away", self.device.display()))
            }
            None => Ok(()),
        }
    }
}

/// Prefix for the names that we give to devices.
const OURS: &str = "flexvol-";

fn maker(device: &Path) -> Option<Maker> {
    if let Some(device) = kernel_nbd::Device::at(device) {
        let end = format!("-{}", process::namespace());
        let name = device.backend()?;
        return Some(Maker::Nbd(Id::named(name.strip_prefix(OURS)?.strip_suffix(&end)?)));
    }
    let mapped = kernel_rbd::all().unwrap_or_default();
    if let Some(mapped) = mapped.into_iter().find(|mapped| mapped.path() == device) {
        let key = mapped.key_name().ok()??;
        return Some(Maker::Rbd(Id::named(key.strip_prefix(OURS)?)));
    }
    if let Some(volume) = lvm::on(device) {
        return Some(Maker::Lvm(volume));
    }
    let (session, unit) = Session::of_disk(device).filter(|(session, _)| session.is_ours())?;
    Some(Maker::Iscsi(session, unit))
}

impl Maker {
    fn take_away(&self, tools: Tools<'_>) -> Result<()> {
        match self {
            Self::Nbd(id) => {
                let _lock = id.lock_name(tools.deadline)?;
                let at = Site::of(id, tools);
                rbd::end_daemon(&at)?;
                nbd::take_away(&at)
            }
            Self::Rbd(id) => {
                let _lock = id.lock_name(tools.deadline)?;
                rbd::unmap(&Site::of(id, tools))
            }
            Self::Iscsi(session, unit) if session.units().iter().all(|other| other == unit) => {
                session.log_out(tools)
            }
            Self::Iscsi(_, unit) => unit.forget(),
            Self::Lvm(volume) => {
                let store = Store::Lvm(volume.clone());
                let _lock = Id::lock(&store, tools.deadline)?;
                lvm::let_go(volume, &Site::of(&Id::of(&store), tools))
            }
        }
    }
}

//! Encryption layer: LUKS2 by cryptsetup.
//!
//! The passphrase is passed only on standard input. The layer's name is derived from the store's,
//! so it is found again without a record. A layer that has no file system yet says so in its own
//! header, because its decrypted content is noise, which no proof of blankness could distinguish
//! from data.

use super::attachment_record::Id;
use anyhow::{Context as _, Result};
use flexvol_linux::block::block_device::{nodes, number_of};
use flexvol_linux::block::device_mapper;
use flexvol_linux::fs::bytes::read_at;
use flexvol_linux::fs::files;
use flexvol_linux::proc::helper::{Invocation, Tools};
use flexvol_linux::proc::reach::Reach;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::secret::Secret;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

/// Label of the layer until it has a file system.
const FRESH: &str = "flexvol-unformatted";

/// Range of the label in a LUKS2 header, in bytes.
const LABEL: std::ops::Range<usize> = 24..72;

/// Range of the header's tables, in bytes, in the size that cryptsetup gives them.
const JSON: std::ops::Range<usize> = 4096..16384;

/// Cost of the key derivation: what RFC 9106 requires of Argon2id where memory is scarce, and one
/// pass more, which is cryptsetup's minimum. cryptsetup's own choice, a gigabyte and two seconds of
/// each mount, is too much beside pods; and on a busy node its measurement gives less.
const DERIVATION: [&str; 8] = [
    "--pbkdf",
    "argon2id",
    "--pbkdf-memory",
    "65536",
    "--pbkdf-parallel",
    "4",
    "--pbkdf-force-iterations",
    "4",
];

/// Arguments of every call.
const QUIET: [&str; 3] = ["--batch-mode", "--key-file", "-"];

fn name(id: &Id) -> String {
    // Device mapper accepts names of 127 bytes.
    format!("flexvol-{}", &id.as_str()[id.as_str().len().saturating_sub(100)..])
}

/// Returns the path of the layer if it is open.
pub(super) fn path(id: &Id) -> PathBuf {
    Path::new("/dev/mapper").join(name(id))
}

/// Reports whether the layer may be open: true if that is unknown, and the layer's user checks
/// again.
pub(super) fn is_open(id: &Id) -> bool {
    path(id).try_exists().unwrap_or(true)
}

/// Reports whether the device below holds a layer that was never written to.
pub(super) fn is_fresh(below: BorrowedFd<'_>) -> Result<bool> {
    let mut header = [0; LABEL.end];
    let length = read_at(below, 0, &mut header).context("read the LUKS header")?;
    let label = header[LABEL].split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(length == header.len() && label == FRESH.as_bytes())
}

/// Reports whether making the layer ended before it had a key to open it: it cannot hold any data.
pub(super) fn is_half(below: BorrowedFd<'_>) -> Result<bool> {
    let mut text = vec![0; JSON.len()];
    let length = read_at(below, JSON.start as u64, &mut text).context("read the LUKS header")?;
    Ok(is_fresh(below)? && has_no_key(&text[..length]))
}

/// Reports whether the header has no key; false if it cannot be read, because it may have been
/// damaged later.
fn has_no_key(text: &[u8]) -> bool {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let header: Option<serde_json::Value> = serde_json::from_slice(text).ok();
    header.and_then(|header| Some(header.get("keyslots")?.as_object()?.is_empty())).unwrap_or(false)
}

/// Makes the layer on a blank device.
pub(super) fn format(device: &Path, passphrase: &Secret, tools: Tools<'_>) -> Result<()> {
    let program = cryptsetup([device])
        .args(["luksFormat", "--type", "luks2", "--label", FRESH])
        .args(DERIVATION)
        .args(QUIET)
        .args([device])
        .stdin(passphrase.line());
    tools.run_to_success(program).context("make the encryption").map(drop)
}

/// Opens the layer, after removing what a killed call left of it. The kernel's key ring is not
/// used, so that the layer can grow without the passphrase, which is not available then.
pub(super) fn open(
    device: &Path,
    id: &Id,
    passphrase: &Secret,
    read_only: bool,
    tools: Tools<'_>,
) -> Result<()> {
    clear(id, tools)?;
    let program = || {
        let program = cryptsetup([device]).args(["open", "--type", "luks", "--disable-keyring"]);
        let program = program.args(read_only.then_some("--readonly")).args(QUIET);
        program.args([device.as_os_str(), name(id).as_ref()])
    };
    with_passphrase(program, passphrase, tools)
}

/// Fails if the passphrase does not open the layer.
pub(super) fn test(device: &Path, passphrase: &Secret, tools: Tools<'_>) -> Result<()> {
    let words = ["open", "--type", "luks", "--test-passphrase"];
    let program = || cryptsetup([device]).args(words).args(QUIET).args([device]);
    with_passphrase(program, passphrase, tools)
}

/// Exit status of cryptsetup(8): no key with this passphrase.
const NO_KEY: i32 = 2;

fn with_passphrase(program: impl Fn() -> Invocation, passphrase: &Secret, tools: Tools<'_>) -> Result<()> {
    let line = passphrase.line();
    let mut outcome = tools.run(program().stdin(line.clone()))?;
    if outcome.status.code() == Some(NO_KEY) && line != *passphrase {
        // Made elsewhere, or by an earlier version: the line break is part of the passphrase.
        outcome = tools.run(program().stdin(passphrase.clone()))?;
    }
    match outcome.status.code() {
        Some(0) => Ok(()),
        Some(NO_KEY) => {
            let text = "the passphrase does not open the encrypted device: correct it in the Secret";
            Err(Failure::new(Code::Denied, text).into())
        }
        _ => Err(outcome.to_error("cryptsetup").into()),
    }
}

/// Closes the layer, or what is left of it; it is not in use any more.
pub(super) fn close(id: &Id, tools: Tools<'_>) -> Result<()> {
    if is_open(id) {
        close_layer(&name(id), tools)?;
    }
    clear(id, tools)
}

/// Closes the open layer with this name.
pub(super) fn close_layer(name: &str, tools: Tools<'_>) -> Result<()> {
    let program = of_layer(name).args(["close", name]);
    tools.run_to_success(program).context("close the encryption").map(drop)
}

/// Removes a device without a node: its creation was interrupted.
fn clear(id: &Id, tools: Tools<'_>) -> Result<()> {
    device_mapper::remove(&name(id), tools)
}

/// Grows the layer to the size of the device below.
pub(super) fn grow(id: &Id, tools: Tools<'_>) -> Result<()> {
    let name = name(id);
    let program = of_layer(&name).args(["resize", &name]);
    tools.run_to_success(program).context("grow the encryption").map(drop)
}

/// Marks the layer as written.
pub(super) fn is_written(below: &Path, tools: Tools<'_>) -> Result<()> {
    let program = cryptsetup([below]).args(["config", "--label", ""]).args([below]);
    tools.run_to_success(program).context("mark the encryption").map(drop)
}

/// Prepares a call of cryptsetup for an open layer.
fn of_layer(name: &str) -> Invocation {
    let above = Path::new("/dev/mapper").join(name);
    let below = device_mapper::layer(number_of(above.as_os_str())).map(|(_, below)| below);
    cryptsetup([above].iter().chain(&below))
}

/// Prepares a call of cryptsetup. It reads the header, which a tenant may have written: whatever
/// the header names, cryptsetup opens no other device and no file of the node.
fn cryptsetup(devices: impl IntoIterator<Item = impl AsRef<Path>>) -> Invocation {
    // cryptsetup makes this directory for its locks; access can only be granted to an existing one.
    let (run, locks) = (Path::new(RUN), Path::new(LOCKS));
    let _ = files::make_private(locks);
    let nodes = devices.into_iter().flat_map(|device| nodes(device.as_ref()));
    let reach =
        Reach::of_programs().files(nodes).files([device_mapper::control()]).nodes(Path::new("/dev/mapper"));
    device_mapper::without_udev(Invocation::of("cryptsetup")).reaching(reach.directory(run).own(locks))
}

/// Directory where cryptsetup begins, and the one in it where it locks headers.
const RUN: &str = "/run";
const LOCKS: &str = "/run/cryptsetup";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hints::to_failure;
    use flexvol_linux::block::loop_device::LoopDevice;
    use flexvol_linux::block::window::Window;
    use flexvol_linux::proc::helper::{HostRunner, Runner as _};
    use flexvol_linux::proc::process;
    use std::os::fd::AsFd as _;

    /// A layer that an earlier version made with the line break can be opened, too.
    #[test]
    fn a_line_break_is_no_part_of_a_passphrase() {
        if process::own_user() != 0 || HostRunner.find("cryptsetup").is_err() {
            return println!("SKIP passphrases of a layer: needs root and cryptsetup");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("device");
        let deadline = flexvol_linux::proc::deadline::Deadline::for_undo(std::time::Duration::from_mins(1));
        let tools = Tools::of_host(&deadline);
        let secret = |text: &str| Secret::new(text.as_bytes().to_vec());
        let make = || std::fs::File::create(&file).unwrap().set_len(32 << 20).unwrap();
        make();
        format(&file, &secret("hunter2\n"), tools).unwrap();
        test(&file, &secret("hunter2"), tools).unwrap();
        test(&file, &secret("hunter2\r\n"), tools).unwrap();
        assert_eq!(to_failure(test(&file, &secret("hunter\n"), tools).unwrap_err()).code(), Code::Denied);
        make();
        let whole = |program: Invocation| tools.run_to_success(program.stdin(secret("hunter2\n"))).unwrap();
        let words =
            ["luksFormat", "--type", "luks2", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
        whole(cryptsetup([&file]).args(words).args(QUIET).args([&file]));
        test(&file, &secret("hunter2\n"), tools).unwrap();
    }

    /// cryptsetup locks the header of a block device, but not that of a file.
    #[test]
    fn a_layer_on_a_block_device_is_made_and_opened() {
        if process::own_user() != 0 || HostRunner.find("cryptsetup").is_err() {
            return println!("SKIP a_layer_on_a_block_device: needs root and cryptsetup");
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(32 << 20).unwrap();
        let (window, name) = (Window::default(), Path::new("/luks"));
        let Ok(device) = LoopDevice::attach(file.as_fd(), name, &window, false, false) else {
            return println!("SKIP a_layer_on_a_block_device: needs a loop device");
        };
        let deadline = flexvol_linux::proc::deadline::Deadline::for_undo(std::time::Duration::from_mins(1));
        let (tools, secret) = (Tools::of_host(&deadline), Secret::new(b"hunter2".to_vec()));
        format(device.path(), &secret, tools).unwrap();
        test(device.path(), &secret, tools).unwrap();
        is_written(device.path(), tools).unwrap();
    }

    #[test]
    fn half_a_layer_has_no_key() {
        assert!(has_no_key(b"{\"keyslots\":{},\"digests\":{}}\0\0{"));
        for other in ["{\"keyslots\":{\"0\":{}}}", "{}", "", "{\"keyslots\":", "[]"] {
            assert!(!has_no_key(other.as_bytes()), "{other}");
        }
    }
}

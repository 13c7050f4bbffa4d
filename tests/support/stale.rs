//! A FUSE file system that answers ESTALE to whatever it is asked.

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

/// `FUSE_INIT`, the only request that is answered well, and those that nobody waits for an answer
/// to: `FUSE_FORGET`, `FUSE_BATCH_FORGET`, `FUSE_INTERRUPT`.
const INIT: u32 = 26;
const UNANSWERED: [u32; 3] = [2, 42, 36];

/// `struct fuse_init_out` of protocol 7.31.
const INIT_OUT: usize = 64;

/// Mounted until dropped.
pub(crate) struct Stale {
    target: PathBuf,
    server: Option<std::thread::JoinHandle<()>>,
}

impl Stale {
    pub(crate) fn mount(target: &Path) -> Self {
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        mount(Some("stale"), target, Some("fuse"), MsFlags::empty(), Some(options.as_str())).unwrap();
        let server = Some(std::thread::spawn(move || serve(device)));
        Self { target: target.to_owned(), server }
    }
}

impl Drop for Stale {
    fn drop(&mut self) {
        // Gone, if the test has unmounted it.
        let _ = umount2(&self.target, MntFlags::MNT_DETACH);
        self.server.take().unwrap().join().unwrap();
    }
}

/// Until it is unmounted.
fn serve(mut device: File) {
    let mut request = vec![0; 1 << 17];
    loop {
        match device.read(&mut request) {
            Ok(length) if length >= 40 => {}
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => continue,
            Err(error) if error.raw_os_error() == Some(Errno::EINTR as i32) => continue,
            _ => return,
        }
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        if UNANSWERED.contains(&word(4)) {
            continue;
        }
        let mut answer = Vec::new();
        let body = if word(4) == INIT { init_out() } else { Vec::new() };
        let error = if word(4) == INIT { 0 } else { -(Errno::ESTALE as i32) };
        answer.extend(u32::try_from(16 + body.len()).unwrap().to_ne_bytes());
        answer.extend(error.to_ne_bytes());
        answer.extend(&request[8..16]);
        answer.extend(body);
        // Whoever asked may be gone.
        let _ = device.write(&answer);
    }
}

fn init_out() -> Vec<u8> {
    let mut out: Vec<u8> = [7_u32, 31, 1 << 16, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    out.extend([12_u16, 9].iter().flat_map(|half| half.to_ne_bytes()));
    out.extend((1_u32 << 16).to_ne_bytes());
    out.resize(INIT_OUT, 0);
    out
}

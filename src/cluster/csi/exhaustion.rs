//! What a node has run out of, and will have again: kubelet is told to ask later.

use rustix::io::Errno;

/// Descriptors, processes, memory, disk.
const EXHAUSTION: [Errno; 6] =
    [Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM, Errno::NOSPC, Errno::DQUOT];

/// Whether a program was not started for want of something, as the standard library says it.
pub fn is_reason(reason: &str) -> bool {
    EXHAUSTION.iter().any(|errno| std::io::Error::from(*errno).to_string() == reason)
}

/// The same of what this process could not do.
pub fn is_cause(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let errno = cause.downcast_ref::<Errno>().copied();
        let errno = errno.or_else(|| Errno::from_io_error(cause.downcast_ref::<std::io::Error>()?));
        errno.is_some_and(|errno| EXHAUSTION.contains(&errno))
    })
}

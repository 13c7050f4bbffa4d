//! Exhausted resources of a node, which will be free again: kubelet is told to retry later.

use rustix::io::Errno;

/// Errors for a lack of descriptors, processes, memory or disk space.
const EXHAUSTION: [Errno; 6] =
    [Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM, Errno::NOSPC, Errno::DQUOT];

/// Reports whether a program was not started for lack of a resource. `reason` is the text of the
/// standard library.
pub fn is_reason(reason: &str) -> bool {
    EXHAUSTION.iter().any(|errno| std::io::Error::from(*errno).to_string() == reason)
}

/// Reports whether this process failed for lack of a resource.
pub fn is_cause(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let errno = cause.downcast_ref::<Errno>().copied();
        let errno = errno.or_else(|| Errno::from_io_error(cause.downcast_ref::<std::io::Error>()?));
        errno.is_some_and(|errno| EXHAUSTION.contains(&errno))
    })
}

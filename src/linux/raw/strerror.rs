//! In the place of the C library's own: the words of errors are glibc's, whatever it is linked
//! with.
//!
//! All errors of Rust's standard library get their words here.

use flexvol_protocol::errno_words;
use nix::libc::{self, c_char, c_int, size_t};
use std::ffi::CStr;

/// As POSIX wants it: the words of `number`, cut to `length` with the zero at their end.
// SAFETY: the signature is the C library's, and nothing else in the program has the name: the
// archive's member of that name is linked only where a name is missing.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
#[cfg_attr(not(target_env = "musl"), allow(dead_code, reason = "glibc has its own"))]
unsafe extern "C" fn __xpg_strerror_r(number: c_int, buffer: *mut c_char, length: size_t) -> c_int {
    // SAFETY: the C library gives a text that is never changed, for whatever number.
    let own = || unsafe { CStr::from_ptr(libc::strerror(number)) }.to_bytes();
    let words = errno_words::of(number).map_or_else(own, str::as_bytes);
    let Some(room) = length.checked_sub(1) else { return libc::ERANGE };
    let count = words.len().min(room);
    // SAFETY: the caller has so many bytes there, and nobody else writes to them.
    unsafe {
        buffer.copy_from_nonoverlapping(words.as_ptr().cast(), count);
        buffer.add(count).write(0);
    }
    if count < words.len() { libc::ERANGE } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(number: i32, length: usize) -> (i32, String) {
        let mut buffer = vec![1 as c_char; 128];
        // SAFETY: the buffer is longer.
        let status = unsafe { __xpg_strerror_r(number, buffer.as_mut_ptr(), length) };
        // SAFETY: a zero is at the end, which is asked for.
        let text = unsafe { CStr::from_ptr(buffer.as_ptr()) };
        (status, text.to_str().unwrap().to_owned())
    }

    #[test]
    fn words_are_glibc_s_and_fit() {
        assert_eq!(words(110, 128), (0, "Connection timed out".to_owned()));
        assert_eq!(words(2, 128), (0, "No such file or directory".to_owned()));
        assert_eq!(words(110, 11), (libc::ERANGE, "Connection".to_owned()));
    }
}

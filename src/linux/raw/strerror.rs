//! Replacement for the C library's own: the texts of errors are those of glibc, with any C library.
//!
//! All errors of Rust's standard library get their texts here.

use flexvol_protocol::errno_words;
use nix::libc::{self, c_char, c_int, size_t};
use std::ffi::CStr;

/// Writes the text of `number`, cut to `length` including the final zero, as POSIX requires.
// SAFETY: the signature is the C library's, and no other symbol in the program has the name: the
// archive's member of that name is linked only where a name is missing.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
#[cfg_attr(not(target_env = "musl"), allow(dead_code, reason = "glibc has its own"))]
unsafe extern "C" fn __xpg_strerror_r(number: c_int, buffer: *mut c_char, length: size_t) -> c_int {
    // SAFETY: the C library returns a text that never changes, for any number.
    let own = || unsafe { CStr::from_ptr(libc::strerror(number)) }.to_bytes();
    let words = errno_words::of(number).map_or_else(own, str::as_bytes);
    let Some(room) = length.checked_sub(1) else { return libc::ERANGE };
    let count = words.len().min(room);
    // SAFETY: the caller has this many bytes there, and no other code writes to them.
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
        // SAFETY: the buffer has at least `length` bytes.
        let status = unsafe { __xpg_strerror_r(number, buffer.as_mut_ptr(), length) };
        // SAFETY: the text ends with a zero, as requested.
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

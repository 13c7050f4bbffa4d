//! Words for errors of the kernel. People, and searches for a message, know the words of glibc. A
//! program that is linked with musl has other words, and none for some errors.

/// Number, musl's words or an empty text, and glibc's words. The list has numbers whose words
/// differ and that a file system, a device or a network may return.
const DIFFERENT: &[(i32, &str, &str)] = &[
    (5, "I/O error", "Input/output error"),
    (10, "No child process", "No child processes"),
    (12, "Out of memory", "Cannot allocate memory"),
    (16, "Resource busy", "Device or resource busy"),
    (24, "No file descriptors available", "Too many open files"),
    (25, "Not a tty", "Inappropriate ioctl for device"),
    (36, "Filename too long", "File name too long"),
    (40, "Symbolic link loop", "Too many levels of symbolic links"),
    (52, "", "Invalid exchange"),
    (70, "", "Communication error on send"),
    (75, "Value too large for data type", "Value too large for defined data type"),
    (85, "", "Interrupted system call should be restarted"),
    (88, "Not a socket", "Socket operation on non-socket"),
    (90, "Message too large", "Message too long"),
    (95, "Not supported", "Operation not supported"),
    (98, "Address in use", "Address already in use"),
    (99, "Address not available", "Cannot assign requested address"),
    (101, "Network unreachable", "Network is unreachable"),
    (103, "Connection aborted", "Software caused connection abort"),
    (106, "Socket is connected", "Transport endpoint is already connected"),
    (107, "Socket not connected", "Transport endpoint is not connected"),
    (108, "Cannot send after socket shutdown", "Cannot send after transport endpoint shutdown"),
    (110, "Operation timed out", "Connection timed out"),
    (113, "Host is unreachable", "No route to host"),
    (115, "Operation in progress", "Operation now in progress"),
    (117, "", "Structure needs cleaning"),
    (122, "Quota exceeded", "Disk quota exceeded"),
];

/// Numbers whose words in musl have no other meaning elsewhere.
const UNMISTAKABLE: &[i32] = &[5, 16, 24, 36, 40, 98, 107, 110, 113, 122];

/// Returns glibc's words for a number, if musl has others.
pub fn of(number: i32) -> Option<&'static str> {
    DIFFERENT.iter().find(|(known, ..)| *known == number).map(|(.., words)| *words)
}

/// Returns a text in lower case, with glibc's words in place of musl's.
pub fn translated(text: &str) -> String {
    let unmistakable = |(number, ..): &&(i32, &str, &str)| UNMISTAKABLE.contains(number);
    DIFFERENT.iter().filter(unmistakable).fold(text.to_owned(), |text, (_, musl, glibc)| {
        let (musl, glibc) = (musl.to_lowercase(), glibc.to_lowercase());
        // Musl's words may be a part of glibc's: `quota exceeded`.
        if text.contains(&musl) && !text.contains(&glibc) { text.replace(&musl, &glibc) } else { text }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_this_c_library() {
        for (number, musl, words) in DIFFERENT {
            let here = std::io::Error::from_raw_os_error(*number).to_string();
            assert!(here.starts_with(words) || here.starts_with(musl), "{number}: {here}");
        }
        assert_eq!((of(5), of(2)), (Some("Input/output error"), None));
    }

    #[test]
    fn words_of_musl_are_understood() {
        let text = "a: operation timed out; b: i/o error; c: quota exceeded; d: not supported";
        let glibc =
            "a: connection timed out; b: input/output error; c: disk quota exceeded; d: not supported";
        assert_eq!((translated(text), translated(glibc)), (glibc.to_owned(), glibc.to_owned()));
    }
}

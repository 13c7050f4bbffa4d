//! Options of a call: one JSON object of strings. Kubelet writes a part of them, users who may make
//! pods write the rest, and the driver that reads them runs as root.

mod access;
mod text;
mod values;

use crate::check::case::{How, Scene};

pub(super) use values::{names, places};

pub(in crate::check) const SCENES: &[Scene] = &[
    ("options::escapes", How::Played(text::escapes)),
    ("options::unknown_keys", How::Played(text::unknown_keys)),
    ("options::empty_fs_type", How::Played(text::empty_fs_type)),
    ("options::order_and_blanks", How::Played(text::order_and_blanks)),
    ("options::long", How::Played(text::long)),
    ("options::malformed", How::Played(text::malformed)),
    ("options::strings_only", How::Played(text::strings_only)),
    ("options::duplicate_keys", How::Played(text::duplicate_keys)),
    ("options::unicode", How::Played(text::unicode)),
    ("options::shell", How::Played(values::shell)),
    ("options::injection", How::Played(values::injection)),
    ("options::paths", How::Played(values::paths)),
    ("options::missing", How::Played(values::missing)),
    ("options::unknown_value", How::Played(values::unknown_value)),
    ("options::read_only", How::Played(access::read_only)),
    ("options::read_write", How::Played(access::read_write)),
    ("options::ro_wins", How::Played(access::ro_wins)),
    ("options::other_case_key", How::Played(access::other_case_key)),
    ("options::fs_group", How::Played(access::fs_group)),
    ("options::without_pod", How::Played(access::without_pod)),
    ("options::pod_names", How::Played(access::pod_names)),
];

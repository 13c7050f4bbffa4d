//! One object of a file.

use super::node::Node;
use crate::objects::Key;

/// One object.
#[derive(Clone, Debug)]
pub(super) struct Object<'a> {
    pub(super) file: &'a str,
    pub(super) kind: &'a str,
    pub(super) node: Node<'a>,
    pub(super) key: Key,
}

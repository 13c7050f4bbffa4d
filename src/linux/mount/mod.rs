//! Mounts: made so that they become visible in one step, listed, checked for an answer.

mod api;
pub mod mount_health;
pub mod mount_table;
pub mod place;
pub mod users;

pub use api::{
    BindMount, Fill, NewMount, Parameter, Value, Way, abort, bind, detached, identity, mount, mount_filled,
    put, restrict, tree, unmount,
};

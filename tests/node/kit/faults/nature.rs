//! Promises that a file system does not keep.

use super::Fault;
use super::Reference::Tmpfs;

pub(super) const FAULTS: &[Fault] = &[Fault {
    name: "no-labels",
    what: "says that its files can be labelled, and stores no labels: NFS and CIFS drivers",
    of: Tmpfs,
    change: &[("-t tmpfs -o \"nosuid,nodev,mode=0777,size=${1%i}\"", "-t ramfs -o nosuid,nodev,mode=0777")],
    fails: &["labels::relabel"],
}];

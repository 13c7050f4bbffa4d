//! Invariants of every state.

use super::*;

impl World {
    /// Returns the invariants that are broken.
    pub(in crate::fence) fn wrong(&self, setting: &Setting) -> Vec<&'static str> {
        let writes = |pod: &usize| self.pods[*pod].attached && !self.node(setting, *pod).fenced;
        let attached: Vec<_> = (0..self.pods.len()).filter(writes).collect();
        let clashes = attached.iter().any(|one| attached.iter().any(|other| clash(setting, *one, *other)));
        let epoch = self.kept.as_ref().map_or(0, |kept| kept.epoch);
        let found = [
            clashes.then_some("never two writers"),
            attached.iter().any(|pod| self.held(*pod).is_none()).then_some("released after detached"),
            (epoch < self.highest).then_some("epochs never fall"),
        ];
        found.into_iter().flatten().collect()
    }

    /// Reports whether a pod has the storage attached.
    pub(in crate::fence) fn has(&self, pod: usize) -> bool {
        self.pods[pod].attached
    }
}

/// Reports whether two pods must not have the storage at the same time.
fn clash(setting: &Setting, one: usize, other: usize) -> bool {
    let (a, b) = (setting.pods[one], setting.pods[other]);
    let content = match (a.sharing, b.sharing) {
        _ if one == other || a.read_only && b.read_only => true,
        (Sharing::ExclusivePerNode, Sharing::ExclusivePerNode) => a.node == b.node,
        (Sharing::SharedReadWrite, Sharing::SharedReadWrite) => true,
        _ => false,
    };
    !content
}

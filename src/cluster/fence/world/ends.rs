//! End of a pod, and the reaction of its agent.

use super::*;

impl World {
    /// kubelet unmounts the volume of a pod that ends. This needs no store.
    pub(super) fn detach(&mut self, setting: &Setting, pod: usize) -> Option<()> {
        let node = self.node(setting, pod);
        let it = &self.pods[pod];
        let ends = it.api != PodState::Present && !node.off && matches!(it.op, Op::Idle | Op::Go);
        (ends && it.runs).then(|| {
            self.pods[pod].runs = false;
            self.pods[pod].op = Op::Detached;
            self.pods[pod].attached &= self.releases_first(setting);
        })
    }

    fn releases_first(&self, setting: &Setting) -> bool {
        setting.broken == Broken::ReleaseFirst && self.kept.is_some()
    }

    pub(super) fn release(&mut self, setting: &Setting, pod: usize) -> Option<()> {
        self.reaches(setting, pod)?;
        let it = &self.pods[pod];
        // After a kill, the journal shows that the volume was unmounted.
        let unmounted = it.op == Op::Detached || it.op == Op::Idle && !it.runs && self.held(pod).is_some();
        if !unmounted {
            return None;
        }
        let left = if it.attached && !self.releases_first(setting) { Left::Attached } else { Left::Nothing };
        let request = Request::EndUnmount { id: setting.me(self, pod).id, left };
        let (pending, reply) = self.decide(setting, pod, &request);
        if pending.is_none() {
            self.released(pod);
        }
        self.carry_on(pod, pending, &reply);
        Some(())
    }

    pub(super) fn released(&mut self, pod: usize) {
        let it = &mut self.pods[pod];
        (it.op, it.api, it.attached) = (Op::Idle, PodState::Gone, false);
    }

    /// Lets the agent carry out a task that another node has left.
    pub(super) fn work(&mut self, setting: &Setting, pod: usize) -> Option<()> {
        self.reaches(setting, pod)?;
        let epoch = self.pods[pod].task.filter(|_| self.pods[pod].op == Op::Idle)?;
        let left = if self.pods[pod].attached { Left::Attached } else { Left::Nothing };
        let request = Request::CleanUp { id: setting.me(self, pod).id, epoch: epoch.into(), left };
        // The API server is asked, not the node itself.
        let mut elsewhere = self.clone();
        elsewhere.pods[pod].runs = self.pods[pod].api != PodState::Gone;
        let (pending, reply) = elsewhere.decide(setting, pod, &request);
        if matches!(reply, Reply::Obsolete | Reply::Done) {
            self.pods[pod].task = None;
        }
        if reply == Reply::Undo {
            self.pods[pod].runs = false;
        }
        self.carry_on(pod, pending, &reply);
        Some(())
    }
}

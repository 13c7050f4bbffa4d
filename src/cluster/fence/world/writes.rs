//! Results of writes that are under way, and deletion of pods in the API server.

use super::*;

impl World {
    pub(super) fn deliver(&mut self, setting: &Setting, pod: usize, event: Event) -> Option<()> {
        let Op::Writing(pending) = self.pods[pod].op.clone() else { return None };
        let node = self.node(setting, pod);
        // A node that is cut off gets no answer; its request may have arrived.
        if node.off || node.cut && matches!(event, Event::Answered(_)) {
            return None;
        }
        self.pods[pod].op = Op::Idle;
        match event {
            Event::RequestLate(_) if self.late.is_some() => return None,
            Event::RequestLate(_) => self.late = Some((pending.next, pending.fresh)),
            Event::ReplyLost(_) => drop(self.write(setting, pending.next, pending.fresh)),
            Event::Answered(_) if self.write(setting, pending.next, pending.fresh) => match pending.then {
                Then::Go(epoch) => {
                    self.pods[pod].epoch = epoch;
                    self.pods[pod].op = Op::Go;
                }
                Then::Released => self.released(pod),
                Then::Noted => (),
            },
            _ => (),
        }
        Some(())
    }

    /// Writes by compare-and-swap. Returns true on success.
    pub(super) fn write(&mut self, setting: &Setting, next: Option<Kept>, fresh: bool) -> bool {
        if !fresh && setting.broken != Broken::BlindWrite {
            return false;
        }
        self.kept = next;
        self.highest = self.highest.max(self.kept.as_ref().map_or(0, |kept| kept.epoch));
        for pod in &mut self.pods {
            if let Op::Writing(pending) = &mut pod.op {
                pending.fresh = false;
            }
        }
        for (_, fresh) in [&mut self.late, &mut self.review].into_iter().flatten() {
            *fresh = false;
        }
        true
    }

    pub(super) fn late_arrives(&mut self, setting: &Setting) -> Option<()> {
        let (next, fresh) = self.late.take()?;
        self.write(setting, next, fresh);
        Some(())
    }

    /// Lets a controller read and decide. Its write arrives later, or never.
    pub(super) fn review(&mut self, setting: &Setting) -> Option<()> {
        if self.review.is_some() {
            return None;
        }
        let pending = self.decide_from(setting, setting.nodes, &Request::Review).0?;
        self.review = Some((pending.next, true));
        Some(())
    }

    pub(super) fn reviewed(&mut self, setting: &Setting) -> Option<()> {
        let (next, fresh) = self.review.take()?;
        self.write(setting, next, fresh);
        Some(())
    }

    pub(super) fn delete(&mut self, event: Event) -> Option<()> {
        match event {
            Event::Delete(pod) if self.pods[pod].api == PodState::Present => {
                self.pods[pod].api = PodState::Terminating;
            }
            Event::ForceDelete(pod) => self.pods[pod].api = PodState::Gone,
            _ => return None,
        }
        Some(())
    }
}

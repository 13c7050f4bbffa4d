//! Events of nodes and their agents.

use super::*;

impl World {
    pub(super) fn happens_to_node(&mut self, setting: &Setting, event: Event) -> Option<()> {
        match event {
            Event::Serve(at) => return self.serve(setting, at),
            Event::AgentKilled(at) => return self.kill_agent(setting, at),
            Event::PowerOff(at) if !self.nodes[at].off && self.nodes[at].boot < setting.boots => {
                self.kill_agent(setting, at);
                self.nodes[at].off = true;
                for pod in self.pods_of(setting, at) {
                    self.pods[pod].attached = false;
                    // kubelet starts them again, if they still exist.
                }
            }
            Event::PowerOn(at) if self.nodes[at].off => {
                let node = &mut self.nodes[at];
                (node.off, node.boot) = (false, node.boot + 1);
                for pod in self.pods_of(setting, at) {
                    self.pods[pod].runs &= self.pods[pod].api == PodState::Present;
                }
            }
            Event::CutOff(at) if !self.nodes[at].off && !self.nodes[at].cut => self.nodes[at].cut = true,
            Event::Healed(at) if self.nodes[at].cut => {
                self.nodes[at].cut = false;
                self.nodes[at].serves = false;
            }
            Event::Taint(at) => {
                let cut = self.nodes[at].cut && setting.broken == Broken::TaintWithoutPowerOff;
                (self.nodes[at].off || cut).then(|| self.nodes[at].tainted = true)?;
            }
            Event::Untaint(at) if !self.nodes[at].off => self.nodes[at].tainted = false,
            // The node's kubelet reports the boot.
            Event::Report(at) if !self.nodes[at].off && !self.nodes[at].cut => {
                self.nodes[at].shown = self.nodes[at].boot;
            }
            Event::RemoveNode(at) if self.nodes[at].off || self.nodes[at].cut => {
                self.nodes[at].removed = true;
            }
            _ => return None,
        }
        Some(())
    }

    fn pods_of(&self, setting: &Setting, node: usize) -> Vec<usize> {
        (0..self.pods.len()).filter(|pod| setting.pods[*pod].node == node).collect()
    }

    /// Kills the agent. If its write still arrives, `RequestLate` came before the kill.
    fn kill_agent(&mut self, setting: &Setting, at: usize) -> Option<()> {
        (!self.nodes[at].off).then(|| {
            self.nodes[at].serves = false;
            for pod in self.pods_of(setting, at) {
                self.pods[pod].op = Op::Idle;
            }
        })
    }

    /// Starts to serve, after the agent has checked its journal.
    fn serve(&mut self, setting: &Setting, at: usize) -> Option<()> {
        let node = self.nodes[at];
        let unreported = node.shown != node.boot && setting.broken != Broken::ServesUnreported;
        let tainted = node.tainted && setting.broken != Broken::ServesTainted;
        if node.serves || node.off || node.cut || unreported || tainted {
            return None;
        }
        let mut kept = false;
        for pod in self.pods_of(setting, at) {
            let it = &self.pods[pod];
            // Operations from before the cut are started again.
            if matches!(it.op, Op::Writing(_) | Op::Go) {
                self.pods[pod].op = Op::Idle;
            }
            if !self.pods[pod].attached || setting.broken == Broken::NoReturn {
                continue;
            }
            let epoch = self.pods[pod].epoch.into();
            let request = Request::Return { id: setting.me(self, pod).id, epoch, agent: "anew".to_owned() };
            match self.decide(setting, pod, &request).1 {
                Reply::Keep => kept = true,
                _ => self.undo(pod),
            }
        }
        if kept && setting.broken != Broken::ReturnUnwritten {
            let same = self.kept.clone();
            self.write(setting, same, true);
        }
        self.nodes[at].serves = true;
        self.nodes[at].fenced = false;
        Some(())
    }
}

//! Check that the volumes of a group are unused: by pods, nodes, attachments and the locks of a
//! node's agent, which records its mount table in the cluster.

use super::context::{AGAIN, Run};
use super::found::{Found, Pod, text};
use super::make::is_of;
use super::plan::{Claim, Group, Volume};
use crate::controllers::blocking::Answer;
use crate::fence::record::{Holder, Record};
use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Path of the agents' locks in the API.
const LOCKS: &str = "/apis/flexvol.dev/v1alpha1/flexattachments";

/// Users of a group.
pub(super) struct Unused<'a> {
    run: &'a Run<'a>,
    group: &'a Group,
    /// Nodes where pods ran, or where a volume was attached.
    nodes: BTreeSet<String>,
}

impl<'a> Unused<'a> {
    pub(super) fn of(run: &'a Run<'a>, group: &'a Group) -> Self {
        let nodes = group.volumes.iter().flat_map(|volume| volume.nodes.iter().cloned()).collect();
        Self { run, group, nodes }
    }

    /// Waits until the group is unused.
    pub(super) fn wait(mut self, at_most: Duration) -> Result<()> {
        let begun = Instant::now();
        while let Some(user) = self.user()? {
            if begun.elapsed() > at_most {
                bail!(
                    "{user} after {} s: end that, and run this again, or go back with migrate rollback",
                    at_most.as_secs()
                );
            }
            sleep(AGAIN);
        }
        Ok(())
    }

    /// Returns a user of one of the volumes, as a part of a message.
    fn user(&mut self) -> Result<Option<String>> {
        for (namespace, claims) in self.claims() {
            let pods = pods(self.run, &namespace, &claims)?;
            self.nodes.extend(pods.iter().map(|pod| pod.node.clone()).filter(|node| !node.is_empty()));
            if self.run.plan.selection.delete_completed {
                pods.iter().filter(|pod| pod.ended).try_for_each(|pod| self.delete(pod))?;
            }
            if let Some(pod) = pods.first() {
                return Ok(Some(format!("pod {}/{} is still there", pod.namespace, pod.name)));
            }
        }
        for node in &self.nodes {
            if let Some(user) = self.on_node(node)? {
                return Ok(Some(user));
            }
        }
        if let Some(user) = self.attached()? {
            return Ok(Some(user));
        }
        self.held()
    }

    /// Returns the claims of each namespace.
    fn claims(&self) -> Vec<(String, BTreeSet<&'a str>)> {
        let mut all: Vec<(String, BTreeSet<&str>)> = Vec::new();
        for Claim { namespace, name, .. } in
            self.group.volumes.iter().filter_map(|volume| volume.claim.as_ref())
        {
            match all.iter_mut().find(|(of, _)| of == namespace) {
                Some((_, claims)) => drop(claims.insert(name)),
                None => all.push((namespace.clone(), BTreeSet::from([&**name]))),
            }
        }
        all
    }

    fn delete(&self, pod: &Pod) -> Result<()> {
        let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
        let Some(found) = self.run.session.get(&path)? else { return Ok(()) };
        if !matches!(found["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) {
            return Ok(());
        }
        let options = json!({"preconditions": {"uid": found["metadata"]["uid"]}});
        let name = format!("Pod {}/{}", pod.namespace, pod.name);
        match self.run.write(&name, "delete", ("DELETE", &path, Some(options)))? {
            Answer::Refused(why) => bail!("delete pod {}/{}: {why}", pod.namespace, pod.name),
            _ => Ok(()),
        }
    }

    /// Returns the use on a node. A node that does not report may still write.
    fn on_node(&self, name: &str) -> Result<Option<String>> {
        let mut found = Found::default();
        let Some(node) = self.run.session.get(&format!("/api/v1/nodes/{name}"))? else {
            return Ok(Some(format!("node {name} is gone, and whether its machine is off is not known")));
        };
        found.add_node(&node);
        let Some(node) = found.nodes.get(name) else { return Ok(None) };
        if !node.ready {
            return Ok(Some(format!("node {name} does not report, and may still write")));
        }
        let is_here = |volume: &Volume| {
            let is_its = |unique: &String| {
                is_of(unique, &volume.before, &volume.name) || is_of(unique, &volume.after, &volume.name)
            };
            node.volumes.iter().any(is_its)
        };
        let volume = self.group.volumes.iter().find(|volume| is_here(volume));
        Ok(volume.map(|volume| format!("PersistentVolume {} is still attached to node {name}", volume.name)))
    }

    fn attached(&self) -> Result<Option<String>> {
        let mut user = None;
        self.run.session.list("/apis/storage.k8s.io/v1/volumeattachments", |object| {
            let name = text(&object["spec"]["source"], "persistentVolumeName");
            if self.group.volumes.iter().any(|volume| volume.name == name) {
                let node = text(&object["spec"], "nodeName");
                user = Some(format!("PersistentVolume {name} is still attached to node {node}"));
            }
        })?;
        Ok(user)
    }

    /// Returns the holder of a lock, in a cluster with agents.
    fn held(&self) -> Result<Option<String>> {
        let mut user = None;
        self.run.session.list(LOCKS, |object| {
            let Ok(record) = Record::from_json(&object["spec"]) else {
                let name = text(&object["metadata"], "name");
                user = Some(format!("lock {name} cannot be read, so whose it is not known"));
                return;
            };
            for Holder { target, node, .. } in &record.holders {
                if let Some(volume) = self.group.volumes.iter().find(|volume| is_below(target, &volume.name))
                {
                    let (name, node) = (&volume.name, &node.name);
                    user = Some(format!("PersistentVolume {name} is still mounted on node {node}"));
                }
            }
        })?;
        Ok(user)
    }

    /// Returns a pod that uses the volume and has a node.
    pub(super) fn pod_of(run: &Run<'_>, volume: &Volume) -> Result<Option<String>> {
        let Some(Claim { namespace, name, .. }) = &volume.claim else { return Ok(None) };
        let pods = pods(run, namespace, &BTreeSet::from([&**name]))?;
        let pod = pods.into_iter().find(|pod| !pod.node.is_empty());
        Ok(pod.map(|pod| format!("{}/{}", pod.namespace, pod.name)))
    }
}

fn pods(run: &Run<'_>, namespace: &str, claims: &BTreeSet<&str>) -> Result<Vec<Pod>> {
    let mut found = Found::default();
    run.session
        .list(&format!("/api/v1/namespaces/{namespace}/pods"), |object: Value| found.add_pod(&object))?;
    let uses = |pod: &Pod| pod.claims.iter().any(|claim| claims.contains(&**claim));
    Ok(found.pods.into_iter().filter(uses).collect())
}

/// Reports whether a path is `…/volumes/PLUGIN/NAME`, or below it.
fn is_below(target: &str, name: &str) -> bool {
    let parts: Vec<_> = target.split('/').collect();
    parts.windows(3).any(|window| window[0] == "volumes" && window[2] == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_known_by_its_path() {
        let pod = "/var/lib/kubelet/pods/8";
        assert!(is_below(&format!("{pod}/volumes/fstab~cifs/web"), "web"));
        assert!(is_below(&format!("{pod}/volumes/kubernetes.io~csi/web/mount"), "web"));
        assert!(!is_below(&format!("{pod}/volumes/fstab~cifs/web-2"), "web"));
        assert!(!is_below("/var/lib/kubelet/web", "web"));
    }
}

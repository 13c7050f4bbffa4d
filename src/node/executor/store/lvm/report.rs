//! LVM's report about the volumes of a group.

use super::IN_USE;
use anyhow::{Context as _, Result};
use flexvol_model::plan::LogicalVolume;
use flexvol_protocol::failure::{Code, Failure};
use serde::Deserialize;

/// Fields of the report.
pub(super) const FIELDS: &str = "lv_name,lv_size,lv_tags,lv_layout,lv_role,pool_lv,vg_lock_type,vg_systemid";

/// Volumes of a group.
#[derive(Debug, Default)]
pub(super) struct Report(Vec<Volume>);

/// Volume in such a report.
#[derive(Debug, Deserialize)]
pub(super) struct Volume {
    #[serde(rename = "lv_name")]
    pub(super) name: String,
    #[serde(rename = "lv_size")]
    size: String,
    #[serde(rename = "lv_tags")]
    tags: String,
    #[serde(rename = "lv_layout")]
    layout: String,
    #[serde(rename = "lv_role")]
    role: String,
    /// Thin pool that contains the volume.
    #[serde(rename = "pool_lv")]
    pub(super) pool: String,
    #[serde(rename = "vg_lock_type")]
    lock_type: String,
    #[serde(rename = "vg_systemid")]
    system_id: String,
}

#[derive(Deserialize)]
struct Printed {
    report: Vec<Section>,
}

#[derive(Deserialize)]
struct Section {
    lv: Vec<Volume>,
}

impl Report {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let printed: Printed = serde_json::from_str(text).context("read what LVM says")?;
        Ok(Self(printed.report.into_iter().flat_map(|section| section.lv).collect()))
    }

    pub(super) fn get(&self, name: &str) -> Option<&Volume> {
        self.0.iter().find(|volume| volume.name == name)
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Volume> {
        let place = self.0.iter().position(|volume| volume.name == name)?;
        Some(self.0.swap_remove(place))
    }

    /// Refuses a volume that another node uses; in a thin pool, any volume of the pool counts.
    pub(super) fn refuse_other_nodes(
        &self,
        volume: &LogicalVolume,
        pool: Option<&String>,
        own: &str,
    ) -> Result<()> {
        let pool = pool.filter(|pool| !pool.is_empty());
        let concerns =
            |other: &&Volume| other.name == volume.volume || pool.is_some_and(|pool| other.pool == *pool);
        let user = |other: &Volume| Some((other.name.clone(), other.other_node(own)?.to_owned()));
        let Some((name, node)) = self.0.iter().filter(concerns).find_map(user) else { return Ok(()) };
        let group = &volume.group;
        let text = format!(
            "{group}/{name} is in use by node {node}: unmount it there, or if that node is gone for good, \
             lvchange --deltag {IN_USE}{node} {group}/{name}"
        );
        Err(Failure::new(Code::Busy, text).into())
    }
}

impl Volume {
    pub(super) fn tags(&self) -> impl Iterator<Item = &str> {
        self.tags.split(',')
    }

    pub(super) fn is_tagged(&self, tag: &str) -> bool {
        self.tags().any(|other| other == tag)
    }

    /// Returns another node that uses the volume: its tag differs from ours.
    fn other_node(&self, own: &str) -> Option<&str> {
        let mut tags = self.tags().filter(|tag| *tag != own);
        tags.find_map(|tag| tag.strip_prefix(IN_USE))
    }

    pub(super) fn size(&self) -> Result<u64> {
        self.size.parse().with_context(|| format!("read the size of {}", self.name))
    }

    /// Reports whether LVM itself guards the group: it has a lock manager or an owner.
    pub(super) fn is_guarded(&self) -> bool {
        !self.system_id.is_empty() || !["", "none"].contains(&self.lock_type.as_str())
    }

    pub(super) fn is_thin(&self) -> bool {
        !self.pool.is_empty()
    }

    /// Reports whether other nodes could use the volume at the same time without noticing.
    pub(super) fn needs_tag(&self, read_only: bool) -> bool {
        !self.is_guarded() && (self.is_thin() || !read_only)
    }

    /// Refuses a part of another volume, a pool and a snapshot beside its origin: they cannot be
    /// mounted.
    pub(super) fn refuse_unfit(&self, volume: &LogicalVolume) -> Result<()> {
        let says = |list: &str, word: &str| list.split(',').any(|said| said == word);
        let what = match () {
            () if says(&self.layout, "pool") => "a pool",
            () if !says(&self.role, "public") => "a part of another volume",
            () if says(&self.role, "thicksnapshot") => "a snapshot that is stored beside its origin",
            () => return Ok(()),
        };
        let text = format!("{} is {what}: name a volume that holds a file system", volume.name());
        Err(Failure::new(Code::Conflict, text).into())
    }
}

#[cfg(test)]
mod tests {
    use super::super::FRESH;
    use super::*;

    const SAID: &str = r#"
  {
      "report": [
          {
              "lv": [
                  {"lv_name":"l-1", "lv_size":"109051904", "lv_tags":"a,flexvol.in-use.n1", "lv_layout":"linear", "lv_role":"public,origin,thickorigin", "pool_lv":"", "vg_lock_type":"", "vg_systemid":""},
                  {"lv_name":"snap", "lv_size":"20971520", "lv_tags":"", "lv_layout":"linear", "lv_role":"public,snapshot,thicksnapshot", "pool_lv":"", "vg_lock_type":"", "vg_systemid":""},
                  {"lv_name":"tp", "lv_size":"209715200", "lv_tags":"", "lv_layout":"thin,pool", "lv_role":"private", "pool_lv":"", "vg_lock_type":"", "vg_systemid":""},
                  {"lv_name":"t-1", "lv_size":"512", "lv_tags":"flexvol.in-use.n2,flexvol.unformatted", "lv_layout":"thin,sparse", "lv_role":"public", "pool_lv":"tp", "vg_lock_type":"", "vg_systemid":""},
                  {"lv_name":"t-2", "lv_size":"512", "lv_tags":"", "lv_layout":"thin,sparse", "lv_role":"public", "pool_lv":"tp", "vg_lock_type":"", "vg_systemid":""},
                  {"lv_name":"tp_tdata", "lv_size":"512", "lv_tags":"", "lv_layout":"linear", "lv_role":"private,thin,pool,data", "pool_lv":"", "vg_lock_type":"sanlock", "vg_systemid":""}
              ]
          }
      ]
  }"#;

    fn asked(name: &str) -> LogicalVolume {
        LogicalVolume { group: "g".into(), volume: name.into(), size: None, thin_pool: None }
    }

    #[test]
    fn reads_what_lvm_prints() {
        let report = Report::parse(SAID).unwrap();
        assert_eq!(report.get("l-1").unwrap().size().unwrap(), 109_051_904);
        assert!(
            report.get("t-1").unwrap().is_tagged(FRESH) && !report.get("t-1").unwrap().is_tagged("flexvol")
        );
        assert!(report.get("l").is_none());
        let empty = r#"{"report": [{"lv": []}]}"#;
        assert!(Report::parse(empty).unwrap().take("a").is_none() && Report::parse("").is_err());
    }

    #[test]
    fn only_what_holds_a_file_system_is_mounted() {
        let report = Report::parse(SAID).unwrap();
        let unfit = |name: &str| {
            let refused = report.get(name).unwrap().refuse_unfit(&asked(name));
            refused.err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!([unfit("l-1"), unfit("t-1")], ["", ""]);
        assert!(unfit("snap").contains("g/snap is a snapshot"));
        assert!(unfit("tp").contains("g/tp is a pool"));
        assert!(unfit("tp_tdata").contains("a part of another volume"));
    }

    #[test]
    fn a_volume_and_its_thin_pool_are_one_node_s() {
        let report = Report::parse(SAID).unwrap();
        let refused = |name: &str, pool: &str, node: &str| {
            let own = format!("{IN_USE}{node}");
            let refused = report.refuse_other_nodes(&asked(name), Some(&pool.to_owned()), &own);
            refused.err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(
            [refused("l-1", "", "n1"), refused("t-2", "tp", "n2"), refused("snap", "", "n9")],
            ["", "", ""]
        );
        let said = refused("l-1", "", "n2");
        assert!(
            said.contains("g/l-1 is in use by node n1") && said.contains("--deltag flexvol.in-use.n1 g/l-1")
        );
        assert!(refused("t-2", "tp", "n1").contains("g/t-1 is in use by node n2"));
        assert!(refused("new", "tp", "n1").contains("g/t-1 is in use by node n2"));
    }

    #[test]
    fn what_lvm_guards_itself_needs_no_tag() {
        let report = Report::parse(SAID).unwrap();
        let needs = |name: &str, read_only| report.get(name).unwrap().needs_tag(read_only);
        assert!(
            needs("l-1", false) && !needs("l-1", true) && needs("t-1", true) && !needs("tp_tdata", false)
        );
    }
}

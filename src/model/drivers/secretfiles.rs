//! `secretfiles`: the keys of a Secret as files, in memory and read-only.
//!
//! For pods that need a Secret which only nodes may read, or a Secret under another driver's name:
//! kubelet passes the Secret of `secretRef` to the driver, as it does for every FlexVolume. All
//! files are there before the first one becomes visible. They are not updated when the Secret
//! changes.
//!
//! Capabilities: metrics, because statfs of memory never hangs; no capability that would write to
//! it.

use super::access;
use crate::driver::{Driver, Example, Request};
use crate::plan::{Goal, Ownership, Plan, SecretFile, Source, Step, View};
use crate::schema::{Id, Mode, OptionSpec};
use crate::settings::Settings;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::mount_options::{FsOption, MountFlags};
use flexvol_protocol::{Capabilities, TargetPath};

/// The driver.
pub struct SecretFiles;

crate::options! {
    /// Options of a PV.
    pub struct SecretFilesOptions {
        /// Comma list of the keys that become files. The default is all of the Secret.
        keys: Option<String> = "keys" { example: "tls.crt,tls.key" },
        /// Mode of the files. The default is 0400, and 0440 with an fsGroup.
        mode: Option<Mode> = "mode" { aliases: ["defaultMode"] },
        /// Owner of the files.
        uid: Id = "uid" { default: "0" },
        /// Group of the files. The default is the pod's fsGroup, else 0.
        gid: Option<Id> = "gid" {},
        /// Never move the files to swap. Needs Linux 6.4.
        noswap: bool = "noswap" { default: "false" },
    }
}

/// Source that the mount table shows.
const NAME: &str = "secretfiles";

/// Size of a page, in bytes: the kernel counts one page for each file beyond its content.
const PAGE: u64 = 4096;

impl Driver for SecretFiles {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "the keys of a Secret as files in memory"
    }

    /// Names two keys in the example: any key becomes a file.
    fn example(&self) -> Example {
        Example { secrets: &["tls.crt", "tls.key"], ..Example::default() }
    }

    fn options(&self) -> &'static [OptionSpec] {
        SecretFilesOptions::SPECS
    }

    fn capabilities(&self, _: &Settings) -> Capabilities {
        Capabilities { supports_metrics: true, ..Capabilities::NONE }
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let options = SecretFilesOptions::parse(&request.options.own)?;
        let files = files(&options, request)?;
        let group = request.options.fs_group.as_ref().map(|group| group.gid);
        let owner = Ownership {
            mode: options.mode.map_or(if group.is_some() { 0o440 } else { 0o400 }, |mode| mode.0),
            uid: options.uid.0,
            gid: options.gid.map(|gid| gid.0).or(group).unwrap_or(0),
        };
        let flags = MountFlags { read_only: true, exec: false, ..MountFlags::DEFAULT };
        let view = View {
            file_system: Some("tmpfs".into()),
            source: Source::Name(NAME.into()),
            access: access(flags),
        };
        let mount = Step::MountFiles {
            target: target.clone(),
            source: NAME.to_owned(),
            options: limits(&files, options.noswap),
            flags,
            files,
            owner,
        };
        Ok(Plan {
            goal: Goal::Mounted { target: target.clone(), view },
            steps: vec![Step::PrepareTarget { target: target.clone() }, mount],
        })
    }
}

fn files(options: &SecretFilesOptions, request: &Request<'_>) -> Result<Vec<SecretFile>> {
    let secrets = &request.options.secrets;
    if secrets.is_empty() {
        return Err(Failure::options(
            "there is no Secret: name one in flexVolume.secretRef, of the type of the driver's name",
        ));
    }
    let all: Vec<_> = secrets.keys().map(String::as_str).collect();
    let wanted: Vec<_> = options.keys.as_deref().map_or(all, |list| list.split(',').map(str::trim).collect());
    let file = |key: &str| {
        let content = secrets.get(key).ok_or_else(|| {
            Failure::options(format!(
                "option \"keys\": the Secret has no key {key:?}: add it there, or leave it out"
            ))
        })?;
        Ok(SecretFile { name: name(key)?, content: content.clone() })
    };
    wanted.into_iter().map(file).collect()
}

/// Checks a key by the rules of Kubernetes: keys become names of files.
fn name(key: &str) -> Result<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if key.is_empty() || key.len() > 253 || key == "." || key.starts_with("..") || !key.chars().all(plain) {
        return Err(Failure::options(format!(
            "secret key {key:?} cannot be the name of a file: store it under another"
        )));
    }
    Ok(key.to_owned())
}

/// Returns limits that are enough for the files, and for nothing else.
fn limits(files: &[SecretFile], noswap: bool) -> Vec<FsOption> {
    let pages = files.iter().map(|file| (file.content.expose().len() as u64).div_ceil(PAGE) + 1);
    let mut options = vec![
        FsOption::new("size", (pages.sum::<u64>() + 1) * PAGE),
        FsOption::new("nr_inodes", files.len() + 2),
        FsOption::new("mode", "755"),
    ];
    options.extend(noswap.then(|| FsOption::flag("noswap")));
    options
}

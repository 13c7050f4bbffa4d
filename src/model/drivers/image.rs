//! `image`: the file system inside a file of the node, through a loop device.
//!
//! Pods that use the same file share one loop device and one superblock, so they see each other's
//! writes. Each pod keeps its own read-only or read-write view, because read-only is a property of
//! the mount and not of the superblock. The kernel detaches the loop device when the last mount is
//! gone (autoclear), even if flexvol was killed.
//!
//! Capabilities: no attach, because the file is on this node; a disk file system stores labels and
//! owners, so kubelet may relabel and chown; statfs never hangs; `expandfs` grows file and file
//! system while they are in use.

use super::disk::{self, Disk, Format, Said};
use crate::driver::{Driver, Growth, Needs, Request};
use crate::paths::IMAGES;
use crate::plan::{Allocation, FileSystems, Goal, Plan, Region, Source, Step, View};
use crate::schema::{OptionSpec, OptionValue};
use crate::settings::Settings;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::file_system::FileSystem;
use flexvol_protocol::quantity::Quantity;
use flexvol_protocol::{Access, Capabilities, TargetPath, Verb, VerbSet};
use std::path::{Path, PathBuf};

/// The driver.
pub struct Image;

crate::options! {
    /// Options of a PV.
    pub struct ImageOptions {
        /// The file. A relative path is taken below the node's first image root
        /// (/var/lib/flexvol/images by default).
        file: String = "file" { example: "web.img" },
        /// A directory above the file where something must be mounted, such as a share: otherwise
        /// the call fails, and no file is made on the node's own disk by mistake.
        mount_point: Option<String> = "mountPoint" {},
        /// Make the file with this size if it is missing. An existing file keeps its own size.
        size: Option<Quantity> = "size" { example: "1Gi" },
        /// The file system: ext4, xfs, btrfs, squashfs, erofs or iso9660. The default is what the
        /// file holds, and ext4 for a new one. The same as flexVolume.fsType.
        fs_type: Option<String> = "fsType" {},
        /// Format the file, or its partition: never, or ifBlank. The default is ifBlank when a size
        /// is given, else never. A file or partition with anything in it is never formatted.
        format: Option<Format> = "format" { example: "ifBlank" },
        /// Further words for mkfs, separated by spaces.
        mkfs_options: Option<String> = "mkfsOptions" {},
        /// Check and fix the file system before the first mount, unless that is read-only.
        fsck: bool = "fsck" { default: "true" },
        /// The partition that holds the file system, counted from 1.
        partition: Option<u32> = "partition" {},
        /// Start of the file system, in bytes. One is made there only if the whole file is blank.
        offset: Option<Quantity> = "offset" {},
        /// Give blocks of deleted files back to the node's disk.
        discard: bool = "discard" { default: "false" },
        /// Bypass the page cache of the node's file system, where possible.
        direct_io: bool = "directIO" { aliases: ["directIo"], default: "false" },
        /// Allocation of a new file: sparse, or full (all blocks at once).
        allocation: Allocation = "allocation" { aliases: ["allocate"], default: "sparse" },
        /// Comma list of further flags and options of the file system.
        mount_options: Option<String> = "mountOptions" { aliases: ["mountoptions", "mount_options"], example: "noatime" },
    }
}

impl OptionValue for Allocation {
    const KIND: &'static str = "sparse or full";

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "sparse" => Ok(Self::Sparse),
            "full" => Ok(Self::Full),
            _ => Err(format!("{text:?} is not {}", Self::KIND)),
        }
    }
}

impl Driver for Image {
    fn name(&self) -> &'static str {
        "image"
    }

    fn summary(&self) -> &'static str {
        "a file system inside a file of the node"
    }

    fn hint(&self) -> Option<String> {
        Some(format!(
            "Images lie below {IMAGES} unless the admin names other directories in the side file .flexvol.json \
            beside the executable: {{\"policy\": {{\"imageRoots\": [\"/srv/images\"]}}}}. Whoever may name an image \
            file may name anybody's below the same directory: give tenants who must not see each other's data a \
            driver and a directory each"
        ))
    }

    fn needs(&self) -> Needs {
        Needs { module: Some("loop"), ..Needs::NOTHING }
    }

    fn options(&self) -> &'static [OptionSpec] {
        ImageOptions::SPECS
    }

    fn verbs(&self, _: &Settings) -> VerbSet {
        const { VerbSet::of(&[Verb::Init, Verb::Mount, Verb::Unmount, Verb::ExpandFs]) }
    }

    fn capabilities(&self, _: &Settings) -> Capabilities {
        Capabilities {
            attach: false,
            selinux_relabel: true,
            supports_metrics: true,
            fs_group: true,
            requires_fs_resize: true,
        }
    }

    fn programs<'a>(&self, _: &'a Settings) -> Vec<&'a str> {
        disk::programs().collect()
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let volume = Volume::new(request)?;
        let (disk, access) = (&volume.disk, volume.disk.access());
        let view = View {
            file_system: disk.name().map(FileSystems::One),
            source: Source::Image(volume.file.clone()),
            access,
        };
        let on_disk = disk.steps(target)?;
        let prepare = Step::PrepareTarget { target: target.clone() };
        let steps = [volume.expect_mount()?, Some(prepare), volume.create(access), Some(volume.attach())];
        Ok(Plan {
            goal: Goal::Mounted { target: target.clone(), view },
            steps: steps.into_iter().flatten().chain(on_disk).collect(),
        })
    }

    fn expand_fs(&self, target: &TargetPath, growth: &Growth<'_>, request: &Request<'_>) -> Result<Plan> {
        let volume = Volume::new(request)?;
        if volume.region != Region::Whole {
            return Err(Failure::options(
                "only a whole image can grow: remove options \"partition\" and \"offset\"",
            ));
        }
        volume.disk.refuse_to_grow()?;
        let grow = Step::GrowImage { size: growth.new_bytes, allocation: volume.options.allocation };
        let fill = Step::GrowFileSystem { target: target.clone() };
        let steps = [volume.expect_mount()?, Some(volume.attach()), Some(grow), Some(fill)];
        Ok(Plan { goal: Goal::Performed, steps: steps.into_iter().flatten().collect() })
    }
}

/// Volume with its options parsed and checked.
struct Volume {
    options: ImageOptions,
    file: PathBuf,
    disk: Disk,
    region: Region,
}

impl Volume {
    fn new(request: &Request<'_>) -> Result<Self> {
        let options = ImageOptions::parse(&request.options.own)?;
        let default = if options.size.is_some() { Format::IfBlank } else { Format::Never };
        let said = Said {
            fs_type: options.fs_type.as_deref(),
            format: options.format.unwrap_or(default),
            mkfs_options: options.mkfs_options.as_deref(),
            fsck: options.fsck,
            discard: options.discard,
            mount_options: options.mount_options.as_deref(),
        };
        let disk = Disk::new(&said, request.options)?;
        let region = region(&options)?;
        let file = Path::new(&options.file);
        let file = match request.settings.policy.image_roots.first() {
            Some(root) => root.join(file),
            None => file.to_owned(),
        };
        Ok(Self { options, file, disk, region })
    }

    /// Returns the step that expects a mount above the file. A volume learns nothing about any
    /// other directory.
    fn expect_mount(&self) -> Result<Option<Step>> {
        match self.options.mount_point.as_deref().map(Path::new) {
            None => Ok(None),
            Some(path) if path.is_absolute() && self.file.starts_with(path) => {
                Ok(Some(Step::ExpectMount { path: path.to_owned() }))
            }
            Some(_) => Err(Failure::options("option \"mountPoint\" must be a directory above the file")),
        }
    }

    /// Returns the step that creates the image. A read-only volume has none: its new image would
    /// only be found blank.
    fn create(&self, access: Access) -> Option<Step> {
        let size = self.options.size.filter(|_| access == Access::ReadWrite)?.0;
        Some(Step::CreateImage { file: self.file.clone(), size, allocation: self.options.allocation })
    }

    fn attach(&self) -> Step {
        Step::AttachLoop {
            file: self.file.clone(),
            region: self.region,
            direct_io: self.options.direct_io,
            read_only: self.disk.kind.is_some_and(FileSystem::read_only),
        }
    }
}

fn region(options: &ImageOptions) -> Result<Region> {
    match (options.partition, options.offset) {
        (Some(_), Some(_)) => {
            Err(Failure::options("options \"partition\" and \"offset\" exclude each other: keep one"))
        }
        (Some(0), None) => Err(Failure::options("option \"partition\": partitions are counted from 1")),
        (Some(number), None) => Ok(Region::Partition(number)),
        (None, Some(Quantity(start))) if start % 512 != 0 => Err(Failure::options(
            "option \"offset\" must be a multiple of 512 bytes, the sector of a loop device",
        )),
        (None, Some(Quantity(start))) => Ok(Region::Offset(start)),
        (None, None) => Ok(Region::Whole),
    }
}

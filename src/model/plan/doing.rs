//! Short descriptions of steps, for errors that would otherwise show only the kernel's message.

use super::{Step, StoreStep};

impl Step {
    /// Returns a description such as `make a directory`, without any data of the volume.
    pub fn doing(&self) -> &'static str {
        match self {
            Self::Hold { .. } => "hold the storage",
            Self::Release { .. } => "release the storage",
            Self::CsiPublish { .. } => "publish the volume",
            Self::CsiUnpublish { .. } => "unpublish the volume",
            Self::CsiExpand { .. } => "grow the volume",
            Self::PrepareTarget { .. } => "prepare the target",
            Self::MakeDirectory { .. } | Self::MakeDirectoryOnShare { .. } => "make a directory",
            Self::ExpectMount { .. } | Self::ExpectStaged { .. } => "look for a mount",
            Self::CreateImage { .. } => "make the image",
            Self::AttachLoop { .. } => "attach the image to a loop device",
            Self::Store(StoreStep::Attach { .. }) => "attach the device",
            Self::Store(StoreStep::Find { .. }) => "find the device",
            Self::Store(StoreStep::Decrypt(_)) => "open the encryption",
            Self::Store(StoreStep::Grow { .. }) => "grow the device",
            Self::Store(StoreStep::Detach { .. } | StoreStep::Unstage { .. }) => "detach the device",
            Self::Format { .. } => "make a file system",
            Self::CheckFileSystem { .. } => "check the file system",
            Self::Mount { .. }
            | Self::MountShare { .. }
            | Self::MountFiles { .. }
            | Self::MountOverlay { .. } => "mount the volume",
            Self::Reach(_) | Self::ReachCluster(_) => "reach the server",
            Self::ShowStaged { .. } | Self::Bind { .. } => "show the source at the target",
            Self::Run(_) => "run a command",
            Self::Checkout(_) => "check out the repository",
            Self::Serve(_) => "start the daemon of the volume",
            Self::Unmount { .. } => "unmount the volume",
            Self::EndDaemon { .. } => "end the daemon of the volume",
            Self::GrowImage { .. } => "grow the image",
            Self::Answer { .. } => "answer",
            Self::GrowFileSystem { .. } => "grow the file system",
        }
    }
}

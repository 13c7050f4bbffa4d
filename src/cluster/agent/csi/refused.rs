//! What a CSI driver's error means. Pure.
//!
//! | code | what may be | so |
//! |---|---|---|
//! | `CANCELLED`, `DEADLINE_EXCEEDED`, `UNAVAILABLE`, `RESOURCE_EXHAUSTED`, `ABORTED`, and what no driver has said | it may have been done, or be done later | it stays in the journal; whoever asks next asks again |
//! | `NOT_FOUND` of what is to be taken away | it is gone | done |
//! | `UNIMPLEMENTED` of `NodeUnstageVolume` | the driver has no such step any more | done |
//! | `INVALID_ARGUMENT` of `NodeUnpublishVolume`, nothing having been published | the driver takes no such path | done |
//! | every other | it was not done | what was done before in the same call is undone |
//!
//! That is how kubelet tells them apart.

use crate::agent::fault::{Code as FaultCode, Fault};
use crate::controllers::driver::{failed, in_words};
use flexvol_protocol::secret::Redactor;
use flexvol_protocol::text::one_line;
use std::error::Error as _;
use tonic::{Code, Status};

/// The most bytes of what a driver says that are told.
pub(super) const LIMIT: usize = 512;

/// A call that a CSI driver has not carried out, as far as it is known.
#[derive(Debug)]
pub(super) struct Refused {
    driver: String,
    rpc: &'static str,
    status: Status,
}

impl Refused {
    pub(super) fn new(driver: &str, rpc: &'static str, status: Status) -> Self {
        Self { driver: driver.to_owned(), rpc, status: failed(status) }
    }

    pub(super) fn code(&self) -> Code {
        self.status.code()
    }

    /// Whether it was certainly not done.
    pub(super) fn is_final(&self) -> bool {
        use Code::{Aborted, Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable};
        let is_told = self.status.source().is_none();
        let open = [Cancelled, DeadlineExceeded, Unavailable, ResourceExhausted, Aborted];
        is_told && !open.contains(&self.status.code())
    }

    /// Whether what was to be taken away is not there.
    pub(super) fn is_gone(&self) -> bool {
        let unstages = self.rpc == "NodeUnstageVolume";
        self.code() == Code::NotFound || (unstages && self.code() == Code::Unimplemented)
    }

    /// Whether a CSI driver takes no such request: it has never carried out one for that target.
    pub(super) fn is_malformed(&self) -> bool {
        self.is_final() && self.code() == Code::InvalidArgument
    }

    /// For whoever has asked. A driver may repeat what it was given.
    pub(super) fn fault(&self, masked: &Redactor) -> Fault {
        let said = masked.clean(&one_line(&in_words(&self.status), LIMIT));
        let code = if self.is_final() { FaultCode::Failed } else { FaultCode::InProgress };
        Fault::new(code, format!("the CSI driver {}: {}: {said}", self.driver, self.rpc))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_protocol::secret::Secret;

    #[test]
    fn codes_are_told_apart_as_kubelet_does() {
        for (code, is_final) in [
            (Code::Cancelled, false),
            (Code::DeadlineExceeded, false),
            (Code::Unavailable, false),
            (Code::ResourceExhausted, false),
            (Code::Aborted, false),
            (Code::Unknown, true),
            (Code::InvalidArgument, true),
            (Code::NotFound, true),
            (Code::AlreadyExists, true),
            (Code::PermissionDenied, true),
            (Code::FailedPrecondition, true),
            (Code::OutOfRange, true),
            (Code::Unimplemented, true),
            (Code::Internal, true),
            (Code::DataLoss, true),
            (Code::Unauthenticated, true),
        ] {
            let of = |rpc| Refused::new("d", rpc, Status::new(code, "x"));
            assert_eq!(of("NodePublishVolume").is_final(), is_final, "{code:?}");
            assert_eq!(of("NodeUnpublishVolume").is_gone(), code == Code::NotFound, "{code:?}");
            let unstaged = matches!(code, Code::NotFound | Code::Unimplemented);
            assert_eq!(of("NodeUnstageVolume").is_gone(), unstaged, "{code:?}");
        }
        // What a connection ends with, no driver has said.
        let broken = std::io::Error::other("broken");
        let status = Status::from_error(Box::new(broken));
        assert!(!Refused::new("d", "NodePublishVolume", status).is_final());
    }

    #[test]
    fn no_secret_is_repeated() {
        let secret = Secret::new(b"hunter2-of-a-tenant".to_vec());
        let refused = Refused::new("d", "NodeStageVolume", Status::internal("bad hunter2-of-a-tenant\nx"));
        let message = refused.fault(&Redactor::new([&secret])).message;
        assert!(!message.contains("hunter2") && !message.contains('\n'), "{message}");
    }
}

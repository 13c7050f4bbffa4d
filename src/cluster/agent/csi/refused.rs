//! Meaning of a CSI driver's errors. Pure.
//!
//! | code | possible state | consequence |
//! |---|---|---|
//! | `CANCELLED`, `DEADLINE_EXCEEDED`, `UNAVAILABLE`, `RESOURCE_EXHAUSTED`, `ABORTED`, and errors that no driver has sent | the call may have been done, or be done later | the volume stays in the journal; the next caller tries again |
//! | `NOT_FOUND` for something to be removed | it is gone | done |
//! | `UNIMPLEMENTED` from `NodeUnstageVolume` | the driver no longer has this step | done |
//! | `INVALID_ARGUMENT` from `NodeUnpublishVolume` when nothing was published | the driver does not accept such a path | done |
//! | every other | the call was not done | earlier steps of the same request are rolled back |
//!
//! kubelet distinguishes them in the same way.

use crate::agent::fault::{Code as FaultCode, Fault};
use crate::controllers::driver::{failed, in_words};
use flexvol_protocol::secret::Redactor;
use flexvol_protocol::text::one_line;
use std::error::Error as _;
use tonic::{Code, Status};

/// Limit for the part of a driver's message that is shown, in bytes.
pub(super) const LIMIT: usize = 512;

/// Call that a CSI driver has not carried out, as far as is known.
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

    /// Reports whether the call was certainly not carried out.
    pub(super) fn is_final(&self) -> bool {
        use Code::{Aborted, Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable};
        let is_told = self.status.source().is_none();
        let open = [Cancelled, DeadlineExceeded, Unavailable, ResourceExhausted, Aborted];
        is_told && !open.contains(&self.status.code())
    }

    /// Reports whether there is nothing to remove.
    pub(super) fn is_gone(&self) -> bool {
        let unstages = self.rpc == "NodeUnstageVolume";
        self.code() == Code::NotFound || (unstages && self.code() == Code::Unimplemented)
    }

    /// Reports whether the driver accepts no such request: it never published that target.
    pub(super) fn is_malformed(&self) -> bool {
        self.is_final() && self.code() == Code::InvalidArgument
    }

    /// Creates the fault for the caller. A driver may repeat its input, so secrets are masked.
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
        // An error of the connection was not sent by the driver.
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

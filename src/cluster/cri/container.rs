//! One container, and the scripts that run in it.

use super::{exec_sync, why};
use crate::agent::fault::{Code, Fault};
use crate::wire::runtime::runtime_service_client::RuntimeServiceClient;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code as Grpc, Status};

/// Extra wait after the runtime's own timeout: the runtime may wait for a stream that another
/// process holds.
const LATER: Duration = Duration::from_secs(2);

/// Output of a script, or the reason why it is not known.
pub(super) enum Ran {
    Said(String),
    /// The container or its runtime has ended during the run.
    Lost(String),
}

/// Container that was running when it was looked up.
#[derive(Clone, Debug)]
pub(super) struct Container {
    client: RuntimeServiceClient<Channel>,
    pub(super) id: String,
    shown: String,
}

impl Container {
    pub(super) fn new(client: RuntimeServiceClient<Channel>, id: String, shown: String) -> Self {
        Self { client, id, shown }
    }

    /// Runs a script, at most until `until`. A script that ends normally prints a word of its own;
    /// no output means that it was killed.
    pub(super) async fn script(
        &self,
        script: &str,
        words: Vec<String>,
        until: Instant,
    ) -> Result<Ran, Fault> {
        let allowed = until.saturating_duration_since(Instant::now());
        let cmd = ["sh", "-c", script, "flexvol"].map(str::to_owned).into_iter().chain(words).collect();
        let mut client = self.client.clone();
        let asked = client.exec_sync(exec_sync(&self.id, cmd, allowed));
        let answer = match timeout(allowed + LATER, asked).await {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) => return self.failed(&status),
            Err(_) => return Err(Fault::late_in(&self.shown)),
        };
        let said = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
        match said.split_once(' ').unwrap_or((&said, "")) {
            ("unseen", _) => {
                let fix =
                    "mount /run/flexvol of the node there, writable, with mountPropagation: HostToContainer";
                Err(Fault::new(Code::Failed, format!("it does not see this node's files: {fix}")))
            }
            ("missing", program) => Err(Fault::new(Code::Missing, program)),
            ("", _) => {
                let words = String::from_utf8_lossy(&answer.stderr);
                Ok(Ran::Lost(format!("its sh ended with {}: {}", answer.exit_code, words.trim())))
            }
            _ => Ok(Ran::Said(said)),
        }
    }

    fn failed(&self, status: &Status) -> Result<Ran, Fault> {
        let text = why(status);
        let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
        match status.code() {
            Grpc::DeadlineExceeded | Grpc::Cancelled => Err(Fault::late_in(&self.shown)),
            Grpc::Unavailable | Grpc::NotFound => Ok(Ran::Lost(text)),
            _ if has(&["transport error", "in CONTAINER_", "is not running"]) => Ok(Ran::Lost(text)),
            _ if has(&["no such file", "not found"]) => Err(Fault::new(Code::Missing, "sh")),
            _ => Err(Fault::new(Code::Failed, format!("its runtime {text}"))),
        }
    }
}

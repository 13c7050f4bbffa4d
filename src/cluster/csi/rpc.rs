//! Common path of every request: its deadline, its turn, a thread, a line in the log, and metrics
//! for Prometheus.

use super::program::Budget;
use super::served::Served;
use flexvol_protocol::text::one_line;
use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status};
use tracing::Span;

/// Limit for a volume's id in the log.
const ID_LIMIT: usize = 128;

/// Number for the next request of this process.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Request, and the volume that it is about.
#[derive(Debug)]
pub struct Asked {
    /// Name of the method in CSI.
    pub method: &'static str,
    /// CSI's name for the volume; empty if the request is about no volume.
    pub volume: String,
    /// Owner of the places that it takes: a pod, else the volume.
    who: String,
}

impl Asked {
    /// Describes a request about one volume.
    pub fn about(method: &'static str, volume: &str) -> Self {
        let volume = one_line(volume, ID_LIMIT);
        Self { method, who: volume.clone(), volume }
    }

    /// Assigns the request to the pod whose directory contains this path.
    #[must_use]
    pub fn at(mut self, path: &str) -> Self {
        let pod = path.split('/').skip_while(|part| *part != "pods").nth(1);
        if let Some(pod) = pod {
            self.who = one_line(pod, ID_LIMIT);
        }
        self
    }
}

/// Answer of a service. Unlike the future of an `async fn`, it does not hold the request: many may
/// hang.
pub type Answering<'f, A> = Pin<Box<dyn Future<Output = Result<Response<A>, Status>> + Send + 'f>>;

/// Work for a thread. It is the same type for all requests: each type that is handed to a thread
/// costs several KB of code.
pub type Job = Box<dyn FnOnce() + Send>;

/// Does the work in a thread that may wait for the kernel, but not for a driver. The work runs to
/// its end even if the caller gives up.
pub fn answer<'f, Q, A>(
    served: &Arc<Served>,
    asked: Asked,
    request: Request<Q>,
    work: impl FnOnce(&Served, Q, Budget) -> Result<A, Status> + Send + 'static,
) -> Answering<'f, A>
where
    Q: Send + 'static,
    A: Send + 'static,
{
    let (job, answer) = job(served, asked, request, work);
    Box::pin(at_once(job, answer))
}

async fn at_once<A>(job: Job, answer: oneshot::Receiver<Result<A, Status>>) -> Result<Response<A>, Status> {
    spawn_blocking(job).await.map_err(lost)?;
    answer.await.map_err(lost)?.map(Response::new)
}

/// Does work that executes the driver, when it gets a turn. No work stays half done if a caller
/// gives up: work that has begun is finished, and work that waits is not started.
pub fn answer_in_turn<'f, Q, A>(
    served: &Arc<Served>,
    asked: Asked,
    request: Request<Q>,
    work: impl FnOnce(&Served, Q, Budget) -> Result<A, Status> + Send + 'static,
) -> Answering<'f, A>
where
    Q: Send + 'static,
    A: Send + 'static,
{
    let (method, who) = (asked.method, asked.who.clone());
    let (job, answer) = job(served, asked, request, work);
    Box::pin(after_turn(Arc::clone(served), method, who, job, answer))
}

async fn after_turn<A>(
    served: Arc<Served>,
    method: &'static str,
    who: String,
    job: Job,
    answer: oneshot::Receiver<Result<A, Status>>,
) -> Result<Response<A>, Status> {
    in_turn(&served, method, &who, job).await?;
    answer.await.map_err(lost)?.map(Response::new)
}

async fn in_turn(served: &Served, method: &str, who: &str, job: Job) -> Result<(), Status> {
    let place = served.places.enter(method, who).await?;
    let job = Box::new(move || {
        job();
        drop(place);
    });
    served.turns.run(job).await.map_err(lost)
}

/// Prepares one request, whose time counts from now on.
fn job<Q: Send + 'static, A: Send + 'static>(
    served: &Arc<Served>,
    asked: Asked,
    request: Request<Q>,
    work: impl FnOnce(&Served, Q, Budget) -> Result<A, Status> + Send + 'static,
) -> (Job, oneshot::Receiver<Result<A, Status>>) {
    let (budget, start) = (Budget::new(allowed(request.metadata())), Instant::now());
    let (served, request) = (Arc::clone(served), request.into_inner());
    let (send, answer) = oneshot::channel();
    let job = Box::new(move || {
        let _span = span(&served, &asked).entered();
        let result = work(&served, request, budget);
        finish(&served, asked.method, start.elapsed(), result.as_ref().err());
        // A caller that has given up does not receive it.
        drop(send.send(result));
    });
    (job, answer)
}

fn span(served: &Served, asked: &Asked) -> Span {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let Asked { method, volume, .. } = asked;
    tracing::info_span!("request", id, driver = served.name, method, volume)
}

fn lost(error: impl Display) -> Status {
    Status::internal(format!("the request was lost: {error}"))
}

fn finish(served: &Served, method: &'static str, took: Duration, failed: Option<&Status>) {
    let code = failed.map_or(Code::Ok, Status::code);
    served.metrics.answered(&served.name, method, code, took);
    let seconds = took.as_secs_f64();
    if let Some(status) = failed {
        tracing::warn!(?code, seconds, reason = status.message(), "failed");
    } else {
        tracing::info!(?code, seconds, "done");
    }
}

/// Returns the time that the caller allows: `grpc-timeout`, up to eight digits and a unit.
fn allowed(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok().filter(|_| number.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number.saturating_mul(3600)),
        "M" => Duration::from_secs(number.saturating_mul(60)),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_of_a_pod_or_of_its_volume() {
        let who = |path: &str| Asked::about("NodePublishVolume", "v").at(path).who;
        assert_eq!(who("/k/pods/7f/volumes/kubernetes.io~csi/data/mount"), "7f");
        assert_eq!((who("/k/plugins/x"), who("/k/pods")), ("v".to_owned(), "v".to_owned()));
    }

    #[test]
    fn a_deadline_is_read() {
        let of = |text: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().unwrap());
            allowed(&metadata)
        };
        assert_eq!(of("2M"), Some(Duration::from_mins(2)));
        assert_eq!(of("1500m"), Some(Duration::from_millis(1500)));
        assert_eq!(of("99999999H").map(|allowed| allowed.as_secs()), Some(99_999_999 * 3600));
        for text in ["", "5", "m", "-1S", "1x", "123456789S", "1 S"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}

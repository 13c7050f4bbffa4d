//! Watch for the tasks of a node. It costs nothing while no task arrives.

use crate::controllers::api::reason;
use crate::controllers::blocking::{Answer, insist};
use futures_util::TryStreamExt as _;
use http::Request;
use kube::core::WatchEvent;
use kube::{Client, Error};
use serde_json::Value;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// Time after which the API server ends a watch, in seconds.
const LASTS: u64 = 290;

/// Silence after which a watch counts as dead.
const SILENT: Duration = Duration::from_secs(LASTS + 20);

/// Time limit for a list request.
const LIST: Duration = Duration::from_secs(30);

/// Pause after the first failure, doubled each time, and its limit: every node sends these
/// requests.
const FIRST: Duration = Duration::from_millis(500);
const LAST: Duration = Duration::from_mins(1);

/// Calls `came` for each new or changed task, and whenever one may have been missed. Never ends.
pub(super) async fn hear(client: Client, path: String, came: Arc<dyn Fn() + Send + Sync>) {
    let (mut version, mut pause) = (None, FIRST);
    loop {
        match follow(&client, &path, &mut version, &*came).await {
            Ok(()) => pause = FIRST,
            Err(error) => {
                tracing::debug!(reason = reason(&error), "tasks are not heard of");
                version = None;
                pause = (pause * 2).min(LAST);
            }
        }
        sleep(pause).await;
    }
}

/// Follows a watch until it ends.
async fn follow(
    client: &Client,
    path: &str,
    version: &mut Option<String>,
    came: &(dyn Fn() + Send + Sync),
) -> Result<(), Error> {
    let from = if let Some(version) = version.clone() {
        version
    } else {
        let from = list(client, path).await?;
        came();
        from
    };
    *version = Some(from.clone());
    let path =
        format!("{path}&watch=true&allowWatchBookmarks=true&timeoutSeconds={LASTS}&resourceVersion={from}");
    let request = Request::get(path).body(Vec::new()).map_err(|error| Error::Service(error.into()))?;
    let mut events = pin!(client.request_events::<Value>(request).await?);
    let silent = |_| Error::Service("the API server is silent".into());
    while let Some(event) = timeout(SILENT, events.try_next()).await.map_err(silent)?? {
        match event {
            WatchEvent::Added(task) | WatchEvent::Modified(task) | WatchEvent::Deleted(task) => {
                *version = task["metadata"]["resourceVersion"].as_str().map(str::to_owned);
                came();
            }
            WatchEvent::Bookmark(mark) => *version = Some(mark.metadata.resource_version),
            WatchEvent::Error(status) => return Err(Error::Api(status)),
        }
    }
    Ok(())
}

/// Returns the version from which to watch.
async fn list(client: &Client, path: &str) -> Result<String, Error> {
    match insist(client, "GET", &format!("{path}&limit=1"), None, Instant::now() + LIST).await {
        Answer::Done(list) => Ok(list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()),
        answer => Err(Error::Service(format!("{answer:?}").into())),
    }
}

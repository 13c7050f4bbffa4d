//! A node hears of its tasks as they come: by a watch, which costs nothing while none does.

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

/// The API server ends a watch after so many seconds.
const LASTS: u64 = 290;

/// One that is silent for longer is dead.
const SILENT: Duration = Duration::from_secs(LASTS + 20);

/// How long the API server may take to say what is there.
const LIST: Duration = Duration::from_secs(30);

/// After the first failure, doubled each time; and the longest pause: there are as many who ask as
/// there are nodes.
const FIRST: Duration = Duration::from_millis(500);
const LAST: Duration = Duration::from_mins(1);

/// Calls for each task that comes or changes, and whenever one may have been missed. For ever.
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

/// Until a watch ends.
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

/// From which version on is watched.
async fn list(client: &Client, path: &str) -> Result<String, Error> {
    match insist(client, "GET", &format!("{path}&limit=1"), None, Instant::now() + LIST).await {
        Answer::Done(list) => Ok(list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()),
        answer => Err(Error::Service(format!("{answer:?}").into())),
    }
}

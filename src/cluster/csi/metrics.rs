//! Metrics for Prometheus.

use flexvol_protocol::Verb;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;
use tonic::Code;

/// Bounds of a histogram, in seconds: an unmount takes a millisecond, a format a minute.
const BUCKETS: [f64; 10] = [0.002, 0.005, 0.02, 0.05, 0.2, 0.5, 2.0, 10.0, 30.0, 110.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    driver: String,
    method: &'static str,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Method {
    driver: String,
    method: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Called {
    driver: String,
    verb: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfDriver {
    driver: String,
}

/// Metrics of all drivers of this process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    seconds: Family<Method, Histogram>,
    calls: Family<Called, Counter>,
    in_flight: Family<OfDriver, Gauge>,
    stuck: Family<OfDriver, Gauge>,
    volumes: Family<OfDriver, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("flexvol_csi");
        let requests = Family::default();
        let seconds = Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        let (calls, in_flight, stuck, volumes) =
            (Family::default(), Family::default(), Family::default(), Family::default());
        registry.register("requests", "Requests of CSI that were answered", requests.clone());
        registry.register("request_seconds", "How long requests took", seconds.clone());
        registry.register("driver_calls", "Executions of the driver", calls.clone());
        registry.register("driver_calls_in_flight", "Executions that have not ended", in_flight.clone());
        registry.register(
            "driver_processes_stuck",
            "Processes that outlive their call, mostly on storage that does not answer; their volumes are locked",
            stuck.clone(),
        );
        registry.register("volumes", "Volumes that are attached, staged or published here", volumes.clone());
        Self { registry, requests, seconds, calls, in_flight, stuck, volumes }
    }
}

impl Metrics {
    /// Counts a request.
    pub fn answered(&self, driver: &str, method: &'static str, code: Code, took: Duration) {
        let labels = Answered { driver: driver.to_owned(), method, code: format!("{code:?}") };
        self.requests.get_or_create(&labels).inc();
        let labels = Method { driver: driver.to_owned(), method };
        self.seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// Returns the counters for the executions of one driver.
    pub fn calls(self: &Arc<Self>, driver: &str) -> Arc<Calls> {
        Arc::new(Calls { metrics: Arc::clone(self), driver: driver.to_owned() })
    }

    /// Records the current numbers.
    pub fn observe(&self, driver: &str, stuck: usize, volumes: usize) {
        let labels = OfDriver { driver: driver.to_owned() };
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.stuck.get_or_create(&labels).set(number(stuck));
        self.volumes.get_or_create(&labels).set(number(volumes));
    }

    /// Returns all metrics in the text form of OpenMetrics.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        // Only the write can fail, and a String takes everything.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// Counters for the executions of one driver.
#[derive(Debug)]
pub struct Calls {
    metrics: Arc<Metrics>,
    driver: String,
}

impl Calls {
    /// Counts an execution that begins; it ends when the returned value is dropped.
    pub fn begin(&self, verb: Verb) -> Running {
        let labels = Called { driver: self.driver.clone(), verb: verb.name() };
        self.metrics.calls.get_or_create(&labels).inc();
        let in_flight =
            self.metrics.in_flight.get_or_create(&OfDriver { driver: self.driver.clone() }).clone();
        in_flight.inc();
        Running(in_flight)
    }
}

/// Execution that has not ended.
#[derive(Debug)]
pub struct Running(Gauge);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_a_line() {
        let metrics = Arc::new(Metrics::default());
        let calls = metrics.calls("d");
        let running = calls.begin(Verb::Mount);
        metrics.answered("d", "NodePublishVolume", Code::Aborted, Duration::from_millis(3));
        metrics.observe("d", 1, 2);
        let text = metrics.to_text();
        for line in [
            r#"flexvol_csi_requests_total{driver="d",method="NodePublishVolume",code="Aborted"} 1"#,
            r#"flexvol_csi_request_seconds_count{driver="d",method="NodePublishVolume"} 1"#,
            r#"flexvol_csi_driver_calls_total{driver="d",verb="mount"} 1"#,
            r#"flexvol_csi_driver_calls_in_flight{driver="d"} 1"#,
            r#"flexvol_csi_driver_processes_stuck{driver="d"} 1"#,
            r#"flexvol_csi_volumes{driver="d"} 2"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        drop(running);
        assert!(metrics.to_text().contains("in_flight{driver=\"d\"} 0"));
    }
}

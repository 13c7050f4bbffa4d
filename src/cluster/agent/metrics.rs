//! Metrics of an agent, for Prometheus.

use super::fault::Code;
use super::journal::Phase;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

/// Bucket bounds in seconds: a file lock takes a millisecond, a busy API server takes seconds.
const BUCKETS: [f64; 8] = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 20.0];

/// Methods with a label of their own. All others share one label.
const METHODS: [&str; 10] =
    ["call", "end", "exec", "hello", "hold", "keep", "launch", "look", "release", "status"];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    method: &'static str,
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Method {
    method: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InPhase {
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InState {
    state: &'static str,
}

/// Metrics of one agent.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    seconds: Family<Method, Histogram>,
    holds: Family<InPhase, Gauge>,
    ready: Gauge,
    notes: Gauge,
    calls: Family<InState, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("flexvol_agent");
        let requests = Family::default();
        let seconds = Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        let (holds, ready, notes) = (Family::default(), Gauge::default(), Gauge::default());
        let calls = Family::default();
        registry.register("requests", "Requests of drivers that were answered", requests.clone());
        registry.register("request_seconds", "How long requests took", seconds.clone());
        registry.register("holds", "What this node holds, by how far it has come", holds.clone());
        registry.register("ready", "Whether the locks have confirmed all that is held", ready.clone());
        registry.register("unheard", "Releases of drivers that the agent has not read yet", notes.clone());
        registry.register("calls", "Calls of drivers that go on, or were abandoned", calls.clone());
        Self { registry, requests, seconds, holds, ready, notes, calls }
    }
}

impl Metrics {
    /// Counts a request.
    pub fn answered(&self, method: &str, code: Option<Code>, took: Duration) {
        let method = METHODS.into_iter().find(|known| *known == method).unwrap_or("other");
        let labels = Answered { method, code: code.map_or("OK", Code::name) };
        self.requests.get_or_create(&labels).inc();
        self.seconds.get_or_create(&Method { method }).observe(took.as_secs_f64());
    }

    /// Formats all metrics as OpenMetrics text, with the given current values.
    pub fn to_text(
        &self,
        holds: &[Phase],
        is_ready: bool,
        notes: usize,
        (running, stuck): (usize, usize),
    ) -> String {
        for phase in Phase::ALL {
            let count = holds.iter().filter(|held| **held == phase).count();
            self.holds.get_or_create(&InPhase { phase: phase.name() }).set(number(count));
        }
        self.ready.set(i64::from(is_ready));
        self.notes.set(number(notes));
        for (state, count) in [("running", running), ("stuck", stuck)] {
            self.calls.get_or_create(&InState { state }).set(number(count));
        }
        let mut text = String::new();
        // Only a write can fail, and a write to a `String` never does.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test 57: these names must stay, because users have alerts on them.
    #[test]
    fn t57_names_stay() {
        let metrics = Metrics::default();
        metrics.answered("hold", None, Duration::from_millis(2));
        metrics.answered("hold", Some(Code::Fenced), Duration::from_millis(2));
        metrics.answered("what tenants send", Some(Code::BadRequest), Duration::ZERO);
        let text = metrics.to_text(&[Phase::Held, Phase::Held, Phase::Lost], true, 3, (2, 1));
        for line in [
            r#"flexvol_agent_requests_total{method="hold",code="OK"} 1"#,
            r#"flexvol_agent_requests_total{method="hold",code="FENCED"} 1"#,
            r#"flexvol_agent_requests_total{method="other",code="BAD_REQUEST"} 1"#,
            r#"flexvol_agent_request_seconds_count{method="hold"} 2"#,
            r#"flexvol_agent_holds{phase="held"} 2"#,
            r#"flexvol_agent_holds{phase="lost"} 1"#,
            r#"flexvol_agent_holds{phase="releasing"} 0"#,
            r#"flexvol_agent_holds{phase="asking"} 0"#,
            "flexvol_agent_ready 1",
            "flexvol_agent_unheard 3",
            r#"flexvol_agent_calls{state="running"} 2"#,
            r#"flexvol_agent_calls{state="stuck"} 1"#,
        ] {
            assert!(text.lines().any(|told| told == line), "{line} is not in {text}");
        }
    }
}

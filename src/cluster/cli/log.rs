//! Log of a daemon.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use tracing::Level;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Levels of our own messages. Those of libraries begin at `info`: below it is every frame that
/// they send.
const LEVELS: [&str; 4] = ["error", "warn", "info", "debug"];

/// Options of the log.
#[derive(Args)]
pub(super) struct Log {
    /// Log level
    #[arg(long, value_name = "LEVEL", default_value = "info",
        value_parser = PossibleValuesParser::new(LEVELS).try_map(|level| level.parse::<Level>()))]
    log_level: Level,
}

impl Log {
    /// Starts logging: one line of JSON for each event, on standard error.
    pub(super) fn begin(&self) {
        tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            .with_target(false)
            .with_max_level(self.log_level)
            .with_writer(std::io::stderr)
            .finish()
            .with(filter_fn(|event| event.target().starts_with("flexvol") || *event.level() <= Level::INFO))
            .init();
    }
}

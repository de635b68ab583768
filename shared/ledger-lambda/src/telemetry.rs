//! Logs: one JSON line an event on Lambda, plain text for a person.

use tracing_subscriber::EnvFilter;

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line, for CloudWatch.
    Json,
    /// For a terminal; on standard error, so that standard output stays the program's own.
    Text,
}

/// Starts logging, at `info` unless `RUST_LOG` says otherwise. Keys are logged at `debug` only; payload hashes, stored
/// responses, tokens and connection strings never.
pub fn start(format: Format, rust_log: Option<&str>) {
    let filter = EnvFilter::new(rust_log.unwrap_or("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    // A second call, as tests make, finds logging started: that is what was wanted.
    drop(match format {
        Format::Json => builder.json().flatten_event(true).with_ansi(false).try_init(),
        Format::Text => builder.with_writer(std::io::stderr).try_init(),
    });
}

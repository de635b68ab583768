//! How this process talks to AWS: one configuration, one HTTP client, bounded times and attempts.

use std::time::Duration;

pub use aws_config::SdkConfig;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, ConfigLoader};
use aws_smithy_http_client::tls;

/// To establish a connection, TLS included, in milliseconds. Inside one region a connection takes a few.
pub const CONNECT_TIMEOUT_MS: u64 = 1_000;
/// For one attempt of a call, in milliseconds.
pub const ATTEMPT_TIMEOUT_MS: u64 = 2_000;
/// For a call with all its attempts, in milliseconds.
pub const OPERATION_TIMEOUT_MS: u64 = 5_000;
/// Attempts of one call, the first included.
pub const ATTEMPTS_MAX: u32 = 3;

/// Region, credentials and endpoints from the environment as the AWS SDKs read them (`AWS_REGION`, `AWS_ENDPOINT_URL`, ...).
///
/// Call it once per process and share the result: every client built from it uses one connection pool. It asks nothing of
/// the network where `AWS_REGION` is set, as on Lambda; credentials are fetched with the first call.
pub async fn load() -> SdkConfig {
    load_with(|loader| loader).await
}

/// As [`load`], with what `customise` sets in place of the environment (a fixed endpoint, explicit credentials).
pub async fn load_with(customise: impl FnOnce(ConfigLoader) -> ConfigLoader) -> SdkConfig {
    let http = aws_smithy_http_client::Builder::new()
        .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
        .build_https();
    let loader = aws_config::defaults(BehaviorVersion::latest())
        .http_client(http)
        .timeout_config(timeouts(ATTEMPT_TIMEOUT_MS, OPERATION_TIMEOUT_MS))
        .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS_MAX));
    customise(loader).load().await
}

/// Timeouts of a client whose calls need others than [`load`]'s.
pub(crate) fn timeouts(attempt_ms: u64, operation_ms: u64) -> TimeoutConfig {
    let attempt = Duration::from_millis(attempt_ms);
    TimeoutConfig::builder()
        .connect_timeout(Duration::from_millis(CONNECT_TIMEOUT_MS).min(attempt))
        .operation_attempt_timeout(attempt)
        .operation_timeout(Duration::from_millis(operation_ms))
        .build()
}

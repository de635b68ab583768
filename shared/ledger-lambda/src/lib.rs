//! What every function shares: configuration, start-up, telemetry, and the HTTP and SQS edges.
//!
//! Functions are thin: parse, call one use case of ledger-domain, render. What they have in common is here, so `local`
//! serves the very same routers.

pub mod env;
pub mod freshness;
pub mod http;
pub mod shutdown;
pub mod sqs;
pub mod telemetry;
pub mod tiers;

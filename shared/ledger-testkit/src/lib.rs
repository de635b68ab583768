//! Conformance suites, and real servers for tests.

pub mod cold_ledger;
pub mod postgres_server;

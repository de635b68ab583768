//! Conformance suites, and real servers for tests.

pub mod postgres_server;

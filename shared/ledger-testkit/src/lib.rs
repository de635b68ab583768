//! Conformance suites per port, fixtures that start real servers, and a house to test the use cases in. Tests only.

#![expect(clippy::expect_used, reason = "a fixture that cannot be built fails its test")]

pub mod aws_server;
pub mod clock;
pub mod cold_ledger;
pub mod control_plane;
pub mod event_queue;
pub mod faulty;
pub mod house;
pub mod postgres_server;

//! Conformance suites, one per port, and fixtures: real servers, a manual clock, seeded randomness and faults, and a house
//! to test the use cases in. Tests only.
//!
//! A suite is a list of named cases over a factory; each implementation runs all of them. What goes wrong here panics with
//! the reason: nothing is skipped.

#![expect(clippy::expect_used, reason = "a fixture that cannot be built fails its test")]

pub mod aws_server;
pub mod between;
pub mod clock;
pub mod cold_ledger;
pub mod control_plane;
pub mod control_state;
pub mod event_queue;
pub mod faulty;
pub mod history;
pub mod hot_tier;
pub mod house;
pub mod postgres_server;
mod process;
pub mod redis_server;
pub mod tcp_proxy;

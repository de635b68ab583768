//! Conformance suites, one per port, and fixtures: real servers, a manual clock, seeded randomness.
//!
//! A suite is a list of named cases over a factory; each implementation runs all of them. What goes wrong here panics with
//! the reason: nothing is skipped.

pub mod clock;
pub mod hot_tier;
mod process;
pub mod redis_server;

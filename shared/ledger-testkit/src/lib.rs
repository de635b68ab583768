//! Conformance suites per port, fixtures that start real servers, and a house to test the use cases in. Tests only.

pub mod clock;
pub mod house;

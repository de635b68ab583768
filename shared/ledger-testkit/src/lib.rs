//! What the tests share: conformance suites of the ports, real servers, faults on purpose.

pub mod aws_server;
pub mod event_queue;

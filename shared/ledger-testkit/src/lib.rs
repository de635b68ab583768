//! What the tests share: conformance suites of the ports, real servers, faults on purpose.

pub mod aws_server;
pub mod control_plane;
pub mod event_queue;
pub mod faulty;

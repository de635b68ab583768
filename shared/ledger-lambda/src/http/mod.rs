//! The HTTP edge: bodies, fields, callers, problems, and how a router runs on Lambda.

pub mod body;
pub mod caller;
pub mod fields;
pub mod lambda;
pub mod problem;
pub mod routes;

pub use caller::Caller;
pub use problem::{Kind, Problem};

//! The HTTP face of the check function, on a ledger in memory.

#![expect(clippy::expect_used, reason = "tests: one that cannot be set up fails")]

mod acts;
mod atomic;
mod checks;
mod claims;
mod edge;
mod health;

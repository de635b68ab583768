//! The program as a user starts it: what it keeps over its end, its settings, and each tier, embedded or real.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

mod claims;
mod frozen;
mod process;
mod restart;
mod settings;
mod tiers;

use std::sync::OnceLock;

/// Runs what the fixtures do asynchronously. The tests themselves block: the program is killed with the thread that started
/// it, and that must be the test's own.
fn block_on<T>(work: impl Future<Output = T>) -> T {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| tokio::runtime::Runtime::new().expect("a runtime")).block_on(work)
}

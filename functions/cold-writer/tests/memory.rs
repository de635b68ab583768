//! The largest batch: 10,000 messages, what an SQS event source mapping passes at most, in bounded memory.
//! Alone in its file, for the peak is that of the whole process.

#![expect(clippy::expect_used, reason = "a test that cannot be set up fails")]

use std::sync::Arc;

use cold_writer::{App, write};
use ledger_domain::persist::Writer;
use ledger_domain::ports::Clock;
use ledger_lambda::sqs::Message;
use ledger_stores::postgres::{PostgresConfig, PostgresLedger};
use ledger_testkit::clock::ManualClock;
use ledger_testkit::cold_ledger::{fact, now, registration, subject};
use ledger_testkit::postgres_server::PostgresServer;

const MESSAGES: u64 = 10_000;
/// The bound on what the batch may add to the process's peak: the smallest Lambda that is in use has 256 MiB.
const GROWTH_MAX_KIB: u64 = 200 * 1_024;

/// The greatest resident size of this process so far (`VmHWM` of proc(5)).
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux says so");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[tokio::test]
async fn ten_thousand_facts_at_once_are_written_in_bounded_memory() {
    let config = PostgresConfig { max_connections: 4, acquire_timeout_ms: 60_000, operation_timeout_ms: 60_000 };
    let url = PostgresServer::shared().database().await;
    let cold = Arc::new(PostgresLedger::connect_lazy(&url, &config).expect("a URL"));
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(now()));
    let writer = Writer::of(Arc::clone(&cold) as _, Arc::clone(&clock));
    let app = App { writer, queue: None, cold: Arc::clone(&cold) as _, clock };
    // Keys as long as they come, about 1.5 KB a message.
    let key = |n: u64| format!("{n}-{}", "k".repeat(1_000));
    let message = |n: u64| {
        let body = fact(&subject("t1:as4", &key(n)), &registration(n, now(), 60)).to_json();
        Message { id: n.to_string(), body }
    };
    let messages: Vec<Message> = (0..MESSAGES).map(message).collect();

    let before = peak_kib();
    assert_eq!(write(&app, &messages).await, Vec::<String>::new());
    let growth = peak_kib() - before;
    assert!(growth < GROWTH_MAX_KIB, "{growth} KiB for {MESSAGES} messages");
    println!("peak memory grew by {growth} KiB");

    let count = "SELECT count(*) FROM dedup_ledger JOIN dedup_claim USING (scope, key, registration_id)";
    let rows: i64 = sqlx::query_scalar(count).fetch_one(cold.pool()).await.expect("a count");
    assert_eq!(u64::try_from(rows), Ok(MESSAGES));
}

//! Filling an empty Redis takes at most three times what a raw pipelined load of the same records takes.

use std::time::{Duration, Instant};

use ledger_domain::ports::Fill;
use ledger_domain::{EPSILON_MS, Record, RegistrationId, value};
use ledger_testkit::redis_server::RedisServer;

use crate::faults::{pending, slot};
use crate::open;

const RECORDS: u64 = 100_000;
/// What a keeper fills at once.
const CHUNK: usize = 1_000;
const ROUNDS: usize = 3;
const TIMES_MAX: u32 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filling_100_000_records_takes_at_most_three_raw_loads() {
    let server = RedisServer::start();
    let tier = open(server.url());
    let now = tier.time().await.expect("it answers");
    let fill = |n: u64| {
        let registration_id = RegistrationId::from_bytes(n.to_be_bytes());
        Fill { slot: slot(n), row: Record { registration_id, ..pending(now, 1) }.confirmed() }
    };
    let fills: Vec<Fill> = (0..RECORDS).map(fill).collect();
    let client = redis::Client::open(server.url()).expect("a fixture's URL");
    let mut raw = client.get_multiplexed_async_connection().await.expect("it answers");
    raw.set_response_timeout(Duration::from_secs(60));
    let (mut filled, mut loaded) = (Duration::MAX, Duration::MAX);
    // In turns, and of each the best: what else the machine does hits both alike.
    for _ in 0..ROUNDS {
        let () = server.command(&["FLUSHALL"]);
        let start = started();
        for chunk in fills.chunks(CHUNK) {
            let mut pipeline = redis::pipe();
            for Fill { slot, row } in chunk {
                let expires_at = row.window_ends_at.plus_millis(EPSILON_MS * 2).as_millis();
                pipeline.cmd("SET").arg(slot.as_bytes().as_slice()).arg(value::encode(row));
                pipeline.arg("NX").arg("GET").arg("PXAT").arg(expires_at);
            }
            let replies: Vec<Option<Vec<u8>>> = pipeline.query_async(&mut raw).await.expect("it answers");
            assert!(replies.iter().all(Option::is_none));
        }
        loaded = loaded.min(start.elapsed());
        let () = server.command(&["FLUSHALL"]);
        let start = started();
        for chunk in fills.chunks(CHUNK) {
            let written = tier.fill(chunk).await;
            assert!(written.iter().all(|written| matches!(written, Ok(true))));
        }
        filled = filled.min(start.elapsed());
        assert_eq!(server.command::<u64>(&["DBSIZE"]), RECORDS);
    }
    println!("filled in {filled:?}, loaded raw in {loaded:?}");
    assert!(filled <= loaded * TIMES_MAX, "filled in {filled:?}, loaded raw in {loaded:?}");
}

#[expect(clippy::disallowed_methods, reason = "what is measured is how long it takes")]
fn started() -> Instant {
    Instant::now()
}

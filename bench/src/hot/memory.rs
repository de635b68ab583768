//! What a record costs in Redis, as the growth of `used_memory`.

use ledger_testkit::redis_server::RedisServer;
use redis::{Client, Pipeline};

use super::BATCH;
use super::ours::{Ours, SCOPE, key_text, payload_of};
use crate::table::{Mark, Table};
use crate::timing::Spread;

/// Records of each layout.
const RECORDS: u64 = 500_000;
/// The window of the measured scope, in milliseconds: 30 days.
const WINDOW_MS: u64 = 30 * 86_400 * 1_000;

/// One row. A run gives the same number again to within a thousandth, so it is measured once.
pub(super) async fn run(server: &RedisServer, table: &mut Table) {
    let before = empty(server);
    {
        let ours = Ours::connect(server.url()).await;
        ours.register(RECORDS).await;
    }
    let of_ours = grown(server, before);

    let before = empty(server);
    write_readable(server).await;
    let of_readable = grown(server, before);
    let () = server.command(&["FLUSHALL", "SYNC"]);

    let absolute = format!("{of_ours:.1} of {of_readable:.1} bytes a record");
    table.push(
        "memory of a plain record, to readable layout",
        Spread::of([of_ours / of_readable]),
        Mark::AtMost(0.87),
        absolute,
    );
}

/// The layout that people read: scope and key as they are, the payload hash in 64 hex digits.
async fn write_readable(server: &RedisServer) {
    let client = Client::open(server.url()).expect("a URL of the fixture");
    let mut connection = client.get_multiplexed_async_connection().await.expect("the server answers");
    let numbers: Vec<u64> = (0..RECORDS).collect();
    for batch in numbers.chunks(BATCH) {
        let mut pipeline = Pipeline::with_capacity(batch.len());
        for number in batch {
            let key = format!("{SCOPE}:{}", key_text(*number));
            let hash: String = payload_of(*number).iter().map(|byte| format!("{byte:02x}")).collect();
            pipeline.cmd("SET").arg(key).arg(hash).arg("PX").arg(WINDOW_MS).ignore();
        }
        let () = pipeline.query_async(&mut connection).await.expect("the server answers");
    }
}

/// Empties the server; what it uses then, in bytes.
fn empty(server: &RedisServer) -> f64 {
    let () = server.command(&["FLUSHALL", "SYNC"]);
    used_bytes(server)
}

fn grown(server: &RedisServer, before: f64) -> f64 {
    let records: u64 = server.command(&["DBSIZE"]);
    assert_eq!(records, RECORDS, "every record stands");
    (used_bytes(server) - before) / RECORDS as f64
}

fn used_bytes(server: &RedisServer) -> f64 {
    let info: String = server.command(&["INFO", "memory"]);
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.and_then(|bytes| bytes.trim().parse().ok()).expect("INFO says used_memory")
}

//! Checks on Redis.
//!
//! Both sides run in this process, on one thread, over one multiplexed connection of the same crate to the same server. Ours
//! is [`ledger_domain::check::Ledger::check`] on the real adapter, the real clock and the real randomness, with a queue that
//! acknowledges at once. The bare one issues the same commands on values of the same size and looks at the replies, no more.

mod bare;
mod http;
mod latency;
mod load;
mod memory;
mod ours;

use std::sync::Arc;

use ledger_testkit::redis_server::RedisServer;

use crate::one_thread;
use crate::table::{Mark, Table};
use crate::timing::Pairs;
use bare::Bare;
pub(crate) use http::{body_of, routes};
pub(crate) use load::Load;
use load::{Side, rate};
pub(crate) use ours::{BuiltIn, Ours, TakesAll, in_memory};

/// Pairs a ratio is the median of; the issue asks for 11.
const PAIRS: usize = 31;
/// How many checks are under way at once where many are.
const MANY: usize = 50;
/// Checks in a batch.
const BATCH: usize = 100;

/// The whole of it.
pub(crate) fn run(table: &mut Table) {
    let server = RedisServer::start();
    one_thread().block_on(async {
        rates(&server, table).await;
        latency::run(&server, table).await;
        memory::run(&server, table).await;
    });
    http::run(&server, table);
}

/// The HTTP router alone.
pub(crate) fn run_http(table: &mut Table) {
    http::run(&RedisServer::start(), table);
}

/// Both sides on a server that holds nothing but what [`Load::Seen`] needs.
async fn sides(server: &RedisServer) -> (Arc<Ours>, Arc<Bare>) {
    let () = server.command(&["FLUSHALL", "SYNC"]);
    let ours = Arc::new(Ours::connect(server.url()).await);
    let bare = Arc::new(Bare::connect(server.url()).await);
    ours.populate().await;
    bare.populate().await;
    (ours, bare)
}

async fn rates(server: &RedisServer, table: &mut Table) {
    let must = Mark::AtLeast(0.8);
    let rows = [
        ("NEW, one at a time", Load::New, 1, 1, 1_500, Mark::None),
        ("SEEN, one at a time", Load::Seen, 1, 1, 1_500, Mark::None),
        ("NEW, 50 at once", Load::New, MANY, 1, 5_000, must),
        ("SEEN, 50 at once", Load::Seen, MANY, 1, 5_000, must),
        ("claim and resolve, 50 at once", Load::Claim, MANY, 1, 3_000, Mark::AtLeast(0.6)),
        ("NEW, batches of 100", Load::New, 1, BATCH, 8_000, must),
        ("SEEN, batches of 100", Load::Seen, 1, BATCH, 8_000, must),
    ];
    for (what, load, concurrency, batch, items, mark) in rows {
        let (ours, bare) = sides(server).await;
        let pairs = Pairs::measure(
            PAIRS,
            || rate(&ours, load, concurrency, batch, items),
            || rate(&bare, load, concurrency, batch, items),
        )
        .await;
        table.push_rates(what, &pairs, mark, "checks");
    }
}

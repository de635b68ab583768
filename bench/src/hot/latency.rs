//! How long one check takes while others are under way, at half of what the bare commands can do at most.
//!
//! Open loop: each check has its moment, and its time counts from there, whether or not it could be sent then. A side that
//! falls behind is not spared the waiting.

use std::sync::Arc;
use std::time::Duration;

use ledger_testkit::redis_server::RedisServer;

use super::load::{Load, Side, rate};
use super::{MANY, sides};
use crate::table::{Mark, Table};
use crate::timing::{Pairs, Spread, now, percentile};

/// Pairs a ratio is the median of.
const PAIRS: usize = 21;
/// Samples of the bare maximum.
const MAXIMA: usize = 5;
/// Checks in a sample of a maximum.
const MAXIMUM_CHECKS: usize = 12_000;
/// How long a sample of latencies takes.
const SAMPLE: Duration = Duration::from_millis(400);

/// A row per load and percentile.
pub(super) async fn run(server: &RedisServer, table: &mut Table) {
    for (what, load) in [("NEW", Load::New), ("SEEN", Load::Seen)] {
        let (ours, bare) = sides(server).await;
        let mut maxima = Vec::with_capacity(MAXIMA);
        for _ in 0..MAXIMA {
            maxima.push(rate(&bare, load, MANY, 1, MAXIMUM_CHECKS).await);
        }
        let per_second = Spread::of(maxima).median / 2.0;
        let (mut halves, mut tails) = (Pairs::default(), Pairs::default());
        for index in 0..=PAIRS {
            let bare_first = index % 2 == 0;
            let (of_ours, of_bare) = if bare_first {
                let of_bare = open_loop(&bare, load, per_second).await;
                (open_loop(&ours, load, per_second).await, of_bare)
            } else {
                (open_loop(&ours, load, per_second).await, open_loop(&bare, load, per_second).await)
            };
            // The first pair warms up.
            if index > 0 {
                halves.push(percentile(&of_ours, 500), percentile(&of_bare, 500));
                tails.push(percentile(&of_ours, 990), percentile(&of_bare, 990));
            }
        }
        let rows = [("p50", &halves, Mark::None), ("p99", &tails, Mark::AtMost(1.5))];
        for (percentile, pairs, mark) in rows {
            let (of_ours, of_bare) = (pairs.ours().median * 1e3, pairs.bare().median * 1e3);
            let absolute = format!("{of_ours:.2} of {of_bare:.2} ms at {:.1} k/s", per_second / 1e3);
            table.push(format!("{what} {percentile} at half of the bare maximum"), pairs.ratio(), mark, absolute);
        }
    }
}

/// The time of each check in seconds, sorted.
async fn open_loop<S: Side>(side: &Arc<S>, load: Load, per_second: f64) -> Vec<f64> {
    let count = (SAMPLE.as_secs_f64() * per_second) as usize;
    let calls = side.calls(load, count, 1);
    let mut tasks = Vec::with_capacity(count);
    let started = now();
    for (index, call) in calls.into_iter().enumerate() {
        let moment = started + Duration::from_secs_f64(index as f64 / per_second);
        // A timer is good to a millisecond only; asking again and again is as good as the clock.
        while now() < moment {
            tokio::task::yield_now().await;
        }
        let side = Arc::clone(side);
        tasks.push(tokio::spawn(async move {
            side.call(call).await;
            (now() - moment).as_secs_f64()
        }));
    }
    let mut seconds = Vec::with_capacity(count);
    for task in tasks {
        seconds.push(task.await.expect("a call went as its load says"));
    }
    seconds.sort_by(f64::total_cmp);
    seconds
}

//! The keeper of `local`: the function's own code, at start and every 10 s.

use std::sync::Arc;
use std::time::Duration;

use ledger_domain::keep::{Keeper, KeeperSettings, KeptReport, WaitsFor};
use ledger_domain::ports::chain;
use ledger_stores::clock::OsEntropy;
use tokio::sync::watch;

use crate::config::Tiers;

/// Between two runs, in milliseconds.
const EVERY_MS: u64 = 10_000;
/// How long one run may take, in milliseconds. A process that ends in the middle leaves the next one waiting so long.
const RUN_MS: i64 = 10_000;

/// The keeper of these tiers.
pub(crate) fn keeper(tiers: &Tiers) -> Keeper {
    Keeper {
        hot: Arc::clone(&tiers.hot),
        cold: Arc::clone(&tiers.cold),
        queue: Arc::clone(&tiers.queue),
        control_plane: Arc::clone(&tiers.control_plane),
        clock: Arc::clone(&tiers.clock),
        entropy: Arc::new(OsEntropy),
        settings: KeeperSettings::default(),
    }
}

/// Runs until the hot tier is complete or only time, or somebody, can help; in words, how it went. Whatever it says, the ledger
/// can start: while the tier is incomplete misses are settled in the cold ledger.
pub(crate) async fn at_start(keeper: &Keeper, queue_is_ours: bool) -> String {
    let mut settings = keeper.settings;
    if queue_is_ours {
        // Whoever had checks under way has ended: the folder is this process's alone.
        settings.in_flight_ms = 0;
    }
    // Nobody is slowed down yet.
    settings.rows_per_second = 0;
    let keeper = Keeper { settings, ..keeper.clone() };
    let mut filled = 0;
    loop {
        let kept = match keeper::keep(&keeper, RUN_MS).await {
            Ok(kept) => kept,
            Err(error) => return incomplete(&chain(&error)),
        };
        filled += kept.rows_filled;
        if kept.is_complete {
            return format!("records brought back into the hot tier: {filled}");
        }
        match kept.waits_for {
            Some(WaitsFor::Time) if kept.errors.is_empty() => {}
            Some(_) | None => return incomplete(&why(&kept)),
        }
    }
}

fn incomplete(why: &str) -> String {
    format!("hot tier     incomplete, so what it does not know is settled in the cold ledger. It waits for {why}")
}

fn why(kept: &KeptReport) -> String {
    let dead = kept.depth.and_then(|depth| depth.dead);
    match (kept.errors.first(), kept.waits_for, dead) {
        (Some(error), _, _) => chain(error),
        (None, Some(WaitsFor::Drained), Some(dead @ 1..)) => format!("{dead} dead letters to be handled"),
        (None, Some(WaitsFor::Operator), _) => {
            let problems = kept.health.as_ref().map(|health| health.problems.join("; "));
            problems.unwrap_or_default()
        }
        (None, Some(waits_for), _) => waits_for.to_string(),
        (None, None, _) => "an answer".to_owned(),
    }
}

/// Runs again and again for as long as the process runs.
pub(crate) async fn run(keeper: Keeper, mut stop: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(Duration::from_millis(EVERY_MS)) => {}
        }
        let run = keeper::keep(&keeper, RUN_MS);
        tokio::select! {
            // What it leaves it goes on with at the next start.
            _ = stop.wait_for(|stop| *stop) => return,
            kept = run => if let Err(error) = kept {
                tracing::warn!(error = chain(&error), "the tiers were not kept");
            },
        }
    }
}

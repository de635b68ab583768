//! Plain checks in memory and nothing else, so that an instruction counter sees what a check costs: run it under
//! `valgrind --tool=callgrind` with two counts, and the difference is the price of the difference.

use crate::hot::{Load, Ours};

/// `count` first sightings, then as many repeats of them, one at a time.
pub(crate) async fn run(count: u64) {
    let ours = Ours::in_memory(usize::try_from(count).expect("a number that fits") + 1);
    ours.check_each(Load::New, count).await;
    ours.check_each(Load::Seen, count).await;
}

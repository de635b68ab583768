//! Random cases, and what the domain says they must come to.

use ledger_domain::Record;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// How many random cases one property is tried on.
const CASES: usize = 60;

/// 60 values of a strategy, the same in every run.
///
/// # Panics
/// Where the strategy gives none.
pub fn random_cases<S: Strategy>(strategy: &S) -> Vec<S::Value> {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut draw = || match strategy.new_tree(&mut runner) {
        Ok(tree) => tree.current(),
        Err(reason) => panic!("no case could be drawn: {reason}"),
    };
    (0..CASES).map(|_| draw()).collect()
}

/// The records, some of them twice, shuffled and cut into batches.
pub fn batches(records: Vec<Record>) -> impl Strategy<Value = Vec<Vec<Record>>> {
    let count = records.len();
    (proptest::collection::vec(0..count, 0..=count), proptest::collection::vec(1..5_usize, 2 * count))
        .prop_flat_map(move |(again, sizes)| {
            let all: Vec<_> = records.iter().cloned().chain(again.into_iter().map(|at| records[at].clone())).collect();
            (Just(all).prop_shuffle(), Just(sizes))
        })
        .prop_map(|(mut left, sizes)| {
            let mut batches = Vec::new();
            for size in sizes {
                if left.is_empty() {
                    break;
                }
                batches.push(left.drain(..size.min(left.len())).collect());
            }
            batches
        })
}

//! Random cases, and what the domain says they must come to.

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
    cases_of(strategy, TestRng::deterministic_rng(RngAlgorithm::ChaCha), CASES)
}

/// So many values of a strategy, of a seed.
///
/// # Panics
/// Where the strategy gives none.
pub fn seeded_cases<S: Strategy>(strategy: &S, seed: u64, count: u64) -> Vec<S::Value> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_be_bytes());
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    cases_of(strategy, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes), count)
}

fn cases_of<S: Strategy>(strategy: &S, rng: TestRng, count: usize) -> Vec<S::Value> {
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut draw = || match strategy.new_tree(&mut runner) {
        Ok(tree) => tree.current(),
        Err(reason) => panic!("no case could be drawn: {reason}"),
    };
    (0..count).map(|_| draw()).collect()
}

/// The records or facts, some of them twice, shuffled and cut into batches.
pub fn batches<T: Clone + std::fmt::Debug + 'static>(records: Vec<T>) -> impl Strategy<Value = Vec<Vec<T>>> {
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

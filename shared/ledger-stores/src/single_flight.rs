//! Many ask, one works: callers that come while an attempt runs share its outcome, also where it failed.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

/// At most one attempt at a time.
#[derive(Debug)]
pub(crate) struct SingleFlight<T> {
    ended: AtomicU64,
    last: Mutex<Option<T>>,
}

impl<T: Clone> SingleFlight<T> {
    pub(crate) fn new() -> Self {
        Self { ended: AtomicU64::new(0), last: Mutex::new(None) }
    }

    /// The outcome of the attempt under way or, if there is none, of `attempt`. A caller that leaves ends its attempt; the next
    /// in line makes its own.
    pub(crate) async fn run<F: Future<Output = T>>(&self, attempt: impl FnOnce() -> F) -> T {
        let ended_before = self.ended.load(Ordering::SeqCst);
        let mut last = self.last.lock().await;
        if let Some(shared) = last.as_ref().filter(|_| self.ended.load(Ordering::SeqCst) != ended_before) {
            return shared.clone();
        }
        let outcome = attempt().await;
        *last = Some(outcome.clone());
        self.ended.fetch_add(1, Ordering::SeqCst);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[tokio::test]
    async fn callers_that_come_during_an_attempt_share_it_and_later_ones_do_not() {
        let flight = SingleFlight::new();
        let attempts = AtomicUsize::new(0);
        let attempt = || async {
            tokio::task::yield_now().await;
            attempts.fetch_add(1, Ordering::SeqCst)
        };
        let shared = futures::future::join_all((0..10).map(|_| flight.run(attempt))).await;
        assert_eq!(shared, vec![0; 10]);
        assert_eq!(flight.run(attempt).await, 1);
    }

    #[tokio::test]
    async fn an_abandoned_attempt_blocks_nobody() {
        let flight = SingleFlight::new();
        let mut stuck = Box::pin(flight.run(std::future::pending::<u8>));
        assert!(futures::poll!(&mut stuck).is_pending());
        let mut next = Box::pin(flight.run(|| async { 7 }));
        assert!(futures::poll!(&mut next).is_pending());
        drop(stuck);
        assert_eq!(next.await, 7);
    }
}

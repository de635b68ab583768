//! What both sides are asked to do.

use std::future::Future;
use std::sync::Arc;

use crate::timing::now;

/// Keys that stand registered for [`Load::Seen`].
pub(super) const POPULATION: u64 = 50_000;

/// The stored response of [`Load::Claim`].
pub(super) const RESPONSE_BYTES: usize = 200;

/// What checks find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// A key that nobody has seen.
    New,
    /// One of [`POPULATION`] keys, spread.
    Seen,
    /// A key that nobody has seen, claimed and then resolved with a response of [`RESPONSE_BYTES`].
    Claim,
}

/// One side of a comparison.
pub(super) trait Side: Send + Sync + Sized + 'static {
    /// A call, ready to be sent: what its making costs is not measured.
    type Call: Send + 'static;

    /// Calls of `batch` items each.
    fn calls(&self, load: Load, calls: usize, batch: usize) -> Vec<Self::Call>;

    /// Does one, and panics where its outcome is not what its load says.
    fn call(self: &Arc<Self>, call: Self::Call) -> impl Future<Output = ()> + Send;

    /// Registers the keys of [`Load::Seen`].
    fn populate(self: &Arc<Self>) -> impl Future<Output = ()>;
}

/// Items done in a second, `concurrency` calls of `batch` items being under way at once.
pub(super) async fn rate<S: Side>(side: &Arc<S>, load: Load, concurrency: usize, batch: usize, items: usize) -> f64 {
    let calls_each = items / batch / concurrency;
    let work: Vec<_> = (0..concurrency).map(|_| side.calls(load, calls_each, batch)).collect();
    let started = now();
    let tasks: Vec<_> = work
        .into_iter()
        .map(|calls| {
            let side = Arc::clone(side);
            tokio::spawn(async move {
                for call in calls {
                    side.call(call).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a call went as its load says");
    }
    (calls_each * concurrency * batch) as f64 / started.elapsed().as_secs_f64()
}

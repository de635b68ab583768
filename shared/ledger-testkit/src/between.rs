//! A hot tier with something happening at a named point: between what a caller read and what it writes, or in place of a reply.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use ledger_domain::ports::{
    Amend, Begin, Begun, Count, Fill, Heal, HotHealth, HotTier, Release, Replace, Settle, StoreError,
};
use ledger_domain::transition::{Amended, Counted, Found, Swapped};
use ledger_domain::{FillPass, Slot, Timestamp};

/// An operation of the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// [`HotTier::begin`].
    Begin,
    /// [`HotTier::settle`].
    Settle,
    /// [`HotTier::count`].
    Count,
    /// [`HotTier::replace`].
    Replace,
    /// [`HotTier::amend`].
    Amend,
    /// [`HotTier::release`].
    Release,
    /// [`HotTier::read`].
    Read,
    /// [`HotTier::fill`].
    Fill,
    /// [`HotTier::heal`].
    Heal,
}

type Deed = Pin<Box<dyn Future<Output = ()> + Send>>;

enum What {
    /// This is done first.
    First(Deed),
    /// This is done after it, and before it is reported.
    Then(Deed),
    /// It is done and reported as "may have happened".
    LoseReply,
    /// It is not done and reported as "may have happened".
    LoseRequest,
}

/// The tier. Each deed waits for the next call of its operation; those of one operation come in their order.
pub struct Between {
    inner: Arc<dyn HotTier>,
    deeds: Mutex<VecDeque<(Op, What)>>,
}

impl fmt::Debug for Between {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Between").finish_non_exhaustive()
    }
}

impl Between {
    /// A tier that passes everything on to `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn HotTier>) -> Arc<Self> {
        Arc::new(Self { inner, deeds: Mutex::default() })
    }

    /// Before the next `op` is passed on, `deed` is done.
    pub fn before(&self, op: Op, deed: impl Future<Output = ()> + Send + 'static) {
        self.push(op, What::First(Box::pin(deed)));
    }

    /// After the next `op` was done, and before its caller hears of it, `deed` is done.
    pub fn after(&self, op: Op, deed: impl Future<Output = ()> + Send + 'static) {
        self.push(op, What::Then(Box::pin(deed)));
    }

    /// The next `op` is done, and its reply lost.
    pub fn lose_reply(&self, op: Op) {
        self.push(op, What::LoseReply);
    }

    /// The next `op` is lost on its way.
    pub fn lose_request(&self, op: Op) {
        self.push(op, What::LoseRequest);
    }

    fn push(&self, op: Op, what: What) {
        self.deeds.lock().unwrap_or_else(PoisonError::into_inner).push_back((op, what));
    }

    fn next(&self, op: Op) -> Option<What> {
        let mut deeds = self.deeds.lock().unwrap_or_else(PoisonError::into_inner);
        let at = deeds.iter().position(|(of, _)| *of == op)?;
        deeds.remove(at).map(|(_, what)| what)
    }

    async fn around<T, F>(&self, op: Op, requests: usize, call: F) -> Vec<Result<T, StoreError>>
    where
        T: Send,
        F: Future<Output = Vec<Result<T, StoreError>>> + Send,
    {
        let lost = || (0..requests).map(|_| Err(StoreError::may_have_happened("told to", "lost"))).collect();
        match self.next(op) {
            None => call.await,
            Some(What::First(deed)) => {
                deed.await;
                call.await
            }
            Some(What::Then(deed)) => {
                let results = call.await;
                deed.await;
                results
            }
            Some(What::LoseReply) => {
                drop(call.await);
                lost()
            }
            Some(What::LoseRequest) => lost(),
        }
    }
}

#[async_trait]
impl HotTier for Between {
    async fn begin(&self, requests: &[Begin]) -> Vec<Result<Begun, StoreError>> {
        self.around(Op::Begin, requests.len(), self.inner.begin(requests)).await
    }

    async fn settle(&self, requests: &[Settle]) -> Vec<Result<Swapped, StoreError>> {
        self.around(Op::Settle, requests.len(), self.inner.settle(requests)).await
    }

    async fn count(&self, requests: &[Count]) -> Vec<Result<Counted, StoreError>> {
        self.around(Op::Count, requests.len(), self.inner.count(requests)).await
    }

    async fn replace(&self, requests: &[Replace]) -> Vec<Result<Swapped, StoreError>> {
        self.around(Op::Replace, requests.len(), self.inner.replace(requests)).await
    }

    async fn amend(&self, requests: &[Amend]) -> Vec<Result<Amended, StoreError>> {
        self.around(Op::Amend, requests.len(), self.inner.amend(requests)).await
    }

    async fn release(&self, requests: &[Release]) -> Vec<Result<(), StoreError>> {
        self.around(Op::Release, requests.len(), self.inner.release(requests)).await
    }

    async fn read(&self, slots: &[Slot]) -> Vec<Result<Found, StoreError>> {
        self.around(Op::Read, slots.len(), self.inner.read(slots)).await
    }

    async fn fill(&self, requests: &[Fill]) -> Vec<Result<bool, StoreError>> {
        self.around(Op::Fill, requests.len(), self.inner.fill(requests)).await
    }

    async fn begin_fill(&self, pass: FillPass) -> Result<(), StoreError> {
        self.inner.begin_fill(pass).await
    }

    async fn end_fill(&self, pass: FillPass) -> Result<bool, StoreError> {
        self.inner.end_fill(pass).await
    }

    async fn heal(&self, requests: &[Heal]) -> Vec<Result<bool, StoreError>> {
        self.around(Op::Heal, requests.len(), self.inner.heal(requests)).await
    }

    async fn time(&self) -> Result<Timestamp, StoreError> {
        self.inner.time().await
    }

    async fn health(&self) -> Result<HotHealth, StoreError> {
        self.inner.health().await
    }
}

//! The use case's ports as one place that asks a question at a time: a call runs until it needs a reply that is not in its log.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use ledger_domain::ports::{
    Amend, Begin, Begun, Clock, ClockUnknown, ColdSessions, Count, Entropy, EventQueue, FactSink, Fill, Heal,
    HotHealth, HotTier, HotTrust, PolicySource, QueueDepth, Release, Replace, Settle, StoreError,
};
use ledger_domain::transition::{Amended, Counted, Found, Swapped};
use ledger_domain::{Fact, FillPass, Policy, PolicySet, Record, Scope, Slot, Timestamp};

use crate::keep::Kept;

/// What a call asks of the tiers, or waits for.
#[derive(Debug, Clone)]
pub(crate) enum Ask {
    Begin(Begin),
    Settle(Settle),
    Count(Count),
    Replace(Replace),
    Amend(Box<Amend>),
    Release(Release),
    Read,
    Send(Box<Fact>),
    Pause,
}

/// What it is told, by what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    /// Won, done, sent, waited.
    Done,
    /// Done, and this stands there: counted, amended.
    DoneOn(Kept<Record>),
    /// Not done, for this stands there; or this was read.
    Found(Option<Kept<Record>>),
    /// The queue refused it.
    Refused,
    /// The reply was lost, or there never was one.
    Unknown,
}

/// One call's questions: those answered already, and the one that is not.
pub(crate) struct Script {
    answered: Vec<(Reply, Timestamp)>,
    state: Mutex<Progress>,
}

struct Progress {
    next: usize,
    now: Timestamp,
    random: [u8; 8],
    asked: Option<Ask>,
    offered: Vec<Fact>,
}

impl Script {
    /// `random` is the first of the call's random values.
    pub(crate) fn new(began: Timestamp, answered: Vec<(Reply, Timestamp)>, random: [u8; 8]) -> Arc<Self> {
        let progress = Progress { next: 0, now: began, random, asked: None, offered: Vec::new() };
        Arc::new(Self { answered, state: Mutex::new(progress) })
    }

    /// The question without an answer, and the facts offered since the last answer.
    pub(crate) fn progress(&self) -> (Option<Ask>, Vec<Fact>) {
        let state = self.state.lock().expect("no call panicked");
        (state.asked.clone(), state.offered.clone())
    }

    async fn ask(&self, ask: Ask) -> Reply {
        let reply = {
            let mut state = self.state.lock().expect("no call panicked");
            let reply = self.answered.get(state.next).copied();
            match reply {
                Some((_, at)) => {
                    state.next += 1;
                    state.now = at;
                    state.offered.clear();
                }
                None => state.asked = Some(ask),
            }
            reply
        };
        match reply {
            Some((reply, _)) => reply,
            None => std::future::pending().await,
        }
    }
}

fn lost() -> StoreError {
    StoreError::may_have_happened("ask a tier", "no reply")
}

fn found(record: Option<Kept<Record>>) -> Found {
    record.map_or(Found::Absent, |record| Found::record((*record).clone()))
}

fn only<T: Clone>(requests: &[T]) -> T {
    assert_eq!(requests.len(), 1, "each call is about one key");
    requests[0].clone()
}

fn mismatch(reply: Reply) -> ! {
    panic!("no reply to this question: {reply:?}")
}

fn swapped(reply: Reply) -> Vec<Result<Swapped, StoreError>> {
    vec![match reply {
        Reply::Done => Ok(Swapped::Done),
        Reply::Found(record) => Ok(Swapped::Moved(found(record))),
        Reply::Unknown => Err(lost()),
        Reply::DoneOn(_) | Reply::Refused => mismatch(reply),
    }]
}

#[async_trait]
impl HotTier for Script {
    async fn begin(&self, requests: &[Begin]) -> Vec<Result<Begun, StoreError>> {
        vec![match self.ask(Ask::Begin(only(requests))).await {
            Reply::Done => Ok(Begun::Won),
            Reply::Found(record) => Ok(Begun::Present(found(record))),
            Reply::Unknown => Err(lost()),
            reply @ (Reply::DoneOn(_) | Reply::Refused) => mismatch(reply),
        }]
    }

    async fn settle(&self, requests: &[Settle]) -> Vec<Result<Swapped, StoreError>> {
        swapped(self.ask(Ask::Settle(only(requests))).await)
    }

    async fn count(&self, requests: &[Count]) -> Vec<Result<Counted, StoreError>> {
        vec![match self.ask(Ask::Count(only(requests))).await {
            Reply::DoneOn(record) => Ok(Counted::Counted(Box::new((*record).clone()))),
            Reply::Found(record) => Ok(Counted::Moved(found(record))),
            Reply::Unknown => Err(lost()),
            reply @ (Reply::Done | Reply::Refused) => mismatch(reply),
        }]
    }

    async fn replace(&self, requests: &[Replace]) -> Vec<Result<Swapped, StoreError>> {
        swapped(self.ask(Ask::Replace(only(requests))).await)
    }

    async fn amend(&self, requests: &[Amend]) -> Vec<Result<Amended, StoreError>> {
        vec![match self.ask(Ask::Amend(Box::new(only(requests)))).await {
            Reply::DoneOn(record) => Ok(Amended::Done(Box::new((*record).clone()))),
            Reply::Found(record) => Ok(Amended::Moved(found(record))),
            Reply::Unknown => Err(lost()),
            reply @ (Reply::Done | Reply::Refused) => mismatch(reply),
        }]
    }

    async fn release(&self, requests: &[Release]) -> Vec<Result<(), StoreError>> {
        vec![match self.ask(Ask::Release(only(requests))).await {
            Reply::Done => Ok(()),
            Reply::Unknown => Err(lost()),
            reply @ (Reply::DoneOn(_) | Reply::Found(_) | Reply::Refused) => mismatch(reply),
        }]
    }

    async fn read(&self, slots: &[Slot]) -> Vec<Result<Found, StoreError>> {
        only(slots);
        vec![match self.ask(Ask::Read).await {
            Reply::Found(record) => Ok(found(record)),
            Reply::Unknown => Err(lost()),
            reply @ (Reply::Done | Reply::DoneOn(_) | Reply::Refused) => mismatch(reply),
        }]
    }

    async fn fill(&self, _: &[Fill]) -> Vec<Result<bool, StoreError>> {
        unreachable!("a call fills from the cold ledger only, and there is none")
    }

    async fn begin_fill(&self, _: FillPass) -> Result<(), StoreError> {
        unreachable!("no call marks the hot tier")
    }

    async fn end_fill(&self, _: FillPass) -> Result<bool, StoreError> {
        unreachable!("no call marks the hot tier")
    }

    async fn heal(&self, _: &[Heal]) -> Vec<Result<bool, StoreError>> {
        unreachable!("a call heals from the cold ledger only, and there is none")
    }

    async fn time(&self) -> Result<Timestamp, StoreError> {
        unreachable!("the clock is told the time")
    }

    async fn health(&self) -> Result<HotHealth, StoreError> {
        unreachable!("the hot tier is trusted")
    }
}

#[async_trait]
impl EventQueue for Script {
    async fn send(&self, facts: &[Fact]) -> Vec<Result<(), StoreError>> {
        vec![match self.ask(Ask::Send(Box::new(only(facts)))).await {
            Reply::Done => Ok(()),
            Reply::Refused => Err(StoreError::did_not_happen("send a fact", "refused")),
            Reply::Unknown => Err(lost()),
            reply @ (Reply::DoneOn(_) | Reply::Found(_)) => mismatch(reply),
        }]
    }

    async fn send_together(&self, _: &[Fact]) -> Result<(), StoreError> {
        unreachable!("no call is atomic over several keys")
    }

    async fn depth(&self) -> Result<QueueDepth, StoreError> {
        unreachable!("no call looks at the queue's depth")
    }
}

impl FactSink for Script {
    fn offer(&self, fact: Fact) {
        self.state.lock().expect("no call panicked").offered.push(fact);
    }
}

#[async_trait]
impl ColdSessions for Script {
    async fn ensure(&self) -> Result<Timestamp, StoreError> {
        unreachable!("there is no cold ledger")
    }
}

impl HotTrust for Script {
    fn vouches(&self) -> bool {
        true
    }

    fn is_in_place(&self) -> bool {
        true
    }
}

impl PolicySource for Script {
    fn policy(&self, scope: &Scope) -> Option<Policy> {
        Some(PolicySet::default().resolve(scope))
    }
}

#[async_trait]
impl Clock for Script {
    fn now(&self) -> Result<Timestamp, ClockUnknown> {
        Ok(self.state.lock().expect("no call panicked").now)
    }

    async fn pause(&self, _: u64) {
        self.ask(Ask::Pause).await;
    }
}

impl Entropy for Script {
    fn eight_bytes(&self) -> [u8; 8] {
        let mut state = self.state.lock().expect("no call panicked");
        state.random[7] += 1;
        state.random
    }
}

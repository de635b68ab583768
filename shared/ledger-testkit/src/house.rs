//! A whole ledger for tests of the use cases: chosen tiers, and a queue, a control plane and a trust that do as told.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use ledger_domain::check::{Check, ClaimRequest, Counters, Ledger};
use ledger_domain::claim::TokenKeys;
use ledger_domain::ports::{
    Clock, ColdLedger, ColdSessions, Entropy, EventQueue, FactSink, HotTier, HotTrust, PolicySource, QueueDepth,
    StoreError,
};
use ledger_domain::{
    Fact, MessageKey, PayloadHash, Policy, PolicySet, Principal, RequestId, Scope, SourceService, Subject, Timestamp,
};

/// What a scripted queue does with the next fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Send {
    /// Takes it and says so.
    Take,
    /// Refuses it: it did not happen.
    Refuse,
    /// Takes it, but the reply is lost.
    TakeAndLoseReply,
    /// Does not take it, and the reply is lost.
    DropAndLoseReply,
}

/// A queue that does as told, fact by fact, and takes what it was told nothing about.
#[derive(Debug, Default)]
pub struct ScriptedQueue {
    script: Mutex<VecDeque<Send>>,
    taken: Mutex<Vec<Fact>>,
    offered: Mutex<Vec<Fact>>,
}

impl ScriptedQueue {
    /// What to do with the next facts.
    pub fn script(&self, sends: impl IntoIterator<Item = Send>) {
        lock(&self.script).extend(sends);
    }

    /// The facts taken so far, those sent twice twice.
    #[must_use]
    pub fn taken(&self) -> Vec<Fact> {
        lock(&self.taken).clone()
    }

    /// The facts about repeats offered so far.
    #[must_use]
    pub fn offered(&self) -> Vec<Fact> {
        lock(&self.offered).clone()
    }
}

#[async_trait]
impl EventQueue for ScriptedQueue {
    async fn send(&self, facts: &[Fact]) -> Vec<Result<(), StoreError>> {
        let send_one = |fact: &Fact| {
            let send = lock(&self.script).pop_front().unwrap_or(Send::Take);
            if matches!(send, Send::Take | Send::TakeAndLoseReply) {
                lock(&self.taken).push(fact.clone());
            }
            match send {
                Send::Take => Ok(()),
                Send::Refuse => Err(StoreError::did_not_happen("send a fact", "told so")),
                Send::TakeAndLoseReply | Send::DropAndLoseReply => {
                    Err(StoreError::may_have_happened("send a fact", "told so"))
                }
            }
        };
        facts.iter().map(send_one).collect()
    }

    async fn send_together(&self, facts: &[Fact]) -> Result<(), StoreError> {
        let send = lock(&self.script).pop_front().unwrap_or(Send::Take);
        if matches!(send, Send::Take | Send::TakeAndLoseReply) {
            lock(&self.taken).extend_from_slice(facts);
        }
        match send {
            Send::Take => Ok(()),
            Send::Refuse => Err(StoreError::did_not_happen("send facts together", "told so")),
            Send::TakeAndLoseReply | Send::DropAndLoseReply => {
                Err(StoreError::may_have_happened("send facts together", "told so"))
            }
        }
    }

    async fn depth(&self) -> Result<QueueDepth, StoreError> {
        Ok(QueueDepth { waiting: lock(&self.taken).len() as u64, dead: Some(0), lag_ms: 0 })
    }
}

impl FactSink for ScriptedQueue {
    fn offer(&self, fact: Fact) {
        lock(&self.offered).push(fact);
    }
}

/// Policies that can be exchanged, or be missing.
#[derive(Debug)]
pub struct FixedPolicies(Mutex<Option<PolicySet>>);

impl FixedPolicies {
    /// Sets what is known; `None` is "too old to be used".
    pub fn set(&self, policies: Option<PolicySet>) {
        *lock(&self.0) = policies;
    }
}

impl PolicySource for FixedPolicies {
    fn policy(&self, scope: &Scope) -> Option<Policy> {
        lock(&self.0).as_ref().map(|policies| policies.resolve(scope))
    }
}

/// A trust in hot misses that can be withdrawn.
#[derive(Debug)]
pub struct FixedTrust {
    vouches: AtomicBool,
    in_place: AtomicBool,
}

impl FixedTrust {
    /// Whether misses can be believed from now on.
    pub fn set(&self, vouches: bool) {
        self.vouches.store(vouches, Ordering::SeqCst);
    }

    /// Whether the hot tier is the one that is filled from now on; it is at first. One that is not is not believed either.
    pub fn set_in_place(&self, in_place: bool) {
        self.in_place.store(in_place, Ordering::SeqCst);
    }
}

impl HotTrust for FixedTrust {
    fn vouches(&self) -> bool {
        self.vouches.load(Ordering::SeqCst) && self.is_in_place()
    }

    fn is_in_place(&self) -> bool {
        self.in_place.load(Ordering::SeqCst)
    }
}

/// A cold session that can be had or not.
#[derive(Debug, Default)]
pub struct FixedSessions {
    refused: AtomicBool,
    ensured: AtomicU64,
    until: Mutex<Option<Timestamp>>,
}

impl FixedSessions {
    /// Whether a session can be had from now on; it can at first.
    pub fn refuse(&self, refused: bool) {
        self.refused.store(refused, Ordering::SeqCst);
    }

    /// Until when sessions may be relied on from now on; for ever at first.
    pub fn end_at(&self, until: Timestamp) {
        *lock(&self.until) = Some(until);
    }

    /// How often one was asked for, refused or not.
    #[must_use]
    pub fn ensured(&self) -> u64 {
        self.ensured.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl ColdSessions for FixedSessions {
    async fn ensure(&self) -> Result<Timestamp, StoreError> {
        self.ensured.fetch_add(1, Ordering::SeqCst);
        if self.refused.load(Ordering::SeqCst) {
            return Err(StoreError::did_not_happen("open a cold session", "told so"));
        }
        Ok(lock(&self.until).unwrap_or(Timestamp::MAX))
    }
}

/// Entropy that counts: unique and repeatable.
#[derive(Debug, Default)]
pub struct CountingEntropy(AtomicU64);

impl Entropy for CountingEntropy {
    fn eight_bytes(&self) -> [u8; 8] {
        (self.0.fetch_add(1, Ordering::SeqCst) + 1).to_be_bytes()
    }
}

/// A ledger on chosen tiers, with handles on what does as told.
#[derive(Debug)]
pub struct House {
    /// The ledger.
    pub ledger: Ledger,
    /// Its queue, and the sink of its repeats.
    pub queue: Arc<ScriptedQueue>,
    /// Its policies; the built-in defaults at first.
    pub policies: Arc<FixedPolicies>,
    /// Its trust in hot misses; given at first.
    pub trust: Arc<FixedTrust>,
    /// Its cold session, which it gets at first.
    pub sessions: Arc<FixedSessions>,
}

impl House {
    /// A ledger on a hot tier and a clock, and on a cold ledger where one is given.
    pub fn new(hot: Arc<dyn HotTier>, cold: Option<Arc<dyn ColdLedger>>, clock: Arc<dyn Clock>) -> Self {
        let queue = Arc::new(ScriptedQueue::default());
        let policies = Arc::new(FixedPolicies(Mutex::new(Some(PolicySet::default()))));
        let trust = Arc::new(FixedTrust { vouches: AtomicBool::new(true), in_place: AtomicBool::new(true) });
        let sessions = Arc::new(FixedSessions::default());
        let ledger = Ledger {
            sessions: Arc::clone(&sessions) as Arc<dyn ColdSessions>,
            hot,
            trust: Arc::clone(&trust) as Arc<dyn HotTrust>,
            queue: Arc::clone(&queue) as Arc<dyn EventQueue>,
            repeats: Arc::clone(&queue) as Arc<dyn FactSink>,
            cold,
            policies: Arc::clone(&policies) as Arc<dyn PolicySource>,
            clock,
            entropy: Arc::new(CountingEntropy::default()),
            tokens: TokenKeys::new(&[[7; 32]]).expect("a key"),
            counters: Counters::default(),
        };
        Self { ledger, queue, policies, trust, sessions }
    }
}

/// A check of `key` in `scope`, with the payload hash of 32 times `payload`.
#[must_use]
pub fn check(scope: &str, key: &str, payload: u8) -> Check {
    Check {
        subject: subject(scope, key),
        payload: PayloadHash::from_bytes([payload; 32]),
        ttl_seconds: None,
        source_service: None,
        request_id: None,
        principal: Principal::parse("arn:aws:iam::123456789012:user/hub").expect("valid"),
        claim: None,
    }
}

/// The same check with a `requestId`.
#[must_use]
pub fn with_request_id(check: Check, request_id: &str) -> Check {
    Check { request_id: Some(RequestId::parse(request_id).expect("valid")), ..check }
}

/// The same check in claim mode.
#[must_use]
pub fn claiming(check: Check, lease_seconds: u64) -> Check {
    Check { claim: Some(ClaimRequest { lease_seconds }), ..check }
}

/// The same check by a named service.
#[must_use]
pub fn from_service(check: Check, service: &str) -> Check {
    Check { source_service: Some(SourceService::parse(service).expect("valid")), ..check }
}

/// A (scope, key).
#[must_use]
pub fn subject(scope: &str, key: &str) -> Subject {
    Subject { scope: Scope::parse(scope, None).expect("valid"), key: MessageKey::text(key).expect("valid") }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

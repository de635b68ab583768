//! Our side: the use case on the real hot tier.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use ledger_domain::breaker::BreakerSettings;
use ledger_domain::check::{Check, ClaimRequest, Counters, Ledger};
use ledger_domain::claim::{Act, TokenKeys};
use ledger_domain::claims::{Acknowledged, ClaimAct};
use ledger_domain::ports::{
    Clock, ColdSessions, EventQueue, FactSink, HotTier, HotTrust, PolicySource, QueueDepth, StoreError,
};
use ledger_domain::{ContentType, NewVerdict, State, StoredResponse};
use ledger_domain::{Fact, MessageKey, PayloadHash, Policy, PolicySet, Principal, Scope, Subject, Verdict};
use ledger_stores::clock::{HotTime, LedgerClock, LedgerClockSettings, OsEntropy, SystemClock};
use ledger_stores::guarded::{GuardedHotTier, Lanes};
use ledger_stores::memory::MemoryHotTier;
use ledger_stores::redis::RedisHotTier;

use super::load::{Load, POPULATION, RESPONSE_BYTES, Side};
use crate::timing::spread;

/// The scope of every check.
pub(super) const SCOPE: &str = "tenant42:as4";

/// The lease of every claim.
const LEASE_SECONDS: u64 = 60;

/// A queue that takes every fact at once and forgets it.
pub(crate) struct TakesAll;

#[async_trait]
impl EventQueue for TakesAll {
    async fn send(&self, facts: &[Fact]) -> Vec<Result<(), StoreError>> {
        facts.iter().map(|_| Ok(())).collect()
    }

    async fn send_together(&self, facts: &[Fact]) -> Result<(), StoreError> {
        let _ = facts;
        Ok(())
    }

    async fn depth(&self) -> Result<QueueDepth, StoreError> {
        Ok(QueueDepth { waiting: 0, dead: Some(0), lag_ms: 0 })
    }
}

impl FactSink for TakesAll {
    fn offer(&self, fact: Fact) {
        drop(fact);
    }
}

#[async_trait]
impl ColdSessions for TakesAll {
    async fn ensure(&self) -> Result<ledger_domain::Timestamp, StoreError> {
        Ok(ledger_domain::Timestamp::MAX)
    }
}

impl HotTrust for TakesAll {
    fn vouches(&self) -> bool {
        true
    }

    fn is_in_place(&self) -> bool {
        true
    }
}

/// The built-in policies.
pub(crate) struct BuiltIn(pub(crate) PolicySet);

impl PolicySource for BuiltIn {
    fn policy(&self, scope: &Scope) -> Option<Policy> {
        Some(self.0.resolve(scope))
    }
}

/// A ledger on the Redis at `url`, its clock set.
pub(super) async fn ledger(url: &str) -> Ledger {
    let hot: Arc<dyn HotTier> = Arc::new(RedisHotTier::open(url).expect("a URL of the fixture"));
    let clock = LedgerClock::new(vec![Arc::new(HotTime(Arc::clone(&hot)))], LedgerClockSettings::default());
    clock.measure().await.expect("the time of a server that answers");
    let clock = Arc::new(clock);
    clock.refresh_in_background();
    ledger_on(hot, clock)
}

/// A ledger in memory, by the system's clock, for up to `records` keys.
pub(crate) fn in_memory(records: usize) -> Ledger {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let memory = Arc::new(MemoryHotTier::new(records, Arc::clone(&clock)));
    // As the check function has it: what a check costs includes its breaker.
    let hot = GuardedHotTier::new(memory, Lanes::One, BreakerSettings::default());
    ledger_on(Arc::new(hot), clock)
}

/// A ledger on a hot tier and a clock.
fn ledger_on(hot: Arc<dyn HotTier>, clock: Arc<dyn Clock>) -> Ledger {
    Ledger {
        hot,
        trust: Arc::new(TakesAll),
        queue: Arc::new(TakesAll),
        repeats: Arc::new(TakesAll),
        cold: None,
        sessions: Arc::new(TakesAll),
        policies: Arc::new(BuiltIn(PolicySet::default())),
        clock,
        entropy: Arc::new(OsEntropy),
        tokens: TokenKeys::new(&[[7; 32]]).expect("a key"),
        counters: Counters::default(),
    }
}

/// The key of 36 bytes that stands for `number`, in the form of a UUID.
pub(super) fn key_text(number: u64) -> String {
    let (high, low) = (spread(number), spread(!number));
    let (a, b, c) = (high >> 32, (high >> 16) & 0xffff, high & 0xffff);
    format!("{a:08x}-{b:04x}-{c:04x}-{:04x}-{:012x}", low >> 48, low & 0xffff_ffff_ffff)
}

/// The payload hash of the message that `number` stands for.
pub(super) fn payload_of(number: u64) -> [u8; 32] {
    let mut hash = [0; 32];
    for (at, part) in (0u64..).zip(hash.chunks_exact_mut(8)) {
        part.copy_from_slice(&spread(number.rotate_left(17) ^ at).to_be_bytes());
    }
    hash
}

/// The use case, and which key comes next.
pub(crate) struct Ours {
    ledger: Ledger,
    scope: Scope,
    principal: Principal,
    response: StoredResponse,
    next: AtomicU64,
}

impl Ours {
    /// On the server at `url`.
    pub(super) async fn connect(url: &str) -> Self {
        Self::on(ledger(url).await)
    }

    /// In memory, by the system's clock, for up to `records` keys.
    pub(crate) fn in_memory(records: usize) -> Self {
        Self::on(in_memory(records))
    }

    fn on(ledger: Ledger) -> Self {
        Self {
            ledger,
            scope: Scope::parse(SCOPE, None).expect("a scope"),
            principal: Principal::parse("arn:aws:iam::123456789012:user/hub").expect("a principal"),
            response: StoredResponse {
                content_type: ContentType::parse("application/xml").expect("a media type"),
                body: vec![b'x'; RESPONSE_BYTES],
            },
            next: AtomicU64::new(POPULATION),
        }
    }

    /// Checks the keys of the numbers up to `count`, one at a time.
    pub(crate) async fn check_each(&self, load: Load, count: u64) {
        for number in 0..count {
            expect(&self.ledger, load, &[self.check(number)]).await;
        }
    }

    fn check(&self, number: u64) -> Check {
        let key = MessageKey::text(&key_text(number)).expect("a key");
        Check {
            subject: Subject { scope: self.scope.clone(), key },
            payload: PayloadHash::from_bytes(payload_of(number)),
            ttl_seconds: None,
            source_service: None,
            request_id: None,
            principal: self.principal.clone(),
            claim: None,
        }
    }

    async fn claim_and_resolve(&self, checks: &[Check]) {
        let answers = self.ledger.check(checks).await;
        for (check, answer) in checks.iter().zip(answers) {
            let Ok(Verdict::New(NewVerdict { claim: Some(claim), .. })) = answer else {
                panic!("a claim was to be handed out, and the answer is {answer:?}");
            };
            let act = Act::Resolve(Some(self.response.clone()));
            let done = self.ledger.act(&ClaimAct { subject: check.subject.clone(), token: claim.token, act }).await;
            assert!(matches!(done, Ok(Acknowledged { state: State::Resolved, .. })), "{done:?}");
        }
    }

    /// Registers the keys of the numbers up to `count`, in batches.
    pub(super) async fn register(&self, count: u64) {
        let numbers: Vec<u64> = (0..count).collect();
        for batch in numbers.chunks(super::BATCH) {
            let checks: Vec<_> = batch.iter().map(|number| self.check(*number)).collect();
            expect(&self.ledger, Load::New, &checks).await;
        }
    }
}

async fn expect(ledger: &Ledger, load: Load, checks: &[Check]) {
    for answer in ledger.check(checks).await {
        match (answer, load) {
            (Ok(Verdict::New(new)), Load::New) if new.confirmed && !new.replayed => {}
            (Ok(Verdict::Seen(_)), Load::Seen) => {}
            (other, Load::New | Load::Seen | Load::Claim) => panic!("a check was to be {load:?} and is {other:?}"),
        }
    }
}

impl Side for Ours {
    type Call = (Load, Vec<Check>);

    fn calls(&self, load: Load, calls: usize, batch: usize) -> Vec<Self::Call> {
        let one = || {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let check = self.check(if load == Load::Seen { spread(number) % POPULATION } else { number });
            let claim = (load == Load::Claim).then_some(ClaimRequest { lease_seconds: LEASE_SECONDS });
            Check { claim, ..check }
        };
        (0..calls).map(|_| (load, (0..batch).map(|_| one()).collect())).collect()
    }

    async fn call(self: &Arc<Self>, (load, checks): Self::Call) {
        match load {
            Load::New | Load::Seen => expect(&self.ledger, load, &checks).await,
            Load::Claim => self.claim_and_resolve(&checks).await,
        }
    }

    async fn populate(self: &Arc<Self>) {
        self.register(POPULATION).await;
    }
}

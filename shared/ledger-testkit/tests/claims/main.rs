//! Claims, on the embedded tiers (memory, SQLite) and on the real ones (Redis, PostgreSQL), with a manual clock and a queue that
//! does as told. Each test is a rule of DESIGN section 4 or a regression scenario R… of the peers' research.

#![expect(clippy::expect_used, reason = "a test that cannot be set up fails")]

mod bad;
mod cut_off;
mod durable;
mod life;
mod lost_place;
mod scenarios;
mod together;
mod trail;

use std::any::Any;
use std::sync::Arc;

use ledger_domain::check::Check;
use ledger_domain::claim::Act;
use ledger_domain::claims::{Acknowledged, ActProblem, ClaimAct};
use ledger_domain::persist::{Writer, Written};
use ledger_domain::ports::{Clock, ColdLedger, HistoryQuery, HotTier};
use ledger_domain::transition::Found;
use ledger_domain::{
    ConfirmMiss, ContentType, Fact, FailReason, NewVerdict, PolicyFields, PolicySet, Record, Refusal, SeenVerdict,
    Slot, StoredResponse, Tenant, Timestamp, Trail, Undecided, Verdict,
};
use ledger_stores::clock::OsEntropy;
use ledger_stores::memory::MemoryHotTier;
use ledger_stores::postgres::{PostgresConfig, PostgresLedger};
use ledger_stores::redis::RedisHotTier;
use ledger_stores::sqlite::SqliteLedger;
use ledger_testkit::between::Between;
use ledger_testkit::clock::ManualClock;
use ledger_testkit::faulty::{FaultRates, Faulty};
use ledger_testkit::house::{House, check, claiming};
use ledger_testkit::postgres_server::PostgresServer;
use ledger_testkit::redis_server::RedisServer;

const MINUTE_MS: u64 = 60_000;

/// A ledger, and what holds it up.
struct Place {
    house: House,
    hot: Arc<Between>,
    /// The hot tier as the house reaches it.
    reached_hot: Arc<Faulty<Between>>,
    cold: Arc<dyn ColdLedger>,
    /// The cold ledger as the house reaches it.
    reached: Arc<Faulty<dyn ColdLedger>>,
    clock: Arc<ManualClock>,
    _held: Box<dyn Any + Send + Sync>,
}

/// Runs a case on the embedded tiers and on the real ones.
macro_rules! on_each_place {
    ($($case:ident),+ $(,)?) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case($crate::embedded().await).await;
            })+
        }
        mod real {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case($crate::real().await).await;
            })+
        }
    };
}
pub(crate) use on_each_place;

async fn embedded() -> Place {
    let folder = tempfile::tempdir().expect("a folder");
    let cold = SqliteLedger::open(&folder.path().join("ledger.sqlite")).await.expect("opens");
    let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_790_000_000_000)));
    let hot = MemoryHotTier::new(10_000, Arc::clone(&clock) as Arc<dyn Clock>);
    place(Arc::new(hot), Arc::new(cold), clock, Box::new(folder))
}

/// The clock starts at Redis's time, which ends keys; what a case says of time it says of the clock.
async fn real() -> Place {
    let server = RedisServer::start();
    let hot = RedisHotTier::open(server.url()).expect("a fixture's URL");
    let clock = Arc::new(ManualClock::new(hot.time().await.expect("Redis answers")));
    let url = PostgresServer::shared().database().await;
    let cold = PostgresLedger::connect_lazy(&url, &PostgresConfig::default()).expect("a valid URL");
    place(Arc::new(hot), Arc::new(cold), clock, Box::new(server))
}

fn place(
    hot: Arc<dyn HotTier>,
    cold: Arc<dyn ColdLedger>,
    clock: Arc<ManualClock>,
    held: Box<dyn Any + Send + Sync>,
) -> Place {
    let hot = Between::new(hot);
    let reached = Arc::new(Faulty::new(Arc::clone(&cold), 1, FaultRates::NONE));
    let for_house = Arc::clone(&reached) as Arc<dyn ColdLedger>;
    let reached_hot = Arc::new(Faulty::new(Arc::clone(&hot), 1, FaultRates::NONE));
    let mut house = House::new(Arc::clone(&reached_hot) as _, Some(for_house), Arc::clone(&clock) as Arc<dyn Clock>);
    house.ledger.entropy = Arc::new(OsEntropy);
    Place { house, hot, reached_hot, cold, reached, clock, _held: held }
}

/// The check of the message that each case is about, in claim mode.
fn claim(payload: u8, lease_seconds: u64) -> Check {
    claiming(plain(payload), lease_seconds)
}

/// The same message in plain mode.
fn plain(payload: u8) -> Check {
    check("t:as4", "k", payload)
}

fn response(body: &[u8]) -> StoredResponse {
    StoredResponse { content_type: ContentType::parse("application/xml").expect("valid"), body: body.to_vec() }
}

fn resolve(body: &[u8]) -> Act {
    Act::Resolve(Some(response(body)))
}

fn fail(reason: &str) -> Act {
    Act::Fail(Some(FailReason::parse(reason).expect("valid")))
}

fn renew(lease_seconds: u64) -> Act {
    Act::Renew { lease_seconds }
}

/// The token of a claim that was handed out.
fn token(new: &NewVerdict) -> String {
    new.claim.as_ref().expect("in claim mode NEW hands out a claim").token.clone()
}

impl Place {
    /// The house does not reach the cold ledger, so that nothing becomes durable but by the queue.
    fn cut_off_cold(&self) {
        self.reached.set_rates(FaultRates::DOWN);
    }

    /// The house does not reach the hot tier.
    fn cut_off_hot(&self) {
        self.reached_hot.set_rates(FaultRates::DOWN);
    }

    /// It does again, and cannot vouch for what it finds there, as under a cold session.
    fn reach_hot(&self) {
        self.reached_hot.set_rates(FaultRates::NONE);
        self.house.trust.set(false);
    }

    fn reach_cold(&self) {
        self.reached.set_rates(FaultRates::NONE);
    }

    async fn ask(&self, check: Check) -> Result<Verdict, Refusal> {
        self.house.ledger.check(&[check]).await.pop().expect("one answer")
    }

    async fn told_new(&self, check: Check) -> NewVerdict {
        match self.ask(check).await {
            Ok(Verdict::New(new)) => new,
            other => panic!("expected NEW, got {other:?}"),
        }
    }

    async fn told_seen(&self, check: Check) -> SeenVerdict {
        match self.ask(check).await {
            Ok(Verdict::Seen(seen)) => seen,
            other => panic!("expected SEEN, got {other:?}"),
        }
    }

    async fn undecided(&self, check: Check) -> Undecided {
        match self.ask(check).await {
            Err(Refusal::Undecided(undecided)) => undecided,
            other => panic!("expected no verdict, got {other:?}"),
        }
    }

    async fn act(&self, token: &str, act: Act) -> Result<Acknowledged, ActProblem> {
        let request = ClaimAct { subject: plain(0).subject, token: token.to_owned(), act };
        self.house.ledger.act(&request).await
    }

    async fn done(&self, token: &str, act: Act) -> Acknowledged {
        let problem = |problem| panic!("expected the act done, got {problem:?}");
        self.act(token, act).await.unwrap_or_else(problem)
    }

    /// What stands in the hot tier.
    async fn stands(&self) -> Found {
        let subject = plain(0).subject;
        self.hot.read(&[Slot::of(&subject.scope, &subject.key)]).await.pop().expect("one result").expect("answers")
    }

    async fn record(&self) -> Record {
        match self.stands().await {
            Found::Record(record) => *record,
            other @ (Found::Absent | Found::Unreadable) => panic!("expected a record, found {other:?}"),
        }
    }

    /// The cold writer takes all facts that the queue has taken, and those about repeats.
    async fn drain(&self) -> Written {
        let mut facts = self.house.queue.taken();
        facts.extend(self.house.queue.offered());
        self.write(&facts).await
    }

    async fn write(&self, facts: &[Fact]) -> Written {
        let writer = Writer {
            trust: None,
            sessions: None,
            poison: None,
            cold: Arc::clone(&self.cold),
            hot: Some(Arc::clone(&self.hot) as Arc<dyn HotTier>),
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
        };
        let bodies: Vec<_> = facts.iter().map(Fact::to_json).collect();
        let written = writer.write(&bodies).await;
        assert!(written.failures.is_empty(), "{:?}", written.failures);
        written
    }

    /// The message's rows in history, newest first, with their trails.
    async fn history(&self) -> Vec<(Record, Trail)> {
        let query = HistoryQuery { from: Timestamp::MIN, to: Timestamp::MAX, after: None, limit: 100 };
        let page = self.cold.by_key(&plain(0).subject, &query).await.expect("answers");
        page.rows.into_iter().map(|row| (row.record, row.trail)).collect()
    }

    fn confirm_each_miss(&self) {
        let mut set = PolicySet::default();
        let fields = PolicyFields { confirm_miss: Some(ConfirmMiss::Always), ..PolicyFields::default() };
        set.set_tenant(&Tenant::parse("t").expect("valid"), fields).expect("valid");
        self.house.policies.set(Some(set));
    }
}

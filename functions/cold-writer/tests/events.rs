//! SQS events into a real PostgreSQL: the sample event, records that are not whole, and a server that refuses.

#![expect(clippy::expect_used, reason = "a test that cannot be set up fails")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use aws_lambda_events::event::sqs::SqsEvent;
use cold_writer::{App, handle};
use ledger_domain::persist::Writer;
use ledger_domain::ports::{Clock, ColdSessions, PoisonSink, StoreError};
use ledger_domain::{Fact, Timestamp};
use ledger_lambda::sqs::{BatchResponse, MissingId};
use ledger_stores::memory::MemoryHotTier;
use ledger_stores::postgres::{PostgresConfig, PostgresLedger};
use ledger_testkit::clock::ManualClock;
use ledger_testkit::cold_ledger::{fact, now, registration, subject};
use ledger_testkit::faulty::{FaultRates, Faulty};
use ledger_testkit::postgres_server::PostgresServer;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _};

struct Test {
    app: App,
    cold: Arc<PostgresLedger>,
}

/// A writer on a database, at `now`.
fn start(url: &str, now: Timestamp) -> Test {
    // A server that is there may be slow on a busy machine; one that is gone is waited for in vain.
    let config = PostgresConfig { operation_timeout_ms: 60_000, ..PostgresConfig::default() };
    let cold = Arc::new(PostgresLedger::connect_lazy(url, &config).expect("a URL"));
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(now));
    let writer = Writer::of(Arc::clone(&cold) as _, Arc::clone(&clock));
    let app = App { writer, queue: None, cold: Arc::clone(&cold) as _, clock };
    Test { app, cold }
}

impl Test {
    async fn failures(&self, event: &Value) -> BTreeSet<String> {
        let event: SqsEvent = serde_json::from_value(event.clone()).expect("an SQS event");
        failed(&handle(&self.app, event).await.expect("each record has an id"))
    }

    async fn count(&self, table: &'static str) -> i64 {
        let sql = AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        self.cold.pool().fetch_one(sql).await.expect("a count").get(0)
    }

    async fn execute(&self, sql: &'static str) {
        self.cold.pool().execute(sql).await.expect("a statement of the test");
    }

    /// How many rows history and claims have.
    async fn rows(&self) -> (i64, i64) {
        (self.count("dedup_ledger").await, self.count("dedup_claim").await)
    }
}

fn failed(response: &BatchResponse) -> BTreeSet<String> {
    response.failed().map(str::to_owned).collect()
}

fn facts(count: u64) -> Vec<Fact> {
    (0..count).map(|n| fact(&subject("t1:as4", &n.to_string()), &registration(n, now(), 60))).collect()
}

/// An event of these facts, named m0, m1, ...
fn event(facts: &[Fact]) -> Value {
    let record = |(n, fact): (usize, &Fact)| json!({"messageId": format!("m{n}"), "body": fact.to_json()});
    json!({"Records": facts.iter().enumerate().map(record).collect::<Vec<_>>()})
}

fn ids(count: u64) -> BTreeSet<String> {
    (0..count).map(|n| format!("m{n}")).collect()
}

#[tokio::test]
async fn the_sample_event_is_written_but_for_its_two_poisoned_messages() {
    let url = PostgresServer::shared().database().await;
    let t = start(&url, Timestamp::from_millis(1_790_000_070_000));
    let event: Value = serde_json::from_str(include_str!("../../../events/cold-writer-sqs.json")).expect("JSON");
    let id = |n: usize| event["Records"][n]["messageId"].as_str().expect("an id").to_owned();
    // The third is no JSON, the fifth of an unknown version; the second and the fourth are about one registration.
    assert_eq!(t.failures(&event).await, BTreeSet::from([id(2), id(4)]));
    assert_eq!(t.rows().await, (3, 3));
    let sql = "SELECT retry_count::bigint, drift_count::bigint FROM dedup_ledger WHERE scope = 'tenant42:x12'";
    let row = t.cold.pool().fetch_one(sql).await.expect("the row");
    assert_eq!((row.get::<i64, _>(0), row.get::<i64, _>(1)), (2, 1));
    // Delivered again, it changes nothing.
    assert_eq!(t.failures(&event).await.len(), 2);
    assert_eq!(t.rows().await, (3, 3));
}

/// Keeps what is parked, or refuses to.
#[derive(Default)]
struct Parked {
    kept: Mutex<Vec<(String, String)>>,
    refuses: AtomicBool,
}

#[async_trait]
impl PoisonSink for Parked {
    async fn park(&self, body: &str, reason: &str) -> Result<(), StoreError> {
        if self.refuses.load(Ordering::SeqCst) {
            return Err(StoreError::did_not_happen("park", "told so"));
        }
        self.kept.lock().expect("whole").push((body.to_owned(), reason.to_owned()));
        Ok(())
    }
}

#[tokio::test]
async fn what_is_no_fact_is_parked_with_the_reason_and_a_fact_of_another_release_is_not() {
    let mut t = start(&PostgresServer::shared().database().await, Timestamp::from_millis(1_790_000_070_000));
    let parked = Arc::new(Parked::default());
    t.app.writer.poison = Some(Arc::clone(&parked) as _);
    let event: Value = serde_json::from_str(include_str!("../../../events/cold-writer-sqs.json")).expect("JSON");
    let id = |n: usize| event["Records"][n]["messageId"].as_str().expect("an id").to_owned();
    parked.refuses.store(true, Ordering::SeqCst);
    assert_eq!(t.failures(&event).await, BTreeSet::from([id(2), id(4)]), "not parked, so it comes again");
    assert_eq!(t.rows().await, (3, 3), "and holds up nobody");
    parked.refuses.store(false, Ordering::SeqCst);
    assert_eq!(t.failures(&event).await, BTreeSet::from([id(4)]));
    let kept = parked.kept.lock().expect("whole").clone();
    let [(body, reason)] = kept.as_slice() else { panic!("{kept:?}") };
    assert_eq!(Some(body.as_str()), event["Records"][2]["body"].as_str());
    assert!(reason.starts_with("not a fact"), "{reason}");
}

/// A session that is held, or not.
#[derive(Default)]
struct Sessions {
    held: AtomicU32,
    refuses: AtomicBool,
}

#[async_trait]
impl ColdSessions for Sessions {
    async fn ensure(&self) -> Result<Timestamp, StoreError> {
        if self.refuses.load(Ordering::SeqCst) {
            return Err(StoreError::did_not_happen("hold a session", "told so"));
        }
        self.held.fetch_add(1, Ordering::SeqCst);
        Ok(now().plus_seconds(30))
    }
}

#[tokio::test]
async fn what_could_not_be_healed_is_said_to_everybody_or_comes_again() {
    let mut t = start(&PostgresServer::shared().database().await, now());
    let tier = Arc::new(MemoryHotTier::new(100, Arc::clone(&t.app.clock)));
    let hot = Arc::new(Faulty::new(tier, 1, FaultRates::DOWN));
    let sessions = Arc::new(Sessions::default());
    t.app.writer.hot = Some(Arc::clone(&hot) as _);
    t.app.writer.sessions = Some(Arc::clone(&sessions) as _);
    assert!(t.failures(&event(&facts(5))).await.is_empty(), "written, and everybody knows that Redis lacks it");
    assert_eq!(sessions.held.load(Ordering::SeqCst), 1);
    sessions.refuses.store(true, Ordering::SeqCst);
    assert_eq!(t.failures(&event(&facts(8))).await, ids(8), "nobody could be told");
    assert_eq!(t.rows().await, (8, 8), "written all the same");
    hot.set_rates(FaultRates::NONE);
    assert!(t.failures(&event(&facts(8))).await.is_empty(), "and healed when it comes again");
}

#[tokio::test]
async fn a_record_without_a_body_fails_alone() {
    let t = start(&PostgresServer::shared().database().await, now());
    let mut event = event(&facts(3));
    event["Records"][1].as_object_mut().expect("a record").remove("body");
    assert_eq!(t.failures(&event).await, BTreeSet::from(["m1".to_owned()]));
    assert_eq!(t.rows().await, (2, 2));
}

#[tokio::test]
async fn a_record_without_an_id_brings_the_whole_batch_back_and_writes_nothing() {
    let t = start(&PostgresServer::shared().database().await, now());
    for id in [None, Some("")] {
        let mut event = event(&facts(3));
        event["Records"][1]["messageId"] = json!(id);
        let event: SqsEvent = serde_json::from_value(event).expect("an SQS event");
        assert_eq!(handle(&t.app, event).await, Err(MissingId));
    }
    assert_eq!(t.rows().await, (0, 0));
}

#[tokio::test]
async fn an_event_without_records_is_no_work() {
    let t = start(&PostgresServer::shared().database().await, now());
    assert!(t.failures(&json!({"Records": []})).await.is_empty());
}

#[tokio::test]
async fn while_the_server_is_stopped_each_message_fails_and_after_it_is_back_each_is_written_once() {
    let mut server = PostgresServer::start();
    let t = start(&server.database().await, now());
    let written = event(&facts(5));
    assert!(t.failures(&written).await.is_empty());
    let event = event(&facts(40));
    server.stop();
    for _ in 0..2 {
        assert_eq!(t.failures(&event).await, ids(40));
    }
    server.start_again();
    assert_eq!(t.rows().await, (5, 5), "what was written is kept, and nothing else");
    for _ in 0..2 {
        assert!(t.failures(&event).await.is_empty());
        assert_eq!(t.rows().await, (40, 40));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_in_the_middle_of_a_batch_leaves_nothing_half_written() {
    let mut server = PostgresServer::start();
    let url = server.database().await;
    let t = Arc::new(start(&url, now()));
    assert!(t.failures(&event(&facts(1))).await.is_empty(), "the month is there");
    // Claims can be written, history not: the batch waits with half of its rows in its transaction.
    let mut holder = PgConnection::connect(&url).await.expect("a connection");
    holder.execute("BEGIN; LOCK TABLE dedup_ledger IN ACCESS EXCLUSIVE MODE").await.expect("locked");
    let writing = tokio::spawn({
        let t = Arc::clone(&t);
        async move { t.failures(&event(&facts(40))).await }
    });
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'dedup_ledger'::regclass";
    loop {
        let waiting: i64 = holder.fetch_one(waits).await.expect("a count").get(0);
        if waiting > 0 {
            break;
        }
        tokio::task::yield_now().await;
    }
    server.stop();
    assert_eq!(writing.await.expect("no panic"), ids(40));
    server.start_again();
    assert_eq!(t.rows().await, (1, 1));
    assert!(t.failures(&event(&facts(40))).await.is_empty());
    assert_eq!(t.rows().await, (40, 40));
}

#[tokio::test]
async fn a_table_that_takes_no_more_rows_fails_each_message_and_half_writes_none() {
    let t = start(&PostgresServer::shared().database().await, now());
    let event = event(&facts(20));
    for (close, open) in [
        (
            "ALTER TABLE dedup_ledger ADD CONSTRAINT closed CHECK (false) NOT VALID",
            "ALTER TABLE dedup_ledger DROP CONSTRAINT closed",
        ),
        (
            "ALTER TABLE dedup_claim ADD CONSTRAINT closed CHECK (false) NOT VALID",
            "ALTER TABLE dedup_claim DROP CONSTRAINT closed",
        ),
    ] {
        t.execute(close).await;
        assert_eq!(t.failures(&event).await, ids(20), "{close}");
        t.execute(open).await;
        assert_eq!(t.rows().await, (0, 0), "{close}");
    }
    for _ in 0..2 {
        assert!(t.failures(&event).await.is_empty());
        assert_eq!(t.rows().await, (20, 20));
    }
}

#[tokio::test]
async fn what_a_constraint_refuses_fails_alone() {
    let t = start(&PostgresServer::shared().database().await, now());
    t.execute("ALTER TABLE dedup_ledger ADD CONSTRAINT seven CHECK (key <> '7')").await;
    assert_eq!(t.failures(&event(&facts(20))).await, BTreeSet::from(["m7".to_owned()]));
    assert_eq!(t.rows().await, (19, 19));
}

//! The purge and its indexes on PostgreSQL: races, roles, repeats in place, and the migration.
#![allow(clippy::expect_used, reason = "a test fails where its fixture does")]

use std::sync::Arc;

use ledger_domain::Record;
use ledger_domain::ports::{ColdLedger, StoreError};
use ledger_stores::postgres::{PostgresConfig, PostgresLedger};
use ledger_testkit::cold_ledger::{REPLAY_SECONDS, assert_stands, fact, now, ours, registration, subject, theirs};
use ledger_testkit::postgres_server::PostgresServer;
use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

const PATIENT: PostgresConfig =
    PostgresConfig { max_connections: 4, acquire_timeout_ms: 60_000, operation_timeout_ms: 60_000 };

fn ledger(url: &str) -> Arc<PostgresLedger> {
    Arc::new(PostgresLedger::connect_lazy(url, &PATIENT).expect("a URL"))
}

async fn run(pool: &PgPool, sql: impl Into<String>) {
    let sql = sql.into();
    sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(pool).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
}

/// Waits until some session of this database waits for a lock of the kind.
async fn wait_for_waiting(pool: &PgPool, kinds: &[&str]) {
    let sql = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() \
               AND wait_event_type = 'Lock' AND wait_event = ANY ($1))";
    while !sqlx::query_scalar::<_, bool>(sql).bind(kinds).fetch_one(pool).await.expect("the activity") {
        tokio::task::yield_now().await;
    }
}

/// The purge has chosen its rows and is held up before it deletes them; meanwhile one of its keys is registered again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_registered_again_between_the_purges_choice_and_its_deletion_stays() {
    const GATE: i64 = 4_711;
    let url = PostgresServer::shared().database().await;
    let (ledger, key) = (ledger(&url), subject("t1:as4", "k"));
    ours(ledger.register(&key, &registration(1, now(), 10), REPLAY_SECONDS).await.expect("new"));
    run(
        ledger.pool(),
        format!(
            "CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN OLD; END'; \
             CREATE TRIGGER gate BEFORE DELETE ON dedup_claim FOR EACH ROW EXECUTE FUNCTION wait_at_gate()"
        ),
    )
    .await;
    let mut gate = PgConnection::connect(&url).await.expect("a connection");
    sqlx::query("SELECT pg_advisory_lock($1)").bind(GATE).execute(&mut gate).await.expect("held");

    let purger = Arc::clone(&ledger);
    let purging = tokio::spawn(async move { purger.purge(now().plus_seconds(20), 100).await });
    wait_for_waiting(ledger.pool(), &["advisory"]).await;
    let again = registration(2, now().plus_seconds(30), 10);
    let (writer, wanted, subject) = (Arc::clone(&ledger), again.clone(), key.clone());
    let writing = tokio::spawn(async move { writer.register(&subject, &wanted, REPLAY_SECONDS).await });
    // It waits for the purge, which holds the row.
    wait_for_waiting(ledger.pool(), &["transactionid", "tuple"]).await;
    sqlx::query("SELECT pg_advisory_unlock($1)").bind(GATE).execute(&mut gate).await.expect("opened");

    assert_eq!(purging.await.expect("no panic").expect("purged"), 1);
    assert_eq!(ours(writing.await.expect("no panic").expect("new")), again);
    assert_eq!(ledger.standing(&key).await.expect("an answer"), Some(again));
}

/// Whoever holds a row is about to change it: the purge does not wait, and leaves it to the next one.
#[tokio::test]
async fn a_row_that_somebody_holds_is_passed_over_and_what_they_make_of_it_stays() {
    let url = PostgresServer::shared().database().await;
    let ledger = ledger(&url);
    for name in ["held", "free"] {
        let key = subject("t1:as4", name);
        ours(ledger.register(&key, &registration(1, now(), 10), REPLAY_SECONDS).await.expect("new"));
    }
    let mut holder = PgConnection::connect(&url).await.expect("a connection");
    let mut held = holder.begin().await.expect("begun");
    let extend = "UPDATE dedup_claim SET window_ends_at = window_ends_at + interval '1 day' WHERE key = 'held'";
    sqlx::query(extend).execute(&mut *held).await.expect("held");
    assert_eq!(ledger.purge(now().plus_seconds(20), 100).await.expect("purged"), 1);
    held.commit().await.expect("committed");
    assert_eq!(ledger.purge(now().plus_seconds(20), 100).await.expect("purged"), 0);
    let (held, free) = (subject("t1:as4", "held"), subject("t1:as4", "free"));
    assert!(ledger.standing(&held).await.expect("an answer").is_some());
    assert_eq!(ledger.standing(&free).await.expect("an answer"), None);
}

#[tokio::test]
async fn the_keepers_role_can_read_and_purge_with_the_grants_of_the_readme_and_a_writers_cannot_purge() {
    let server = PostgresServer::shared();
    let url = server.database().await;
    let owner = ledger(&url);
    for sql in [
        "CREATE ROLE purger LOGIN",
        "CREATE ROLE no_purger LOGIN",
        "GRANT SELECT, UPDATE, DELETE ON dedup_claim TO purger",
        "GRANT SELECT ON dedup_watermark TO purger",
        "GRANT SELECT, INSERT, UPDATE ON dedup_ledger, dedup_claim, dedup_watermark TO no_purger",
    ] {
        run(owner.pool(), sql).await;
    }
    let as_role = |role: &str| ledger(&url.replace("//postgres@", &format!("//{role}@")));
    ours(owner.register(&subject("t1:as4", "k"), &registration(1, now(), 10), REPLAY_SECONDS).await.expect("new"));
    let (keeper, writer) = (as_role("purger"), as_role("no_purger"));
    let refused = writer.purge(now().plus_seconds(20), 100).await;
    assert!(matches!(refused, Err(StoreError::DidNotHappen { .. })), "{refused:?}");
    assert_eq!(keeper.newest_live(now(), None, 10).await.expect("live rows").len(), 1);
    assert_eq!(keeper.drained_until().await.expect("a watermark"), None);
    assert_eq!(keeper.purge(now().plus_seconds(20), 100).await.expect("purged"), 1);
}

/// Repeats change no indexed column, so that no index is written for them.
#[tokio::test]
async fn repeats_update_their_row_in_place() {
    let url = PostgresServer::shared().database().await;
    let config = PostgresConfig { max_connections: 1, ..PATIENT };
    let ledger = PostgresLedger::connect_lazy(&url, &config).expect("a URL");
    let (key, first) = (subject("t1:as4", "k"), registration(1, now(), 60));
    ours(ledger.register(&key, &first, REPLAY_SECONDS).await.expect("new"));
    for n in 2..6 {
        let repeat = registration(n, now().plus_seconds(n), 60);
        theirs(ledger.register(&key, &repeat, REPLAY_SECONDS).await.expect("a repeat"));
        ledger.sight(&key, &repeat, REPLAY_SECONDS).await.expect("a repeat");
        let counted = Record { retry_count: u32::try_from(n * 10).expect("small"), ..first.clone() };
        ledger.persist(&[fact(&key, &counted)], now()).await.expect("persisted");
    }
    // What this one session did is told before the sums are asked for.
    run(ledger.pool(), "SELECT pg_stat_force_next_flush()").await;
    let sums = "SELECT sum(n_tup_upd)::bigint, sum(n_tup_hot_upd)::bigint FROM pg_stat_user_tables \
                WHERE relname LIKE 'dedup\\_claim\\___'";
    let (updates, in_place): (i64, i64) = sqlx::query_as(sums).fetch_one(ledger.pool()).await.expect("the statistics");
    assert_eq!((updates, in_place), (12, 12));
}

const PARTITION_INDEXES: [(&str, &str); 2] = [
    ("newest", "(first_seen_at, registration_id, window_ends_at)"),
    ("ended", "(greatest(window_ends_at, others_until))"),
];

/// A database as the release before had it, with the rows of partition 0 said to be so many.
async fn before_the_migration(name: &str, rows: u32) -> Arc<PostgresLedger> {
    let server = PostgresServer::shared();
    server.administer(format!("CREATE DATABASE {name}")).await;
    let ledger = ledger(&server.url(name));
    sqlx::migrate!("../../migrations/postgres").run_to(2, ledger.pool()).await.expect("the first two run");
    run(ledger.pool(), format!("UPDATE pg_class SET reltuples = {rows} WHERE relname = 'dedup_claim_00'")).await;
    ledger
}

async fn index_names(pool: &PgPool) -> Vec<String> {
    let sql = "SELECT i.inhrelid::regclass::text FROM pg_inherits i WHERE i.inhparent IN \
               ('dedup_claim_newest'::regclass, 'dedup_claim_ended'::regclass) ORDER BY 1";
    sqlx::query_scalar(sql).fetch_all(pool).await.expect("the catalogue")
}

#[tokio::test]
async fn the_migration_builds_small_indexes_itself_and_refuses_large_ones() {
    let ledger = before_the_migration("keep_small", 1_000_000).await;
    PostgresLedger::migrate(ledger.pool()).await.expect("it builds");
    assert_eq!(index_names(ledger.pool()).await.len(), 32);

    let ledger = before_the_migration("keep_large", 1_100_000).await;
    let refused = PostgresLedger::migrate(ledger.pool()).await.expect_err("too many rows");
    let text = ledger_domain::ports::chain(&refused);
    assert!(text.contains("about 1100000 rows") && text.contains("migrations/README.md"), "{text}");
    // Nothing of it stands, and the release that runs goes on: what it does is among what this one does.
    let key = subject("t1:as4", "k");
    let first = registration(1, now(), 60);
    ledger.persist(&[fact(&key, &first)], now()).await.expect("persisted");
    assert_stands(&*ledger, &key, &first, &[]).await;
}

/// As `migrations/README.md` has it: built beside the writers first, attached by the migration.
#[tokio::test]
async fn the_migration_attaches_what_was_built_before() {
    let ledger = before_the_migration("keep_built", 50_000_000).await;
    // A build that failed leaves an index that is not valid: the migration says so, however small the table.
    run(ledger.pool(), "CREATE INDEX broken ON dedup_claim_03 (state)").await;
    run(ledger.pool(), "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'broken'::regclass").await;
    let refused = PostgresLedger::migrate(ledger.pool()).await.expect_err("a broken index");
    assert!(ledger_domain::ports::chain(&refused).contains("broken is not valid"), "{refused:?}");
    run(ledger.pool(), "DROP INDEX broken").await;
    let mut built = Vec::new();
    for n in 0..16 {
        for (name, columns) in PARTITION_INDEXES {
            let index = format!("dedup_claim_{n:02}_{name}");
            run(ledger.pool(), format!("CREATE INDEX CONCURRENTLY {index} ON dedup_claim_{n:02} {columns}")).await;
            built.push(index);
        }
    }
    PostgresLedger::migrate(ledger.pool()).await.expect("it attaches");
    built.sort();
    assert_eq!(index_names(ledger.pool()).await, built);
}

//! What only PostgreSQL can show: months, roles, sessions, and what an error says about the write.
#![allow(clippy::expect_used, reason = "a test fails where its fixture does")]

use std::sync::Arc;
use std::time::Duration;

use ledger_domain::claim::{Act, ClaimId};
use ledger_domain::ports::{ColdLedger, Position, StoreError};
use ledger_domain::{
    Attempt, ContentType, Ended, FailReason, Nonce, PayloadHash, Record, State, StoredResponse, Subject, Tenant,
    Timestamp, Trail,
};
use ledger_stores::postgres::{PostgresConfig, PostgresLedger};
use ledger_testkit::cold_ledger::{
    REPLAY_SECONDS, all, assert_stands, attempt, claimed, fact, history, now, ours, registration, response, service,
    subject,
};
use ledger_testkit::postgres_server::PostgresServer;
use sqlx::postgres::PgPool;
use sqlx::{Connection as _, PgConnection};

const PATIENT: PostgresConfig =
    PostgresConfig { max_connections: 4, acquire_timeout_ms: 60_000, operation_timeout_ms: 60_000 };

fn ledger(url: &str) -> PostgresLedger {
    PostgresLedger::connect_lazy(url, &PATIENT).expect("a URL")
}

fn key() -> Subject {
    subject("t1:as4", "k")
}

/// The months there are, with their bounds.
async fn months(pool: &PgPool) -> Vec<(String, String)> {
    let sql = "SELECT c.relname::text, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i \
               JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'dedup_ledger'::regclass ORDER BY 1";
    sqlx::query_as(sql).fetch_all(pool).await.expect("the catalogue")
}

#[tokio::test]
async fn a_missing_month_is_created_reported_once_and_bounded_in_utc() {
    let ledger = ledger(&PostgresServer::shared().database().await);
    assert_eq!(months(ledger.pool()).await, []);
    let at = |text| Timestamp::parse_rfc3339(text).expect("a time");
    let facts = [
        fact(&subject("t1:as4", "a"), &registration(1, at("2026-08-31T23:59:59.999Z"), 60)),
        fact(&subject("t1:as4", "b"), &registration(1, at("2026-09-01T00:00:00.000Z"), 60)),
        fact(&subject("t1:as4", "c"), &registration(1, at("2026-08-01T00:00:00.000Z"), 60)),
    ];
    let persisted = ledger.persist(&facts, now()).await.expect("persisted");
    assert_eq!(persisted.months_created, ["2026-08", "2026-09"]);
    let persisted = ledger.persist(&facts, now()).await.expect("persisted");
    assert!(persisted.months_created.is_empty());
    let bounds = |from, to| format!("FOR VALUES FROM ('{from} 00:00:00+00') TO ('{to} 00:00:00+00')");
    let expected = [
        ("dedup_ledger_2026_08".to_owned(), bounds("2026-08-01", "2026-09-01")),
        ("dedup_ledger_2026_09".to_owned(), bounds("2026-09-01", "2026-10-01")),
    ];
    assert_eq!(months(ledger.pool()).await, expected);
    // A month has the indexes of its parent.
    let indexes = "SELECT count(*) FROM pg_indexes WHERE tablename = 'dedup_ledger_2026_08'";
    let count: i64 = sqlx::query_scalar(indexes).fetch_one(ledger.pool()).await.expect("the catalogue");
    assert_eq!(count, 2);
}

#[tokio::test]
async fn registering_creates_a_missing_month() {
    let ledger = ledger(&PostgresServer::shared().database().await);
    ours(ledger.register(&key(), &registration(1, now(), 60), REPLAY_SECONDS).await.expect("new"));
    assert_eq!(months(ledger.pool()).await.len(), 1);
    assert_eq!(history(&ledger, &key()).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_that_miss_one_month_at_once_create_it_once() {
    let url = PostgresServer::shared().database().await;
    let ledgers = [Arc::new(ledger(&url)), Arc::new(ledger(&url))];
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..16_u64 {
        let ledger = ledgers[usize::from(n % 2 == 0)].clone();
        writers.spawn(async move {
            let key = subject("t1:as4", &format!("{n}"));
            let persisted = ledger.persist(&[fact(&key, &registration(1, now(), 60))], now()).await;
            persisted.expect("persisted").months_created
        });
    }
    assert_eq!(writers.join_all().await.concat(), ["2026-09"]);
}

#[tokio::test]
async fn a_month_is_known_by_its_bounds_and_only_plausible_ones_are_made() {
    let ledger = ledger(&PostgresServer::shared().database().await);
    let ensure = async |at: &str| {
        let sql = "SELECT dedup_ensure_month($1::text::timestamptz, '2026-09-21 12:00+00')";
        sqlx::query_scalar::<_, bool>(sql).bind(at).fetch_one(ledger.pool()).await
    };
    // In the session's time zone this is the first of September; the month is August.
    assert!(ensure("2026-09-01 01:00+02").await.expect("made"));
    assert!(!ensure("2026-08-15 00:00+00").await.expect("there"));
    sqlx::query("ALTER TABLE dedup_ledger_2026_08 RENAME TO renamed").execute(ledger.pool()).await.expect("renamed");
    assert!(!ensure("2026-08-15 00:00+00").await.expect("there"));
    for at in ["2025-08-17 11:59+00", "2026-09-23 12:01+00", "infinity"] {
        let refused = ensure(at).await.expect_err("implausible");
        let code = refused.as_database_error().and_then(|e| e.code()).map(|code| code.into_owned());
        assert_eq!(code.as_deref(), Some("22008"), "{at}: {refused}");
    }
}

#[tokio::test]
async fn a_role_that_owns_nothing_and_has_the_grants_of_the_readme_can_write_and_heal() {
    let server = PostgresServer::shared();
    let url = server.database().await;
    let owner = ledger(&url);
    for sql in [
        "CREATE ROLE writer LOGIN",
        "GRANT SELECT, INSERT, UPDATE ON dedup_ledger, dedup_claim, dedup_watermark TO writer",
    ] {
        sqlx::query(sql).execute(owner.pool()).await.expect("granted");
    }
    let writer = ledger(&url.replace("//postgres@", "//writer@"));
    let facts = [fact(&key(), &registration(1, now(), 60)), fact(&key(), &registration(2, now(), 60))];
    // Without the grant it may not make a month: the owner's rights are not given to everyone.
    let refused = writer.persist(&facts, now()).await;
    assert!(matches!(refused, Err(StoreError::DidNotHappen { .. })), "{refused:?}");
    sqlx::query("GRANT EXECUTE ON FUNCTION dedup_ensure_month(timestamptz, timestamptz) TO writer")
        .execute(owner.pool())
        .await
        .expect("granted");
    let persisted = writer.persist(&facts, now()).await.expect("persisted");
    assert_eq!((persisted.false_new, persisted.months_created.as_slice()), (1, &["2026-09".to_owned()][..]));
    writer.register(&key(), &registration(3, now(), 60), REPLAY_SECONDS).await.expect("a repeat");
    writer.note_drained(now()).await.expect("noted");
    assert_eq!(history(&writer, &key()).await.len(), 2);
    // Trails are merged under the same grants.
    let claim = claimed(4, now(), 60, 10);
    let other = subject("t1:as4", "claimed");
    ours(writer.register(&other, &claim, REPLAY_SECONDS).await.expect("new"));
    writer.act(&other, &ClaimId::of(&claim), &Act::Fail(None), now()).await.expect("failed");
    ours(writer.register(&other, &claimed(5, now(), 60, 10), REPLAY_SECONDS).await.expect("taken over"));
    assert_eq!(history(&writer, &other).await[0].trail.attempts().len(), 2);
}

#[tokio::test]
async fn a_ledger_of_the_release_before_claims_goes_on_after_the_migration() {
    let server = PostgresServer::shared();
    server.administer("CREATE DATABASE upgraded".to_owned()).await;
    let ledger = ledger(&server.url("upgraded"));
    sqlx::migrate!("../../migrations/postgres").run_to(1, ledger.pool()).await.expect("the first migration runs");
    // What that release writes: no column of the next one.
    let month = "SELECT dedup_ensure_month('2026-09-21 12:00+00', '2026-09-21 12:00+00')";
    assert!(sqlx::query_scalar::<_, bool>(month).fetch_one(ledger.pool()).await.expect("made"));
    let write = async |key: &str| {
        for sql in [
            "INSERT INTO dedup_claim (scope, key, key_is_parts, payload_sha256, first_seen_at, last_seen_at, retry_count, \
             registration_id, nonce, window_ends_at, state, attempt, won_at) \
             SELECT 't1:as4', $1, false, decode(repeat('07', 32), 'hex'), t, t, 0, '\\x0000000000000001', \
             '\\x0000000000000001', t + interval '60 s', 'REGISTERED', 1, t FROM (SELECT $2::text::timestamptz AS t) n",
            "INSERT INTO dedup_ledger (scope, key, key_is_parts, payload_sha256, first_seen_at, last_seen_at, retry_count, \
             registration_id, nonce, window_ends_at, state, attempt, won_at) \
             SELECT 't1:as4', $1, false, decode(repeat('07', 32), 'hex'), t, t, 0, '\\x0000000000000001', \
             '\\x0000000000000001', t + interval '60 s', 'REGISTERED', 1, t FROM (SELECT $2::text::timestamptz AS t) n",
        ] {
            let written = sqlx::query(sql).bind(key).bind(now().to_string()).execute(ledger.pool()).await;
            written.expect("written as before");
        }
    };
    write("before").await;
    PostgresLedger::migrate(ledger.pool()).await.expect("the others run");
    write("after").await;
    let plain = registration(1, now(), 60);
    for name in ["before", "after"] {
        assert_stands(&ledger, &subject("t1:as4", name), &plain, &[]).await;
    }
    // Claims go into the month there was and into a new one, which has the columns, and the checks in force.
    for (name, at) in [("september", now()), ("october", now().plus_seconds(15 * 86_400))] {
        let (key, claim) = (subject("t1:as4", name), claimed(1, at, 60, 10));
        ours(ledger.register(&key, &claim, REPLAY_SECONDS).await.expect("new"));
        assert_stands(&ledger, &key, &claim, &[attempt(&claim)]).await;
        for bad in [
            "UPDATE dedup_ledger SET fail_reason = 'x', ended_at = NULL WHERE key = $1",
            "UPDATE dedup_ledger SET fail_reason = repeat('x', 201), ended_at = now() WHERE key = $1",
            "UPDATE dedup_ledger SET attempt_source_service = repeat('x', 41) WHERE key = $1",
            "UPDATE dedup_ledger SET attempts = '{}' WHERE key = $1",
            "UPDATE dedup_claim SET fail_reason = '', ended_at = now() WHERE key = $1",
            "UPDATE dedup_claim SET attempt_source_service = '' WHERE key = $1",
        ] {
            let refused = sqlx::query(bad).bind(name).execute(ledger.pool()).await.expect_err("a check");
            let code = refused.as_database_error().and_then(|e| e.code()).map(|code| code.into_owned());
            assert_eq!(code.as_deref(), Some("23514"), "{bad}: {refused}");
        }
    }
    assert_eq!(months(ledger.pool()).await.len(), 2);
}

#[tokio::test]
async fn a_session_is_left_as_it_was_and_runs_in_utc() {
    let url = PostgresServer::shared().database().await;
    let ledger = PostgresLedger::connect_lazy(&url, &PostgresConfig { max_connections: 1, ..PATIENT }).expect("a URL");
    let facts = [fact(&key(), &registration(1, now(), 60)), fact(&key(), &registration(2, now(), 60))];
    ledger.persist(&facts, now()).await.expect("persisted");
    ledger.register(&key(), &registration(3, now(), 60), REPLAY_SECONDS).await.expect("a repeat");
    ledger.sight(&key(), &registration(3, now(), 60), REPLAY_SECONDS).await.expect("a repeat");
    let claim = claimed(4, now(), 60, 10);
    let together = [(subject("t1:as4", "a"), claim.clone()), (key(), claim.clone())];
    ledger.register_together(&together, REPLAY_SECONDS).await.expect("an answer");
    ours(ledger.register(&together[0].0, &claim, REPLAY_SECONDS).await.expect("new"));
    for act in [Act::Renew { lease_seconds: 20 }, Act::Resolve(None), Act::Fail(None)] {
        ledger.act(&together[0].0, &ClaimId::of(&claim), &act, now()).await.expect("an answer");
    }
    let newest = ledger.newest_live(now(), None, 1).await.expect("live rows");
    let Record { first_seen_at, registration_id, .. } = newest[0].record;
    let after = Some(Position { first_seen_at, registration_id });
    assert_eq!(ledger.newest_live(now(), after, 10).await.expect("live rows").len(), 1);
    assert_eq!(ledger.purge(now(), 10).await.expect("purged"), 0);
    history(&ledger, &key()).await;
    let tenant = Tenant::parse("t1").expect("a tenant");
    ledger.by_hash(&tenant, &PayloadHash::from_bytes([7; 32]), &all()).await.expect("a page");
    ledger.note_drained(now()).await.expect("noted");
    ledger.drained_until().await.expect("a watermark");
    ledger.time().await.expect("a time");

    assert_eq!(ledger.pool().size(), 1);
    let left: (i64, i64, String) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM pg_prepared_statements), \
                (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()), \
                current_setting('TimeZone')",
    )
    .persistent(false)
    .fetch_one(ledger.pool())
    .await
    .expect("the session");
    assert_eq!(left, (0, 0, "UTC".to_owned()));
}

#[tokio::test]
async fn history_keeps_a_responses_hash_type_and_length() {
    let ledger = ledger(&PostgresServer::shared().database().await);
    let content_type = ContentType::parse("text/plain").expect("a type");
    let response = Some(StoredResponse { content_type, body: b"abc".to_vec() });
    let resolved = Record { state: State::Resolved, response, ..registration(1, now(), 60) };
    let repeat = Record { retry_count: 1, response: None, ..resolved.clone() };
    ledger.persist(&[fact(&key(), &resolved)], now()).await.expect("persisted");
    ledger.persist(&[fact(&key(), &repeat)], now()).await.expect("persisted");
    let kept: (String, String, i32) = sqlx::query_as(
        "SELECT response_content_type, encode(response_sha256, 'hex'), response_length FROM dedup_ledger",
    )
    .fetch_one(ledger.pool())
    .await
    .expect("the row");
    // SHA-256 of "abc", FIPS 180-2 appendix B.1.
    let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(kept, ("text/plain".to_owned(), hash.to_owned(), 3));
}

#[tokio::test]
async fn history_keeps_the_proof_of_a_response_resolved_with_here() {
    let ledger = ledger(&PostgresServer::shared().database().await);
    let claim = claimed(1, now(), 60, 10);
    ours(ledger.register(&key(), &claim, REPLAY_SECONDS).await.expect("new"));
    ledger.act(&key(), &ClaimId::of(&claim), &Act::Resolve(Some(response(b"abc"))), now()).await.expect("resolved");
    let proof = "SELECT response_content_type, response_sha256 = sha256('abc'), response_length FROM dedup_ledger";
    let kept: (String, bool, i32) = sqlx::query_as(proof).fetch_one(ledger.pool()).await.expect("the row");
    assert_eq!(kept, ("application/xml".to_owned(), true, 3));
}

/// What the domain merges two trails to is what the database merges them to, at the bounds of every field.
#[tokio::test]
async fn trails_merge_in_the_database_as_in_the_domain() {
    let ledger = ledger(&PostgresServer::shared().database().await);
    let states = [State::Registered, State::InProgress, State::Failed, State::Resolved];
    let leases = [None, Some(Timestamp::MIN), Some(Timestamp::MAX)];
    let reason = |text| Some(FailReason::parse(text).expect("a reason"));
    let ends = [
        None,
        Some(Ended { at: Timestamp::MIN, reason: None }),
        Some(Ended { at: Timestamp::MIN, reason: reason("Z") }),
        Some(Ended { at: Timestamp::MIN, reason: reason("a\"\\") }),
        Some(Ended { at: Timestamp::MAX, reason: reason("\u{1d11e}") }),
        Some(Ended { at: Timestamp::MIN, reason: reason("\u{ffee}") }),
    ];
    // In an order of bytes these differ from one by language.
    let sources = [None, Some("Z"), Some("a"), Some("\u{e9}")];
    let mut trails = Vec::new();
    for (n, state) in states.iter().cycle().take(24).enumerate() {
        let one = Attempt {
            attempt: if n % 5 == 0 { u16::MAX } else { 1 },
            nonce: Nonce::from_bytes([if n % 7 == 0 { 0xff } else { 0x0a }; 8]),
            state: *state,
            started_at: now().plus_millis(i64::try_from(n % 2).expect("small")),
            lease_ends_at: leases[n % leases.len()],
            source_service: sources[n / 4 % sources.len()].map(service),
            ended: ends[n % ends.len()].clone(),
        };
        trails.push(Trail::of([one]));
    }
    trails.push(trails.iter().fold(Trail::default(), |mut all, trail| {
        all.merge(trail);
        all
    }));
    for one in &trails {
        for other in &trails {
            let mut expected = one.clone();
            expected.merge(other);
            let places: Vec<_> =
                expected.attempts().iter().map(|one| format!("{} {}", one.attempt, one.nonce)).collect();
            let merge = "SELECT m::text, ARRAY(SELECT (e ->> 'attempt') || ' ' || (e ->> 'nonce') \
                         FROM jsonb_array_elements(m) WITH ORDINALITY AS a (e, n) ORDER BY n) \
                         FROM dedup_merge_attempts($1::text::jsonb, $2::text::jsonb) m";
            let (merged, in_order): (String, Vec<String>) = sqlx::query_as(merge)
                .bind(one.to_json())
                .bind(other.to_json())
                .fetch_one(ledger.pool())
                .await
                .expect("merged");
            assert_eq!((Trail::from_json(&merged), in_order), (Ok(expected), places), "{one:?} and {other:?}");
        }
    }
}

/// A connection that holds the key's claim, so that whoever comes for it waits.
async fn hold_claim(url: &str) -> PgConnection {
    let mut holder = PgConnection::connect(url).await.expect("a connection");
    sqlx::query("BEGIN").execute(&mut holder).await.expect("begun");
    sqlx::query("SELECT FROM dedup_claim FOR UPDATE").execute(&mut holder).await.expect("held");
    holder
}

/// The server process that waits for the holder, once there is one.
async fn waiting_process(pool: &PgPool) -> i32 {
    let sql = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    loop {
        if let Some(pid) = sqlx::query_scalar(sql).fetch_optional(pool).await.expect("the activity") {
            return pid;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_ended_while_it_writes_may_have_written() {
    let url = PostgresServer::shared().database().await;
    let ledger = Arc::new(ledger(&url));
    let first = registration(1, now(), 60);
    ours(ledger.register(&key(), &first, REPLAY_SECONDS).await.expect("new"));
    let holder = hold_claim(&url).await;
    let writer = ledger.clone();
    let writing =
        tokio::spawn(async move { writer.register(&key(), &registration(2, now(), 60), REPLAY_SECONDS).await });
    let pid = waiting_process(ledger.pool()).await;
    sqlx::query("SELECT pg_terminate_backend($1)").bind(pid).execute(ledger.pool()).await.expect("ended");
    let lost = writing.await.expect("no panic");
    assert!(matches!(lost, Err(StoreError::MayHaveHappened { .. })), "{lost:?}");
    drop(holder);
    // The pool has put the broken connection away.
    assert_eq!(ours(ledger.register(&key(), &first, REPLAY_SECONDS).await.expect("our own")), first);
}

#[tokio::test]
async fn what_is_not_answered_in_time_may_have_happened_and_frees_its_connection() {
    let url = PostgresServer::shared().database().await;
    let config = PostgresConfig { max_connections: 1, operation_timeout_ms: 200, ..PATIENT };
    let ledger = PostgresLedger::connect_lazy(&url, &config).expect("a URL");
    ours(ledger.register(&key(), &registration(1, now(), 60), REPLAY_SECONDS).await.expect("new"));
    let holder = hold_claim(&url).await;
    for result in [
        ledger.register(&key(), &registration(2, now(), 60), REPLAY_SECONDS).await.map(drop),
        ledger.persist(&[fact(&key(), &registration(3, now(), 60))], now()).await.map(drop),
    ] {
        assert!(matches!(result, Err(StoreError::MayHaveHappened { .. })), "{result:?}");
    }
    drop(holder);
    ledger.time().await.expect("a time");
}

#[tokio::test]
async fn without_a_server_or_a_connection_nothing_happened() {
    let server = PostgresServer::start();
    let url = server.database().await;
    let config = PostgresConfig { max_connections: 1, acquire_timeout_ms: 300, ..PATIENT };
    let ledger = PostgresLedger::connect_lazy(&url, &config).expect("a URL");
    ledger.time().await.expect("a time");

    let busy = ledger.pool().acquire().await.expect("the only connection");
    let refused = ledger.persist(&[fact(&key(), &registration(1, now(), 60))], now()).await;
    assert!(matches!(refused, Err(StoreError::DidNotHappen { .. })), "{refused:?}");
    drop(busy);

    drop(server);
    let refused = ledger.register(&key(), &registration(1, now(), 60), REPLAY_SECONDS).await;
    assert!(matches!(refused, Err(StoreError::DidNotHappen { .. })), "{refused:?}");
    let unread = PostgresLedger::connect_lazy("no url", &config).map(drop);
    assert!(matches!(unread, Err(StoreError::Rejected { .. })), "{unread:?}");
}

#[tokio::test]
async fn a_lock_that_is_not_to_be_had_is_no_fault_of_the_content() {
    let url = PostgresServer::shared().database().await;
    let ledger = ledger(&url);
    let mut holder = PgConnection::connect(&url).await.expect("a connection");
    // Somebody changes the table: the month cannot be attached until they are done, and the wait for it is bounded.
    sqlx::query("BEGIN").execute(&mut holder).await.expect("begun");
    sqlx::query("LOCK TABLE dedup_ledger IN SHARE UPDATE EXCLUSIVE MODE").execute(&mut holder).await.expect("held");
    let facts = [fact(&key(), &registration(1, now(), 60))];
    let waited = tokio::time::timeout(Duration::from_secs(50), ledger.persist(&facts, now())).await;
    let refused = waited.expect("a bounded wait");
    assert!(matches!(refused, Err(StoreError::DidNotHappen { .. })), "{refused:?}");
    sqlx::query("ROLLBACK").execute(&mut holder).await.expect("let go");
    let persisted = ledger.persist(&facts, now()).await.expect("persisted");
    assert_eq!(persisted.months_created, ["2026-09"]);
}

/// Polls `work` so often and then drops it: whoever asked went away.
async fn given_up_after<T>(mut polls: u32, work: impl Future<Output = T>) -> Option<T> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| {
        if polls == 0 {
            return std::task::Poll::Ready(None);
        }
        polls -= 1;
        work.as_mut().poll(context).map(Some)
    })
    .await
}

#[tokio::test]
async fn what_follows_on_a_connection_that_was_given_up_in_a_transaction_is_committed() {
    let url = PostgresServer::shared().database().await;
    let one = PostgresConfig { max_connections: 1, ..PATIENT };
    let ledger = PostgresLedger::connect_lazy(&url, &one).expect("a URL");
    let other = self::ledger(&url);
    for (place, together) in [(0_u8, false), (1, true)] {
        for polls in 1..=24 {
            let of = |what: &str| subject("t1:as4", &format!("{what} {place} {polls}"));
            let record = registration(u64::from(polls), now(), 60);
            if together {
                let wanted = [(of("given up"), record.clone())];
                drop(given_up_after(polls, ledger.register_together(&wanted, REPLAY_SECONDS)).await);
            } else {
                let facts = [fact(&of("given up"), &record)];
                drop(given_up_after(polls, ledger.persist(&facts, now())).await);
            }
            ledger.register(&of("next"), &record, REPLAY_SECONDS).await.expect("registered");
            let standing = other.standing(&of("next")).await.expect("answers");
            assert!(standing.is_some(), "acknowledged and not committed, after {polls} polls, together {together}");
        }
    }
}

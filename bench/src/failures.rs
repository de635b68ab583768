//! What a failure costs.
//!
//! Checks while Redis is a black hole, against the bare claim in PostgreSQL: one statement that claims the key in one table.
//! Ours writes history in the same statement. And the refill of an empty Redis by the keeper's own code, against the same
//! records loaded in bare pipelines.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use ledger_domain::breaker::BreakerSettings;
use ledger_domain::check::{Check, Counters, Ledger};
use ledger_domain::claim::TokenKeys;
use ledger_domain::keep::{Keeper, KeeperSettings};
use ledger_domain::ports::{ClaimRow, Clock, ColdLedger, ControlPlane, HotTier, Position, Registered};
use ledger_domain::{EPSILON_MS, Fact, PolicySet, Principal, Slot, Timestamp, Verdict, value};
use ledger_stores::clock::{OsEntropy, SystemClock};
use ledger_stores::cold_session::{ColdSessionSettings, ControlPlaneSessions};
use ledger_stores::guarded::{GuardedHotTier, Lanes};
use ledger_stores::postgres::{PostgresConfig, PostgresLedger};
use ledger_stores::redis::RedisHotTier;
use ledger_stores::toml_file::TomlControlPlane;
use ledger_testkit::postgres_server::PostgresServer;
use ledger_testkit::redis_server::RedisServer;
use ledger_testkit::tcp_proxy::{Mode, TcpProxy};
use redis::Pipeline;
use redis::aio::ConnectionLike as _;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::cold::{Time, fact};
use crate::hot::{BuiltIn, TakesAll};
use crate::table::{Mark, Table};
use crate::timing::{Pairs, Spread, now, percentile};

/// Pairs a ratio is the median of.
const PAIRS: usize = 11;
/// Checks under way at a time; as many connections has each side.
const AT_ONCE: usize = 8;
/// Checks in a sample of latencies.
const SAMPLE: usize = 1_000;
/// Checks under way when Redis falls silent.
const STRUCK: usize = 50;
/// Records of the refill.
const RECORDS: usize = 100_000;
/// Commands of a bare pipeline.
const PIPELINE: usize = 1_000;
/// What a check waits at most for Redis: to connect and for a reply, by the defaults of its URL, in seconds.
const LIMIT_SECONDS: f64 = 0.160;

/// The whole of it.
pub(crate) async fn run(table: &mut Table) {
    let (redis, postgres) = (RedisServer::start(), PostgresServer::start());
    let folder = tempfile::tempdir().expect("a folder");
    let url = postgres.database().await;
    let pool = PgPoolOptions::new().max_connections(8).connect(&url).await.expect("the server answers");
    let config = PostgresConfig { max_connections: 8, ..PostgresConfig::default() };
    let cold = Arc::new(PostgresLedger::connect_lazy(&url, &config).expect("a URL of the fixture"));
    black_hole(&redis, &cold, &pool, folder.path(), table).await;
    refill(&redis, &cold, folder.path(), table).await;
}

/// A process whose Redis is behind a proxy, with the limits of a URL that names none.
struct Cut {
    ledger: Ledger,
    proxy: TcpProxy,
}

async fn cut(redis: &RedisServer, cold: &Arc<PostgresLedger>, folder: &Path) -> Cut {
    let address = redis.url().trim_start_matches("redis://");
    let address = address.split_once('?').map_or(address, |(address, _)| address);
    let address: SocketAddr = address.parse().expect("an address of the fixture");
    let proxy = TcpProxy::start(address).await;
    let hot = RedisHotTier::open(&format!("redis://{}", proxy.address())).expect("a URL of the proxy");
    let hot: Arc<dyn HotTier> = Arc::new(GuardedHotTier::new(
        Arc::new(hot),
        Lanes::One,
        BreakerSettings { slow_us: 75_000, ..BreakerSettings::default() },
    ));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let sessions = ControlPlaneSessions::new(
        control_plane(folder),
        Arc::clone(&clock),
        Arc::new(OsEntropy),
        ColdSessionSettings::default(),
    );
    let ledger = Ledger {
        hot,
        trust: Arc::new(TakesAll),
        queue: Arc::new(TakesAll),
        repeats: Arc::new(TakesAll),
        cold: Some(Arc::clone(cold) as Arc<dyn ColdLedger>),
        sessions: Arc::new(sessions),
        policies: Arc::new(BuiltIn(PolicySet::default())),
        clock,
        entropy: Arc::new(OsEntropy),
        tokens: TokenKeys::new(&[[7; 32]]).expect("a key"),
        counters: Counters::default(),
    };
    Cut { ledger, proxy }
}

fn control_plane(folder: &Path) -> Arc<dyn ControlPlane> {
    Arc::new(TomlControlPlane::optional(folder.join("policies.toml")).with_state(folder.join("control.json")))
}

async fn black_hole(redis: &RedisServer, cold: &Arc<PostgresLedger>, pool: &PgPool, folder: &Path, table: &mut Table) {
    let next = AtomicUsize::new(0);
    let mut longest = Vec::with_capacity(PAIRS);
    let cut_off = cut(redis, cold, folder).await;
    cut_off.proxy.set_mode(Mode::BlackHole);
    // One check finds out, and opens the breaker.
    check_once(&cut_off.ledger, &next).await;
    let (mut tails, mut halves, mut to_statement) = (Pairs::default(), Pairs::default(), Pairs::default());
    for index in 0..=PAIRS {
        let bare_first = index % 2 == 0;
        let (of_ours, of_bare) = if bare_first {
            let of_bare = closed_loop(SAMPLE, || claim(pool, &next)).await;
            (closed_loop(SAMPLE, || check_once(&cut_off.ledger, &next)).await, of_bare)
        } else {
            let of_ours = closed_loop(SAMPLE, || check_once(&cut_off.ledger, &next)).await;
            (of_ours, closed_loop(SAMPLE, || claim(pool, &next)).await)
        };
        // The first pair warms up.
        if index > 0 {
            tails.push(percentile(&of_ours, 990), percentile(&of_bare, 990));
            halves.push(percentile(&of_ours, 500), percentile(&of_bare, 500));
            let of_statement = closed_loop(SAMPLE, || register(cold, &next)).await;
            to_statement.push(percentile(&of_ours, 990), percentile(&of_statement, 990));
        }
    }
    let (of_ours, of_bare) = (tails.ours().median * 1e3, tails.bare().median * 1e3);
    let absolute = format!("{of_ours:.2} of {of_bare:.2} ms, {AT_ONCE} at once");
    table.push("Redis a black hole: p99 of a check", tails.ratio(), Mark::AtMost(3.0), absolute);

    for (what, pairs) in
        [("  its p50 to the bare claim's", &halves), ("  its p99 to the registering statement's", &to_statement)]
    {
        let (of_ours, of_bare) = (pairs.ours().median * 1e3, pairs.bare().median * 1e3);
        table.push(what, pairs.ratio(), Mark::None, format!("{of_ours:.2} of {of_bare:.2} ms"));
    }

    for _ in 0..PAIRS {
        let struck = cut(redis, cold, folder).await;
        check_once(&struck.ledger, &next).await;
        struck.proxy.set_mode(Mode::BlackHole);
        let while_it_opens = at_once(&struck.ledger, &next).await;
        let once_it_is_open = at_once(&struck.ledger, &next).await;
        longest.push((while_it_opens - once_it_is_open).max(0.0) / LIMIT_SECONDS);
    }
    let measured = Spread::of(longest);
    let absolute =
        format!("{:.0} of {:.0} ms, {STRUCK} at once", measured.median * LIMIT_SECONDS * 1e3, LIMIT_SECONDS * 1e3);
    table.push("while it opens: longest wait to the limit", measured, Mark::AtMost(1.0), absolute);
}

/// The time of each of `count` calls in seconds, sorted.
async fn closed_loop<F: Future<Output = ()> + Send>(count: usize, call: impl Fn() -> F + Sync) -> Vec<f64> {
    let workers = (0..AT_ONCE).map(|_| async {
        let mut times = Vec::with_capacity(count / AT_ONCE);
        for _ in 0..count / AT_ONCE {
            let began = now();
            call().await;
            times.push(began.elapsed().as_secs_f64());
        }
        times
    });
    let mut times: Vec<f64> = join_all(workers).await.into_iter().flatten().collect();
    times.sort_by(f64::total_cmp);
    times
}

/// The longest of [`STRUCK`] checks, in seconds.
async fn at_once(ledger: &Ledger, next: &AtomicUsize) -> f64 {
    let began = now();
    let times = join_all((0..STRUCK).map(|_| async {
        check_once(ledger, next).await;
        began.elapsed().as_secs_f64()
    }));
    times.await.into_iter().fold(0.0, f64::max)
}

async fn check_once(ledger: &Ledger, next: &AtomicUsize) {
    let Fact { subject, record, .. } = fact(next.fetch_add(1, Ordering::Relaxed));
    let check = Check {
        subject,
        payload: record.payload_hash,
        ttl_seconds: None,
        source_service: None,
        request_id: None,
        principal: Principal::parse("arn:aws:iam::123456789012:user/hub").expect("a principal"),
        claim: None,
    };
    let answer = ledger.check(&[check]).await.pop();
    assert!(matches!(answer, Some(Ok(Verdict::New(_)))), "each key is new, got {answer:?}");
}

/// The registering statement alone: both tables, and whatever stands there decided on.
async fn register(cold: &PostgresLedger, next: &AtomicUsize) {
    let Fact { subject, record, .. } = fact(next.fetch_add(1, Ordering::Relaxed));
    let registered = cold.register(&subject, &record, 900).await.expect("the ledger answers");
    assert!(matches!(registered, Registered::Ours(_)), "each key is new");
}

/// The bare claim of a key.
async fn claim(pool: &PgPool, next: &AtomicUsize) {
    const CLAIM: &str = "INSERT INTO dedup_claim AS c (scope, key, key_is_parts, payload_sha256, first_seen_at, last_seen_at, \
        retry_count, registration_id, nonce, window_ends_at, state, attempt, won_at) \
        VALUES ($1, $2, false, $3, $4, $4, 0, $5, $6, $7, 'REGISTERED', 1, $4) \
        ON CONFLICT (scope, key, key_is_parts) DO UPDATE SET retry_count = c.retry_count + 1 RETURNING registration_id";
    let Fact { subject, record, .. } = fact(next.fetch_add(1, Ordering::Relaxed));
    let row = sqlx::query(CLAIM)
        .persistent(false)
        .bind(subject.scope.to_string())
        .bind(subject.key.to_string())
        .bind(record.payload_hash.as_bytes().as_slice())
        .bind(Time(record.first_seen_at))
        .bind(record.registration_id.as_bytes().as_slice())
        .bind(record.nonce.as_bytes().as_slice())
        .bind(Time(record.window_ends_at))
        .fetch_one(pool);
    row.await.expect("the statement claims");
}

async fn all_live(cold: &PostgresLedger, at: Timestamp) -> Vec<ClaimRow> {
    let mut rows: Vec<ClaimRow> = Vec::with_capacity(RECORDS);
    loop {
        let after = rows.last().map(|row| Position {
            first_seen_at: row.record.first_seen_at,
            registration_id: row.record.registration_id,
        });
        let page = cold.newest_live(at, after, 10_000).await.expect("the ledger answers");
        if page.is_empty() {
            return rows;
        }
        rows.extend(page);
    }
}

async fn refill(redis: &RedisServer, cold: &Arc<PostgresLedger>, folder: &Path, table: &mut Table) {
    let at = SystemClock.now().expect("the system clock always answers");
    let live = all_live(cold, at).await.len();
    let facts: Vec<Fact> = (live..RECORDS.max(live)).map(|number| fact(1_000_000_000 + number)).collect();
    for facts in facts.chunks(10_000) {
        cold.persist(facts, at).await.expect("the ledger takes plain facts");
    }
    let rows = all_live(cold, at).await;
    let count = rows.len();
    let url = redis.url();
    let hot: Arc<dyn HotTier> = Arc::new(RedisHotTier::open(url).expect("a URL of the fixture"));
    let keeper = Keeper {
        hot,
        cold: Arc::clone(cold) as Arc<dyn ColdLedger>,
        queue: Arc::new(TakesAll),
        control_plane: control_plane(&folder.join("keeper")),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(OsEntropy),
        settings: KeeperSettings { rows_per_second: 0, in_flight_ms: 0, ..KeeperSettings::default() },
    };
    std::fs::create_dir_all(folder.join("keeper")).expect("a folder");
    let client = redis::Client::open(url).expect("a URL of the fixture");
    let connection = client.get_multiplexed_async_connection().await.expect("the server answers");
    let flush = || async {
        let mut connection = connection.clone();
        redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await.expect("the server flushes");
    };
    let loads: Vec<Pipeline> = rows
        .chunks(PIPELINE)
        .map(|rows| {
            let mut pipeline = Pipeline::with_capacity(rows.len());
            for row in rows {
                let slot = Slot::of(&row.subject.scope, &row.subject.key);
                let ends_at: Timestamp = row.record.window_ends_at;
                let mut cmd = redis::cmd("SET");
                cmd.arg(slot.as_bytes().as_slice()).arg(value::encode(&row.record));
                cmd.arg("NX").arg("GET").arg("PXAT").arg(ends_at.as_millis() + 2 * EPSILON_MS);
                pipeline.add_command(cmd);
            }
            pipeline
        })
        .collect();
    let ours = || async {
        flush().await;
        let began = now();
        let kept = keeper.run(Timestamp::MAX).await.expect("the time is known");
        let seconds = began.elapsed().as_secs_f64();
        assert!(kept.is_complete && kept.rows_filled == count as u64, "{kept:?}");
        seconds
    };
    let bare = || async {
        flush().await;
        let began = now();
        for load in &loads {
            let mut connection = connection.clone();
            connection.req_packed_commands(load, 0, load.len()).await.expect("the server takes them");
        }
        began.elapsed().as_secs_f64()
    };
    let pairs = Pairs::measure(PAIRS, ours, bare).await;
    let (of_ours, of_bare) = (pairs.ours().median, pairs.bare().median);
    let absolute = format!("{of_ours:.2} of {of_bare:.2} s for {count} records");
    table.push("refill of Redis to a bare pipelined load", pairs.ratio(), Mark::AtMost(3.0), absolute);
}

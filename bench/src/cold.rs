//! Facts into PostgreSQL.
//!
//! Ours is [`ledger_domain::ports::ColdLedger::persist`], facts in any order. The bare ones write the same rows into the same
//! two tables in one transaction, their columns laid out before: they coalesce nothing, merge nothing and read nothing back.
//! Behind RDS Proxy nobody may leave a named statement on a connection, so neither side does.

use std::sync::atomic::{AtomicUsize, Ordering};

use ledger_domain::ports::{Clock as _, ColdLedger as _};
use ledger_domain::{Fact, MessageKey, Nonce, PayloadHash, Record, RegistrationId, Scope, State, Subject, Timestamp};
use ledger_stores::clock::SystemClock;
use ledger_stores::postgres::{PostgresConfig, PostgresLedger};
use ledger_testkit::postgres_server::PostgresServer;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgArguments, PgConnectOptions, PgHasArrayType, PgTypeInfo};
use sqlx::query::Query;
use sqlx::{Connection as _, Encode, PgConnection, Postgres, Type};
use tokio::sync::Mutex;

use crate::table::{Mark, Table};
use crate::timing::{self, Pairs, now};

/// Pairs a ratio is the median of.
const PAIRS: usize = 21;
/// Facts in a sample, where a batch is not larger.
const SAMPLE: usize = 5_000;
const WINDOW_SECONDS: u64 = 30 * 86_400;

/// The columns of a plain record that are never null, in both tables.
macro_rules! columns {
    () => {
        "(scope, key, key_is_parts, payload_sha256, first_seen_at, last_seen_at, retry_count, registration_id, nonce, \
          window_ends_at, state, attempt, won_at)"
    };
}

macro_rules! insert {
    ($table:literal) => {
        concat!(
            "INSERT INTO ",
            $table,
            " ",
            columns!(),
            " SELECT * FROM unnest($1::text[], $2::text[], $3::boolean[], $4::bytea[], $5::timestamptz[], \
             $6::timestamptz[], $7::bigint[], $8::bytea[], $9::bytea[], $10::timestamptz[], $11::text[], $12::integer[], \
             $13::timestamptz[])"
        )
    };
}

/// The two tables, each with its bare statements.
const TABLES: [(&str, &str); 2] = [
    (insert!("dedup_claim"), concat!("COPY dedup_claim ", columns!(), " FROM STDIN")),
    (insert!("dedup_ledger"), concat!("COPY dedup_ledger ", columns!(), " FROM STDIN")),
];

/// The whole of it.
pub(crate) async fn run(table: &mut Table) {
    let server = PostgresServer::start();
    for batch in [1_000, 10_000] {
        let url = server.database().await;
        let ledger = PostgresLedger::connect_lazy(&url, &PostgresConfig::default()).expect("a URL of the fixture");
        let options: PgConnectOptions = url.parse().expect("a URL of the fixture");
        let bare = Mutex::new(PgConnection::connect_with(&options).await.expect("the server answers"));
        let next = AtomicUsize::new(0);
        let facts = || {
            let count = SAMPLE.max(batch);
            let first = next.fetch_add(count, Ordering::Relaxed);
            (first..first + count).map(fact).collect::<Vec<_>>()
        };
        let unnest = Pairs::measure(PAIRS, || persist(&ledger, facts(), batch), || insert(&bare, facts(), batch)).await;
        table.push_rates(format!("{batch} facts, to unnest"), &unnest, Mark::AtLeast(0.8), "facts");
        let copied = Pairs::measure(PAIRS, || persist(&ledger, facts(), batch), || copy(&bare, facts(), batch)).await;
        table.push_rates(format!("{batch} facts, to COPY"), &copied, Mark::None, "facts");
    }
}

/// The fact of a plain registration that just happened, with a key of 36 bytes.
pub(crate) fn fact(number: usize) -> Fact {
    let now = SystemClock.now().expect("the system clock always answers");
    let hex = |salt: u64| format!("{:016x}", spread(number, salt));
    let key = format!("{}-{}-k", hex(1), hex(2));
    let mut payload = [0; 32];
    for (salt, part) in (3..).zip(payload.chunks_exact_mut(8)) {
        part.copy_from_slice(&spread(number, salt).to_be_bytes());
    }
    let record = Record {
        registration_id: RegistrationId::from_bytes(spread(number, 7).to_be_bytes()),
        state: State::Registered,
        attempt: 1,
        nonce: Nonce::from_bytes(spread(number, 8).to_be_bytes()),
        won_at: now,
        first_seen_at: now,
        last_seen_at: now,
        window_ends_at: now.plus_seconds(WINDOW_SECONDS),
        payload_hash: PayloadHash::from_bytes(payload),
        retry_count: 0,
        source_service: None,
        drift: None,
        lease_ends_at: None,
        response: None,
        attempt_source: None,
        ended: None,
        undurable: false,
        take_over: None,
    };
    let scope = Scope::parse("tenant42:as4", None).expect("a scope");
    Fact::of(Subject { scope, key: MessageKey::text(&key).expect("a key") }, &record)
}

/// Spreads what counts up over all 64 bits, so that keys come in no order.
fn spread(number: usize, salt: u64) -> u64 {
    timing::spread((number as u64) << 8 | salt)
}

async fn persist(ledger: &PostgresLedger, facts: Vec<Fact>, batch: usize) -> f64 {
    let at = SystemClock.now().expect("the system clock always answers");
    let started = now();
    for facts in facts.chunks(batch) {
        let persisted = ledger.persist(facts, at).await.expect("the ledger takes plain facts");
        assert_eq!((persisted.claims.len(), persisted.false_new), (facts.len(), 0), "each fact is a row of its own");
    }
    facts.len() as f64 / started.elapsed().as_secs_f64()
}

async fn insert(connection: &Mutex<PgConnection>, facts: Vec<Fact>, batch: usize) -> f64 {
    let mut connection = connection.lock().await;
    let batches: Vec<Columns> = facts.chunks(batch).map(Columns::of).collect();
    let started = now();
    for columns in &batches {
        let mut transaction = connection.begin().await.expect("the server begins");
        for (statement, _) in TABLES {
            let done = columns
                .bind(sqlx::query(statement).persistent(false))
                .execute(&mut *transaction)
                .await
                .expect("the rows are new");
            assert_eq!(done.rows_affected(), columns.scope.len() as u64, "each fact is a row");
        }
        transaction.commit().await.expect("the server commits");
    }
    facts.len() as f64 / started.elapsed().as_secs_f64()
}

async fn copy(connection: &Mutex<PgConnection>, facts: Vec<Fact>, batch: usize) -> f64 {
    let mut connection = connection.lock().await;
    let batches: Vec<(usize, String)> =
        facts.chunks(batch).map(|facts| (facts.len(), facts.iter().map(copy_line).collect())).collect();
    let started = now();
    for (rows, lines) in &batches {
        let mut transaction = connection.begin().await.expect("the server begins");
        for (_, statement) in TABLES {
            let mut copy = transaction.copy_in_raw(statement).await.expect("the server copies");
            copy.send(lines.as_bytes()).await.expect("the server reads");
            assert_eq!(copy.finish().await.expect("the rows are new"), *rows as u64, "each fact is a row");
        }
        transaction.commit().await.expect("the server commits");
    }
    facts.len() as f64 / started.elapsed().as_secs_f64()
}

fn copy_line(fact: &Fact) -> String {
    let (subject, record) = (&fact.subject, &fact.record);
    let Record { registration_id, nonce, payload_hash, first_seen_at: at, window_ends_at, state, .. } = record;
    format!(
        "{}\t{}\tf\t\\\\x{payload_hash}\t{at}\t{at}\t0\t\\\\x{registration_id}\t\\\\x{nonce}\t{window_ends_at}\t{}\t1\t{at}\n",
        subject.scope,
        subject.key,
        state.as_str()
    )
}

/// A `timestamptz`: microseconds since 2000 on the wire.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Time(pub(crate) Timestamp);

/// 2000-01-01T00:00:00Z in milliseconds since 1970.
const POSTGRES_EPOCH_MS: i64 = 946_684_800_000;

impl Type<Postgres> for Time {
    fn type_info() -> PgTypeInfo {
        // `timestamptz` in pg_type.dat.
        PgTypeInfo::with_oid(Oid(1184))
    }
}

impl PgHasArrayType for Time {
    fn array_type_info() -> PgTypeInfo {
        // `timestamptz[]` in pg_type.dat.
        PgTypeInfo::with_oid(Oid(1185))
    }
}

impl Encode<'_, Postgres> for Time {
    fn encode_by_ref(&self, buf: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        Encode::<Postgres>::encode((self.0.as_millis() - POSTGRES_EPOCH_MS) * 1_000, buf)
    }
}

/// Rows as `unnest` takes them.
#[derive(Default)]
struct Columns {
    scope: Vec<String>,
    key: Vec<String>,
    parts: Vec<bool>,
    payload: Vec<Vec<u8>>,
    seen_at: Vec<Time>,
    retries: Vec<i64>,
    id: Vec<Vec<u8>>,
    nonce: Vec<Vec<u8>>,
    ends_at: Vec<Time>,
    state: Vec<&'static str>,
    attempt: Vec<i32>,
}

impl Columns {
    fn of(facts: &[Fact]) -> Self {
        let mut columns = Self::default();
        for Fact { subject, record, .. } in facts {
            columns.scope.push(subject.scope.to_string());
            columns.key.push(subject.key.to_string());
            columns.parts.push(false);
            columns.payload.push(record.payload_hash.as_bytes().to_vec());
            columns.seen_at.push(Time(record.first_seen_at));
            columns.retries.push(0);
            columns.id.push(record.registration_id.as_bytes().to_vec());
            columns.nonce.push(record.nonce.as_bytes().to_vec());
            columns.ends_at.push(Time(record.window_ends_at));
            columns.state.push(record.state.as_str());
            columns.attempt.push(1);
        }
        columns
    }

    fn bind<'q>(&'q self, query: Query<'q, Postgres, PgArguments>) -> Query<'q, Postgres, PgArguments> {
        let query = query.bind(&self.scope).bind(&self.key).bind(&self.parts).bind(&self.payload);
        let query = query.bind(&self.seen_at).bind(&self.seen_at).bind(&self.retries).bind(&self.id).bind(&self.nonce);
        query.bind(&self.ends_at).bind(&self.state).bind(&self.attempt).bind(&self.seen_at)
    }
}

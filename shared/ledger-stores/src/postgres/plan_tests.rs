//! The statements over live rows: each goes by its index, and reads no more than it needs.

use ledger_domain::Timestamp;
use ledger_testkit::postgres_server::PostgresServer;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPool;

use super::row::PgTime;
use super::sql;

/// Rows in the table: enough that no plan reads all of them by mistake.
const ROWS: i64 = 40_000;
const FIRST_MS: i64 = 1_790_000_000_000;

/// What the planner knows of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Statistics {
    Analyzed,
    /// Nothing, as after a load.
    Missing,
}

/// A table of plain rows, one each 100 ms, whose windows of 60 s or 30 days are not in the order of the rows.
async fn filled(statistics: Statistics) -> PgPool {
    let url = PostgresServer::shared().database().await;
    let pool = PgPool::connect(&url).await.expect("the fixture's server");
    let fill = "INSERT INTO dedup_claim (scope, key, key_is_parts, payload_sha256, first_seen_at, last_seen_at, retry_count, \
                registration_id, nonce, window_ends_at, state, attempt, won_at) \
                SELECT 't1:as4', md5(n::text), false, sha256('x'), at, at, 0, substr(sha256(n::text::bytea), 1, 8), \
                       substr(sha256('x'), 1, 8), at + CASE n % 2 WHEN 0 THEN interval '60 s' ELSE interval '30 days' END, \
                       'REGISTERED', 1, at \
                FROM (SELECT n, $1 + n * interval '100 ms' AS at FROM generate_series(0, $2 - 1) n) r";
    let filled = sqlx::query(fill).bind(PgTime(at(0))).bind(ROWS).execute(&pool).await.expect("filled");
    assert_eq!(filled.rows_affected(), 40_000);
    if statistics == Statistics::Analyzed {
        sqlx::query("VACUUM ANALYZE dedup_claim").execute(&pool).await.expect("analyzed");
    }
    pool
}

/// When row `n` was first seen.
fn at(n: i64) -> Timestamp {
    Timestamp::from_millis(FIRST_MS + n * 100)
}

/// Reads a page, 1,000 rows older than row `row` and live at `now`: how many there were, how many rows the server looked at
/// one after the other, and how many it fetched by an index.
async fn read_page(pool: &PgPool, row: i64, now: Timestamp) -> (usize, i64, i64) {
    let mut tx = pool.begin().await.expect("begun");
    let reads = "SELECT sum(seq_tup_read)::bigint, sum(idx_tup_fetch)::bigint FROM pg_stat_xact_user_tables \
                 WHERE relname LIKE 'dedup\\_claim\\___'";
    // What the connection did before may be counted still.
    let before: (i64, i64) = sqlx::query_as(reads).fetch_one(&mut *tx).await.expect("the statistics");
    let page = sqlx::query(sql::NEWEST_LIVE).bind(PgTime(at(0))).bind(PgTime(at(row))).bind([0_u8; 8].as_slice());
    let rows = page.bind(PgTime(now)).bind(1_000_i64).fetch_all(&mut *tx).await.expect("a page").len();
    let after: (i64, i64) = sqlx::query_as(reads).fetch_one(&mut *tx).await.expect("the statistics");
    (rows, after.0 - before.0, after.1 - before.1)
}

const EXPLAIN: &str = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF)";

#[tokio::test]
async fn a_page_of_live_rows_is_read_backwards_from_the_index() {
    for statistics in [Statistics::Analyzed, Statistics::Missing] {
        let pool = filled(statistics).await;
        for (before, now) in [(ROWS, at(0)), (ROWS / 2, at(0)), (5_000, at(ROWS))] {
            let (rows, one_by_one, by_index) = read_page(&pool, before, now).await;
            assert_eq!((rows, one_by_one), (1_000, 0));
            // Each partition is asked for one row more than it gives, at most.
            assert!((1_000..=1_016).contains(&by_index), "{by_index}");
        }
        // Ended rows are passed over in the index: their rows are not fetched to find out.
        assert_eq!(read_page(&pool, 500, at(ROWS).plus_seconds(40 * 86_400)).await, (0, 0, 0));
    }
}

#[tokio::test]
async fn the_newest_row_before_a_place_is_found_by_the_index() {
    let pool = filled(Statistics::Analyzed).await;
    let look = sqlx::query_scalar::<_, String>(AssertSqlSafe(format!("{EXPLAIN} {}", sql::NEWEST_BEFORE)));
    let look = look.bind(PgTime(at(0))).bind(PgTime(at(ROWS))).bind([0_u8; 8].as_slice());
    let plan = look.fetch_all(&pool).await.expect("a plan").join("\n");
    assert!(!plan.contains("Seq Scan") && !plan.contains("Sort Method"), "{plan}");
}

#[tokio::test]
async fn a_purge_finds_what_ended_by_its_index_and_looks_each_key_up_once() {
    let pool = filled(Statistics::Analyzed).await;
    let purge = sqlx::query_scalar::<_, String>(AssertSqlSafe(format!("{EXPLAIN} {}", sql::PURGE)));
    let purge = purge.bind(PgTime(at(ROWS).plus_seconds(61))).bind(1_000_i64);
    let plan = purge.fetch_all(&pool).await.expect("a plan").join("\n");
    assert!(!plan.contains("Seq Scan") && !plan.contains("Sort Method") && !plan.contains("Hash"), "{plan}");
    assert_eq!(plan.matches("greatest_idx").count(), 16, "one for each partition:\n{plan}");
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM dedup_claim").fetch_one(&pool).await.expect("counted");
    assert_eq!(left, ROWS - 1_000, "the plan was carried out");
}

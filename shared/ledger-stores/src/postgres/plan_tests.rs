//! The plans of the statements over live rows: each goes by its index, and reads no more than it needs.

use ledger_domain::Timestamp;
use ledger_testkit::postgres_server::PostgresServer;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPool;

use super::row::PgTime;
use super::sql;

/// Rows in the table: enough that no plan reads all of them by mistake.
const ROWS: i64 = 40_000;
const FIRST_MS: i64 = 1_790_000_000_000;

/// A table of plain rows, one each 100 ms, whose windows of 60 s or 30 days are not in the order of the rows.
async fn filled() -> PgPool {
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
    sqlx::query("VACUUM ANALYZE dedup_claim").execute(&pool).await.expect("analyzed");
    pool
}

/// When row `n` was first seen.
fn at(n: i64) -> Timestamp {
    Timestamp::from_millis(FIRST_MS + n * 100)
}

/// What `EXPLAIN ANALYZE` says about a page: 1,000 rows older than row `before`, live at `now`.
async fn explain_page(pool: &PgPool, before: i64, now: Timestamp) -> String {
    let page = sqlx::query_scalar::<_, String>(AssertSqlSafe(format!("{EXPLAIN} {}", sql::NEWEST_LIVE)));
    let page = page.bind(PgTime(at(0))).bind(PgTime(at(before))).bind([0_u8; 8].as_slice()).bind(PgTime(now));
    page.bind(1_000_i64).fetch_all(pool).await.expect("a plan").join("\n")
}

const EXPLAIN: &str = "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF)";

/// The numbers of rows that the plan's nodes of a kind gave, together.
fn rows_of(plan: &str, node: &str) -> i64 {
    let lines = plan.lines().filter(|line| line.contains(node));
    let rows = lines.filter_map(|line| line.split_once("rows=")?.1.split_whitespace().next()?.parse::<i64>().ok());
    rows.sum()
}

#[tokio::test]
async fn a_page_of_live_rows_is_read_backwards_from_the_index() {
    let pool = filled().await;
    for (before, now) in [(ROWS, at(0)), (ROWS / 2, at(0)), (5_000, at(ROWS))] {
        let plan = explain_page(&pool, before, now).await;
        assert!(!plan.contains("Seq Scan") && !plan.contains("Sort Method") && !plan.contains("Bitmap"), "{plan}");
        assert_eq!(plan.matches("Index Scan Backward").count(), 16, "one for each partition:\n{plan}");
        // Each partition is asked for one row more than it gives, at most.
        assert!((1_000..=1_016).contains(&rows_of(&plan, "Index Scan Backward")), "{plan}");
    }
    // Ended rows are passed over in the index: their rows are not fetched to find out.
    let plan = explain_page(&pool, 500, at(ROWS).plus_seconds(40 * 86_400)).await;
    assert_eq!(rows_of(&plan, "Index Scan Backward"), 0, "{plan}");
    assert!(!plan.contains("Rows Removed by Filter"), "{plan}");

    let look = sqlx::query_scalar::<_, String>(AssertSqlSafe(format!("{EXPLAIN} {}", sql::NEWEST_BEFORE)));
    let look = look.bind(PgTime(at(0))).bind(PgTime(at(ROWS))).bind([0_u8; 8].as_slice());
    let plan = look.fetch_all(&pool).await.expect("a plan").join("\n");
    assert!(!plan.contains("Seq Scan") && !plan.contains("Sort Method"), "{plan}");
}

#[tokio::test]
async fn a_purge_finds_what_ended_by_its_index_and_looks_each_key_up_once() {
    let pool = filled().await;
    let purge = sqlx::query_scalar::<_, String>(AssertSqlSafe(format!("{EXPLAIN} {}", sql::PURGE)));
    let purge = purge.bind(PgTime(at(ROWS).plus_seconds(61))).bind(1_000_i64);
    let plan = purge.fetch_all(&pool).await.expect("a plan").join("\n");
    assert!(!plan.contains("Seq Scan") && !plan.contains("Sort Method") && !plan.contains("Hash"), "{plan}");
    assert_eq!(plan.matches("greatest_idx").count(), 16, "one for each partition:\n{plan}");
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM dedup_claim").fetch_one(&pool).await.expect("counted");
    assert_eq!(left, ROWS - 1_000, "the plan was carried out");
}

//! Reading history, by key or by payload.

use ledger_domain::ports::{HistoryPage, HistoryQuery, StoreError};
use ledger_domain::{PayloadHash, Subject, Tenant};
use sqlx::postgres::PgRow;

use super::row::{PgTime, history_rows};
use super::{PostgresLedger, query, settle, sql};
use crate::cold::Window;

impl PostgresLedger {
    pub(super) async fn read_by_key(
        &self,
        subject: &Subject,
        history: &HistoryQuery,
    ) -> Result<HistoryPage, StoreError> {
        const OPERATION: &str = "read history by key";
        let Some(window) = Window::of(history) else { return Ok(HistoryPage::default()) };
        let statement = query(sql::BY_KEY)
            .bind(subject.scope.as_str())
            .bind(subject.key.as_str())
            .bind(subject.key.is_parts())
            .bind(PgTime(window.from))
            .bind(PgTime(window.last))
            .bind(window.below_id.as_ref().map(|id| id.as_bytes().as_slice()))
            .bind(window.rows_wanted());
        let mut conn = self.session(OPERATION).await?;
        let rows = self.within(statement.fetch_all(&mut *conn)).await.and_then(|rows| page(&rows, &window));
        settle(OPERATION, &mut conn, rows)
    }

    pub(super) async fn read_by_hash(
        &self,
        tenant: &Tenant,
        payload: &PayloadHash,
        history: &HistoryQuery,
    ) -> Result<HistoryPage, StoreError> {
        const OPERATION: &str = "read history by payload";
        let Some(window) = Window::of(history) else { return Ok(HistoryPage::default()) };
        let statement = query(sql::BY_HASH)
            .bind(payload.as_bytes().as_slice())
            .bind(tenant.as_str())
            .bind(PgTime(window.from))
            .bind(PgTime(window.last))
            .bind(window.below_id.as_ref().map(|id| id.as_bytes().as_slice()))
            .bind(window.rows_wanted());
        let mut conn = self.session(OPERATION).await?;
        let rows = self.within(statement.fetch_all(&mut *conn)).await.and_then(|rows| page(&rows, &window));
        settle(OPERATION, &mut conn, rows)
    }
}

fn page(rows: &[PgRow], window: &Window) -> Result<HistoryPage, sqlx::Error> {
    let rows = history_rows(rows)?;
    Ok(window.page(rows))
}

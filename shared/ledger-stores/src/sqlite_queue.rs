//! The event queue in one SQLite file: the embedded twin of SQS.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ledger_domain::Fact;
use ledger_domain::ports::{Clock, Delivery, EventQueue, PoisonSink, QueueConsumer, QueueDepth, StoreError};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, Row as _};
use tokio::sync::{mpsc, oneshot};

/// Calls that may wait for the writer; further callers wait for room.
const CALLS_MAX: usize = 256;
/// How long a call waits for another process that writes the same file, in milliseconds.
const BUSY_TIMEOUT_MS: u64 = 5_000;
/// Messages given up in one `receive`, so that it stays short.
const DEAD_PER_RECEIVE: i64 = 1_000;
/// Parked messages that are kept; with no room left none is parked, and the message comes again.
const PARKED_MAX: i64 = 100_000;
/// How long one is kept at least, in milliseconds: 14 days.
const PARKED_MS: i64 = 14 * 86_400_000;

const OPEN: &str = "open the queue file";
const SEND: &str = "send facts";
const DEPTH: &str = "read the queue's depth";
const RECEIVE: &str = "receive messages";
const ACK: &str = "delete messages";
const PARK: &str = "park a message";
const OTHER_ANSWER: &str = "the queue's writer answered something else";

const SCHEMA: [&str; 6] = [
    // AUTOINCREMENT: an id is never given out again, so an old receipt never names a new message.
    "CREATE TABLE IF NOT EXISTS message (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT NOT NULL, \
     visible_at_ms INTEGER NOT NULL DEFAULT 0, deliveries INTEGER NOT NULL DEFAULT 0) STRICT",
    "CREATE INDEX IF NOT EXISTS message_by_visibility ON message (visible_at_ms, id)",
    "CREATE TABLE IF NOT EXISTS dead_letter (id INTEGER PRIMARY KEY, body TEXT NOT NULL, deliveries INTEGER NOT NULL, \
     given_up_at_ms INTEGER NOT NULL) STRICT",
    "CREATE TABLE IF NOT EXISTS parked (id INTEGER PRIMARY KEY, body TEXT NOT NULL, reason TEXT NOT NULL, \
     parked_at_ms INTEGER NOT NULL) STRICT",
    // Counting rows reads all of them; the tally changes in the transaction that changes the rows.
    "CREATE TABLE IF NOT EXISTS tally (id INTEGER PRIMARY KEY CHECK (id = 1), waiting INTEGER NOT NULL, \
     dead INTEGER NOT NULL) STRICT",
    "INSERT INTO tally (id, waiting, dead) VALUES (1, 0, 0) ON CONFLICT (id) DO NOTHING",
];

/// Ends the visibility time of every delivery; the deliveries stay counted.
const SHOW_ALL: &str = "UPDATE message SET visible_at_ms = 0 WHERE visible_at_ms > 0";

/// Limits and times of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SqliteQueueSettings {
    /// Messages that may wait, those being worked on included; a send beyond it did not happen.
    pub waiting_max: u64,
    /// How long a delivery is hidden from other receivers, in milliseconds of the clock.
    pub visibility_ms: u64,
    /// Deliveries of one message; one that would be delivered once more is given up.
    pub deliveries_max: u32,
}

impl Default for SqliteQueueSettings {
    /// A million messages, 30 s, 5 deliveries.
    fn default() -> Self {
        Self { waiting_max: 1_000_000, visibility_ms: 30_000, deliveries_max: 5 }
    }
}

/// A queue in an SQLite file of its own.
///
/// One task owns the connection and commits whatever calls have come in by then in one transaction, so fifty concurrent
/// senders wait for one fsync, not for fifty. WAL with `synchronous=FULL`: what was answered `Ok` survives the end of the
/// process and, where the disk keeps its word, of the power. Messages do not expire.
///
/// Sending needs no time; receiving asks the clock, and refuses while that is unknown.
#[derive(Debug, Clone)]
pub struct SqliteQueue {
    calls: mpsc::Sender<Call>,
}

/// What is asked of the writer.
#[derive(Debug)]
enum Request {
    Send(Vec<String>),
    Receive { max: i64 },
    Ack(Vec<Receipt>),
    Park { body: String, reason: String },
    Depth,
}

/// What came of it.
#[derive(Debug)]
enum Output {
    Done,
    Received(Vec<Delivery>),
    Depth(QueueDepth),
}

#[derive(Debug)]
struct Call {
    request: Request,
    reply: Reply,
}

type Reply = oneshot::Sender<Result<Output, StoreError>>;

/// `id.delivery`: what a delivery of a message is named by.
#[derive(Debug, Clone, Copy)]
struct Receipt {
    id: i64,
    delivery: i64,
}

struct Writer {
    connection: SqliteConnection,
    clock: Arc<dyn Clock>,
    settings: SqliteQueueSettings,
}

impl SqliteQueue {
    /// Opens the queue in `path`, creating the file where there is none. The writer task ends with the last clone.
    ///
    /// # Errors
    /// [`StoreError::DidNotHappen`] where the file cannot be opened or is something else.
    pub async fn open(path: &Path, clock: Arc<dyn Clock>, settings: SqliteQueueSettings) -> Result<Self, StoreError> {
        Self::open_after(path, clock, settings, None).await
    }

    /// As [`SqliteQueue::open`], for a process that knows that nobody else receives from the file: what an earlier process had
    /// received and not acknowledged when it died waits again at once, and not only after its visibility time.
    ///
    /// # Errors
    /// As [`SqliteQueue::open`].
    pub async fn open_alone(
        path: &Path,
        clock: Arc<dyn Clock>,
        settings: SqliteQueueSettings,
    ) -> Result<Self, StoreError> {
        Self::open_after(path, clock, settings, Some(SHOW_ALL)).await
    }

    async fn open_after(
        path: &Path,
        clock: Arc<dyn Clock>,
        settings: SqliteQueueSettings,
        first: Option<&'static str>,
    ) -> Result<Self, StoreError> {
        let failed = |e: sqlx::Error| StoreError::did_not_happen(OPEN, e);
        let mut connection = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_millis(BUSY_TIMEOUT_MS))
            .connect()
            .await
            .map_err(failed)?;
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
        for statement in SCHEMA.into_iter().chain(first) {
            sqlx::query(statement).execute(&mut *tx).await.map_err(failed)?;
        }
        tx.commit().await.map_err(failed)?;
        let (calls, waiting) = mpsc::channel(CALLS_MAX);
        tokio::spawn(Writer { connection, clock, settings }.run(waiting));
        Ok(Self { calls })
    }

    async fn call(&self, request: Request) -> Result<Output, StoreError> {
        let operation = request.operation();
        let (reply, replied) = oneshot::channel();
        let stopped = "the queue's writer has stopped";
        let sent = self.calls.send(Call { request, reply }).await;
        sent.map_err(|_| StoreError::did_not_happen(operation, stopped))?;
        replied.await.map_err(|_| StoreError::may_have_happened(operation, stopped))?
    }
}

#[async_trait]
impl EventQueue for SqliteQueue {
    async fn send(&self, facts: &[Fact]) -> Vec<Result<(), StoreError>> {
        if facts.is_empty() {
            return Vec::new();
        }
        let outcome = self.call(Request::Send(facts.iter().map(Fact::to_json).collect())).await;
        vec![outcome.map(|_| ()); facts.len()]
    }

    async fn send_together(&self, facts: &[Fact]) -> Result<(), StoreError> {
        if facts.is_empty() {
            return Ok(());
        }
        self.call(Request::Send(vec![Fact::to_json_together(facts)])).await.map(|_| ())
    }

    async fn depth(&self) -> Result<QueueDepth, StoreError> {
        match self.call(Request::Depth).await? {
            Output::Depth(depth) => Ok(depth),
            Output::Done | Output::Received(_) => Err(StoreError::may_have_happened(DEPTH, OTHER_ANSWER)),
        }
    }
}

#[async_trait]
impl QueueConsumer for SqliteQueue {
    async fn receive(&self, max: usize) -> Result<Vec<Delivery>, StoreError> {
        match self.call(Request::Receive { max: i64::try_from(max).unwrap_or(i64::MAX) }).await? {
            Output::Received(deliveries) => Ok(deliveries),
            Output::Done | Output::Depth(_) => Err(StoreError::may_have_happened(RECEIVE, OTHER_ANSWER)),
        }
    }

    async fn ack(&self, receipts: &[String]) -> Result<(), StoreError> {
        let unknown = |text: &String| StoreError::rejected(ACK, format!("{text:?} is no receipt of this queue"));
        let receipts = receipts.iter().map(|text| Receipt::parse(text).ok_or_else(|| unknown(text)));
        self.call(Request::Ack(receipts.collect::<Result<_, _>>()?)).await.map(|_| ())
    }
}

#[async_trait]
impl PoisonSink for SqliteQueue {
    async fn park(&self, body: &str, reason: &str) -> Result<(), StoreError> {
        self.call(Request::Park { body: body.to_owned(), reason: reason.to_owned() }).await.map(|_| ())
    }
}

impl Request {
    fn operation(&self) -> &'static str {
        match self {
            Self::Send(_) => SEND,
            Self::Receive { .. } => RECEIVE,
            Self::Ack(_) => ACK,
            Self::Park { .. } => PARK,
            Self::Depth => DEPTH,
        }
    }
}

impl Receipt {
    fn parse(text: &str) -> Option<Self> {
        let (id, delivery) = text.split_once('.')?;
        Some(Self { id: id.parse().ok()?, delivery: delivery.parse().ok()? })
    }
}

impl Writer {
    async fn run(mut self, mut waiting: mpsc::Receiver<Call>) {
        let mut calls = Vec::with_capacity(CALLS_MAX);
        while waiting.recv_many(&mut calls, CALLS_MAX).await > 0 {
            // A caller that left (a dropped future) before its turn leaves nothing behind.
            calls.retain(|call| !call.reply.is_closed());
            self.work_off(std::mem::take(&mut calls)).await;
        }
    }

    /// Works the calls off in one transaction and answers them once its fate is known.
    async fn work_off(&mut self, calls: Vec<Call>) {
        let mut outcomes = Vec::with_capacity(calls.len());
        let kind: fn(&'static str, Arc<sqlx::Error>) -> StoreError;
        let cause = match self.transact(&calls, &mut outcomes).await {
            Ok(()) => {
                for (call, outcome) in calls.into_iter().zip(outcomes) {
                    answer(call.reply, outcome);
                }
                return;
            }
            // Without its COMMIT nothing of a transaction is ever durable.
            Err(Failed::BeforeCommit(e)) => {
                kind = StoreError::did_not_happen;
                Arc::new(e)
            }
            Err(Failed::InCommit(e)) => {
                kind = StoreError::may_have_happened;
                Arc::new(e)
            }
        };
        for call in calls {
            answer(call.reply, Err(kind(call.request.operation(), Arc::clone(&cause))));
        }
    }

    async fn transact(&mut self, calls: &[Call], outcomes: &mut Vec<Result<Output, StoreError>>) -> Result<(), Failed> {
        let mut tx = self.connection.begin_with("BEGIN IMMEDIATE").await.map_err(Failed::BeforeCommit)?;
        for call in calls {
            let outcome = step(&mut tx, &call.request, self.clock.as_ref(), &self.settings).await;
            outcomes.push(outcome.map_err(Failed::BeforeCommit)?);
        }
        tx.commit().await.map_err(Failed::InCommit)
    }
}

/// Where a group's transaction failed.
enum Failed {
    BeforeCommit(sqlx::Error),
    InCommit(sqlx::Error),
}

/// A caller that has left in the meantime needs no answer.
fn answer(reply: Reply, outcome: Result<Output, StoreError>) {
    drop(reply.send(outcome));
}

/// One call inside the transaction of its group. The outer error is the transaction's.
async fn step(
    tx: &mut SqliteConnection,
    request: &Request,
    clock: &dyn Clock,
    settings: &SqliteQueueSettings,
) -> Result<Result<Output, StoreError>, sqlx::Error> {
    match request {
        Request::Send(bodies) => insert(tx, bodies, settings.waiting_max).await,
        Request::Receive { max } => match clock.now() {
            Ok(now) => Ok(Ok(Output::Received(lease(tx, now.as_millis(), *max, settings).await?))),
            Err(unknown) => Ok(Err(StoreError::did_not_happen(RECEIVE, unknown))),
        },
        Request::Ack(receipts) => delete(tx, receipts).await.map(|()| Ok(Output::Done)),
        Request::Park { body, reason } => match clock.now() {
            Ok(now) => park(tx, body, reason, now.as_millis()).await,
            Err(unknown) => Ok(Err(StoreError::did_not_happen(PARK, unknown))),
        },
        Request::Depth => {
            let (waiting, dead) = tally(tx).await?;
            Ok(Ok(Output::Depth(QueueDepth { waiting, dead: Some(dead), lag_ms: 0 })))
        }
    }
}

async fn tally(tx: &mut SqliteConnection) -> Result<(u64, u64), sqlx::Error> {
    let row = sqlx::query("SELECT waiting, dead FROM tally").fetch_one(tx).await?;
    let count = |value: i64| u64::try_from(value).unwrap_or(0);
    Ok((count(row.try_get(0)?), count(row.try_get(1)?)))
}

async fn add_to_tally(tx: &mut SqliteConnection, waiting: i64, dead: i64) -> Result<(), sqlx::Error> {
    let change = sqlx::query("UPDATE tally SET waiting = waiting + ?, dead = dead + ?").bind(waiting).bind(dead);
    change.execute(tx).await.map(|_| ())
}

/// All bodies of a call or, with no room for them, none.
async fn insert(
    tx: &mut SqliteConnection,
    bodies: &[String],
    waiting_max: u64,
) -> Result<Result<Output, StoreError>, sqlx::Error> {
    let (waiting, _) = tally(tx).await?;
    if waiting.saturating_add(bodies.len() as u64) > waiting_max {
        let full = format!("full: {waiting} messages wait, of at most {waiting_max}");
        return Ok(Err(StoreError::did_not_happen(SEND, full)));
    }
    for body in bodies {
        sqlx::query("INSERT INTO message (body) VALUES (?)").bind(body).execute(&mut *tx).await?;
    }
    add_to_tally(tx, i64::try_from(bodies.len()).unwrap_or(i64::MAX), 0).await?;
    Ok(Ok(Output::Done))
}

/// Gives up what was delivered too often, then hides up to `max` visible messages and hands them out.
async fn lease(
    tx: &mut SqliteConnection,
    now_ms: i64,
    max: i64,
    settings: &SqliteQueueSettings,
) -> Result<Vec<Delivery>, sqlx::Error> {
    let deliveries_max = i64::from(settings.deliveries_max);
    let moved = sqlx::query(
        "INSERT INTO dead_letter (id, body, deliveries, given_up_at_ms) \
         SELECT id, body, deliveries, ?1 FROM message WHERE visible_at_ms <= ?1 AND deliveries >= ?2 \
         ORDER BY visible_at_ms, id LIMIT ?3 RETURNING id",
    )
    .bind(now_ms)
    .bind(deliveries_max)
    .bind(DEAD_PER_RECEIVE)
    .fetch_all(&mut *tx)
    .await?;
    for row in &moved {
        let id: i64 = row.try_get(0)?;
        sqlx::query("DELETE FROM message WHERE id = ?").bind(id).execute(&mut *tx).await?;
    }
    if !moved.is_empty() {
        let count = i64::try_from(moved.len()).unwrap_or(i64::MAX);
        tracing::error!(messages = count, "queue: given up after {deliveries_max} deliveries, kept in dead_letter");
        add_to_tally(tx, -count, count).await?;
    }
    let visible_at_ms = now_ms.saturating_add(i64::try_from(settings.visibility_ms).unwrap_or(i64::MAX));
    let leased = sqlx::query(
        "UPDATE message SET visible_at_ms = ?2, deliveries = deliveries + 1 WHERE id IN \
         (SELECT id FROM message WHERE visible_at_ms <= ?1 AND deliveries < ?3 ORDER BY visible_at_ms, id LIMIT ?4) \
         RETURNING id, deliveries, body",
    )
    .bind(now_ms)
    .bind(visible_at_ms)
    .bind(deliveries_max)
    .bind(max)
    .fetch_all(&mut *tx)
    .await?;
    let delivery = |row: sqlx::sqlite::SqliteRow| {
        let (id, delivery): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        Ok(Delivery { receipt: format!("{id}.{delivery}"), body: row.try_get(2)? })
    };
    leased.into_iter().map(delivery).collect()
}

/// Deletes what the receipts name. One of an earlier delivery, or of a message that is gone, names nothing.
async fn delete(tx: &mut SqliteConnection, receipts: &[Receipt]) -> Result<(), sqlx::Error> {
    let mut gone = 0_i64;
    for receipt in receipts {
        let deleted = sqlx::query("DELETE FROM message WHERE id = ? AND deliveries = ?")
            .bind(receipt.id)
            .bind(receipt.delivery)
            .execute(&mut *tx)
            .await?;
        gone = gone.saturating_add(i64::try_from(deleted.rows_affected()).unwrap_or(0));
    }
    if gone > 0 {
        add_to_tally(tx, -gone, 0).await?;
    }
    Ok(())
}

/// Keeps a message apart, once those that were kept long enough have made room.
async fn park(
    tx: &mut SqliteConnection,
    body: &str,
    reason: &str,
    now_ms: i64,
) -> Result<Result<Output, StoreError>, sqlx::Error> {
    sqlx::query("DELETE FROM parked WHERE parked_at_ms < ?").bind(now_ms - PARKED_MS).execute(&mut *tx).await?;
    let parked: i64 = sqlx::query("SELECT count(*) FROM parked").fetch_one(&mut *tx).await?.try_get(0)?;
    if parked >= PARKED_MAX {
        return Ok(Err(StoreError::did_not_happen(PARK, format!("full: {parked} messages are parked"))));
    }
    sqlx::query("INSERT INTO parked (body, reason, parked_at_ms) VALUES (?, ?, ?)")
        .bind(body)
        .bind(reason)
        .bind(now_ms)
        .execute(tx)
        .await?;
    Ok(Ok(Output::Done))
}

//! The event queue's contract on both implementations, and what only the SQLite file promises.

#![expect(clippy::expect_used, reason = "a test; its helpers too may fail loudly")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use async_trait::async_trait;
use aws_sdk_sqs::types::QueueAttributeName;
use futures::future::join_all;
use ledger_domain::ports::{Clock, ClockUnknown, Delivery, EventQueue, PoisonSink, QueueConsumer, StoreError};
use ledger_domain::{Fact, Timestamp};
use ledger_stores::sqlite_queue::{SqliteQueue, SqliteQueueSettings};
use ledger_stores::sqs::{REASON_ATTRIBUTE, SqsQueue, SqsSettings};
use ledger_testkit::aws_server::AwsServer;
use ledger_testkit::event_queue::{QueueFixture, did_not_happen, sample_fact};
use ledger_testkit::event_queue_conformance;

const DELIVERIES_MAX: u32 = 3;
const VISIBILITY_MS: u64 = 300_000;

event_queue_conformance!(sqs, SqsFixture::new());
event_queue_conformance!(sqlite, SqliteFixture::new());

struct SqsFixture {
    client: aws_sdk_sqs::Client,
    url: String,
    parked_url: String,
    queue: SqsQueue,
    other: SqsQueue,
}

impl SqsFixture {
    async fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let config = AwsServer::shared().config().await;
        let client = aws_sdk_sqs::Client::new(&config);
        let name = format!("facts-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let dead = client.create_queue().queue_name(format!("{name}-dead")).send().await.expect("created");
        let dead_url = dead.queue_url.expect("a URL");
        let arn = client
            .get_queue_attributes()
            .queue_url(&dead_url)
            .attribute_names(QueueAttributeName::QueueArn)
            .send()
            .await
            .expect("attributes")
            .attributes
            .and_then(|mut all| all.remove(&QueueAttributeName::QueueArn))
            .expect("an ARN");
        let redrive = format!(r#"{{"deadLetterTargetArn":"{arn}","maxReceiveCount":"{DELIVERIES_MAX}"}}"#);
        let created = client
            .create_queue()
            .queue_name(&name)
            .attributes(QueueAttributeName::RedrivePolicy, redrive)
            .attributes(QueueAttributeName::VisibilityTimeout, (VISIBILITY_MS / 1_000).to_string())
            .send()
            .await
            .expect("created");
        let url = created.queue_url.expect("a URL");
        let parked = client.create_queue().queue_name(format!("{name}-parked")).send().await.expect("created");
        let parked_url = parked.queue_url.expect("a URL");
        let settings = SqsSettings {
            dead_letter_url: Some(dead_url),
            parked_url: Some(parked_url.clone()),
            receive_wait_seconds: 0,
            // No case is about a slow machine.
            send_attempt_timeout_ms: 60_000,
            ..SqsSettings::new(url.as_str())
        };
        let other = SqsQueue::new(&config, settings.clone());
        Self { client, url, parked_url, queue: SqsQueue::new(&config, settings), other }
    }
}

#[async_trait]
impl QueueFixture for SqsFixture {
    fn queue(&self) -> Arc<dyn EventQueue> {
        Arc::new(self.queue.clone())
    }

    fn consumer(&self) -> Arc<dyn QueueConsumer> {
        Arc::new(self.other.clone())
    }

    fn poison(&self) -> Arc<dyn PoisonSink> {
        Arc::new(self.other.clone())
    }

    async fn parked(&self) -> Vec<(String, String)> {
        let mut parked = Vec::new();
        loop {
            let receive = self.client.receive_message().queue_url(&self.parked_url).max_number_of_messages(10);
            let messages = receive.message_attribute_names("All").send().await.expect("received").messages;
            let Some(messages) = messages.filter(|messages| !messages.is_empty()) else { return parked };
            for message in messages {
                let reason =
                    message.message_attributes.expect("attributes").remove(REASON_ATTRIBUTE).expect("a reason");
                parked.push((message.body.expect("a body"), reason.string_value.expect("a text")));
            }
        }
    }

    async fn let_visibility_pass(&self, deliveries: &[Delivery]) {
        for delivery in deliveries {
            let change = self.client.change_message_visibility().queue_url(&self.url).visibility_timeout(0);
            change.receipt_handle(&delivery.receipt).send().await.expect("changed");
        }
    }

    fn deliveries_max(&self) -> usize {
        DELIVERIES_MAX as usize
    }
}

/// A clock that a test moves; below zero it is unknown.
#[derive(Debug)]
struct TestClock(AtomicI64);

#[async_trait]
impl Clock for TestClock {
    fn now(&self) -> Result<Timestamp, ClockUnknown> {
        let millis = self.0.load(Ordering::SeqCst);
        if millis < 0 { Err(ClockUnknown) } else { Ok(Timestamp::from_millis(millis)) }
    }

    async fn pause(&self, millis: u64) {
        self.0.fetch_add(i64::try_from(millis).expect("short"), Ordering::SeqCst);
    }
}

struct SqliteFixture {
    clock: Arc<TestClock>,
    queue: SqliteQueue,
    other: SqliteQueue,
    folder: tempfile::TempDir,
}

const SETTINGS: SqliteQueueSettings =
    SqliteQueueSettings { waiting_max: 100, visibility_ms: VISIBILITY_MS, deliveries_max: DELIVERIES_MAX };

fn test_clock() -> Arc<TestClock> {
    Arc::new(TestClock(AtomicI64::new(1_790_000_000_000)))
}

async fn open(path: &Path, clock: &Arc<TestClock>, settings: SqliteQueueSettings) -> SqliteQueue {
    SqliteQueue::open(path, Arc::clone(clock) as Arc<dyn Clock>, settings).await.expect("opens")
}

impl SqliteFixture {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let clock = test_clock();
        let path = folder.path().join("queue.sqlite");
        let queue = open(&path, &clock, SETTINGS).await;
        let other = open(&path, &clock, SETTINGS).await;
        Self { clock, queue, other, folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("queue.sqlite")
    }
}

#[async_trait]
impl QueueFixture for SqliteFixture {
    fn queue(&self) -> Arc<dyn EventQueue> {
        Arc::new(self.queue.clone())
    }

    fn consumer(&self) -> Arc<dyn QueueConsumer> {
        Arc::new(self.other.clone())
    }

    fn poison(&self) -> Arc<dyn PoisonSink> {
        Arc::new(self.other.clone())
    }

    async fn parked(&self) -> Vec<(String, String)> {
        let mut connection = sqlx_connection(&self.path()).await;
        sqlx::query_as("SELECT body, reason FROM parked").fetch_all(&mut connection).await.expect("rows")
    }

    async fn let_visibility_pass(&self, _deliveries: &[Delivery]) {
        self.clock.pause(VISIBILITY_MS).await;
    }

    fn deliveries_max(&self) -> usize {
        DELIVERIES_MAX as usize
    }
}

#[tokio::test]
async fn a_full_sqlite_queue_refuses_and_takes_again_once_there_is_room() {
    let fixture = SqliteFixture::new().await;
    let facts: Vec<Fact> = (0..SETTINGS.waiting_max).map(|n| sample_fact(&format!("m{n}"), n)).collect();
    assert!(fixture.queue.send(&facts).await.iter().all(Result::is_ok));
    let one_more = [sample_fact("one more", 1_000)];
    assert!(fixture.queue.send(&one_more).await.iter().all(did_not_happen));
    let delivery = fixture.queue.receive(1).await.expect("received").remove(0);
    assert!(fixture.queue.send(&one_more).await.iter().all(did_not_happen), "what is worked on still counts");
    fixture.queue.ack(&[delivery.receipt]).await.expect("acknowledged");
    assert!(fixture.queue.send(&one_more).await.iter().all(Result::is_ok));
    assert_eq!(fixture.queue.depth().await.expect("depth").waiting, SETTINGS.waiting_max);
}

#[tokio::test]
async fn a_receipt_of_an_earlier_delivery_removes_nothing() {
    let fixture = SqliteFixture::new().await;
    fixture.queue.send(&[sample_fact("m", 0)]).await;
    let first = fixture.queue.receive(1).await.expect("received").remove(0);
    fixture.clock.pause(VISIBILITY_MS - 1).await;
    assert!(fixture.queue.receive(1).await.expect("received").is_empty(), "hidden to the last millisecond");
    fixture.clock.pause(1).await;
    let second = fixture.queue.receive(1).await.expect("received").remove(0);
    fixture.queue.ack(&[first.receipt]).await.expect("accepted");
    assert_eq!(fixture.queue.depth().await.expect("depth").waiting, 1);
    fixture.queue.ack(&[second.receipt]).await.expect("accepted");
    assert_eq!(fixture.queue.depth().await.expect("depth").waiting, 0);
    let nonsense = fixture.queue.ack(&["nonsense".to_owned()]).await;
    assert!(matches!(nonsense, Err(StoreError::Rejected { .. })), "{nonsense:?}");
}

#[tokio::test]
async fn sending_to_the_sqlite_queue_needs_no_clock_and_receiving_does() {
    let fixture = SqliteFixture::new().await;
    fixture.clock.0.store(-1, Ordering::SeqCst);
    assert!(fixture.queue.send(&[sample_fact("m", 0)]).await.iter().all(Result::is_ok));
    assert!(matches!(fixture.queue.receive(1).await, Err(StoreError::DidNotHappen { .. })));
    fixture.clock.0.store(0, Ordering::SeqCst);
    assert_eq!(fixture.queue.receive(1).await.expect("received").len(), 1);
}

/// Transactions in a write-ahead log, which a checkpoint has not reset: frames that carry the size of the database
/// (SQLite file format, section 4.1).
fn commits_in_wal(path: &Path) -> usize {
    let log = std::fs::read(path.with_extension("sqlite-wal")).expect("a log");
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
    let page_bytes = number(&log[8..12]) as usize;
    log[32..].chunks_exact(24 + page_bytes).filter(|frame| number(&frame[4..8]) != 0).count()
}

#[tokio::test]
async fn fifty_concurrent_senders_share_a_commit() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("queue.sqlite");
    let queue = open(&path, &test_clock(), SETTINGS).await;
    let before = commits_in_wal(&path);
    let facts: Vec<Fact> = (0..50).map(|n| sample_fact(&format!("m{n}"), n)).collect();
    let outcomes = join_all(facts.iter().map(|fact| queue.send(std::slice::from_ref(fact)))).await;
    assert!(outcomes.iter().flatten().all(Result::is_ok));
    // On one thread every sender has handed over before the writer runs.
    assert_eq!(commits_in_wal(&path) - before, 1);
}

#[tokio::test]
async fn what_was_given_up_is_kept_with_when_and_how_often() {
    let fixture = SqliteFixture::new().await;
    fixture.queue.send(&[sample_fact("m", 0)]).await;
    for _ in 0..DELIVERIES_MAX {
        assert_eq!(fixture.queue.receive(1).await.expect("received").len(), 1);
        fixture.clock.pause(VISIBILITY_MS).await;
    }
    assert!(fixture.queue.receive(1).await.expect("received").is_empty());
    let reopened = open(&fixture.path(), &fixture.clock, SETTINGS).await;
    assert_eq!(reopened.depth().await.expect("depth").dead, Some(1));
    let given_up_at_ms = fixture.clock.now().expect("known").as_millis();
    let mut connection = sqlx_connection(&fixture.path()).await;
    let kept: (i64, i64, String) = sqlx::query_as("SELECT deliveries, given_up_at_ms, body FROM dead_letter")
        .fetch_one(&mut connection)
        .await
        .expect("one row");
    assert_eq!((kept.0, kept.1), (i64::from(DELIVERIES_MAX), given_up_at_ms));
    assert_eq!(Fact::all_from_json(&kept.2), Ok(vec![sample_fact("m", 0)]));
}

async fn sqlx_connection(path: &Path) -> sqlx::SqliteConnection {
    use sqlx::ConnectOptions as _;
    sqlx::sqlite::SqliteConnectOptions::new().filename(path).read_only(true).connect().await.expect("opens")
}

const QUEUE_FILE_VARIABLE: &str = "LEDGER_TEST_QUEUE_FILE";

/// Not a test: the process that the next one kills. It sends without end and prints what was acknowledged.
#[tokio::test]
#[ignore = "run by what_was_acknowledged_survives_a_kill in a process of its own"]
async fn process_that_sends_until_it_is_killed() {
    #[expect(clippy::disallowed_methods, reason = "how the parent process says which file")]
    let path = std::env::var(QUEUE_FILE_VARIABLE).expect("set by the parent");
    let settings = SqliteQueueSettings { waiting_max: u64::MAX, ..SETTINGS };
    let queue = open(Path::new(&path), &test_clock(), settings).await;
    for round in 0_u64.. {
        let facts: Vec<Fact> = (round * 8..round * 8 + 8).map(|n| sample_fact(&format!("m{n}"), n)).collect();
        let send = async |fact: &Fact| {
            assert!(queue.send(std::slice::from_ref(fact)).await[0].is_ok());
            println!("acknowledged {}", fact.subject.key.as_str());
        };
        join_all(facts.iter().map(send)).await;
    }
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("queue.sqlite");
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL"])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "process_that_sends_until_it_is_killed", "--ignored", "--nocapture"])
        .env(QUEUE_FILE_VARIABLE, &path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("setpriv (util-linux) starts");
    let mut acknowledged = Vec::new();
    for line in BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok) {
        if let Some((_, key)) = line.split_once("acknowledged ") {
            acknowledged.push(key.to_owned());
        }
        if acknowledged.len() == 200 {
            // SIGKILL, in the middle of some later transaction; the rest of its output is read to the end.
            child.kill().expect("killed");
        }
    }
    child.wait().expect("ended");
    assert!(acknowledged.len() >= 200, "{} were acknowledged", acknowledged.len());

    let queue = open(&path, &test_clock(), SETTINGS).await;
    let waiting = queue.depth().await.expect("depth").waiting;
    let mut found = std::collections::BTreeSet::new();
    loop {
        let deliveries = queue.receive(1_000).await.expect("received");
        if deliveries.is_empty() {
            break;
        }
        let keys =
            deliveries.iter().map(|d| Fact::all_from_json(&d.body).expect("a fact")[0].subject.key.as_str().to_owned());
        found.extend(keys);
    }
    assert_eq!(waiting, found.len() as u64, "the tally is that of the rows");
    let lost: Vec<_> = acknowledged.iter().filter(|key| !found.contains(*key)).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
}

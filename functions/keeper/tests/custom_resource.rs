//! CloudFormation is answered on every path: by a real PUT to a server of the test's own.

#![expect(clippy::expect_used, reason = "a test that cannot be set up fails")]

use std::sync::Arc;

use keeper::{App, Event, Failed, Migrate, PHYSICAL_ID, REASON_CHARS_MAX, Responder, ResponderSettings, handle};
use ledger_domain::ports::StoreError;
use ledger_stores::postgres::{PostgresConfig, PostgresLedger};
use ledger_testkit::postgres_server::PostgresServer;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// Far more than any of it takes.
const PATIENT_MS: u64 = 300_000;
/// Ten seconds are for the answer, so this leaves the migration its least time.
const IMPATIENT_MS: u64 = 10_500;

/// A request that the server took: its first line and headers in lower case, and its body.
struct Put {
    head: String,
    body: Value,
}

/// Stands in for CloudFormation's bucket; answers with these statuses, the last one again and again.
struct Bucket {
    url: String,
    puts: mpsc::UnboundedReceiver<Put>,
}

impl Bucket {
    async fn open(statuses: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (told, puts) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            for at in 0.. {
                let Ok((mut stream, _)) = listener.accept().await else { return };
                let put = read(&mut stream).await;
                let status = statuses[at.min(statuses.len() - 1)];
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.expect("written");
                if told.send(put).is_err() {
                    return;
                }
            }
        });
        Self { url: format!("http://{address}/answer?X-Amz-Signature=1"), puts }
    }

    async fn taken(&mut self) -> Put {
        self.puts.recv().await.expect("a PUT")
    }
}

async fn read(stream: &mut TcpStream) -> Put {
    let mut bytes = Vec::new();
    loop {
        let mut buffer = [0; 4_096];
        let count = stream.read(&mut buffer).await.expect("readable");
        assert_ne!(count, 0, "the whole request comes: {}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
        if body.len() == length.parse::<usize>().expect("a number") {
            return Put { body: serde_json::from_str(body).expect("JSON"), head };
        }
    }
}

fn app(migrate: Result<Migrate, String>) -> App {
    let settings = ResponderSettings { attempts: 3, attempt_timeout_ms: 60_000, pause_ms: 1 };
    App {
        keeper: Err("REDIS_URL: expected the hot tier".to_owned()),
        migrate,
        responder: Responder::new(settings).expect("root certificates"),
    }
}

/// A migration of the database at `url`.
fn migration(url: &str) -> Migrate {
    let config = PostgresConfig { max_connections: 1, acquire_timeout_ms: 60_000, ..PostgresConfig::default() };
    let ledger = PostgresLedger::connect_lazy(url, &config).expect("a URL");
    Arc::new(move || {
        let ledger = ledger.clone();
        Box::pin(async move { PostgresLedger::migrate(ledger.pool()).await })
    })
}

fn never() -> Migrate {
    Arc::new(|| Box::pin(async { unreachable!("nothing is to be migrated") }))
}

fn request(kind: &str, url: &str) -> Value {
    json!({
        "RequestType": kind,
        "ResponseURL": url,
        "StackId": "arn:aws:cloudformation:eu-central-1:123456789012:stack/ledger/1",
        "RequestId": "r1",
        "LogicalResourceId": "Schema",
        "ResourceType": "Custom::Schema",
        "ResourceProperties": {"ServiceToken": "arn", "SchemaVersion": "3"},
    })
}

/// What was answered to `request`, with the app as it is.
async fn answered(app: &App, bucket: &mut Bucket, request: &Value, remaining_ms: u64) -> Value {
    handle(app, request, remaining_ms).await.expect("answered");
    bucket.taken().await.body
}

fn has_failed(answer: &Value, reason: &str) {
    assert_eq!(answer["Status"], "FAILED", "{answer}");
    let told = answer["Reason"].as_str().expect("a text");
    assert!(told.contains(reason) && told.len() <= REASON_CHARS_MAX, "{told}");
}

#[tokio::test]
async fn a_schema_is_made_and_answered_with_what_the_signed_url_takes() {
    let server = PostgresServer::shared();
    server.administer("CREATE DATABASE keeper_schema".to_owned()).await;
    let mut bucket = Bucket::open(&["200 OK"]).await;
    let url = server.url("keeper_schema");
    let app = app(Ok(migration(&url)));
    // Twice: the second time there is nothing to do.
    for kind in ["Create", "Update"] {
        handle(&app, &request(kind, &bucket.url), PATIENT_MS).await.expect("answered");
        let put = bucket.taken().await;
        assert!(put.head.starts_with("put /answer?x-amz-signature=1 http/1.1\r\n"), "{}", put.head);
        assert!(!put.head.contains("content-type"), "the URL is signed without one: {}", put.head);
        let expected = json!({
            "Status": "SUCCESS",
            "Reason": "done",
            "PhysicalResourceId": PHYSICAL_ID,
            "StackId": "arn:aws:cloudformation:eu-central-1:123456789012:stack/ledger/1",
            "RequestId": "r1",
            "LogicalResourceId": "Schema",
        });
        assert_eq!(put.body, expected);
    }
    let config = PostgresConfig { operation_timeout_ms: 60_000, ..PostgresConfig::default() };
    let ledger = PostgresLedger::connect_lazy(&url, &config).expect("a URL");
    use ledger_domain::ports::ColdLedger as _;
    assert_eq!(ledger.drained_until().await.expect("the table is there"), None);
}

#[tokio::test]
async fn a_deletion_leaves_everything_as_it_is_whatever_its_properties() {
    let mut bucket = Bucket::open(&["200 OK"]).await;
    let mut request = request("Delete", &bucket.url);
    request["PhysicalResourceId"] = json!("given-before");
    request["ResourceProperties"] = json!("nonsense");
    let answer = answered(&app(Ok(never())), &mut bucket, &request, PATIENT_MS).await;
    assert_eq!((&answer["Status"], &answer["PhysicalResourceId"]), (&json!("SUCCESS"), &json!("given-before")));
}

#[tokio::test]
async fn a_database_that_refuses_is_a_failure_with_its_reason() {
    let server = PostgresServer::shared();
    let mut bucket = Bucket::open(&["200 OK"]).await;
    let app = app(Ok(migration(&server.url("keeper_no_such_database"))));
    let request = request("Create", &bucket.url);
    let answer = answered(&app, &mut bucket, &request, PATIENT_MS).await;
    has_failed(&answer, "keeper_no_such_database");
    assert!(!answer["Reason"].to_string().contains("://"), "{answer}");
}

#[tokio::test]
async fn a_database_that_never_answers_is_a_failure_before_lambda_s_time_is_over() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let silent = format!("postgres://owner:secret@{}/db?sslmode=disable", listener.local_addr().expect("bound"));
    let mut bucket = Bucket::open(&["200 OK"]).await;
    let request = request("Update", &bucket.url);
    let answer = answered(&app(Ok(migration(&silent))), &mut bucket, &request, IMPATIENT_MS).await;
    has_failed(&answer, "took too long");
    assert!(!answer.to_string().contains("secret"), "{answer}");
    // Not even where nothing is left.
    let answer = answered(&app(Ok(migration(&silent))), &mut bucket, &request, 0).await;
    has_failed(&answer, "took too long");
}

#[tokio::test]
async fn a_panic_is_a_failure() {
    let mut bucket = Bucket::open(&["200 OK"]).await;
    let panics: Migrate = Arc::new(|| Box::pin(async { panic!("on purpose") }));
    let request = request("Create", &bucket.url);
    has_failed(&answered(&app(Ok(panics)), &mut bucket, &request, PATIENT_MS).await, "panicked");
    let panics: Migrate = Arc::new(|| panic!("before the first await, on purpose"));
    has_failed(&answered(&app(Ok(panics)), &mut bucket, &request, PATIENT_MS).await, "panicked");
}

#[tokio::test]
async fn a_function_that_is_not_set_up_says_so() {
    let mut bucket = Bucket::open(&["200 OK"]).await;
    let app = app(Err("MIGRATE_DATABASE_URL: expected a direct connection".to_owned()));
    let request = request("Create", &bucket.url);
    has_failed(&answered(&app, &mut bucket, &request, PATIENT_MS).await, "MIGRATE_DATABASE_URL");
    let run = handle(&app, &json!({"source": "aws.events"}), PATIENT_MS).await;
    assert!(matches!(&run, Err(Failed::Setup(why)) if why.contains("REDIS_URL")), "{run:?}");
}

#[tokio::test]
async fn a_malformed_request_is_answered_as_far_as_it_can_be() {
    let mut bucket = Bucket::open(&["200 OK"]).await;
    let app = app(Ok(never()));
    let mut unversioned = request("Create", &bucket.url);
    for properties in [json!(null), json!([]), json!({}), json!({"SchemaVersion": 3}), json!({"SchemaVersion": ""})] {
        unversioned["ResourceProperties"] = properties;
        has_failed(&answered(&app, &mut bucket, &unversioned, PATIENT_MS).await, "SchemaVersion");
    }
    let only_url = json!({"ResponseURL": bucket.url});
    let answer = answered(&app, &mut bucket, &only_url, PATIENT_MS).await;
    has_failed(&answer, "RequestType");
    assert_eq!(answer["PhysicalResourceId"], PHYSICAL_ID);
    let nowhere = handle(&app, &json!({"RequestType": "Delete", "ResponseURL": "no url"}), PATIENT_MS).await;
    assert!(matches!(nowhere, Err(Failed::Unanswered(_))), "{nowhere:?}");
}

#[tokio::test]
async fn an_answer_that_is_not_taken_is_sent_again() {
    let mut bucket = Bucket::open(&["500 Internal Server Error", "503 Slow Down", "200 OK"]).await;
    let request = request("Delete", &bucket.url);
    handle(&app(Ok(never())), &request, PATIENT_MS).await.expect("answered in the end");
    let bodies = [bucket.taken().await.body, bucket.taken().await.body, bucket.taken().await.body];
    assert!(bodies.iter().all(|body| *body == bodies[0]), "{bodies:?}");
}

#[tokio::test]
async fn an_answer_that_nobody_takes_fails_the_invocation_so_that_lambda_tries_again() {
    let bucket = Bucket::open(&["403 Forbidden"]).await;
    let failed = handle(&app(Ok(never())), &request("Delete", &bucket.url), PATIENT_MS).await;
    assert!(matches!(&failed, Err(Failed::Unanswered(why)) if why.contains("403")), "{failed:?}");
}

#[test]
fn what_names_no_place_for_an_answer_is_the_schedule() {
    for event in [json!({}), json!(null), json!({"source": "aws.events", "detail-type": "Scheduled Event"})] {
        assert_eq!(Event::of(&event), Event::Schedule);
    }
    let request = request("Create", "https://h/");
    assert!(matches!(Event::of(&request), Event::CustomResource(_)));
}

#[tokio::test]
async fn an_error_of_the_store_is_told_with_its_causes() {
    let mut bucket = Bucket::open(&["200 OK"]).await;
    let fails: Migrate =
        Arc::new(|| Box::pin(async { Err(StoreError::did_not_happen("migrate the cold ledger", "checksum differs")) }));
    let request = request("Update", &bucket.url);
    has_failed(&answered(&app(Ok(fails)), &mut bucket, &request, PATIENT_MS).await, "checksum differs");
}

/// Else an update would not ask for the newest migration.
#[test]
fn the_template_names_the_last_migration() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations/postgres");
    let names = std::fs::read_dir(folder).expect("the migrations").map(|entry| entry.expect("an entry").file_name());
    let last = names.map(|name| name.into_string().expect("UTF-8")).max().expect("a migration");
    let (version, _) = last.split_once('_').expect("NNNN_what.sql");
    let named = format!("SchemaVersion: \"{version}\"");
    assert!(include_str!("../../../template.yaml").contains(&named), "{named}");
    assert!(include_str!("../../../events/keeper-schema.json").contains(&format!("\"SchemaVersion\": \"{version}\"")));
}

//! The control plane's contract on both implementations, and what is peculiar to each.

#![expect(clippy::expect_used, reason = "a test; its helpers too may fail loudly")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, PutRequest, ScalarAttributeType,
    WriteRequest,
};
use futures::stream::{self, StreamExt as _};
use ledger_domain::ports::{ControlPlane, StoreError};
use ledger_stores::dynamodb::{
    DynamoControlPlane, KEEPER_ITEM, KEEPER_PARTITION, PARTITION_KEY, POLICY_PARTITION, SESSION_PARTITION, SORT_KEY,
};
use ledger_stores::toml_file::TomlControlPlane;
use ledger_testkit::aws_server::{AwsServer, config_for};
use ledger_testkit::control_plane::{ControlPlaneFixture, Entry, FieldValue};
use ledger_testkit::control_state::{Handles, now, session, state};
use ledger_testkit::{control_plane_conformance, control_state_conformance};

control_plane_conformance!(dynamodb, DynamoFixture::new());
control_plane_conformance!(toml_file, TomlFixture::new());
control_state_conformance!(dynamodb_state, DynamoFixture::new());
control_state_conformance!(file_state, TomlFixture::new());

/// How long a call to the fixture's server may take, in milliseconds: a busy machine is no failure.
const PATIENT_MS: u64 = 60_000;

struct DynamoFixture {
    client: aws_sdk_dynamodb::Client,
    table: String,
    control_plane: DynamoControlPlane,
}

impl DynamoFixture {
    async fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let config = AwsServer::shared().config().await;
        let client = aws_sdk_dynamodb::Client::new(&config);
        let table = format!("control-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let mut create = client.create_table().table_name(&table).billing_mode(BillingMode::PayPerRequest);
        for (name, kind) in [(PARTITION_KEY, KeyType::Hash), (SORT_KEY, KeyType::Range)] {
            let attribute = AttributeDefinition::builder().attribute_name(name);
            create = create
                .attribute_definitions(attribute.attribute_type(ScalarAttributeType::S).build().expect("complete"))
                .key_schema(KeySchemaElement::builder().attribute_name(name).key_type(kind).build().expect("complete"));
        }
        create.send().await.expect("created");
        let control_plane = DynamoControlPlane::with_state_timeout(&config, table.as_str(), PATIENT_MS);
        Self { client, table, control_plane }
    }

    fn handles(&self) -> Handles {
        [Arc::new(self.control_plane.clone()), Arc::new(self.control_plane.clone())]
    }

    async fn put(&self, partition: &str, sort_key: &str, fields: &[(&str, AttributeValue)]) {
        let mut put = self.client.put_item().table_name(&self.table);
        put = put.item(PARTITION_KEY, AttributeValue::S(partition.to_owned()));
        put = put.item(SORT_KEY, AttributeValue::S(sort_key.to_owned()));
        for (name, value) in fields {
            put = put.item(*name, value.clone());
        }
        put.send().await.expect("written");
    }
}

fn attribute(value: &FieldValue) -> AttributeValue {
    match value {
        FieldValue::Number(number) => AttributeValue::N(number.to_string()),
        FieldValue::Bool(value) => AttributeValue::Bool(*value),
        FieldValue::Text(text) => AttributeValue::S((*text).to_owned()),
        FieldValue::List => AttributeValue::L(Vec::new()),
    }
}

#[async_trait]
impl ControlPlaneFixture for DynamoFixture {
    fn control_plane(&self) -> &dyn ControlPlane {
        &self.control_plane
    }

    async fn add(&mut self, entries: &[Entry]) {
        let write = |(kind, name, fields): &Entry| {
            let mut put = PutRequest::builder()
                .item(PARTITION_KEY, AttributeValue::S(POLICY_PARTITION.to_owned()))
                .item(SORT_KEY, AttributeValue::S(format!("{kind}#{name}")));
            for (field, value) in fields {
                put = put.item(*field, attribute(value));
            }
            WriteRequest::builder().put_request(put.build().expect("complete")).build()
        };
        // 25 writes are what one request takes.
        let requests: Vec<Vec<WriteRequest>> =
            entries.chunks(25).map(|chunk| chunk.iter().map(write).collect()).collect();
        let written = stream::iter(requests).map(|writes| async {
            let answer =
                self.client.batch_write_item().request_items(&self.table, writes).send().await.expect("written");
            assert!(answer.unprocessed_items.unwrap_or_default().is_empty());
        });
        written.buffer_unordered(4).collect::<Vec<()>>().await;
    }
}

#[tokio::test]
async fn a_dynamodb_item_that_is_no_policy_is_refused_by_name() {
    let other = AttributeValue::Ss(vec!["x".to_owned()]);
    for (sort_key, field, value) in [
        ("region#eu", "windowMinSeconds", AttributeValue::N("5".into())),
        ("tenant", "windowMinSeconds", AttributeValue::N("5".into())),
        ("tenant#T1", "windowMinSeconds", AttributeValue::N("5".into())),
        ("tenant#t1", "windowMinSeconds", AttributeValue::N("5.5".into())),
        ("tenant#t1", "windowMinSeconds", other),
    ] {
        let fixture = DynamoFixture::new().await;
        fixture.put(POLICY_PARTITION, sort_key, &[(field, value)]).await;
        let refused = fixture.control_plane.policies().await;
        let Err(StoreError::Rejected { source, .. }) = refused else { panic!("{sort_key}: {refused:?}") };
        let name = sort_key.split('#').next_back().expect("a name");
        assert!(source.to_string().contains(name), "{source}");
    }
}

#[tokio::test]
async fn other_partitions_of_the_table_are_no_policies() {
    let fixture = DynamoFixture::new().await;
    let put = fixture.client.put_item().table_name(&fixture.table);
    let put = put.item(PARTITION_KEY, AttributeValue::S("LEASE".into())).item(SORT_KEY, AttributeValue::S("x".into()));
    put.send().await.expect("written");
    assert!(fixture.control_plane.policies().await.expect("read").is_empty());
}

#[tokio::test]
async fn a_missing_table_and_a_missing_server_did_not_happen() {
    let missing = DynamoControlPlane::new(&AwsServer::shared().config().await, "nowhere");
    let outcome = missing.policies().await;
    assert!(matches!(outcome, Err(StoreError::DidNotHappen { .. })), "{outcome:?}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    let outcome = DynamoControlPlane::new(&config_for(&url).await, "nowhere").policies().await;
    assert!(matches!(outcome, Err(StoreError::DidNotHappen { .. })), "{outcome:?}");
}

struct TomlFixture {
    _folder: tempfile::TempDir,
    path: PathBuf,
    entries: BTreeMap<(&'static str, String), Vec<(&'static str, FieldValue)>>,
    control_plane: TomlControlPlane,
}

impl TomlFixture {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("control.toml");
        std::fs::write(&path, "").expect("written");
        // Its folder is not there yet.
        let control_plane = TomlControlPlane::required(&path).with_state(folder.path().join("state/control.json"));
        Self { _folder: folder, path, entries: BTreeMap::new(), control_plane }
    }

    fn handles(&self) -> Handles {
        [Arc::new(self.control_plane.clone()), Arc::new(self.control_plane.clone())]
    }
}

#[async_trait]
impl ControlPlaneFixture for TomlFixture {
    fn control_plane(&self) -> &dyn ControlPlane {
        &self.control_plane
    }

    async fn add(&mut self, entries: &[Entry]) {
        for (kind, name, fields) in entries {
            self.entries.insert((kind, name.clone()), fields.clone());
        }
        let mut text = String::new();
        for ((kind, name), fields) in &self.entries {
            writeln!(text, "[{kind}.{name:?}]").expect("a string");
            for (field, value) in fields {
                let value = match value {
                    FieldValue::Number(number) => number.to_string(),
                    FieldValue::Bool(value) => value.to_string(),
                    FieldValue::Text(text) => format!("{text:?}"),
                    FieldValue::List => "[]".to_owned(),
                };
                writeln!(text, "{field} = {value}").expect("a string");
            }
        }
        std::fs::write(&self.path, text).expect("written");
    }
}

#[tokio::test]
async fn a_missing_file_is_no_entry_only_where_that_was_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("missing.toml");
    assert!(TomlControlPlane::optional(&path).policies().await.expect("read").is_empty());
    let outcome = TomlControlPlane::required(&path).policies().await;
    assert!(matches!(outcome, Err(StoreError::DidNotHappen { .. })), "{outcome:?}");
}

#[tokio::test]
async fn a_file_that_is_no_policy_file_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("control.toml");
    let cases: [&[u8]; 6] = [
        b"scope = 5",
        b"[tenants.t1]\nreplaySeconds = 1",
        b"[tenant]\nt1 = 5",
        b"[tenant.t1",
        b"\xff\xfe",
        b"[tenant.t1]\nreplaySeconds = 1\n[tenant.t1]\nreplaySeconds = 2",
    ];
    for text in cases {
        std::fs::write(&path, text).expect("written");
        let outcome = TomlControlPlane::optional(&path).policies().await;
        assert!(matches!(outcome, Err(StoreError::Rejected { .. })), "{text:?}: {outcome:?}");
    }
}

fn number(text: &str) -> AttributeValue {
    AttributeValue::N(text.to_owned())
}

#[tokio::test]
async fn a_dynamodb_item_that_is_no_session_or_state_is_an_error_for_the_whole_read() {
    let text = AttributeValue::S("1790000000000".to_owned());
    for (name, fields) in [
        ("00000000000000AB", vec![("expiresAtMs", number("1"))]),
        ("00000000000000a", vec![("expiresAtMs", number("1"))]),
        ("00000000000000ab", vec![]),
        ("00000000000000ab", vec![("expiresAtMs", text.clone())]),
        ("00000000000000ab", vec![("expiresAtMs", number("-1"))]),
        ("00000000000000ab", vec![("expiresAtMs", number("1.5"))]),
        ("00000000000000ab", vec![("expiresAtMs", number("253402207200001"))]),
        ("00000000000000ab", vec![("expiresAtMs", number("1")), ("owner", text.clone())]),
    ] {
        let fixture = DynamoFixture::new().await;
        fixture.control_plane.open_cold_session(&session(1, 10)).await.expect("opened");
        fixture.put(SESSION_PARTITION, name, &fields).await;
        let refused = fixture.control_plane.cold_sessions(10).await;
        let Err(StoreError::Rejected { source, .. }) = refused else { panic!("{name} {fields:?}: {refused:?}") };
        assert!(source.to_string().contains(name), "names the item: {source}");
    }
    for (field, value) in [
        ("version", AttributeValue::S("1".to_owned())),
        ("zeroRuns", number("4294967296")),
        ("pass", AttributeValue::S("xy".to_owned())),
        ("passDone", number("1")),
        ("cursorRegistrationId", AttributeValue::Null(true)),
        ("later", AttributeValue::Bool(true)),
    ] {
        let fixture = DynamoFixture::new().await;
        assert!(fixture.control_plane.save_keeper_state(&state(1)).await.expect("an answer"));
        let update = fixture.client.update_item().table_name(&fixture.table);
        let update = update.key(PARTITION_KEY, AttributeValue::S(KEEPER_PARTITION.to_owned()));
        let update = update.key(SORT_KEY, AttributeValue::S(KEEPER_ITEM.to_owned())).update_expression("SET #f = :v");
        let update = update.expression_attribute_names("#f", field).expression_attribute_values(":v", value);
        update.send().await.expect("written");
        let refused = fixture.control_plane.keeper_state().await;
        let Err(StoreError::Rejected { source, .. }) = refused else { panic!("{field}: {refused:?}") };
        assert!(source.to_string().contains(field), "names the field: {source}");
    }
}

#[tokio::test]
async fn a_session_is_stored_as_an_operator_reads_it() {
    let fixture = DynamoFixture::new().await;
    fixture.control_plane.open_cold_session(&session(0xab, 10)).await.expect("opened");
    let items = fixture.client.scan().table_name(&fixture.table).send().await.expect("read").items.expect("items");
    let expected = [
        (PARTITION_KEY, AttributeValue::S("COLD_SESSION".to_owned())),
        (SORT_KEY, AttributeValue::S("00000000000000ab".to_owned())),
        ("expiresAtMs", number("1790000010123")),
    ];
    assert_eq!(items, [expected.map(|(name, value)| (name.to_owned(), value)).into()]);
}

/// What each write about the hot tier's state came to.
async fn writes(control_plane: &dyn ControlPlane) -> [Result<(), StoreError>; 4] {
    [
        control_plane.open_cold_session(&session(1, 10)).await,
        control_plane.renew_cold_session(&session(1, 10), now()).await.map(drop),
        control_plane.remove_cold_session(&session(1, 10)).await.map(drop),
        control_plane.save_keeper_state(&state(1)).await.map(drop),
    ]
}

/// What each read of it came to.
async fn reads(control_plane: &dyn ControlPlane) -> [Result<(), StoreError>; 2] {
    [control_plane.cold_sessions(1).await.map(drop), control_plane.keeper_state().await.map(drop)]
}

fn all_did_not_happen(outcomes: &[Result<(), StoreError>]) {
    assert!(outcomes.iter().all(|one| matches!(one, Err(StoreError::DidNotHappen { .. }))), "{outcomes:?}");
}

fn all_may_have_happened(outcomes: &[Result<(), StoreError>]) {
    assert!(outcomes.iter().all(|one| matches!(one, Err(StoreError::MayHaveHappened { .. }))), "{outcomes:?}");
}

/// A server that takes requests and answers each so, or never; and how many connections it has had.
fn odd_server(answer: Option<&'static str>) -> (String, Arc<AtomicU64>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let count = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&count);
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for mut stream in listener.incoming().map_while(Result::ok) {
            seen.fetch_add(1, Ordering::SeqCst);
            if let Some(answer) = answer {
                use std::io::{Read as _, Write as _};
                let _ = stream.read(&mut [0; 64 * 1024]);
                let _ = stream.write_all(answer.as_bytes());
            } else {
                open.push(stream);
            }
        }
    });
    (url, count)
}

#[tokio::test]
async fn what_dynamodb_does_not_answer_in_time_may_have_been_written_and_was_not_read() {
    let (url, _) = odd_server(None);
    let silent = DynamoControlPlane::with_state_timeout(&config_for(&url).await, "t", 200);
    all_may_have_happened(&writes(&silent).await);
    all_did_not_happen(&reads(&silent).await);
}

/// A write that is sent again would find its own work, and take it for another's.
#[tokio::test]
async fn a_write_is_sent_once_and_a_failure_of_the_service_says_nothing_about_it() {
    let answer = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let (url, connections) = odd_server(Some(answer));
    let failing = DynamoControlPlane::with_state_timeout(&config_for(&url).await, "t", PATIENT_MS);
    all_may_have_happened(&writes(&failing).await);
    assert_eq!(connections.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn without_the_table_no_state_is_written_or_read() {
    let config = AwsServer::shared().config().await;
    let missing = DynamoControlPlane::with_state_timeout(&config, "nowhere", PATIENT_MS);
    all_did_not_happen(&writes(&missing).await);
    all_did_not_happen(&reads(&missing).await);
}

#[tokio::test]
async fn without_a_file_for_the_state_whoever_asks_for_it_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let without = TomlControlPlane::optional(folder.path().join("policies.toml"));
    let outcomes: Vec<_> = writes(&without).await.into_iter().chain(reads(&without).await).collect();
    assert!(outcomes.iter().all(|one| matches!(one, Err(StoreError::Rejected { .. }))), "{outcomes:?}");
}

#[tokio::test]
async fn a_state_file_that_cannot_be_read_is_an_error_for_all_and_is_not_written_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("control.json");
    let control_plane = TomlControlPlane::optional(folder.path().join("policies.toml")).with_state(&path);
    for (text, names) in [
        ("", "control.json"),
        ("{\"coldSessions\": {}", "control.json"),
        ("[]", "control.json"),
        ("{\"coldSessions\": []}", "coldSessions"),
        ("{\"sessions\": {}}", "sessions"),
        ("{\"coldSessions\": {\"00000000000000ab\": 5}}", "00000000000000ab"),
        ("{\"coldSessions\": {\"00000000000000ab\": {\"expiresAtMs\": \"5\"}}}", "00000000000000ab"),
        ("{\"coldSessions\": {\"00000000000000AB\": {\"expiresAtMs\": 5}}}", "00000000000000AB"),
        ("{\"keeper\": {\"version\": 1}}", "keeper"),
    ] {
        std::fs::write(&path, text).expect("written");
        for outcome in writes(&control_plane).await.into_iter().chain(reads(&control_plane).await) {
            let Err(StoreError::Rejected { source, .. }) = outcome else { panic!("{text}: {outcome:?}") };
            let problem = source.to_string();
            assert!(problem.contains("control.json") && problem.contains(names), "{text}: {problem}");
        }
        assert_eq!(std::fs::read_to_string(&path).expect("read"), text);
    }
    std::fs::write(&path, vec![b' '; 4 * 1024 * 1024 + 1]).expect("written");
    let refused = control_plane.cold_sessions(1).await;
    assert!(matches!(refused, Err(StoreError::Rejected { .. })), "{refused:?}");
}

/// Whoever died while it wrote held nothing up and broke nothing; whoever holds the lock and lives keeps others out, but not
/// for ever, and keeps nobody from reading.
#[tokio::test]
async fn a_writer_waits_for_the_lock_and_gives_up_in_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("control.json");
    let control_plane = TomlControlPlane::optional(folder.path().join("policies.toml")).with_state(&path);
    std::fs::write(folder.path().join("control.json.lock"), "").expect("written");
    std::fs::write(folder.path().join("control.json.new"), "{\"coldSessions\": {\"0").expect("written");
    control_plane.open_cold_session(&session(1, 10)).await.expect("opened");

    let lock = std::fs::File::open(folder.path().join("control.json.lock")).expect("opened");
    lock.lock().expect("locked");
    let kept_out = control_plane.open_cold_session(&session(2, 10)).await;
    assert!(matches!(kept_out, Err(StoreError::DidNotHappen { .. })), "{kept_out:?}");
    assert_eq!(control_plane.cold_sessions(9).await.expect("sessions"), [session(1, 10)]);
    drop(lock);
    control_plane.open_cold_session(&session(2, 10)).await.expect("opened");
    assert_eq!(control_plane.cold_sessions(9).await.expect("sessions"), [session(1, 10), session(2, 10)]);
}

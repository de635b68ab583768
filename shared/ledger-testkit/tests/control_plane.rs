//! The control plane's contract on both implementations, and what is peculiar to each.

#![expect(clippy::expect_used, reason = "a test; its helpers too may fail loudly")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, PutRequest, ScalarAttributeType,
    WriteRequest,
};
use futures::stream::{self, StreamExt as _};
use ledger_domain::ports::{ControlPlane, StoreError};
use ledger_stores::dynamodb::{DynamoControlPlane, PARTITION_KEY, POLICY_PARTITION, SORT_KEY};
use ledger_stores::toml_file::TomlControlPlane;
use ledger_testkit::aws_server::{AwsServer, config_for};
use ledger_testkit::control_plane::{ControlPlaneFixture, Entry, FieldValue};
use ledger_testkit::control_plane_conformance;

control_plane_conformance!(dynamodb, DynamoFixture::new());
control_plane_conformance!(toml_file, TomlFixture::new());

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
        let control_plane = DynamoControlPlane::new(&config, table.as_str());
        Self { client, table, control_plane }
    }

    async fn put(&self, sort_key: &str, fields: &[(&str, AttributeValue)]) {
        let mut put = self.client.put_item().table_name(&self.table);
        put = put.item(PARTITION_KEY, AttributeValue::S(POLICY_PARTITION.to_owned()));
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
        fixture.put(sort_key, &[(field, value)]).await;
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
        let control_plane = TomlControlPlane::required(&path);
        Self { _folder: folder, path, entries: BTreeMap::new(), control_plane }
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

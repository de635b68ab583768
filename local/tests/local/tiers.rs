//! Each real tier by itself, all together, and the schema.

use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use aws_sdk_sqs::types::QueueAttributeName;
use ledger_stores::dynamodb::{PARTITION_KEY, POLICY_PARTITION, SORT_KEY};
use ledger_testkit::aws_server::AwsServer;
use ledger_testkit::postgres_server::PostgresServer;
use ledger_testkit::redis_server::RedisServer;
use serde_json::json;
use sqlx::Connection as _;

use crate::block_on;
use crate::process::{Local, eventually, run};

/// A database without the schema, of a test's own.
pub(crate) fn empty_database(name: &str) -> String {
    let server = PostgresServer::shared();
    block_on(server.administer(format!("CREATE DATABASE {name}")));
    server.url(name)
}

pub(crate) fn one_number(database_url: &str, sql: &'static str) -> i64 {
    block_on(async {
        let mut connection = sqlx::PgConnection::connect(database_url).await.expect("the database answers");
        let number = sqlx::query_scalar(sql).fetch_one(&mut connection).await.expect("a number");
        connection.close().await.expect("closed");
        number
    })
}

/// Made-up credentials for the stand-in, with what else the SDK reads.
pub(crate) fn aws() -> Vec<(&'static str, &'static str)> {
    vec![
        ("AWS_ENDPOINT_URL", AwsServer::shared().endpoint_url()),
        ("AWS_REGION", "eu-central-1"),
        ("AWS_ACCESS_KEY_ID", "testing"),
        ("AWS_SECRET_ACCESS_KEY", "testing"),
    ]
}

/// URLs of a queue and of its dead-letter queue.
pub(crate) fn queues(name: &str) -> (String, String) {
    block_on(async {
        let client = aws_sdk_sqs::Client::new(&AwsServer::shared().config().await);
        let dead = client.create_queue().queue_name(format!("{name}-dead")).send().await.expect("created");
        let dead_url = dead.queue_url.expect("a URL");
        let attributes = client.get_queue_attributes().queue_url(&dead_url);
        let attributes = attributes.attribute_names(QueueAttributeName::QueueArn).send().await.expect("attributes");
        let attributes = attributes.attributes.expect("attributes");
        let arn = attributes.get(&QueueAttributeName::QueueArn).expect("an ARN");
        let redrive = format!(r#"{{"deadLetterTargetArn":"{arn}","maxReceiveCount":"3"}}"#);
        let create = client.create_queue().queue_name(name).attributes(QueueAttributeName::RedrivePolicy, redrive);
        (create.send().await.expect("created").queue_url.expect("a URL"), dead_url)
    })
}

/// A table with one policy: `t-strict` confirms each miss.
pub(crate) fn policy_table(name: &str) {
    block_on(async {
        let client = aws_sdk_dynamodb::Client::new(&AwsServer::shared().config().await);
        let mut create = client.create_table().table_name(name).billing_mode(BillingMode::PayPerRequest);
        for (name, kind) in [(PARTITION_KEY, KeyType::Hash), (SORT_KEY, KeyType::Range)] {
            let attribute = AttributeDefinition::builder().attribute_name(name);
            create = create
                .attribute_definitions(attribute.attribute_type(ScalarAttributeType::S).build().expect("complete"))
                .key_schema(KeySchemaElement::builder().attribute_name(name).key_type(kind).build().expect("complete"));
        }
        create.send().await.expect("created");
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let put = client.put_item().table_name(name).item(PARTITION_KEY, text(POLICY_PARTITION));
        let put = put.item(SORT_KEY, text("tenant#t-strict")).item("confirmMiss", text("always"));
        put.send().await.expect("written");
    });
}

fn decided_by(local: &Local, scope: &str) -> String {
    let body = json!({"scope": scope, "key": "k", "payloadSha256": crate::process::HASH});
    let answer = local.post("/v1/check", &body);
    answer.is_new();
    answer.body["decidedBy"].as_str().expect("a name").to_owned()
}

#[test]
fn redis_alone() {
    let redis = RedisServer::start();
    let (data, url) = (tempfile::tempdir().expect("a folder"), redis.url().to_owned());
    let local = Local::start(data.path(), &[("REDIS_URL", &url)]);
    local.check("k").is_new();
    local.check("k").is_seen(1);
    assert_eq!(redis.command::<i64>(&["DBSIZE"]), 2, "the record is in Redis, beside the warm marker");
    local.kill_minus_9();
    // Redis knows the count itself, whatever was drained.
    let local = Local::start(data.path(), &[("REDIS_URL", &url)]);
    local.check("k").is_seen(2);
    local.stop();
    // And without Redis the embedded ledger knows the rest.
    Local::start(data.path(), &[]).check("k").is_seen(3);
}

#[test]
fn postgresql_alone_is_migrated_and_written_to() {
    let (data, url) = (tempfile::tempdir().expect("a folder"), empty_database("local_alone"));
    let local = Local::start(data.path(), &[("DATABASE_URL", &url)]);
    local.check("k").is_new();
    local.check("k").is_seen(1);
    local.stop();
    assert_eq!(one_number(&url, "SELECT retry_count::bigint FROM dedup_ledger"), 1);
    assert_eq!(one_number(&url, "SELECT count(*) FROM dedup_claim"), 1);
    // Another folder, without any history of its own.
    let other = tempfile::tempdir().expect("a folder");
    Local::start(other.path(), &[("DATABASE_URL", &url)]).check("k").is_seen(2);
}

#[test]
fn a_postgresql_that_goes_and_comes_back_misses_nothing() {
    let mut server = PostgresServer::start();
    let (data, url) = (tempfile::tempdir().expect("a folder"), block_on(server.database()));
    let local = Local::start(data.path(), &[("DATABASE_URL", &url)]);
    local.check("before").is_new();
    server.stop();
    for key in ["a", "b", "c"] {
        local.check(key).is_new();
        local.check(key).is_seen(1);
    }
    server.start_again();
    // What was delivered in the outage is hidden for 30 s.
    for key in ["before", "a", "b", "c"] {
        eventually(|| local.in_history(key)).unwrap_or_else(|| panic!("{key} is missing"));
        local.check(key).is_seen(if key == "before" { 1 } else { 2 });
    }
    local.stop();
}

#[test]
fn sqs_alone() {
    let (url, dead_url) = queues("alone");
    let data = tempfile::tempdir().expect("a folder");
    let mut variables = aws();
    variables.extend([("SQS_QUEUE_URL", url.as_str()), ("SQS_DLQ_URL", dead_url.as_str())]);
    let local = Local::start(data.path(), &variables);
    local.check("k").is_new();
    eventually(|| local.in_history("k")).expect("the fact is drained");
    local.check("k").is_seen(1);
    local.stop();
    assert!(!data.path().join("queue.sqlite").exists());
    let local = Local::start(data.path(), &variables);
    assert_eq!(local.in_history("k").expect("kept")["retryCount"], 1, "drained at the end");
    local.check("k").is_seen(2);
    assert_eq!(local.get("/v1/health").body["tiers"]["queue"]["state"], "up");
}

#[test]
fn a_policy_table_alone() {
    policy_table("policies-alone");
    let data = tempfile::tempdir().expect("a folder");
    let mut variables = aws();
    variables.push(("POLICY_TABLE", "policies-alone"));
    let local = Local::start(data.path(), &variables);
    assert_eq!(decided_by(&local, "t-strict:as4"), "cold");
    assert_eq!(decided_by(&local, "other:as4"), "hot");
}

#[test]
fn a_policy_table_that_is_not_there_is_no_start_and_is_named() {
    let mut variables = aws();
    variables.push(("POLICY_TABLE", "no-such-table"));
    let (status, log) = run(&variables, &[]);
    assert!(!status.success() && log.contains("POLICY_TABLE"), "{status}\n{log}");
}

#[test]
fn all_real_tiers_together_and_a_redis_that_lost_everything() {
    let redis = RedisServer::start();
    let (redis_url, database_url) = (redis.url().to_owned(), empty_database("local_together"));
    let (queue_url, dead_url) = queues("together");
    policy_table("policies-together");
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let mut variables = aws();
    variables.extend([
        ("REDIS_URL", redis_url.as_str()),
        ("DATABASE_URL", &database_url),
        ("SQS_QUEUE_URL", &queue_url),
    ]);
    variables.extend([("SQS_DLQ_URL", dead_url.as_str()), ("POLICY_TABLE", "policies-together")]);
    let token_keys = "a1".repeat(32);
    variables.push(("LEDGER_TOKEN_KEYS", &token_keys));

    let local = Local::start(&data, &variables);
    local.check("k").is_new();
    local.check("k").is_seen(1);
    local.check("other").is_new();
    let drained = eventually(|| local.in_history("k").filter(|message| message["retryCount"] == 1));
    assert_eq!(drained.expect("drained")["location"], "cold");
    let by_key = local.get("/v1/messages?scope=tenant42:as4&key=k").body;
    assert_eq!(by_key["messages"].as_array().map(Vec::len), Some(1), "{by_key}");
    assert_eq!((&by_key["messages"][0]["location"], &by_key["messages"][0]["retryCount"]), (&json!("hot"), &json!(1)));
    assert_eq!(decided_by(&local, "t-strict:as4"), "cold");
    local.stop();
    assert!(!data.exists(), "nothing is embedded");

    let () = redis.command(&["FLUSHALL"]);
    let local = Local::start(&data, &variables);
    local.check("k").is_seen(2);
    local.check("other").is_seen(1);
    local.check("unheard of").is_new();
}

#[test]
fn migrate_makes_the_schema_and_ends() {
    let url = empty_database("local_migrate");
    // Twice: the second time there is nothing to do.
    for _ in 0..2 {
        let (status, log) = run(&[("DATABASE_URL", &url)], &["migrate"]);
        assert!(status.success(), "{status}\n{log}");
        assert_eq!(one_number(&url, "SELECT count(*) FROM dedup_claim"), 0);
    }
    let (status, log) = run(&[], &["migrate"]);
    assert!(!status.success() && log.contains("DATABASE_URL"), "{status}\n{log}");
}

//! The control plane in a DynamoDB table.

use std::collections::HashMap;

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use ledger_domain::PolicySet;
use ledger_domain::ports::{ControlPlane, StoreError};

use crate::policy_entry::{self, READ, Value};

/// The partition key's name; a string.
pub const PARTITION_KEY: &str = "pk";
/// The sort key's name; a string.
pub const SORT_KEY: &str = "sk";
/// The partition that holds the policies.
pub const POLICY_PARTITION: &str = "POLICY";
/// Items of one page; DynamoDB ends a page at 1 MiB besides.
const PAGE_ITEMS: i32 = 500;

type Item = HashMap<String, AttributeValue>;

/// A table with partition key `pk` and sort key `sk`, both strings.
///
/// A policy is an item with `pk` = `POLICY` and `sk` = `scope#t1:as4/in`, `tenant#t1` or `family#as4`. Its other attributes are
/// the policy's fields: `windowDefaultSeconds`, `windowMinSeconds`, `windowMaxSeconds`, `replaySeconds` (N), `requireRequestId`
/// (BOOL), `confirmMiss` (S: `always` or `whenIncomplete`). Any other attribute, or type, is refused.
#[derive(Debug, Clone)]
pub struct DynamoControlPlane {
    client: Client,
    table: String,
}

impl DynamoControlPlane {
    /// A table reached with `config` ([`crate::aws::load`]). No I/O.
    #[must_use]
    pub fn new(config: &SdkConfig, table: impl Into<String>) -> Self {
        Self { client: Client::new(config), table: table.into() }
    }

    /// One page of policies and where the next begins.
    async fn page(&self, start: Option<Item>) -> Result<(Vec<Item>, Option<Item>), StoreError> {
        let answer = self
            .client
            .query()
            .table_name(&self.table)
            .consistent_read(true)
            .limit(PAGE_ITEMS)
            .key_condition_expression("#pk = :policy")
            .expression_attribute_names("#pk", PARTITION_KEY)
            .expression_attribute_values(":policy", AttributeValue::S(POLICY_PARTITION.to_owned()))
            .set_exclusive_start_key(start)
            .send()
            .await
            // A read changes nothing, so whatever failed, nothing happened.
            .map_err(|e| StoreError::did_not_happen(READ, e))?;
        Ok((answer.items.unwrap_or_default(), answer.last_evaluated_key.filter(|key| !key.is_empty())))
    }
}

#[async_trait]
impl ControlPlane for DynamoControlPlane {
    async fn policies(&self) -> Result<PolicySet, StoreError> {
        let mut policies = PolicySet::default();
        let mut start = None;
        loop {
            let (items, next) = self.page(start).await?;
            for item in items {
                set(&mut policies, item)?;
            }
            if next.is_none() {
                return Ok(policies);
            }
            start = next;
        }
    }
}

fn set(policies: &mut PolicySet, mut item: Item) -> Result<(), StoreError> {
    item.remove(PARTITION_KEY);
    let sort_key = match item.remove(SORT_KEY) {
        Some(AttributeValue::S(text)) => text,
        other => {
            return Err(StoreError::rejected(READ, format!("policy: {SORT_KEY}: expected a string, got {other:?}")));
        }
    };
    let Some((kind, name)) = sort_key.split_once('#') else {
        return Err(StoreError::rejected(READ, format!("policy {sort_key:?}: expected scope#, tenant# or family#")));
    };
    policy_entry::set(policies, kind, name, item.into_iter().map(|(field, value)| (field, value_of(value))))
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the SDK's enum is non-exhaustive; other types are refused")]
fn value_of(value: AttributeValue) -> Value {
    match value {
        AttributeValue::N(number) => number.parse().map_or_else(|_| Value::Other(number), Value::Number),
        AttributeValue::Bool(value) => Value::Bool(value),
        AttributeValue::S(text) => Value::Text(text),
        other => Value::Other(format!("{other:?}")),
    }
}

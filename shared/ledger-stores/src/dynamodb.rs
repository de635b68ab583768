//! The control plane in a DynamoDB table.

use std::collections::HashMap;

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_config::retry::RetryConfig;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValuesOnConditionCheckFailure};
use ledger_domain::ports::{ColdSession, ControlPlane, KeeperState, StoreError};
use ledger_domain::{PolicySet, Timestamp};
use serde_json::Value as Json;

use crate::aws;
use crate::control_state::{
    EXPIRES_AT, Fields, OPEN_SESSION, READ_KEEPER, READ_SESSIONS, REMOVE_SESSION, RENEW_SESSION, SAVE_KEEPER, VERSION,
    keeper_fields, read_keeper, read_session, reopened, version_before,
};
use crate::policy_entry::{self, READ, Value};

/// The partition key's name; a string.
pub const PARTITION_KEY: &str = "pk";
/// The sort key's name; a string.
pub const SORT_KEY: &str = "sk";
/// The partition that holds the policies.
pub const POLICY_PARTITION: &str = "POLICY";
/// The partition that holds cold sessions.
pub const SESSION_PARTITION: &str = "COLD_SESSION";
/// The partition that holds how far the keeper is, and its one item.
pub const KEEPER_PARTITION: &str = "KEEPER";
/// See [`KEEPER_PARTITION`].
pub const KEEPER_ITEM: &str = "STATE";
/// How long a call about the hot tier's state may take, in milliseconds. Checks wait for some of them; inside one region
/// DynamoDB answers in a few.
pub const STATE_TIMEOUT_MS: u64 = 1_000;
/// Items of one page; DynamoDB ends a page at 1 MiB besides.
const PAGE_ITEMS: i32 = 500;

type Item = HashMap<String, AttributeValue>;

/// A table with partition key `pk` and sort key `sk`, both strings.
///
/// A policy is an item with `pk` = `POLICY` and `sk` = `scope#t1:as4/in`, `tenant#t1` or `family#as4`. Its other attributes are
/// the policy's fields: `windowDefaultSeconds`, `windowMinSeconds`, `windowMaxSeconds`, `replaySeconds` (N), `requireRequestId`
/// (BOOL), `confirmMiss` (S: `always` or `whenIncomplete`), `unconfirmed` (S: `refuse` or `allow`). Any other attribute, or type, is
/// refused.
///
/// A cold session is an item with `pk` = `COLD_SESSION`, `sk` = its id, and `expiresAtMs` (N). Do not make that the table's TTL:
/// a session stands until the hot tier was filled. The keeper's state is the item `KEEPER`, `STATE`.
#[derive(Debug, Clone)]
pub struct DynamoControlPlane {
    client: Client,
    /// For the hot tier's state: without the SDK's retries, as a write that is sent again finds its own work and takes it for
    /// another's.
    state_client: Client,
    table: String,
}

impl DynamoControlPlane {
    /// A table reached with `config` ([`crate::aws::load`]). No I/O.
    #[must_use]
    pub fn new(config: &SdkConfig, table: impl Into<String>) -> Self {
        Self::with_state_timeout(config, table, STATE_TIMEOUT_MS)
    }

    /// As [`DynamoControlPlane::new`], with a time for each call about the hot tier's state, in place of
    /// [`STATE_TIMEOUT_MS`].
    #[must_use]
    pub fn with_state_timeout(config: &SdkConfig, table: impl Into<String>, timeout_ms: u64) -> Self {
        let state = aws_sdk_dynamodb::config::Builder::from(config)
            .retry_config(RetryConfig::disabled())
            .timeout_config(aws::timeouts(timeout_ms, timeout_ms));
        Self { client: Client::new(config), state_client: Client::from_conf(state.build()), table: table.into() }
    }

    /// One page of a partition and where the next begins.
    async fn page(
        &self,
        client: &Client,
        (operation, partition): (&'static str, &str),
        limit: i32,
        start: Option<Item>,
    ) -> Result<(Vec<Item>, Option<Item>), StoreError> {
        let answer = client
            .query()
            .table_name(&self.table)
            .consistent_read(true)
            .limit(limit)
            .key_condition_expression("#pk = :partition")
            .expression_attribute_names("#pk", PARTITION_KEY)
            .expression_attribute_values(":partition", AttributeValue::S(partition.to_owned()))
            .set_exclusive_start_key(start)
            .send()
            .await
            // A read changes nothing, so whatever failed, nothing happened.
            .map_err(|e| StoreError::did_not_happen(operation, e))?;
        Ok((answer.items.unwrap_or_default(), answer.last_evaluated_key.filter(|key| !key.is_empty())))
    }
}

#[async_trait]
impl ControlPlane for DynamoControlPlane {
    async fn policies(&self) -> Result<PolicySet, StoreError> {
        let mut policies = PolicySet::default();
        let mut start = None;
        loop {
            let (items, next) = self.page(&self.client, (READ, POLICY_PARTITION), PAGE_ITEMS, start).await?;
            for item in items {
                set(&mut policies, item)?;
            }
            if next.is_none() {
                return Ok(policies);
            }
            start = next;
        }
    }

    async fn cold_sessions(&self, limit: usize) -> Result<Vec<ColdSession>, StoreError> {
        let mut sessions = Vec::new();
        let mut start = None;
        while sessions.len() < limit {
            let wanted = i32::try_from(limit - sessions.len()).unwrap_or(PAGE_ITEMS).min(PAGE_ITEMS);
            let of = (READ_SESSIONS, SESSION_PARTITION);
            let (items, next) = self.page(&self.state_client, of, wanted, start).await?;
            for item in items {
                sessions.push(session_of(item)?);
            }
            if next.is_none() {
                break;
            }
            start = next;
        }
        Ok(sessions)
    }

    async fn open_cold_session(&self, session: &ColdSession) -> Result<(), StoreError> {
        let put = self
            .state_client
            .put_item()
            .table_name(&self.table)
            .set_item(Some(session_key(session)))
            .item(EXPIRES_AT, millis(session.expires_at))
            .condition_expression("attribute_not_exists(#pk)")
            .expression_attribute_names("#pk", PARTITION_KEY)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        match put.send().await {
            Ok(_) => Ok(()),
            Err(error) => match standing_instead(&error) {
                Some(item) => reopened(session, &session_of(item)?),
                None => Err(classified(OPEN_SESSION, error)),
            },
        }
    }

    async fn renew_cold_session(&self, read: &ColdSession, expires_at: Timestamp) -> Result<bool, StoreError> {
        let update = self
            .state_client
            .update_item()
            .table_name(&self.table)
            .set_key(Some(session_key(read)))
            .update_expression("SET #at = :new")
            .condition_expression("#at = :read")
            .expression_attribute_names("#at", EXPIRES_AT)
            .expression_attribute_values(":new", millis(expires_at))
            .expression_attribute_values(":read", millis(read.expires_at));
        done(RENEW_SESSION, update.send().await)
    }

    async fn remove_cold_session(&self, read: &ColdSession) -> Result<bool, StoreError> {
        let delete = self
            .state_client
            .delete_item()
            .table_name(&self.table)
            .set_key(Some(session_key(read)))
            .condition_expression("#at = :read")
            .expression_attribute_names("#at", EXPIRES_AT)
            .expression_attribute_values(":read", millis(read.expires_at));
        done(REMOVE_SESSION, delete.send().await)
    }

    async fn keeper_state(&self) -> Result<Option<KeeperState>, StoreError> {
        let get = self.state_client.get_item().table_name(&self.table).consistent_read(true);
        let answer = get.set_key(Some(key(KEEPER_PARTITION, KEEPER_ITEM.to_owned()))).send().await;
        let Some(mut item) = answer.map_err(|e| StoreError::did_not_happen(READ_KEEPER, e))?.item else {
            return Ok(None);
        };
        item.remove(PARTITION_KEY);
        item.remove(SORT_KEY);
        read_keeper(fields_of(item)).map(Some)
    }

    async fn save_keeper_state(&self, state: &KeeperState) -> Result<bool, StoreError> {
        let mut item = key(KEEPER_PARTITION, KEEPER_ITEM.to_owned());
        item.extend(keeper_fields(state).into_iter().map(|(name, value)| (name, attribute_of(value))));
        let put = self.state_client.put_item().table_name(&self.table).set_item(Some(item));
        let put = match version_before(state)? {
            None => {
                put.condition_expression("attribute_not_exists(#pk)").expression_attribute_names("#pk", PARTITION_KEY)
            }
            Some(before) => put
                .condition_expression("#version = :before")
                .expression_attribute_names("#version", VERSION)
                .expression_attribute_values(":before", AttributeValue::N(before.to_string())),
        };
        done(SAVE_KEEPER, put.send().await)
    }
}

fn key(partition: &str, sort: String) -> Item {
    Item::from([
        (PARTITION_KEY.to_owned(), AttributeValue::S(partition.to_owned())),
        (SORT_KEY.to_owned(), AttributeValue::S(sort)),
    ])
}

fn session_key(session: &ColdSession) -> Item {
    key(SESSION_PARTITION, session.id.to_string())
}

fn millis(at: Timestamp) -> AttributeValue {
    AttributeValue::N(at.as_millis().to_string())
}

fn session_of(mut item: Item) -> Result<ColdSession, StoreError> {
    item.remove(PARTITION_KEY);
    let name = match item.remove(SORT_KEY) {
        Some(AttributeValue::S(name)) => name,
        other => {
            let problem = format!("cold session: {SORT_KEY}: expected a string, got {other:?}");
            return Err(StoreError::rejected(READ_SESSIONS, problem));
        }
    };
    read_session(&name, fields_of(item))
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the SDK's enum is non-exhaustive; other types fit no field")]
fn fields_of(item: Item) -> Fields {
    let value = |value| match value {
        AttributeValue::N(number) => number.parse::<u64>().map_or_else(|_| Json::from(number), Json::from),
        AttributeValue::Bool(value) => Json::from(value),
        // A text is no number, whatever it says.
        AttributeValue::S(text) => Json::from(text),
        _ => Json::Null,
    };
    item.into_iter().map(|(name, of)| (name, value(of))).collect()
}

/// A field of the keeper's state: numbers, truths and texts.
fn attribute_of(value: Json) -> AttributeValue {
    match value {
        Json::Number(number) => AttributeValue::N(number.to_string()),
        Json::Bool(value) => AttributeValue::Bool(value),
        Json::String(text) => AttributeValue::S(text),
        Json::Null | Json::Array(_) | Json::Object(_) => AttributeValue::Null(true),
    }
}

/// What stands where a session was to be opened, if that is why it was refused.
fn standing_instead(error: &SdkError<PutItemError, HttpResponse>) -> Option<Item> {
    match error.as_service_error() {
        Some(PutItemError::ConditionalCheckFailedException(failed)) => failed.item().cloned(),
        Some(_) | None => None,
    }
}

/// Whether a conditional write was done; `false` where its condition did not hold.
fn done<T, E>(operation: &'static str, outcome: Result<T, SdkError<E, HttpResponse>>) -> Result<bool, StoreError>
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    match outcome {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some("ConditionalCheckFailedException") => Ok(false),
        Err(error) => Err(classified(operation, error)),
    }
}

/// What one attempt's failure says of a write. Only what is certain is "did not happen": DynamoDB's own refusal, or a request
/// that was never made. A connection that failed may have failed after the request was sent.
fn classified<E>(operation: &'static str, error: SdkError<E, HttpResponse>) -> StoreError
where
    E: std::error::Error + Send + Sync + 'static,
{
    let refused = match &error {
        SdkError::ConstructionFailure(_) => true,
        SdkError::DispatchFailure(failure) => failure.is_user(),
        // 408: the service gave up reading; nothing says how far it came.
        SdkError::ServiceError(answer) => matches!(answer.raw().status().as_u16(), 400..=407 | 409..=499),
        // A time-out, an answer that cannot be read, and whatever is not known.
        SdkError::TimeoutError(_) | SdkError::ResponseError(_) | _ => false,
    };
    if refused { StoreError::did_not_happen(operation, error) } else { StoreError::may_have_happened(operation, error) }
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

//! The conformance suite of the control plane.

use async_trait::async_trait;
use ledger_domain::ports::{ControlPlane, StoreError};
use ledger_domain::{ConfirmMiss, LEASE_MIN_SECONDS, Policy, PolicySet, Scope, Unconfirmed};

/// A field's value, as an operator writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldValue {
    /// A whole number.
    Number(i64),
    /// True or false.
    Bool(bool),
    /// A text.
    Text(&'static str),
    /// A list, which no field takes.
    List,
}

/// An entry: its kind (`scope`, `tenant`, `family`), its name, its fields.
pub type Entry = (&'static str, String, Vec<(&'static str, FieldValue)>);

/// A control plane of a test's own, without entries, and the means to write any entry there, right or wrong.
#[async_trait]
pub trait ControlPlaneFixture: Send + Sync {
    /// The implementation under test.
    fn control_plane(&self) -> &dyn ControlPlane;

    /// Adds entries in the implementation's own form.
    async fn add(&mut self, entries: &[Entry]);
}

/// One `#[tokio::test]` per case of the suite. `$fixture` is an async expression that makes a new fixture.
#[macro_export]
macro_rules! control_plane_conformance {
    ($name:ident, $fixture:expr) => {
        mod $name {
            use super::*;

            $crate::control_plane_conformance!(@cases $fixture;
                without_entries_the_built_in_defaults_hold,
                every_field_of_every_kind_of_entry_is_read,
                a_read_sees_what_was_written_before,
                more_entries_than_one_page_are_all_read,
                one_wrong_entry_is_an_error_that_names_it,
            );
        }
    };
    (@cases $fixture:expr; $($case:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $case() {
                let mut fixture = $fixture.await;
                $crate::control_plane::$case(&mut fixture).await;
            }
        )*
    };
}

async fn read(fixture: &dyn ControlPlaneFixture) -> PolicySet {
    match fixture.control_plane().policies().await {
        Ok(policies) => policies,
        Err(e) => panic!("{e}: {e:?}"),
    }
}

fn policy(policies: &PolicySet, scope: &str) -> Policy {
    policies.resolve(&Scope::parse(scope, None).unwrap_or_else(|e| panic!("{e}")))
}

/// No entry is no error.
pub async fn without_entries_the_built_in_defaults_hold(fixture: &mut dyn ControlPlaneFixture) {
    let policies = read(fixture).await;
    assert!(policies.is_empty());
    assert_eq!(policy(&policies, "t1:as2").window_default_seconds, 7 * 86_400);
}

/// Each field once, spread over the three kinds.
pub async fn every_field_of_every_kind_of_entry_is_read(fixture: &mut dyn ControlPlaneFixture) {
    let windows = vec![
        ("windowDefaultSeconds", FieldValue::Number(200)),
        ("windowMinSeconds", FieldValue::Number(100)),
        ("windowMaxSeconds", FieldValue::Number(300)),
    ];
    let tenant = vec![
        ("confirmMiss", FieldValue::Text("always")),
        ("unconfirmed", FieldValue::Text("allow")),
        ("replaySeconds", FieldValue::Number(0)),
        ("leaseMaxSeconds", FieldValue::Number(7_200)),
    ];
    let family =
        vec![("requireRequestId", FieldValue::Bool(true)), ("confirmMiss", FieldValue::Text("whenIncomplete"))];
    fixture
        .add(&[
            ("scope", "t1:as4/in".into(), windows),
            ("tenant", "t1".into(), tenant),
            ("family", "as4".into(), family),
        ])
        .await;
    let policies = read(fixture).await;
    assert_eq!(policies.len(), 3);
    let expected = Policy {
        window_default_seconds: 200,
        window_min_seconds: 100,
        window_max_seconds: 300,
        lease_min_seconds: LEASE_MIN_SECONDS,
        lease_max_seconds: 7_200,
        require_request_id: true,
        confirm_miss: ConfirmMiss::Always,
        unconfirmed: Unconfirmed::Allow,
        replay_seconds: 0,
    };
    assert_eq!(policy(&policies, "t1:as4/in"), expected);
    let other = policy(&policies, "t2:as4/in");
    assert_eq!((other.require_request_id, other.confirm_miss), (true, ConfirmMiss::WhenIncomplete));
}

/// Nothing is remembered between two reads.
pub async fn a_read_sees_what_was_written_before(fixture: &mut dyn ControlPlaneFixture) {
    for number in 1..=5_u64 {
        let fields = vec![("windowDefaultSeconds", FieldValue::Number(i64::try_from(number).unwrap_or(1)))];
        fixture.add(&[("tenant", format!("t{number}"), fields)]).await;
        let policies = read(fixture).await;
        assert_eq!(policies.len() as u64, number);
        assert_eq!(policy(&policies, &format!("t{number}:as4")).window_default_seconds, number);
    }
}

/// 1,100 entries: three pages of the DynamoDB table.
pub async fn more_entries_than_one_page_are_all_read(fixture: &mut dyn ControlPlaneFixture) {
    let entries: Vec<Entry> = (0..1_100)
        .map(|number| ("scope", format!("t1:as4/{number}"), vec![("windowDefaultSeconds", FieldValue::Number(7))]))
        .collect();
    fixture.add(&entries).await;
    let policies = read(fixture).await;
    assert_eq!(policies.len(), entries.len());
    assert_eq!(policy(&policies, &entries[1_099].1).window_default_seconds, 7);
}

/// Half of the policies is no policy: one wrong entry fails the read, and the error says which entry and which field.
pub async fn one_wrong_entry_is_an_error_that_names_it(fixture: &mut dyn ControlPlaneFixture) {
    const WRONG: [(&str, &str, &str, FieldValue); 14] = [
        ("tenant", "t1", "windowSeconds", FieldValue::Number(5)),
        ("tenant", "t1", "WindowMinSeconds", FieldValue::Number(5)),
        ("tenant", "t1", "windowMinSeconds", FieldValue::Text("5")),
        ("tenant", "t1", "windowMinSeconds", FieldValue::Bool(true)),
        ("tenant", "t1", "windowMinSeconds", FieldValue::Number(-5)),
        ("tenant", "t1", "windowMinSeconds", FieldValue::Number(0)),
        ("tenant", "t1", "windowMaxSeconds", FieldValue::List),
        ("scope", "t1:as4/in", "requireRequestId", FieldValue::Text("true")),
        ("scope", "t1:as4/in", "requireRequestId", FieldValue::Number(1)),
        ("family", "as4", "confirmMiss", FieldValue::Text("sometimes")),
        ("family", "as4", "confirmMiss", FieldValue::Bool(true)),
        ("family", "as4", "unconfirmed", FieldValue::Text("yes")),
        ("family", "as4", "replaySeconds", FieldValue::Number(86_401)),
        ("family", "as4/in", "replaySeconds", FieldValue::Number(1)),
    ];
    fixture.add(&[("tenant", "good".into(), vec![("windowDefaultSeconds", FieldValue::Number(9))])]).await;
    let mut good = 1;
    for (kind, name, field, value) in WRONG {
        fixture.add(&[(kind, name.into(), vec![(field, value.clone())])]).await;
        let text = match fixture.control_plane().policies().await {
            Err(StoreError::Rejected { source, .. }) => source.to_string(),
            Ok(_) | Err(StoreError::DidNotHappen { .. } | StoreError::MayHaveHappened { .. }) => {
                panic!("{kind} {name} {field} {value:?} was not refused")
            }
        };
        assert!(text.contains(&format!("{kind} {name}")), "names the entry: {text}");
        assert!(name.contains('/') && kind == "family" || text.contains(field), "names the field: {text}");
        // Written over by a right one, the read succeeds again.
        if name != "as4/in" || kind != "family" {
            fixture.add(&[(kind, name.into(), vec![("replaySeconds", FieldValue::Number(1))])]).await;
            good = read(fixture).await.len().max(good);
        }
    }
    assert_eq!(good, 4);
}

//! The HTTP face of a search: the wire format, and each kind of bad input with its problem.

#![expect(clippy::expect_used, reason = "a test that cannot be set up fails")]

use std::sync::Arc;

use audit::{App, router};
use axum::Router;
use axum::body::{Body, to_bytes};
use http::Request;
use ledger_domain::ports::{Clock, ColdLedger, EventQueue, HotTier};
use ledger_domain::search::Auditor;
use ledger_domain::{Fact, MessageKey, Timestamp};
use ledger_lambda::env::Env;
use ledger_lambda::http::Caller;
use ledger_stores::memory::MemoryHotTier;
use ledger_stores::sqlite::SqliteLedger;
use ledger_testkit::clock::ManualClock;
use ledger_testkit::house::{House, check, from_service};
use serde_json::{Value, json};
use tower::ServiceExt;

const HASH: &str = "0101010101010101010101010101010101010101010101010101010101010101";

struct Test {
    router: Router,
    house: House,
    cold: Arc<dyn ColdLedger>,
    clock: Arc<ManualClock>,
    _folder: tempfile::TempDir,
}

async fn start() -> Test {
    let folder = tempfile::tempdir().expect("a folder");
    let cold: Arc<dyn ColdLedger> =
        Arc::new(SqliteLedger::open(&folder.path().join("ledger.sqlite")).await.expect("opens"));
    let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_790_000_000_000)));
    let clock_port = Arc::clone(&clock) as Arc<dyn Clock>;
    let hot: Arc<dyn HotTier> = Arc::new(MemoryHotTier::new(1_000, Arc::clone(&clock_port)));
    let house = House::new(Arc::clone(&hot), None, Arc::clone(&clock_port));
    let queue = Arc::clone(&house.queue) as Arc<dyn EventQueue>;
    let auditor = Auditor { hot, cold: Arc::clone(&cold), queue, clock: clock_port };
    let tenants = Env::of([("LEDGER_TENANTS", "t,t2")]).required_tenants().expect("valid");
    let app = App { auditor, tenants, default_tenant: None };
    Test { router: router(Arc::new(app)), house, cold, clock, _folder: folder }
}

impl Test {
    async fn get(&self, path: &str) -> (u16, Value) {
        let mut request = Request::get(path).body(Body::empty()).expect("valid");
        request.extensions_mut().insert(Caller::named("auditor").expect("valid"));
        self.send(request).await
    }

    async fn send(&self, request: Request<Body>) -> (u16, Value) {
        let response = self.router.clone().oneshot(request).await.expect("infallible");
        let status = response.status().as_u16();
        let bytes = to_bytes(response.into_body(), usize::MAX).await.expect("in memory");
        (status, serde_json::from_slice(&bytes).expect("JSON"))
    }

    async fn refused(&self, query: &str, field: &str) {
        let (status, body) = self.get(&format!("/v1/messages?{query}")).await;
        assert_eq!((status, &body["field"]), (400, &json!(field)), "{query}: {body}");
        assert!(body["detail"].as_str().is_some_and(|detail| detail.contains("expected")), "{body}");
    }

    async fn drain(&self) {
        let facts: Vec<Fact> = self.house.queue.taken().into_iter().chain(self.house.queue.offered()).collect();
        self.cold.persist(&facts, self.clock.now().expect("known")).await.expect("written");
    }
}

#[tokio::test]
async fn a_message_on_the_wire() {
    let test = start().await;
    let (status, body) = test.get("/v1/messages?scope=t:as4&key=k").await;
    assert_eq!((status, body), (200, json!({"messages": [], "next": null})));
    test.house.ledger.check(&[from_service(check("t:as4", "k", 1), "as4-ingest")]).await;
    test.house.ledger.check(&[check("t:as4", "k", 2)]).await;
    let (_, body) = test.get("/v1/messages?scope=t:as4&key=k").await;
    let id = body["messages"][0]["registrationId"].clone();
    let expected = |location| {
        json!({
            "scope": "t:as4", "key": "k", "payloadSha256": HASH, "sourceService": "as4-ingest",
            "firstSeenAt": "2026-09-21T14:13:20.000Z", "lastSeenAt": "2026-09-21T14:13:20.000Z",
            "windowEndsAt": "2026-10-21T14:13:20.000Z", "retryCount": 1, "state": "REGISTERED", "registrationId": id,
            "drift": {"count": 1, "lastPayloadSha256": "02".repeat(32), "lastAt": "2026-09-21T14:13:20.000Z"},
            "location": location
        })
    };
    assert_eq!(body, json!({"messages": [expected("hot")], "next": null}));
    test.drain().await;
    let (_, body) = test.get(&format!("/v1/messages?tenant=t&payloadSha256={HASH}")).await;
    assert_eq!(body["messages"], json!([expected("cold")]));
    assert!(body.as_object().is_some_and(|page| page.contains_key("asOf")), "{body}");
}

#[tokio::test]
async fn a_tuple_is_found_by_repeated_key_parts_and_only_so() {
    let test = start().await;
    let mut asked = check("t:edifact", "x", 1);
    asked.subject.key = MessageKey::parts(&["14:SENDER & Co", "a+b=c%", "é\n"]).expect("valid");
    test.house.ledger.check(&[asked.clone()]).await;
    let parts = "keyPart=14:SENDER+%26%20Co&keyPart=a%2Bb%3Dc%25&keyPart=%C3%A9%0A";
    let (_, body) = test.get(&format!("/v1/messages?scope=t:edifact&{parts}")).await;
    assert_eq!(body["messages"][0]["keyParts"], json!(["14:SENDER & Co", "a+b=c%", "é\n"]));
    assert_eq!(body["messages"][0].get("key"), None);
    let (_, body) = test.get("/v1/messages?scope=t:edifact&keyPart=14:SENDER%20%26%20Co&keyPart=a%2Bb%3Dc%25").await;
    assert_eq!(body["messages"], json!([]));
}

#[tokio::test]
async fn pages_follow_each_other() {
    let test = start().await;
    for key in ["a", "b", "c"] {
        test.house.ledger.check(&[check("t:as4", key, 1)]).await;
        test.clock.advance(1_000);
    }
    test.drain().await;
    let mut keys = Vec::new();
    let mut next = String::new();
    loop {
        let (status, body) = test.get(&format!("/v1/messages?tenant=t&payloadSha256={HASH}&limit=2{next}")).await;
        assert_eq!(status, 200, "{body}");
        keys.extend(body["messages"].as_array().expect("a list").iter().map(|m| m["key"].clone()));
        match body["next"].as_str() {
            Some(token) => next = format!("&next={token}"),
            None => break,
        }
    }
    assert_eq!(json!(keys), json!(["c", "b", "a"]));
    let (_, body) = test
        .get(&format!(
            "/v1/messages?tenant=t&payloadSha256={HASH}&from=2026-09-21T14:13:21Z&to=2026-09-21T16:13:22.000%2B02:00"
        ))
        .await;
    assert_eq!(body["messages"][0]["key"], "b");
    assert_eq!(body["messages"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn bad_queries_name_their_parameter() {
    let test = start().await;
    let hash = format!("payloadSha256={HASH}");
    for (query, field) in [
        ("", "scope"),
        ("scope=t:as4", "key"),
        ("scope=t:as4&key=", "key"),
        ("scope=t:as4&key=k&keyPart=a", "keyPart"),
        ("scope=t:as4&keyPart=a", "keyPart"),
        ("scope=t:as4&keyPart=a&keyPart=", "keyPart"),
        ("scope=t:as4&key=k&key=l", "key"),
        ("scope=as4&key=k", "scope"),
        ("scope=t:as4&key=k&tenant=t", "tenant"),
        ("scope=t:as4&key=%FF", "key"),
        ("scope=t:as4&key=k&Limit=5", "Limit"),
        ("scope=t:as4&key=k&limit=0", "limit"),
        ("scope=t:as4&key=k&limit=1001", "limit"),
        ("scope=t:as4&key=k&from=yesterday", "from"),
        ("scope=t:as4&key=k&from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", "to"),
        ("scope=t:as4&key=k&next=AAAA", "next"),
        ("tenant=t&payloadSha256=abc", "payloadSha256"),
        (&hash, "tenant"),
        (&format!("{hash}&tenant=T"), "tenant"),
        (&format!("{hash}&tenant=t&key=k"), "key"),
        (&format!("{hash}&scope=t:as4&key=k"), "payloadSha256"),
    ] {
        test.refused(query, field).await;
    }
}

#[tokio::test]
async fn another_tenant_is_a_403_and_no_caller_a_401() {
    let test = start().await;
    for query in ["scope=stranger:as4&key=k", &format!("tenant=stranger&payloadSha256={HASH}")] {
        let (status, body) = test.get(&format!("/v1/messages?{query}")).await;
        assert_eq!((status, &body["type"]), (403, &json!("urn:dedup-ledger:problem:tenant-not-granted")));
    }
    let request = Request::get("/v1/messages?scope=t:as4&key=k").body(Body::empty()).expect("valid");
    assert_eq!(test.send(request).await.0, 401);
}

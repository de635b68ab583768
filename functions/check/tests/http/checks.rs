//! The wire format of checks, and each kind of bad input with its problem.

use axum::body::Body;
use http::Request;
use ledger_testkit::house::Send;
use serde_json::{Value, json};

use crate::edge::{HASH, start, start_with};

fn valid() -> Value {
    json!({"scope": "t:as4", "key": "k", "payloadSha256": HASH})
}

fn with(field: &str, value: Value) -> Value {
    let mut body = valid();
    body[field] = value;
    body
}

fn without(field: &str) -> Value {
    let mut body = valid();
    body.as_object_mut().expect("an object").remove(field);
    body
}

fn parts(parts: Value) -> Value {
    let mut body = without("key");
    body["keyParts"] = parts;
    body
}

#[tokio::test]
async fn new_then_seen_on_the_wire() {
    let test = start();
    let new = test.check(&with("sourceService", json!("as4-ingest"))).await;
    assert_eq!(new.status, 200);
    assert_eq!(
        new.body,
        json!({
            "status": "NEW", "disposition": "PROCESS", "firstSeenAt": "2026-09-21T14:13:20.000Z",
            "windowEndsAt": "2026-10-21T14:13:20.000Z", "retryCount": 0, "state": "REGISTERED", "replayed": false,
            "decidedBy": "hot"
        })
    );
    let seen = test.check(&with("payloadSha256", json!("b".repeat(64)))).await;
    assert_eq!(seen.status, 200, "a duplicate is a normal answer");
    assert_eq!(
        seen.body,
        json!({
            "status": "SEEN", "disposition": "DISCARD", "firstSeenAt": "2026-09-21T14:13:20.000Z",
            "lastSeenAt": "2026-09-21T14:13:20.000Z", "windowEndsAt": "2026-10-21T14:13:20.000Z", "retryCount": 1,
            "payloadHashDrift": true, "state": "REGISTERED", "firstSourceService": "as4-ingest", "decidedBy": "hot"
        })
    );
}

#[tokio::test]
async fn not_known_to_be_durable_is_said_and_only_then() {
    let test = start();
    test.queue.script([Send::TakeAndLoseReply; 3]);
    assert_eq!(test.check(&valid()).await.body["durable"], false);
    assert_eq!(test.check(&with("key", json!("other"))).await.body.get("durable"), None);
}

#[tokio::test]
async fn no_verdict_is_a_503_to_be_retried() {
    let test = start();
    test.queue.script([Send::Refuse]);
    let answer = test.check(&valid()).await;
    assert_eq!((answer.status.as_u16(), answer.retry_after.as_deref()), (503, Some("1")));
    assert_eq!(answer.body["type"], "urn:dedup-ledger:problem:undecided");
    assert_eq!(answer.body["reason"], "queue");
}

#[tokio::test]
async fn missing_fields() {
    for (field, named) in [("scope", "scope"), ("payloadSha256", "payloadSha256"), ("key", "key")] {
        start().refused(&without(field).to_string(), named).await;
    }
}

#[tokio::test]
async fn empty_fields() {
    for field in ["scope", "key", "payloadSha256", "sourceService", "requestId"] {
        start().refused(&with(field, json!("")).to_string(), field).await;
    }
    start().refused(&parts(json!(["a", ""])).to_string(), "keyParts[1]").await;
}

#[tokio::test]
async fn unknown_and_repeated_fields() {
    start().refused(&with("ttlSecond", json!(5)).to_string(), "ttlSecond").await;
    start().refused(&with("Key", json!("k")).to_string(), "Key").await;
    let twice = format!(r#"{{"scope":"t:as4","key":"a","key":"b","payloadSha256":"{HASH}"}}"#);
    start().refused(&twice, "key").await;
}

#[tokio::test]
async fn wrongly_typed_fields() {
    for field in ["scope", "key", "payloadSha256", "sourceService", "requestId"] {
        for value in [json!(1), json!(null), json!(["a"]), json!({})] {
            start().refused(&with(field, value).to_string(), field).await;
        }
    }
    start().refused(&parts(json!("a")).to_string(), "keyParts").await;
    start().refused(&parts(json!(["a", 1])).to_string(), "keyParts[1]").await;
    for body in ["", "[]", "nonsense", "{\"scope\":", "\u{feff}{}"] {
        start().refused(body, "body").await;
    }
    let answer = start().post("/v1/check", vec![b'{', 0xff, b'}']).await;
    assert_eq!((answer.status.as_u16(), &answer.body["field"]), (400, &json!("body")));
}

#[tokio::test]
async fn a_key_of_1024_bytes_and_one_of_1025() {
    assert_eq!(start().check(&with("key", json!("k".repeat(1024)))).await.body["status"], "NEW");
    start().refused(&with("key", json!("k".repeat(1025))).to_string(), "key").await;
}

#[tokio::test]
async fn nul_line_breaks_and_lone_surrogates() {
    for key in ["a\0b", "a\r\nb", "\u{7f}"] {
        start().refused(&with("key", json!(key)).to_string(), "key").await;
    }
    for surrogate in [r"\ud800", r"\udc00x", r"\ud800\ud800"] {
        let body = valid().to_string().replace(r#""k""#, &format!(r#""{surrogate}""#));
        start().refused(&body, "key").await;
    }
    // In a part they are kept, as escapes.
    assert_eq!(start().check(&parts(json!(["a\0b", "c\r\n"]))).await.body["status"], "NEW");
}

#[tokio::test]
async fn hashes_of_63_and_65_digits_of_upper_case_and_none() {
    for bad in ["a".repeat(63), "a".repeat(65), format!("{}g", "a".repeat(63)), format!("0x{}", "a".repeat(62))] {
        start().refused(&with("payloadSha256", json!(bad)).to_string(), "payloadSha256").await;
    }
    let test = start();
    test.check(&valid()).await;
    let upper = test.check(&with("payloadSha256", json!(HASH.to_uppercase()))).await;
    assert_eq!((&upper.body["status"], &upper.body["payloadHashDrift"]), (&json!("SEEN"), &json!(false)));
}

#[tokio::test]
async fn ttl_zero_negative_fractional_and_beyond_the_bounds() {
    for bad in [json!(0), json!(-1), json!(1.5), json!("60"), json!(31_622_401), json!(1e20)] {
        start().refused(&with("ttlSeconds", bad).to_string(), "ttlSeconds").await;
    }
    for good in [1, 31_622_400] {
        assert_eq!(start().check(&with("ttlSeconds", json!(good))).await.body["status"], "NEW");
    }
}

#[tokio::test]
async fn scopes_without_tenant_with_two_colons_and_of_another_tenant() {
    for bad in ["as4", "t:a:b", ":as4", "t:", "T:as4", "t:as 4"] {
        start().refused(&with("scope", json!(bad)).to_string(), "scope").await;
    }
    let test = start();
    let answer = test.check(&with("scope", json!("stranger:as4"))).await;
    assert_eq!(answer.status, 403);
    assert_eq!(answer.body["type"], "urn:dedup-ledger:problem:tenant-not-granted");
    assert!(test.queue.taken().is_empty());
    // With a default tenant the scope is stored with it: both spellings are one.
    let test = start_with(Some("t"));
    assert_eq!(test.check(&with("scope", json!("as4"))).await.body["status"], "NEW");
    assert_eq!(test.check(&valid()).await.body["status"], "SEEN");
}

#[tokio::test]
async fn a_body_over_1_mib_is_a_413() {
    let test = start();
    let answer = test.check(&with("key", json!("k".repeat(1024 * 1024)))).await;
    assert_eq!(answer.status, 413);
    assert_eq!(answer.body["type"], "urn:dedup-ledger:problem:too-large");
    assert!(test.queue.taken().is_empty());
}

#[tokio::test]
async fn batches_of_0_and_101() {
    for items in [0, 101] {
        let items: Vec<_> = (0..items).map(|at| with("key", json!(at.to_string()))).collect();
        let test = start();
        let answer = test.post("/v1/check/batch", json!({ "items": items }).to_string()).await;
        assert_eq!((answer.status.as_u16(), &answer.body["field"]), (400, &json!("items")));
        assert!(test.queue.taken().is_empty());
    }
    for body in ["{}", r#"{"items":{}}"#, r#"{"items":[],"atomic":true}"#] {
        assert_eq!(start().post("/v1/check/batch", body.to_owned()).await.status, 400, "{body}");
    }
}

#[tokio::test]
async fn in_a_batch_each_item_has_its_own_verdict_or_problem() {
    let test = start();
    let items = json!([
        valid(),
        with("ttlSeconds", json!(0)),
        valid(),
        with("scope", json!("stranger:as4")),
        "nonsense",
        with("key", json!("other")),
    ]);
    let answer = test.post("/v1/check/batch", json!({ "items": items }).to_string()).await;
    assert_eq!(answer.status, 200);
    let results = answer.body["results"].as_array().expect("results");
    let statuses: Vec<_> = results.iter().map(|result| result["status"].clone()).collect();
    assert_eq!(json!(statuses), json!(["NEW", 400, "SEEN", 403, 400, "NEW"]));
    assert_eq!(results[1]["field"], "ttlSeconds");
    assert_eq!(results[2]["retryCount"], 1);
    assert_eq!(answer.body.get("applied"), None, "of an atomic batch only");
}

#[tokio::test]
async fn r23_r24_keys_are_injective_and_never_folded() {
    let test = start();
    let different = [
        with("key", json!("Key")),
        with("key", json!("key")),
        with("key", json!("k")),
        with("key", json!("k ")),
        with("key", json!("\u{e9}")),
        with("key", json!("e\u{301}")),
        with("key", json!(r#"["a","b,c"]"#)),
        parts(json!(["a", "b,c"])),
        parts(json!(["a,b", "c"])),
        parts(json!(["a", "b", "c"])),
        parts(json!(["a\u{1}", "b"])),
        parts(json!(["a\\u0001", "b"])),
    ];
    for body in &different {
        assert_eq!(test.check(body).await.body["status"], "NEW", "{body}");
    }
    for body in &different {
        assert_eq!(test.check(body).await.body["status"], "SEEN", "{body}");
    }
    // ("t:as4", "x:y") and ("t:as4", "y") under another flow.
    assert_eq!(test.check(&json!({"scope": "t:a", "key": "b:c", "payloadSha256": HASH})).await.body["status"], "NEW");
    assert_eq!(test.check(&json!({"scope": "t:a.b", "key": "c", "payloadSha256": HASH})).await.body["status"], "NEW");
}

#[tokio::test]
async fn both_key_and_key_parts_or_neither() {
    let mut both = valid();
    both["keyParts"] = json!(["a", "b"]);
    start().refused(&both.to_string(), "keyParts").await;
    start().refused(&without("key").to_string(), "key").await;
    start().refused(&parts(json!(["a"])).to_string(), "keyParts").await;
    start().refused(&parts(json!(["a", "b", "c", "d", "e", "f", "g", "h", "i"])).to_string(), "keyParts").await;
}

#[tokio::test]
async fn bounds_of_source_service_and_request_id_count_bytes() {
    for (field, max) in [("sourceService", 40), ("requestId", 64)] {
        assert_eq!(start().check(&with(field, json!("é".repeat(max / 2)))).await.body["status"], "NEW");
        start().refused(&with(field, json!(format!("{}x", "é".repeat(max / 2)))).to_string(), field).await;
        start().refused(&with(field, json!("a\nb")).to_string(), field).await;
    }
}

#[tokio::test]
async fn a_caller_nobody_vouches_for_is_a_401_before_anything_is_read() {
    let test = start();
    let answer = test.send(Request::post("/v1/check").body(Body::from("nonsense")).expect("valid")).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.body["type"]),
        (401, &json!("urn:dedup-ledger:problem:unknown-caller"))
    );
}

#[tokio::test]
async fn other_routes_and_methods_are_problems_too() {
    let test = start();
    let answer = test.post("/v1/other", "").await;
    assert_eq!((answer.status.as_u16(), answer.content_type.as_str()), (404, "application/problem+json"));
    let answer = test.send(Request::get("/v1/check").body(Body::empty()).expect("valid")).await;
    assert_eq!((answer.status.as_u16(), answer.content_type.as_str()), (405, "application/problem+json"));
}

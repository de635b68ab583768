//! Checks in claim mode: what NEW hands out, what others are told meanwhile, and what repeats get back.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::edge::{Answer, HASH, Test, start};

fn claiming(lease: &Value) -> Value {
    json!({"scope": "t:as4", "key": "k", "payloadSha256": HASH, "claim": lease})
}

fn for_60_seconds() -> Value {
    claiming(&json!({"leaseSeconds": 60}))
}

fn plain() -> Value {
    json!({"scope": "t:as4", "key": "k", "payloadSha256": HASH})
}

fn with(mut body: Value, field: &str, value: Value) -> Value {
    body[field] = value;
    body
}

async fn resolve(test: &Test, token: &str, response: &Value) -> Answer {
    let body = json!({"scope": "t:as4", "key": "k", "token": token, "response": response});
    let answer = test.post("/v1/claims/resolve", body.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer
}

#[tokio::test]
async fn new_hands_out_a_claim_and_others_are_told_to_wait() {
    let test = start();
    let new = test.check(&for_60_seconds()).await;
    let token = new.token();
    assert_eq!(
        new.body,
        json!({
            "status": "NEW", "disposition": "PROCESS", "firstSeenAt": "2026-09-21T14:13:20.000Z",
            "windowEndsAt": "2026-10-21T14:13:20.000Z", "retryCount": 0, "state": "IN_PROGRESS", "attempt": 1,
            "claim": {"token": token, "leaseEndsAt": "2026-09-21T14:14:20.000Z"}, "replayed": false, "decidedBy": "hot"
        })
    );
    test.clock.advance(17_500);
    for (repeat, count) in [(for_60_seconds(), 1), (plain(), 2)] {
        let seen = test.check(&repeat).await;
        assert_eq!((seen.status.as_u16(), seen.retry_after.as_deref()), (200, Some("43")), "{}", seen.body);
        assert_eq!(
            seen.body,
            json!({
                "status": "SEEN", "disposition": "RETRY", "firstSeenAt": "2026-09-21T14:13:20.000Z",
                "lastSeenAt": "2026-09-21T14:13:37.500Z", "windowEndsAt": "2026-10-21T14:13:20.000Z",
                "retryCount": count, "payloadHashDrift": false, "state": "IN_PROGRESS", "attempt": 1,
                "retryAfterSeconds": 43, "decidedBy": "hot"
            })
        );
        assert!(!seen.headers.contains_key("idempotent-replayed"));
    }
}

#[tokio::test]
async fn the_callers_own_retry_gets_its_token_again() {
    let test = start();
    let mine = with(for_60_seconds(), "requestId", json!("delivery-1"));
    let first = test.check(&mine).await;
    let again = test.check(&mine).await;
    assert_eq!(again.body["replayed"], true, "{}", again.body);
    assert_eq!(again.body["claim"], first.body["claim"]);
}

#[tokio::test]
async fn a_claim_that_is_no_object_or_has_unknown_fields() {
    for claim in [json!(null), json!(60), json!("60"), json!([60]), json!(true)] {
        start().refused(&claiming(&claim).to_string(), "claim").await;
    }
    for field in ["lease", "leaseseconds", "token", ""] {
        let claim = json!({"leaseSeconds": 60, field: 1});
        start().refused(&claiming(&claim).to_string(), &format!("claim.{field}")).await;
    }
    let twice = claiming(&json!({})).to_string().replace("{}", r#"{"leaseSeconds":60,"leaseSeconds":60}"#);
    start().refused(&twice, "claim.leaseSeconds").await;
}

#[tokio::test]
async fn leases_missing_zero_negative_fractional_and_beyond_the_bounds() {
    start().refused_as("invalid-lease", &claiming(&json!({})).to_string(), "claim.leaseSeconds").await;
    for lease in [json!(0), json!(-1), json!(1.5), json!("60"), json!(null), json!(43_201), json!(1e20)] {
        let body = claiming(&json!({"leaseSeconds": lease})).to_string();
        start().refused_as("invalid-lease", &body, "claim.leaseSeconds").await;
    }
    for lease in [1, 43_200] {
        assert_eq!(start().check(&claiming(&json!({"leaseSeconds": lease}))).await.body["status"], "NEW");
    }
}

#[tokio::test]
async fn a_lease_never_runs_past_the_window() {
    let new = start().check(&with(for_60_seconds(), "ttlSeconds", json!(10))).await;
    assert_eq!(new.body["claim"]["leaseEndsAt"], new.body["windowEndsAt"]);
}

#[tokio::test]
async fn in_a_batch_each_claim_stands_for_itself() {
    let test = start();
    let items = json!([
        for_60_seconds(),
        with(for_60_seconds(), "key", json!("other")),
        for_60_seconds(),
        with(claiming(&json!({"leaseSeconds": 0})), "key", json!("third")),
        with(plain(), "key", json!("plain")),
    ]);
    let answer = test.post("/v1/check/batch", json!({ "items": items }).to_string()).await;
    let results = answer.body["results"].as_array().expect("results");
    let statuses: Vec<_> = results.iter().map(|result| result["status"].clone()).collect();
    assert_eq!(json!(statuses), json!(["NEW", "NEW", "SEEN", 400, "NEW"]));
    assert_ne!(results[0]["claim"]["token"], results[1]["claim"]["token"]);
    assert_eq!((&results[2]["disposition"], &results[2]["retryAfterSeconds"]), (&json!("RETRY"), &json!(60)));
    assert_eq!(results[3]["type"], "urn:dedup-ledger:problem:invalid-lease");
    assert_eq!(results[3]["field"], "claim.leaseSeconds");
    assert_eq!((results[4].get("attempt"), results[4].get("claim")), (None, None), "outside claim mode");
}

#[tokio::test]
async fn a_repeat_gets_the_stored_response_byte_for_byte() {
    let test = start();
    let token = test.check(&for_60_seconds()).await.token();
    let bytes: Vec<u8> = (0..=255).collect();
    let response = json!({"contentType": "application/edi-x12; charset=é", "body": STANDARD.encode(&bytes)});
    resolve(&test, &token, &response).await;
    for repeat in [for_60_seconds(), plain()] {
        let seen = test.check(&repeat).await;
        assert_eq!((&seen.body["status"], &seen.body["disposition"]), (&json!("SEEN"), &json!("DISCARD")));
        assert_eq!((&seen.body["state"], &seen.body["attempt"]), (&json!("RESOLVED"), &json!(1)));
        assert_eq!(seen.body["response"], response);
        let body = seen.body["response"]["body"].as_str().expect("a string");
        assert_eq!(STANDARD.decode(body).expect("base64"), bytes);
        assert_eq!(seen.headers.get("idempotent-replayed").map(|value| value.as_bytes()), Some(b"true".as_slice()));
        assert_eq!((seen.retry_after, seen.body.get("claim")), (None, None));
    }
}

#[tokio::test]
async fn without_a_stored_response_none_is_replayed() {
    let test = start();
    let token = test.check(&for_60_seconds()).await.token();
    let body = json!({"scope": "t:as4", "key": "k", "token": token});
    assert_eq!(test.post("/v1/claims/resolve", body.to_string()).await.status, 200);
    let seen = test.check(&for_60_seconds()).await;
    assert_eq!((&seen.body["state"], seen.body.get("response")), (&json!("RESOLVED"), None));
    assert!(!seen.headers.contains_key("idempotent-replayed"));
}

#[tokio::test]
async fn after_a_failure_or_a_lapse_the_next_check_is_attempt_2() {
    let test = start();
    let first = test.check(&for_60_seconds()).await;
    let fail = json!({"scope": "t:as4", "key": "k", "token": first.token(), "reason": "no partner profile"});
    assert_eq!(test.post("/v1/claims/fail", fail.to_string()).await.status, 200);
    let second = test.check(&for_60_seconds()).await;
    assert_eq!((&second.body["status"], &second.body["attempt"]), (&json!("NEW"), &json!(2)), "{}", second.body);
    assert_eq!(second.body["firstSeenAt"], first.body["firstSeenAt"]);
    assert_eq!(second.body["retryCount"], 1);
    test.clock.advance(60_000);
    let third = test.check(&for_60_seconds()).await;
    assert_eq!((&third.body["status"], &third.body["attempt"]), (&json!("NEW"), &json!(3)), "{}", third.body);
}

#[tokio::test]
async fn a_batch_leaves_out_the_stored_responses_that_its_answer_has_no_room_for() {
    let test = start();
    let response = json!({"contentType": "application/octet-stream", "body": STANDARD.encode(vec![1_u8; 65_536])});
    let key = |n: usize| json!(format!("k{n}"));
    let items: Vec<_> = (0..100).map(|n| with(for_60_seconds(), "key", key(n))).collect();
    let claimed = test.post("/v1/check/batch", json!({ "items": items }).to_string()).await;
    for n in 0..100 {
        let token = &claimed.body["results"][n]["claim"]["token"];
        let body = json!({"scope": "t:as4", "key": key(n), "token": token, "response": response});
        assert_eq!(test.post("/v1/claims/resolve", body.to_string()).await.status, 200);
    }
    let seen = test.post("/v1/check/batch", json!({ "items": items }).to_string()).await;
    assert!(seen.body.to_string().len() < 5 * 1024 * 1024, "Lambda passes it on");
    let results = seen.body["results"].as_array().expect("results");
    assert!(results.iter().all(|result| result["disposition"] == "DISCARD"));
    let (with_it, without): (Vec<_>, Vec<_>) = results.iter().partition(|result| result.get("response").is_some());
    assert_eq!((with_it.len(), without.len()), (47, 53), "4 MiB in base64, and the rest");
    assert!(with_it.iter().all(|result| result["response"] == response && result.get("responseOmitted").is_none()));
    assert!(without.iter().all(|result| result["responseOmitted"] == true));
    let alone = test.check(&items[99]).await;
    assert_eq!((&alone.body["response"], alone.body.get("responseOmitted")), (&response, None));
}

//! What a claim's holder may do, and each kind of bad input with its problem. Where one is refused the record is untouched.

use std::collections::BTreeSet;

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use ledger_domain::claim::{ClaimId, TokenKeys};
use ledger_domain::{Nonce, RegistrationId, Slot};
use ledger_testkit::house::{Send, subject};
use serde_json::{Value, json};

use crate::edge::{Answer, HASH, Test, start};

const RESOLVE: &str = "/v1/claims/resolve";
const FAIL: &str = "/v1/claims/fail";
const RENEW: &str = "/v1/claims/renew";

/// A test with a claim of 60 s on `t:as4`, key `k`, and its token.
async fn claimed() -> (Test, String) {
    let test = start();
    let token = claim(&test, "k").await.token();
    (test, token)
}

async fn claim(test: &Test, key: &str) -> Answer {
    test.check(&json!({"scope": "t:as4", "key": key, "payloadSha256": HASH, "claim": {"leaseSeconds": 60}})).await
}

fn with(mut body: Value, field: &str, value: Value) -> Value {
    body[field] = value;
    body
}

/// What each act must have.
fn act(token: &str) -> Value {
    json!({"scope": "t:as4", "key": "k", "token": token})
}

fn resolving(token: &str, text: &str) -> Value {
    with(act(token), "response", json!({"contentType": "text/plain", "body": STANDARD.encode(text)}))
}

fn renewing(token: &str, lease_seconds: &Value) -> Value {
    with(act(token), "leaseSeconds", lease_seconds.clone())
}

async fn done(test: &Test, path: &str, body: &Value) -> Value {
    let answer = test.post(path, body.to_string()).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.body
}

/// Refused with this problem; the record is as it was and no fact was sent.
async fn refused(test: &Test, path: &str, body: &Value, status: u16, name: &str) -> Answer {
    let before = test.traces();
    let answer = test.post(path, body.to_string()).await;
    answer.is_problem(status, name);
    assert_eq!(test.traces(), before, "{path}: the record is untouched");
    answer
}

/// [`refused`] with 400, naming a field and what was expected.
async fn refused_field(test: &Test, path: &str, body: &Value, name: &str, field: &str) {
    let answer = refused(test, path, body, 400, name).await;
    assert_eq!(answer.body["field"], field, "{}", answer.body);
    assert!(answer.body["detail"].as_str().is_some_and(|detail| detail.contains("expected")), "{}", answer.body);
}

/// A token as this deployment makes them, of a claim on `key` that was never given out.
fn made_up(key: &str, secret: [u8; 32]) -> String {
    let subject = subject("t:as4", key);
    let claim =
        ClaimId { registration_id: RegistrationId::from_bytes([9; 8]), attempt: 1, nonce: Nonce::from_bytes([9; 8]) };
    TokenKeys::new(&[secret]).expect("a key").issue(&Slot::of(&subject.scope, &subject.key), &claim)
}

#[tokio::test]
async fn resolve_fail_and_renew_on_the_wire() {
    let windows_end = "2026-10-21T14:13:20.000Z";
    let (test, token) = claimed().await;
    test.clock.advance(30_000);
    assert_eq!(
        done(&test, RENEW, &renewing(&token, &json!(120))).await,
        json!({"state": "IN_PROGRESS", "attempt": 1, "leaseEndsAt": "2026-09-21T14:15:50.000Z",
            "windowEndsAt": windows_end, "decidedBy": "hot"})
    );
    assert_eq!(
        done(&test, RESOLVE, &resolving(&token, "done")).await,
        json!({"state": "RESOLVED", "attempt": 1, "leaseEndsAt": "2026-09-21T14:15:50.000Z",
            "windowEndsAt": windows_end, "decidedBy": "hot"})
    );
    let (test, token) = claimed().await;
    assert_eq!(
        done(&test, FAIL, &with(act(&token), "reason", json!("no partner profile"))).await,
        json!({"state": "FAILED", "attempt": 1, "leaseEndsAt": "2026-09-21T14:14:20.000Z",
            "windowEndsAt": windows_end, "decidedBy": "hot"})
    );
    let health = test.send(Request::get("/v1/health").body(Body::empty()).expect("valid")).await;
    assert_eq!((&health.body["answers"]["failed"], &health.body["answers"]["resolved"]), (&json!(1), &json!(0)));
}

#[tokio::test]
async fn key_parts_stand_in_place_of_the_key() {
    let test = start();
    let parts = json!({"scope": "t:as4", "keyParts": ["a", "b"]});
    let check = with(with(parts.clone(), "payloadSha256", json!(HASH)), "claim", json!({"leaseSeconds": 60}));
    let token = test.check(&check).await.token();
    let body = with(parts, "token", json!(token));
    assert_eq!(done(&test, RESOLVE, &body).await["state"], "RESOLVED");
    let text = json!({"scope": "t:as4", "key": r#"["a","b"]"#, "token": token});
    refused(&test, RESOLVE, &text, 403, "foreign-token").await;
}

#[tokio::test]
async fn repeating_an_act_with_the_same_content_is_the_same_answer() {
    let (test, token) = claimed().await;
    let body = resolving(&token, "done");
    let first = done(&test, RESOLVE, &body).await;
    assert_eq!(done(&test, RESOLVE, &body).await, first);
    let (test, token) = claimed().await;
    let body = with(act(&token), "reason", json!("broken"));
    let first = done(&test, FAIL, &body).await;
    assert_eq!(done(&test, FAIL, &body).await, first);
    // While that attempt stands.
    claim(&test, "k").await.token();
    refused(&test, FAIL, &body, 409, "stale-claim").await;
}

#[tokio::test]
async fn missing_unknown_and_wrongly_typed_fields() {
    let (test, token) = claimed().await;
    for path in [RESOLVE, FAIL, RENEW] {
        let whole = if path == RENEW { renewing(&token, &json!(60)) } else { act(&token) };
        for field in ["scope", "key", "token"] {
            let mut body = whole.clone();
            body.as_object_mut().expect("an object").remove(field);
            refused_field(&test, path, &body, "invalid-input", field).await;
            for value in [json!(null), json!(1), json!(["a"])] {
                refused_field(&test, path, &with(whole.clone(), field, value), "invalid-input", field).await;
            }
        }
        let both = with(whole.clone(), "keyParts", json!(["a", "b"]));
        refused_field(&test, path, &both, "invalid-input", "keyParts").await;
        for field in ["payloadSha256", "Token", "claim"] {
            refused_field(&test, path, &with(whole.clone(), field, json!("x")), "invalid-input", field).await;
        }
        refused_field(&test, path, &json!([]), "invalid-input", "body").await;
    }
    // Each act has its own.
    refused_field(&test, RESOLVE, &with(act(&token), "reason", json!("x")), "invalid-input", "reason").await;
    refused_field(&test, FAIL, &with(act(&token), "response", json!({})), "invalid-input", "response").await;
    refused_field(&test, RENEW, &with(act(&token), "response", json!({})), "invalid-input", "response").await;
    for reason in [json!(null), json!(""), json!("x".repeat(201)), json!("a\nb"), json!(7)] {
        refused_field(&test, FAIL, &with(act(&token), "reason", reason), "invalid-input", "reason").await;
    }
    done(&test, FAIL, &with(act(&token), "reason", json!("x".repeat(200)))).await;
}

#[tokio::test]
async fn a_malformed_token() {
    let (test, token) = claimed().await;
    for malformed in ["", "x", "not a token", &token[1..], &format!("{token}="), &"A".repeat(100_000)] {
        for path in [RESOLVE, FAIL] {
            refused_field(&test, path, &act(malformed), "malformed-token", "token").await;
        }
        refused_field(&test, RENEW, &renewing(malformed, &json!(60)), "malformed-token", "token").await;
    }
}

#[tokio::test]
async fn a_foreign_token_and_a_forged_one() {
    let (test, token) = claimed().await;
    let of_another_key = claim(&test, "other").await.token();
    let of_another_deployment = made_up("k", [8; 32]);
    let forged = format!("{}{}", if token.starts_with('B') { 'C' } else { 'B' }, &token[1..]);
    for foreign in [of_another_key, of_another_deployment, forged] {
        for (path, body) in [(RESOLVE, act(&foreign)), (FAIL, act(&foreign)), (RENEW, renewing(&foreign, &json!(60)))] {
            let answer = refused(&test, path, &body, 403, "foreign-token").await;
            assert_eq!(answer.body["field"], "token");
            assert!(!answer.body.to_string().contains(&foreign), "it is not said back");
        }
    }
    done(&test, RESOLVE, &act(&token)).await;
}

#[tokio::test]
async fn a_token_of_a_message_that_no_tier_knows() {
    let test = start();
    let token = made_up("k", [7; 32]);
    refused(&test, RESOLVE, &act(&token), 404, "unknown-claim").await;
    refused(&test, FAIL, &act(&token), 404, "unknown-claim").await;
    refused(&test, RENEW, &renewing(&token, &json!(60)), 404, "unknown-claim").await;
    // Where the hot tier cannot vouch for its misses, nobody knows.
    test.trust.set(false);
    let answer = refused(&test, RESOLVE, &act(&token), 503, "undecided").await;
    assert_eq!((&answer.body["reason"], answer.retry_after.as_deref()), (&json!("absence"), Some("1")));
}

#[tokio::test]
async fn a_stale_token_of_an_earlier_attempt_and_of_another_registration() {
    let (test, token) = claimed().await;
    test.clock.advance(60_000);
    let second = claim(&test, "k").await;
    assert_eq!(second.body["attempt"], 2, "{}", second.body);
    for stale in [token, made_up("k", [7; 32])] {
        refused(&test, RESOLVE, &resolving(&stale, "late"), 409, "stale-claim").await;
        refused(&test, FAIL, &act(&stale), 409, "stale-claim").await;
        refused(&test, RENEW, &renewing(&stale, &json!(60)), 409, "stale-claim").await;
    }
    done(&test, RESOLVE, &resolving(&second.token(), "in time")).await;
}

#[tokio::test]
async fn a_lease_that_is_over_hinders_nobody_while_nobody_took_over() {
    let (test, token) = claimed().await;
    test.clock.advance(3_600_000);
    assert_eq!(done(&test, RENEW, &renewing(&token, &json!(60))).await["leaseEndsAt"], "2026-09-21T15:14:20.000Z");
    test.clock.advance(3_600_000);
    assert_eq!(done(&test, RESOLVE, &act(&token)).await["state"], "RESOLVED");
}

#[tokio::test]
async fn leases_of_a_renewal_missing_zero_negative_fractional_and_beyond_the_bounds() {
    let (test, token) = claimed().await;
    refused_field(&test, RENEW, &act(&token), "invalid-lease", "leaseSeconds").await;
    for lease in [json!(0), json!(-1), json!(1.5), json!("60"), json!(null), json!(43_201), json!(1e20)] {
        refused_field(&test, RENEW, &renewing(&token, &lease), "invalid-lease", "leaseSeconds").await;
    }
    for lease in [json!(1), json!(43_200)] {
        done(&test, RENEW, &renewing(&token, &lease)).await;
    }
}

#[tokio::test]
async fn resolving_twice_with_different_content_and_the_first_one_stands() {
    let (test, token) = claimed().await;
    done(&test, RESOLVE, &resolving(&token, "first")).await;
    let other_type =
        with(act(&token), "response", json!({"contentType": "text/html", "body": STANDARD.encode("first")}));
    for other in [resolving(&token, "second"), other_type, act(&token)] {
        refused(&test, RESOLVE, &other, 409, "claim-resolved").await;
    }
    refused(&test, FAIL, &act(&token), 409, "claim-resolved").await;
    refused(&test, RENEW, &renewing(&token, &json!(60)), 409, "claim-resolved").await;
    let seen = test.check(&json!({"scope": "t:as4", "key": "k", "payloadSha256": HASH})).await;
    assert_eq!(seen.body["response"]["body"], STANDARD.encode("first"));
}

#[tokio::test]
async fn resolving_after_a_failure() {
    let (test, token) = claimed().await;
    done(&test, FAIL, &act(&token)).await;
    refused(&test, RESOLVE, &resolving(&token, "late"), 409, "claim-failed").await;
    refused(&test, RENEW, &renewing(&token, &json!(60)), 409, "claim-failed").await;
    let other_reason = with(act(&token), "reason", json!("another"));
    refused(&test, FAIL, &other_reason, 409, "claim-failed").await;
}

#[tokio::test]
async fn renewing_after_the_window() {
    let test = start();
    let body = json!({"scope": "t:as4", "key": "k", "payloadSha256": HASH, "ttlSeconds": 60,
        "claim": {"leaseSeconds": 60}});
    let token = test.check(&body).await.token();
    test.clock.advance(60_000);
    refused(&test, RENEW, &renewing(&token, &json!(60)), 409, "claim-window-over").await;
    refused(&test, RESOLVE, &act(&token), 409, "claim-window-over").await;
    refused(&test, FAIL, &act(&token), 409, "claim-window-over").await;
    // Past its expiry the hot tier has let it go.
    test.clock.advance(200);
    refused(&test, RENEW, &renewing(&token, &json!(60)), 404, "unknown-claim").await;
}

#[tokio::test]
async fn a_response_of_65536_bytes_of_65537_and_of_none() {
    let (test, token) = claimed().await;
    let of = |length: usize| {
        let body = STANDARD.encode(vec![0xa5_u8; length]);
        with(act(&token), "response", json!({"contentType": "application/octet-stream", "body": body}))
    };
    let answer = refused(&test, RESOLVE, &of(65_537), 413, "response-too-large").await;
    assert_eq!(answer.body["field"], "response.body");
    done(&test, RESOLVE, &of(65_536)).await;
    let seen = test.check(&json!({"scope": "t:as4", "key": "k", "payloadSha256": HASH})).await;
    assert_eq!(seen.body["response"], of(65_536)["response"]);

    let (test, token) = claimed().await;
    done(&test, RESOLVE, &resolving(&token, "")).await;
    let seen = test.check(&json!({"scope": "t:as4", "key": "k", "payloadSha256": HASH})).await;
    assert_eq!(seen.body["response"], json!({"contentType": "text/plain", "body": ""}));
    assert!(seen.headers.contains_key("idempotent-replayed"));
}

#[tokio::test]
async fn a_request_over_1_mib() {
    let (test, token) = claimed().await;
    refused(&test, RESOLVE, &resolving(&token, &"x".repeat(1024 * 1024)), 413, "too-large").await;
}

#[tokio::test]
async fn a_response_in_broken_base64() {
    let (test, token) = claimed().await;
    for broken in ["=", "a", "YQ", "YQ=", "YQ==\n", " YQ==", "YR==", "-_-_", "YQ==YQ==", "é"] {
        let body = with(act(&token), "response", json!({"contentType": "text/plain", "body": broken}));
        refused_field(&test, RESOLVE, &body, "invalid-response", "response.body").await;
    }
}

#[tokio::test]
async fn a_response_that_is_none_or_lacks_something() {
    let (test, token) = claimed().await;
    let of = |response: Value| with(act(&token), "response", response);
    for response in [json!(null), json!("YQ=="), json!([])] {
        refused_field(&test, RESOLVE, &of(response), "invalid-response", "response").await;
    }
    let body = json!("YQ==");
    for (response, field) in [
        (json!({"body": body}), "response.contentType"),
        (json!({"contentType": "text/plain"}), "response.body"),
        (json!({"contentType": "text/plain", "body": null}), "response.body"),
        (json!({"contentType": "", "body": body}), "response.contentType"),
        (json!({"contentType": "x".repeat(129), "body": body}), "response.contentType"),
        (json!({"contentType": "a\r\nb", "body": body}), "response.contentType"),
        (json!({"contentType": 1, "body": body}), "response.contentType"),
        (json!({"contentType": "text/plain", "body": body, "status": 200}), "response.status"),
    ] {
        refused_field(&test, RESOLVE, &of(response), "invalid-response", field).await;
    }
    done(&test, RESOLVE, &of(json!({"contentType": "x".repeat(128), "body": body}))).await;
}

#[tokio::test]
async fn another_tenants_claims_and_callers_nobody_vouches_for() {
    let (test, token) = claimed().await;
    for path in [RESOLVE, FAIL, RENEW] {
        let whole = if path == RENEW { renewing(&token, &json!(60)) } else { act(&token) };
        let answer =
            refused(&test, path, &with(whole.clone(), "scope", json!("stranger:as4")), 403, "tenant-not-granted").await;
        assert_eq!(answer.body["field"], "scope");
        let answer = test.send(Request::post(path).body(Body::from(whole.to_string())).expect("valid")).await;
        answer.is_problem(401, "unknown-caller");
        let answer = test.send(Request::get(path).body(Body::empty()).expect("valid")).await;
        answer.is_problem(405, "method-not-allowed");
    }
}

#[tokio::test]
async fn an_act_whose_fact_the_queue_refused_is_a_503_and_its_repeat_a_200() {
    let (test, token) = claimed().await;
    test.queue.script([Send::Refuse]);
    let answer = test.post(RESOLVE, resolving(&token, "done").to_string()).await;
    answer.is_problem(503, "undecided");
    assert_eq!((&answer.body["reason"], answer.retry_after.as_deref()), (&json!("queue"), Some("1")));
    assert_eq!(done(&test, RESOLVE, &resolving(&token, "done")).await["state"], "RESOLVED");
}

#[tokio::test]
async fn each_kind_of_bad_input_is_a_problem_type_of_its_own() {
    let (test, token) = claimed().await;
    let large = STANDARD.encode(vec![0_u8; 65_537]);
    let response = |body: &str| with(act(&token), "response", json!({"contentType": "text/plain", "body": body}));
    let ended = |body: Value, key: &str| with(body, "key", json!(key));
    let (failed, resolved, over) = ("failed", "resolved", "over");
    let (failed_token, resolved_token) = (claim(&test, failed).await.token(), claim(&test, resolved).await.token());
    done(&test, FAIL, &ended(act(&failed_token), failed)).await;
    done(&test, RESOLVE, &ended(act(&resolved_token), resolved)).await;
    let short =
        json!({"scope": "t:as4", "key": over, "payloadSha256": HASH, "ttlSeconds": 1, "claim": {"leaseSeconds": 1}});
    let over_token = test.check(&short).await.token();
    test.clock.advance(1_000);
    let bad = [
        (RESOLVE, with(act(&token), "field", json!(1))),
        (RENEW, renewing(&token, &json!(0))),
        (RESOLVE, response("broken")),
        (RESOLVE, response(&large)),
        (RESOLVE, act("malformed")),
        (RESOLVE, act(&made_up("k", [8; 32]))),
        (RESOLVE, act(&made_up("k", [7; 32]))),
        (RESOLVE, ended(act(&made_up("unknown", [7; 32])), "unknown")),
        (RESOLVE, ended(act(&failed_token), failed)),
        (RESOLVE, ended(resolving(&resolved_token, "other"), resolved)),
        (RENEW, ended(renewing(&over_token, &json!(1)), over)),
        (RESOLVE, with(act(&token), "scope", json!("stranger:as4"))),
    ];
    let mut types = BTreeSet::new();
    for (path, body) in &bad {
        let answer = test.post(path, body.to_string()).await;
        types.insert(answer.body["type"].as_str().expect("a type").to_owned());
    }
    assert_eq!(types.len(), bad.len(), "{types:?}");
}

//! Atomic batches on the wire: all claimed, or none and each looked at.

use ledger_testkit::house::Send;
use serde_json::{Value, json};

use crate::edge::{Answer, HASH, Test, start};

fn level(key: &str) -> Value {
    json!({"scope": "t:as4", "key": key, "payloadSha256": HASH, "claim": {"leaseSeconds": 60}})
}

fn plain(key: &str) -> Value {
    json!({"scope": "t:as4", "key": key, "payloadSha256": HASH})
}

fn with(mut body: Value, field: &str, value: Value) -> Value {
    body[field] = value;
    body
}

async fn atomic(test: &Test, items: &[Value]) -> Answer {
    test.post("/v1/check/batch", json!({"atomic": true, "items": items}).to_string()).await
}

fn free() -> Value {
    json!({"status": "NEW", "disposition": "RETRY", "applied": false})
}

/// NEW for each: nothing was registered under these keys.
async fn are_free(test: &Test, keys: &[&str]) {
    for key in keys {
        assert_eq!(test.check(&plain(key)).await.body["status"], "NEW", "{key}");
    }
}

#[tokio::test]
async fn all_new_is_all_claimed() {
    let test = start();
    let answer = atomic(&test, &[level("transport"), level("envelope"), level("document")]).await;
    assert_eq!((answer.status.as_u16(), &answer.body["applied"]), (200, &json!(true)), "{}", answer.body);
    let results = answer.body["results"].as_array().expect("results");
    assert_eq!(results.len(), 3);
    for (result, key) in results.iter().zip(["transport", "envelope", "document"]) {
        assert_eq!((&result["status"], &result["disposition"]), (&json!("NEW"), &json!("PROCESS")), "{result}");
        assert_eq!((&result["attempt"], result.get("applied")), (&json!(1), None), "{result}");
        let resolve = json!({"scope": "t:as4", "key": key, "token": result["claim"]["token"]});
        assert_eq!(test.post("/v1/claims/resolve", resolve.to_string()).await.status, 200, "each has its own token");
    }
}

#[tokio::test]
async fn one_seen_is_none_claimed_and_no_sighting_counted() {
    let test = start();
    test.check(&plain("envelope")).await;
    test.check(&level("document")).await;
    let sent = test.queue.taken().len();
    let answer = atomic(&test, &[level("transport"), level("envelope"), level("document")]).await;
    assert_eq!((answer.status.as_u16(), &answer.body["applied"]), (200, &json!(false)), "{}", answer.body);
    let results = &answer.body["results"];
    assert_eq!(results[0], free());
    for (at, disposition) in [(1, "DISCARD"), (2, "RETRY")] {
        let result = &results[at];
        assert_eq!((&result["status"], &result["disposition"]), (&json!("SEEN"), &json!(disposition)), "{result}");
        assert_eq!(result["applied"], false);
    }
    assert_eq!(test.queue.taken().len(), sent, "no fact was sent");
    assert_eq!(test.check(&plain("envelope")).await.body["retryCount"], 1, "the look was no sighting");
    are_free(&test, &["transport"]).await;
}

#[tokio::test]
async fn an_item_that_cannot_be_read_is_none_claimed_and_the_others_are_looked_at() {
    let test = start();
    test.check(&plain("envelope")).await;
    let items = [
        level("transport"),
        with(level("bad"), "payloadSha256", json!("x")),
        level("envelope"),
        with(level("stranger"), "scope", json!("stranger:as4")),
        json!("nonsense"),
    ];
    let answer = atomic(&test, &items).await;
    assert_eq!((answer.status.as_u16(), &answer.body["applied"]), (200, &json!(false)), "{}", answer.body);
    let results = &answer.body["results"];
    assert_eq!(results[0], free());
    assert_eq!((&results[1]["status"], &results[1]["field"]), (&json!(400), &json!("payloadSha256")));
    assert_eq!((&results[2]["status"], &results[2]["applied"]), (&json!("SEEN"), &json!(false)));
    assert_eq!((&results[3]["status"], &results[4]["status"]), (&json!(403), &json!(400)));
    are_free(&test, &["transport", "bad"]).await;
}

#[tokio::test]
async fn a_lease_out_of_bounds_in_one_item_is_none_claimed() {
    let test = start();
    let answer = atomic(&test, &[level("a"), with(level("b"), "claim", json!({"leaseSeconds": 43_201}))]).await;
    assert_eq!(answer.body["applied"], false, "{}", answer.body);
    assert_eq!(answer.body["results"][0], free());
    let refused = &answer.body["results"][1];
    assert_eq!(refused["type"], "urn:dedup-ledger:problem:invalid-lease", "{refused}");
    are_free(&test, &["a", "b"]).await;
}

#[tokio::test]
async fn a_key_that_stands_twice_is_none_claimed() {
    let test = start();
    let answer = atomic(&test, &[level("a"), level("b"), level("a")]).await;
    assert_eq!(answer.body["applied"], false, "{}", answer.body);
    assert_eq!(answer.body["results"][0], free());
    assert_eq!(answer.body["results"][1], free());
    let refused = &answer.body["results"][2];
    assert_eq!((&refused["status"], &refused["field"]), (&json!(400), &json!("key")), "{refused}");
    are_free(&test, &["a", "b"]).await;
}

#[tokio::test]
async fn an_item_without_a_claim_is_a_400_naming_it() {
    let test = start();
    let answer = atomic(&test, &[level("a"), level("b"), plain("c")]).await;
    answer.is_problem(400, "invalid-input");
    assert_eq!(answer.body["field"], "items[2].claim");
    assert!(test.queue.taken().is_empty());
    are_free(&test, &["a", "b", "c"]).await;
}

#[tokio::test]
async fn atomic_is_true_or_false_and_nothing_else() {
    let test = start();
    for atomic in [json!(null), json!(1), json!("true"), json!([])] {
        let answer = test.post("/v1/check/batch", json!({"atomic": atomic, "items": [level("a")]}).to_string()).await;
        answer.is_problem(400, "invalid-input");
        assert_eq!(answer.body["field"], "atomic");
    }
    let answer = test.post("/v1/check/batch", json!({"atomic": false, "items": [plain("a")]}).to_string()).await;
    assert_eq!((&answer.body["results"][0]["status"], answer.body.get("applied")), (&json!("NEW"), None));
}

#[tokio::test]
async fn a_queue_that_refuses_is_none_claimed_and_each_says_that_nobody_knows() {
    let test = start();
    test.queue.script([Send::Refuse]);
    let answer = atomic(&test, &[level("a"), level("b")]).await;
    assert_eq!((answer.status.as_u16(), &answer.body["applied"]), (200, &json!(false)), "{}", answer.body);
    for result in answer.body["results"].as_array().expect("results") {
        assert_eq!((&result["status"], &result["reason"]), (&json!(503), &json!("queue")), "{result}");
    }
    are_free(&test, &["a", "b"]).await;
}

#[tokio::test]
async fn the_callers_own_retry_gets_its_claims_again() {
    let test = start();
    let items = [with(level("a"), "requestId", json!("d-1")), with(level("b"), "requestId", json!("d-1"))];
    let first = atomic(&test, &items).await;
    let again = atomic(&test, &items).await;
    assert_eq!(again.body["applied"], true, "{}", again.body);
    for at in 0..2 {
        let (first, again) = (&first.body["results"][at], &again.body["results"][at]);
        assert_eq!(again["replayed"], true, "{again}");
        assert_eq!(again["claim"], first["claim"]);
    }
}

//! Claims over a crash and over an end in good order, on the embedded tiers; and the keys of their tokens.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::process::{Answer, HASH, Local, Variables, run};

const SCOPE: &str = "tenant42:as4";

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn claim(local: &Local, key: &str) -> Answer {
    let claim = json!({"leaseSeconds": 3600});
    local.post("/v1/check", &json!({"scope": SCOPE, "key": key, "payloadSha256": HASH, "claim": claim}))
}

fn token(new: &Answer) -> String {
    new.is_new();
    new.body["claim"]["token"].as_str().unwrap_or_else(|| panic!("no claim: {}", new.body)).to_owned()
}

fn response() -> Value {
    json!({"contentType": "text/plain", "body": "ZG9uZQ=="})
}

fn resolve(local: &Local, key: &str, token: &str) -> Answer {
    local.post("/v1/claims/resolve", &json!({"scope": SCOPE, "key": key, "token": token, "response": response()}))
}

#[track_caller]
fn is_resolved(answer: &Answer) {
    assert_eq!((answer.status, &answer.body["state"]), (200, &json!("RESOLVED")), "{}", answer.body);
}

#[track_caller]
fn is_foreign(answer: &Answer) {
    assert_eq!(answer.status, 403, "{}", answer.body);
    assert_eq!(answer.body["type"], "urn:dedup-ledger:problem:foreign-token");
}

#[test]
fn a_claim_and_its_token_are_good_after_a_crash_and_so_is_what_was_stored() {
    let data = folder();
    let local = Local::start(data.path(), &[]);
    let token = token(&claim(&local, "k"));
    local.kill_minus_9();
    let local = Local::start(data.path(), &[]);
    let other = claim(&local, "k");
    other.is_seen(1);
    assert_eq!((&other.body["disposition"], &other.body["state"]), (&json!("RETRY"), &json!("IN_PROGRESS")));
    is_resolved(&resolve(&local, "k", &token));
    local.kill_minus_9();
    let local = Local::start(data.path(), &[]);
    let seen = local.check("k");
    assert_eq!((&seen.body["status"], &seen.body["disposition"]), (&json!("SEEN"), &json!("DISCARD")), "{}", seen.body);
    assert_eq!((&seen.body["response"], &seen.body["attempt"]), (&response(), &json!(1)));
    // Repeating the act is the same answer, however often the ledger was restarted between.
    is_resolved(&resolve(&local, "k", &token));
}

#[test]
fn an_attempt_that_failed_before_a_crash_is_taken_over_after_it() {
    let data = folder();
    let local = Local::start(data.path(), &[]);
    let first = token(&claim(&local, "k"));
    let fail = json!({"scope": SCOPE, "key": "k", "token": first, "reason": "no partner profile"});
    assert_eq!(local.post("/v1/claims/fail", &fail).status, 200);
    local.kill_minus_9();
    let local = Local::start(data.path(), &[]);
    let second = claim(&local, "k");
    assert_eq!(second.body["attempt"], 2, "{}", second.body);
    let late = resolve(&local, "k", &first);
    assert_eq!((late.status, &late.body["type"]), (409, &json!("urn:dedup-ledger:problem:stale-claim")));
    is_resolved(&resolve(&local, "k", &token(&second)));
}

/// The key that the program made for itself.
fn own_key(data: &Path) -> String {
    std::fs::read_to_string(data.join("token-key")).expect("it is kept in the data folder")
}

#[test]
fn the_folders_own_key_is_for_its_owner_alone_and_stays() {
    let (data, other) = (folder(), folder());
    Local::start(data.path(), &[]).stop();
    let key = own_key(data.path());
    assert_eq!(key.len(), 64);
    let mode = std::fs::metadata(data.path().join("token-key")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    Local::start(data.path(), &[]).stop();
    assert_eq!(own_key(data.path()), key);
    Local::start(other.path(), &[]).stop();
    assert_ne!(own_key(other.path()), key);
}

#[test]
fn keys_given_by_the_variable_take_the_place_of_the_folders_own() {
    let data = folder();
    let given = "a1".repeat(32);
    let with = |keys: &str| Local::start(data.path(), &[("LEDGER_TOKEN_KEYS", keys)]);
    let local = with(&given);
    let of_given = token(&claim(&local, "given"));
    local.stop();
    assert!(!data.path().join("token-key").exists(), "no key is made that is not needed");

    let local = Local::start(data.path(), &[]);
    is_foreign(&resolve(&local, "given", &of_given));
    let of_own = token(&claim(&local, "own"));
    local.stop();

    let local = with(&given);
    is_foreign(&resolve(&local, "own", &of_own));
    is_resolved(&resolve(&local, "given", &of_given));
    local.stop();
    // A new key put first, the old one still recognised.
    let local = with(&format!("{given},{}", own_key(data.path())));
    is_resolved(&resolve(&local, "own", &of_own));
}

/// Does not start; says this, and nothing of the keys.
fn is_no_start(name: &str, variables: Variables<'_>) {
    let (status, log) = run(variables, &[]);
    assert_eq!(status.code(), Some(1), "{status}\n{log}");
    assert!(log.contains(name) && !log.contains("s3cret"), "{log}");
}

#[test]
fn keys_that_are_none_are_no_start() {
    for keys in ["s3cret".to_owned(), format!("{},s3cret", "a".repeat(64)), format!("s3cret-{}", "a".repeat(64))] {
        is_no_start("LEDGER_TOKEN_KEYS", &[("LEDGER_TOKEN_KEYS", &keys)]);
    }
    let data = folder();
    std::fs::write(data.path().join("token-key"), "s3cret").expect("written");
    is_no_start("token-key", &[("LEDGER_DATA", data.path().to_str().expect("UTF-8"))]);
}

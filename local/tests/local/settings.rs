//! The settings: what they do, and that a broken one is no start.

use serde_json::json;

use crate::process::{HASH, Local, Variables, run};

fn check_in(local: &Local, scope: &str) -> crate::process::Answer {
    local.post("/v1/check", &json!({"scope": scope, "key": "k", "payloadSha256": HASH}))
}

#[test]
fn without_a_list_every_tenant_is_served_and_with_one_no_other() {
    let data = tempfile::tempdir().expect("a folder");
    let local = Local::start(data.path(), &[]);
    check_in(&local, "t1:as4").is_new();
    check_in(&local, "t2:as4").is_new();
    local.stop();
    let local = Local::start(data.path(), &[("LEDGER_TENANTS", "t1,t3")]);
    check_in(&local, "t1:as4").is_seen(1);
    let refused = check_in(&local, "t2:as4");
    assert_eq!((refused.status, &refused.body["field"]), (403, &json!("scope")), "{}", refused.body);
    assert_eq!(refused.body["type"], "urn:dedup-ledger:problem:tenant-not-granted");
    for query in [format!("tenant=t2&payloadSha256={HASH}"), "scope=t2:as4&key=k".to_owned()] {
        assert_eq!(local.get(&format!("/v1/messages?{query}")).status, 403, "{query}");
    }
}

#[test]
fn a_scope_without_a_tenant_gets_the_default_one() {
    let data = tempfile::tempdir().expect("a folder");
    let local = Local::start(data.path(), &[]);
    assert_eq!(check_in(&local, "as4").status, 400);
    local.stop();
    let local = Local::start(data.path(), &[("LEDGER_DEFAULT_TENANT", "t1")]);
    check_in(&local, "as4").is_new();
    check_in(&local, "t1:as4").is_seen(1);
    let page = local.get("/v1/messages?scope=as4&key=k");
    assert_eq!(page.body["messages"][0]["scope"], "t1:as4", "{}", page.body);
}

#[test]
fn a_policy_that_confirms_each_miss_is_decided_in_the_cold_ledger() {
    let data = tempfile::tempdir().expect("a folder");
    let policies = data.path().join("given.toml");
    std::fs::write(&policies, "[tenant.t1]\nconfirmMiss = \"always\"\n").expect("written");
    let local = Local::start(data.path(), &[("LEDGER_POLICIES", policies.to_str().expect("UTF-8"))]);
    let answer = check_in(&local, "t1:as4");
    answer.is_new();
    assert_eq!(answer.body["decidedBy"], "cold");
    assert_eq!(check_in(&local, "t1:as4").body["decidedBy"], "hot", "a repeat stands in the hot tier");
    assert_eq!(check_in(&local, "t2:as4").body["decidedBy"], "hot");
}

#[test]
fn policies_in_the_data_folder_are_found_unasked() {
    let data = tempfile::tempdir().expect("a folder");
    std::fs::write(data.path().join("policies.toml"), "[family.as4]\nrequireRequestId = true\n").expect("written");
    let local = Local::start(data.path(), &[]);
    let refused = check_in(&local, "t1:as4");
    assert_eq!((refused.status, &refused.body["field"]), (400, &json!("requestId")), "{}", refused.body);
}

/// Does not start, and says `name`.
fn is_refused(name: &str, variables: Variables<'_>) {
    let (status, log) = run(variables, &[]);
    assert_eq!(status.code(), Some(1), "{variables:?}: {status}\n{log}");
    assert!(log.contains(name), "{variables:?} is not named:\n{log}");
    assert!(!log.contains("s3cret"), "{variables:?}: a secret is shown:\n{log}");
}

#[test]
fn a_broken_variable_is_no_start_and_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let (no_toml, no_policy) = (file("no.toml", "not TOML"), file("no-policy.toml", "[tenant.t1]\nwindow = 1\n"));
    let missing = folder.path().join("missing.toml");
    for path in [no_toml.as_str(), no_policy.as_str(), missing.to_str().expect("UTF-8")] {
        is_refused("LEDGER_POLICIES", &[("LEDGER_POLICIES", path)]);
    }
    for (name, value) in [
        ("REDIS_URL", "http://:s3cret@127.0.0.1"),
        // Port 1: nobody listens.
        ("REDIS_URL", "redis://:s3cret@127.0.0.1:1"),
        ("DATABASE_URL", "mysql://user:s3cret@127.0.0.1/ledger"),
        ("DATABASE_URL", "postgres://user:s3cret@127.0.0.1:1/ledger"),
        ("LEDGER_TENANTS", "t1,Not A Tenant"),
        ("LEDGER_DEFAULT_TENANT", "Not A Tenant"),
        ("LEDGER_ADDR", "nowhere"),
        ("LEDGER_DATA", "/proc/no-such-folder"),
    ] {
        is_refused(name, &[(name, value)]);
    }
    let (status, log) = run(&[], &["unknown-argument"]);
    assert!(!status.success() && log.contains("migrate"), "{log}");
}

#[test]
fn a_second_process_on_one_folder_does_not_start() {
    let data = tempfile::tempdir().expect("a folder");
    let local = Local::start(data.path(), &[]);
    is_refused("LEDGER_DATA", &[("LEDGER_DATA", data.path().to_str().expect("UTF-8"))]);
    local.check("k").is_new();
}

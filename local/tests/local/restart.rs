//! What is kept over a crash and over an end in good order, on the embedded tiers.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use ledger_domain::ports::EventQueue as _;
use ledger_domain::ports::{Clock, QueueConsumer as _};
use ledger_domain::{Fact, Nonce, Record, RegistrationId, State, Timestamp};
use ledger_stores::clock::SystemClock;
use ledger_stores::sqlite_queue::{SqliteQueue, SqliteQueueSettings};
use ledger_testkit::house::{check, subject};
use serde_json::json;

use crate::block_on;
use crate::process::{Answer, HASH, Local, answer, eventually};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn the_first_is_new_the_second_seen_and_a_crash_changes_nothing() {
    let data = folder();
    let local = Local::start(data.path(), &[]);
    local.check("a1@partner.example").is_new();
    local.check("a1@partner.example").is_seen(1);
    // A repeat's count goes its way behind the answer.
    let counted = eventually(|| local.in_history("a1@partner.example").filter(|m| m["retryCount"] == 1));
    assert!(counted.is_some(), "the count is drained");
    local.kill_minus_9();
    let local = Local::start(data.path(), &[]);
    local.check("a1@partner.example").is_seen(2);
    local.check("a2@partner.example").is_new();
}

#[test]
fn nothing_answered_new_right_before_a_crash_is_new_again() {
    let data = folder();
    for round in 0..3 {
        let local = Local::start(data.path(), &[]);
        let key = |n: u32| format!("round-{round}-{n}");
        std::thread::scope(|scope| {
            let checks: Vec<_> = (0..50)
                .map(|n| {
                    scope.spawn({
                        let local = &local;
                        move || local.check(&key(n))
                    })
                })
                .collect();
            checks.into_iter().for_each(|check| check.join().expect("answered").is_new());
        });
        local.kill_minus_9();
        let local = Local::start(data.path(), &[]);
        (0..50).for_each(|n| local.check(&key(n)).is_seen(1));
        local.stop();
    }
}

#[test]
fn what_a_crashed_drain_had_in_its_hands_is_known_before_the_first_answer() {
    let data = folder();
    let queue = block_on(plant(data.path(), &[registered("k", 1, 0)]));
    // Received and not acknowledged: hidden for 30 s from whoever does not know that nobody works on it any more.
    assert_eq!(block_on(queue.receive(10)).expect("received").len(), 1);
    drop(queue);
    Local::start(data.path(), &[]).check("k").is_seen(1);
}

#[test]
fn a_count_that_came_batches_after_its_registration_goes_on() {
    let data = folder();
    let fillers = (2..1_500).map(|n| registered(&n.to_string(), n, 0));
    let facts: Vec<_> = [registered("k", 1, 0)].into_iter().chain(fillers).chain([registered("k", 1, 5)]).collect();
    drop(block_on(plant(data.path(), &facts)));
    Local::start(data.path(), &[]).check("k").is_seen(6);
}

#[test]
fn with_dead_letters_it_starts_and_settles_misses_in_the_cold_ledger() {
    let data = folder();
    let local = Local::start(data.path(), &[]);
    local.check("k").is_new();
    let new = local.check("other");
    new.is_new();
    assert_eq!(new.body["decidedBy"], "hot", "nothing is missing");
    local.stop();
    block_on(async {
        use sqlx::{ConnectOptions as _, Executor as _};
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(data.path().join("queue.sqlite"));
        let mut connection = options.connect().await.expect("opens");
        let dead = "INSERT INTO dead_letter (body, deliveries, given_up_at_ms) VALUES ('{\"v\":999}', 5, 0)";
        connection.execute(dead).await.expect("planted");
        connection.execute("UPDATE tally SET dead = dead + 1").await.expect("counted");
    });
    let local = Local::start(data.path(), &[]);
    local.check("k").is_seen(1);
    let new = local.check("unheard of");
    new.is_new();
    assert_eq!(new.body["decidedBy"], "cold", "the dead letter may be about it");
}

#[test]
fn requests_under_way_at_a_sigterm_are_answered_and_their_facts_drained() {
    let data = folder();
    let local = Local::start(data.path(), &[]);
    local.check("repeated").is_new();
    let body = |key: &str| json!({"scope": "tenant42:as4", "key": key, "payloadSha256": HASH}).to_string();
    let keys: Vec<String> = (0..8).map(|n| format!("under-way-{n}")).chain(["repeated".to_owned()]).collect();
    let mut streams: Vec<_> = keys.iter().map(|key| begin_check(&local, &body(key))).collect();
    local.send_sigterm();
    // Nobody listens any more: the end has begun.
    eventually(|| local.connect().is_none().then_some(())).expect("it stops to listen");
    for (stream, key) in streams.iter_mut().zip(&keys) {
        stream.write_all(body(key).as_bytes()).expect("sent");
    }
    let answers: Vec<Answer> = streams.iter_mut().map(answer).collect();
    let (repeated, new) = answers.split_last().expect("nine");
    new.iter().for_each(Answer::is_new);
    repeated.is_seen(1);
    let (status, log) = local.ended();
    assert!(status.success(), "{status}\n{log}");

    let local = Local::start(data.path(), &[]);
    for key in &keys {
        let expected = u32::from(key == "repeated");
        let found = local.in_history(key).unwrap_or_else(|| panic!("{key} is not in history"));
        assert_eq!((&found["retryCount"], &found["location"]), (&json!(expected), &json!("cold")), "{found}");
        local.check(key).is_seen(expected + 1);
    }
}

/// Sends a check's head and waits until the program asks for the body.
fn begin_check(local: &Local, body: &str) -> std::net::TcpStream {
    let mut stream = local.connect().expect("it listens");
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nHost: local\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("sent");
    let asked = b"HTTP/1.1 100 Continue\r\n\r\n";
    let mut read = vec![0; asked.len()];
    stream.read_exact(&mut read).expect("it asks for the body");
    assert_eq!(read, asked);
    stream
}

#[test]
fn a_client_that_never_says_anything_holds_no_end_up() {
    let data = folder();
    let local = Local::start(data.path(), &[]);
    let silent = local.connect().expect("it listens");
    // Served after it, so the silent one is accepted by now.
    local.check("k").is_new();
    local.send_sigterm();
    let (status, log) = local.ended();
    assert!(status.success(), "{status}");
    assert!(!log.contains("still under way"), "{log}");
    drop(silent);
}

/// Puts facts into the queue's file, as a process that crashed would have left them.
async fn plant(data: &Path, facts: &[Fact]) -> SqliteQueue {
    let clock = Arc::new(SystemClock);
    let queue = SqliteQueue::open(&data.join("queue.sqlite"), clock, SqliteQueueSettings::default()).await;
    let queue = queue.expect("opens");
    assert!(queue.send(facts).await.iter().all(Result::is_ok));
    queue
}

/// A registration of now, counted so often since.
fn registered(key: &str, id: u64, retry_count: u32) -> Fact {
    let now: Timestamp = SystemClock.now().expect("known");
    // Within one registration these never differ.
    let first_seen_at = Timestamp::from_millis(now.as_millis() / 3_600_000 * 3_600_000);
    let record = Record {
        registration_id: RegistrationId::from_bytes(id.to_be_bytes()),
        state: State::Registered,
        attempt: 1,
        nonce: Nonce::from_bytes(id.to_be_bytes()),
        won_at: first_seen_at,
        first_seen_at,
        last_seen_at: now,
        window_ends_at: first_seen_at.plus_seconds(7 * 86_400),
        payload_hash: check("tenant42:as4", key, 1).payload,
        retry_count,
        source_service: None,
        drift: None,
        lease_ends_at: None,
        response: None,
        attempt_source: None,
        ended: None,
        undurable: false,
        take_over: None,
    };
    Fact::of(subject("tenant42:as4", key), &record)
}

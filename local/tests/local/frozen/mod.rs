//! A process is frozen and thawed, and the world has changed in between: it decides nothing on what it knew before.
//!
//! The freezes are as short as what they have to outlast. `LEDGER_FREEZE_SECONDS` makes each of them longer.

mod world;

use std::net::TcpStream;

use ledger_testkit::tcp_proxy::Mode;
use serde_json::{Value, json};
use sqlx::Connection as _;

use self::world::{
    SCOPE, World, claiming, identified, is_longer_than, is_new_in_cold, is_not_new, is_seen_in_cold, plain,
    wait_until_decides,
};
use crate::block_on;
use crate::process::{Answer, Local, answer, eventually};
use crate::tiers::one_number;

/// Longer than what is known of Redis may be believed (2 s), and shorter than a PENDING holds: nothing else keeps the process
/// from deciding on what it knew.
const PAST_TRUST_SECONDS: u64 = 3;
/// Longer than a PENDING holds (10 s).
const PAST_PENDING_SECONDS: u64 = 11;
/// Checks at once.
const LOAD: usize = 200;
/// Messages that SQS takes or gives at once.
const BATCH: usize = 10;
/// How often a process is caught at the wrong moment before a test counts as one that cannot be set up.
const ROUNDS_MAX: u32 = 20;

fn check(local: &Local, body: &Value) -> Answer {
    local.post("/v1/check", body)
}

fn answers<const N: usize>(sent: [TcpStream; N]) -> [Answer; N] {
    sent.map(|mut stream| answer(&mut stream))
}

fn token(new: &Answer) -> String {
    new.body["claim"]["token"].as_str().unwrap_or_else(|| panic!("no claim: {}", new.body)).to_owned()
}

fn resolve(key: &str, token: &str) -> Value {
    let response = json!({"contentType": "text/plain", "body": "ZG9uZQ=="});
    json!({"scope": SCOPE, "key": key, "token": token, "response": response})
}

/// Takes a claim over, as soon as its lease is over.
fn take_over(local: &Local, key: &str) -> Answer {
    let taken = eventually(|| {
        let answer = check(local, &claiming(key, 600));
        (answer.body["status"] == "NEW").then_some(answer)
    });
    let taken = taken.unwrap_or_else(|| panic!("{key} is never taken over"));
    assert_eq!((&taken.body["attempt"], &taken.body["decidedBy"]), (&json!(2), &json!("cold")), "{}", taken.body);
    taken
}

#[test]
fn what_was_sent_to_a_frozen_process_is_not_decided_on_what_it_knew() {
    let world = World::start("sent");
    let late = check(&world.frozen, &claiming("held", 2));
    late.is_new();
    world.is_drained("held");
    world.freeze_in_good_faith();
    let (sent, winner) = world.thaw_after(PAST_TRUST_SECONDS, || {
        let winner = world.elsewhere(&["plain", "claimed", "batched", "held"], |other| {
            is_new_in_cold(&check(other, &plain("plain")));
            is_new_in_cold(&check(other, &claiming("claimed", 600)));
            is_new_in_cold(&check(other, &plain("batched")));
            take_over(other, "held")
        });
        let batch = json!({"items": [plain("batched"), plain("unheard of")]});
        let sent = [
            world.frozen.send("/v1/check", &plain("plain")),
            world.frozen.send("/v1/check", &claiming("claimed", 600)),
            world.frozen.send("/v1/check/batch", &batch),
            world.frozen.send("/v1/claims/resolve", &resolve("held", &token(&late))),
        ];
        (sent, winner)
    });
    let [plain_check, claim, batch, act] = answers(sent);
    is_seen_in_cold(&plain_check, "DISCARD");
    is_seen_in_cold(&claim, "RETRY");
    let of_batch = |at: usize| Answer { status: batch.status, body: batch.body["results"][at].clone() };
    is_seen_in_cold(&of_batch(0), "DISCARD");
    is_new_in_cold(&of_batch(1));
    // The holder that slept is told that another one works on it, and undoes nothing.
    assert_eq!((act.status, &act.body["type"]), (409, &json!("urn:dedup-ledger:problem:stale-claim")), "{}", act.body);
    let resolved = world.frozen.post("/v1/claims/resolve", &resolve("held", &token(&winner)));
    assert_eq!((resolved.status, &resolved.body["state"]), (200, &json!("RESOLVED")), "{}", resolved.body);
}

/// In Redis's reply to a look whether it is complete.
const LOOK: &[u8] = b"run_id:";

/// Checks inside the process, each between its question to Redis and its answer, and the process frozen.
struct Caught {
    /// Keys that nobody had checked before, and how they were asked for.
    fresh: [(String, Value); 3],
    /// Of a key that is registered.
    repeat: String,
    /// Of a key that somebody else holds a claim on.
    held: String,
    sent: [TcpStream; 5],
}

/// Keeps Redis's replies back, and freezes the process as soon as those to five checks are on their way, and, where it
/// `is_looking`, the one to its own look whether Redis is complete; else it does not look just then.
fn catch_before_replies(world: &World, is_looking: bool) -> Caught {
    for round in 0..ROUNDS_MAX {
        let key = |name: &str| format!("{name} {round}");
        let (repeat, held) = (key("repeat"), key("held"));
        check(&world.frozen, &plain(&repeat)).is_new();
        check(&world.frozen, &claiming(&held, 2)).is_new();
        world.is_drained(&repeat);
        world.is_drained(&held);
        let standing = [&repeat, &held].map(|key| world.value(key).expect("it stands in Redis"));
        world.to_redis.set_mode(Mode::HoldReplies);
        let fresh = [plain(&key("plain")), identified(&key("identified")), claiming(&key("claimed"), 600)];
        let fresh = fresh.map(|body| (body["key"].as_str().expect("a key").to_owned(), body));
        let bodies = [&fresh[0].1, &fresh[1].1, &fresh[2].1, &plain(&repeat), &claiming(&held, 600)];
        let sent = bodies.map(|body| world.frozen.send("/v1/check", body));
        let are_on_their_way = eventually(|| {
            let are_won = fresh.iter().all(|(key, _)| world.value(key).is_some());
            let are_read = standing.iter().all(|value| world.to_redis.holds(value));
            (are_won && are_read && (world.to_redis.holds(LOOK) || !is_looking)).then_some(())
        });
        are_on_their_way.expect("Redis has answered");
        world.frozen.freeze();
        if world.believes() && world.to_redis.holds(LOOK) == is_looking {
            return Caught { fresh, repeat, held, sent };
        }
        // It was not frozen in time: its look at Redis was over, or had begun.
        world.frozen.thaw();
        world.to_redis.set_mode(Mode::Pass);
        answers(sent);
        eventually(|| world.believes().then_some(())).expect("it believes Redis again");
    }
    panic!("it is never caught in good faith");
}

/// Thaws what was caught after so many seconds, in which Redis lost everything and the other process decided.
fn thaw_caught(world: &World, seconds: u64, caught: &Caught) {
    world.thaw_after(seconds, || {
        let mut keys: Vec<&str> = caught.fresh.iter().map(|(key, _)| key.as_str()).collect();
        keys.extend([caught.repeat.as_str(), &caught.held]);
        world.elsewhere(&keys, |other| {
            for (key, body) in &caught.fresh {
                let body = if body.get("requestId").is_some() { &plain(key) } else { body };
                is_new_in_cold(&check(other, body));
            }
            take_over(other, &caught.held);
        });
        // What Redis said before it lost everything is there when the process looks again.
        world.to_redis.set_mode(Mode::Pass);
    });
}

fn a_check_under_way_is_decided_anew(name: &str, is_looking: bool) {
    let world = World::start(name);
    let caught = catch_before_replies(&world, is_looking);
    thaw_caught(&world, PAST_TRUST_SECONDS, &caught);
    let [plain_check, identified_check, claim, repeat, held] = answers(caught.sent);
    if is_longer_than(PAST_PENDING_SECONDS) {
        [plain_check, identified_check, claim, repeat, held].iter().for_each(is_not_new);
        return;
    }
    is_seen_in_cold(&plain_check, "DISCARD");
    is_seen_in_cold(&identified_check, "DISCARD");
    is_seen_in_cold(&claim, "RETRY");
    is_seen_in_cold(&repeat, "DISCARD");
    is_seen_in_cold(&held, "RETRY");
}

#[test]
fn a_check_under_way_does_not_end_on_what_the_process_knew() {
    a_check_under_way_is_decided_anew("under_way", false);
}

/// What Redis said before it lost everything is as old as the question.
#[test]
fn a_look_at_redis_under_way_does_not_make_what_it_hears_new() {
    a_check_under_way_is_decided_anew("looking", true);
}

#[test]
fn a_check_whose_pending_is_over_when_the_process_thaws_is_no_new() {
    let world = World::start("pending");
    let caught = catch_before_replies(&world, false);
    thaw_caught(&world, PAST_PENDING_SECONDS, &caught);
    let Caught { fresh, sent, .. } = caught;
    answers(sent).iter().for_each(is_not_new);
    for (key, body) in fresh {
        let again = check(&world.frozen, &body);
        assert_eq!((again.status, &again.body["status"]), (200, &json!("SEEN")), "{key}: {}", again.body);
    }
}

/// The most that a freeze can do: the fact had left the process, which believed Redis then, and nobody else could know of it. A
/// plain caller must be told NEW, for whoever meets the fact is told SEEN. It is counted as one whose confirmation was lost, and
/// the second NEW is found.
#[test]
fn a_fact_that_is_sent_as_the_process_freezes_is_found_to_be_a_second_new() {
    let world = World::start("fact");
    world.to_queue.set_mode(Mode::HoldRequests);
    let bodies = [plain("plain"), identified("identified"), claiming("claimed", 600)];
    let keys = ["plain", "identified", "claimed"];
    let sent = bodies.each_ref().map(|body| world.frozen.send("/v1/check", body));
    let is_sent = |key: &&str| world.to_queue.holds(format!("\\\"{key}\\\"").as_bytes());
    eventually(|| keys.iter().all(is_sent).then_some(())).expect("the facts are on their way");
    // That they go by the queue says that it believed Redis.
    world.frozen.freeze();
    world.thaw_after(PAST_TRUST_SECONDS, || {
        world.elsewhere(&keys, |other| {
            is_new_in_cold(&check(other, &plain("plain")));
            is_new_in_cold(&check(other, &plain("identified")));
            is_new_in_cold(&check(other, &bodies[2]));
        });
        world.to_queue.set_mode(Mode::Pass);
        let linked = "SELECT count(*) FROM dedup_ledger WHERE false_new_of IS NOT NULL";
        let found = eventually(|| (one_number(&world.database_url, linked) == 3).then_some(()));
        found.expect("each has a row beside the one that the other process answered for");
    });
    let [plain_check, identified_check, claim] = answers(sent);
    let (new, others): (Vec<_>, Vec<_>) =
        [plain_check, identified_check].into_iter().partition(|answer| answer.body["status"] == "NEW");
    others.iter().for_each(is_not_new);
    let counts = world.frozen.get("/v1/health").body["answers"].clone();
    let unsure = counts["confirmLost"].as_u64().zip(counts["notDurable"].as_u64()).map(|(lost, unsure)| lost + unsure);
    assert_eq!(unsure, Some(new.len() as u64), "{counts}");
    is_not_new(&claim);
}

/// Wherever a check stood when the process froze: what the other process tells to discard, since its fact had left the frozen one,
/// that one tells to process when it thaws; and what is told NEW twice is found.
#[test]
fn a_process_that_freezes_under_load_leaves_nothing_lost_and_no_second_new_unfound() {
    let world = World::start("load");
    let keys: Vec<String> = (0..LOAD).map(|n| format!("loaded {n}")).collect();
    let sent: Vec<TcpStream> = keys.iter().map(|key| world.frozen.send("/v1/check", &identified(key))).collect();
    sent.iter().for_each(|stream| stream.set_nonblocking(true).expect("a socket"));
    let is_answered = |stream: &&TcpStream| stream.peek(&mut [0]).is_ok();
    eventually(|| (sent.iter().filter(is_answered).count() > LOAD / 4).then_some(())).expect("some are answered");
    world.frozen.freeze();
    let (was_answered, theirs) = world.thaw_after(PAST_TRUST_SECONDS, || {
        let was_answered: Vec<bool> = sent.iter().map(|stream| is_answered(&stream)).collect();
        // What it had taken from the queue itself it keeps for a while.
        let waiting = || world.other.get("/v1/health").body["tiers"]["queue"]["waiting"].as_u64();
        let is_drained = || waiting().is_some_and(|waiting| waiting <= BATCH as u64).then_some(());
        eventually(is_drained).expect("the facts that had left the process are drained");
        let theirs = world.elsewhere(&[], |other| keys.iter().map(|key| check(other, &plain(key))).collect::<Vec<_>>());
        (was_answered, theirs)
    });
    let is = |answer: &Answer, status: &str| answer.body["status"] == status;
    let (mut twice, mut owed) = (Vec::new(), 0);
    for (((key, mut stream), theirs), was_answered) in keys.iter().zip(sent).zip(theirs).zip(was_answered) {
        stream.set_nonblocking(false).expect("a socket");
        let first = answer(&mut stream);
        let again = || Some(check(&world.frozen, &identified(key))).filter(|again| again.status == 200);
        let ours = if first.status == 503 { eventually(again).expect("it is answered") } else { first };
        assert!(is(&ours, "NEW") || is(&theirs, "NEW"), "{key} is lost: {ours:?} and {theirs:?}");
        if is(&ours, "NEW") && is(&theirs, "NEW") {
            twice.push(key.clone());
        }
        owed += usize::from(!was_answered && is(&theirs, "SEEN"));
    }
    println!("{owed} of {LOAD} were owed when it thawed, {} were told NEW twice", twice.len());
    assert!(owed > 0, "none was under way");
    assert!(
        twice.len() <= 2 * BATCH,
        "only what it held of the queue, and what it was sending, can nobody know of: {twice:?}"
    );
    let found = eventually(|| (false_news(&world.database_url, &twice) == twice.len()).then_some(()));
    found.unwrap_or_else(|| panic!("of {twice:?} not each is found"));
}

/// How many of these keys have a row that is linked as a false NEW.
fn false_news(database_url: &str, keys: &[String]) -> usize {
    let sql = "SELECT count(DISTINCT key) FROM dedup_ledger WHERE key = ANY($1) AND false_new_of IS NOT NULL";
    let count: i64 = block_on(async {
        let mut connection = sqlx::PgConnection::connect(database_url).await.expect("the database answers");
        let count = sqlx::query_scalar(sql).bind(keys).fetch_one(&mut connection).await.expect("a number");
        connection.close().await.expect("closed");
        count
    });
    usize::try_from(count).expect("a count")
}

/// Registers keys in a transaction that stays open: whoever registers one of them waits for its end.
fn register_and_wait(database_url: &str, keys: &[&str]) -> sqlx::PgConnection {
    block_on(async {
        let mut connection = sqlx::PgConnection::connect(database_url).await.expect("the database answers");
        sqlx::query("BEGIN").execute(&mut connection).await.expect("begun");
        let insert = "INSERT INTO dedup_claim (scope, key, key_is_parts, payload_sha256, first_seen_at, last_seen_at, retry_count, \
                      registration_id, nonce, window_ends_at, state, attempt, won_at) \
                      SELECT $1, key, false, decode(repeat('00', 32), 'hex'), now(), now(), 0, decode(repeat('00', 8), 'hex'), \
                      decode(repeat('00', 8), 'hex'), now() + interval '1 hour', 'REGISTERED', 1, now() FROM unnest($2) AS key";
        let insert = sqlx::query(insert).bind(SCOPE).bind(keys).execute(&mut connection).await;
        assert_eq!(insert.expect("inserted").rows_affected(), keys.len() as u64);
        connection
    })
}

#[test]
fn what_the_cold_ledger_decided_for_a_process_whose_session_ended_meanwhile_is_not_told() {
    let world = World::start("session");
    world.cut_off();
    let keys = ["plain", "identified"];
    let cut_off = eventually(|| (check(&world.frozen, &plain("cut off")).body["decidedBy"] == "cold").then_some(()));
    cut_off.expect("it decides under a cold session");
    assert_eq!(world.other.get("/v1/health").body["tiers"]["controlPlane"]["coldSessions"], true);
    let waited_for = register_and_wait(&world.database_url, &keys);
    let bodies = [plain(keys[0]), identified(keys[1])];
    let sent = bodies.each_ref().map(|body| world.frozen.send("/v1/check", body));
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let wait = |count| eventually(|| (one_number(&world.database_url, waiting) == count).then_some(()));
    wait(2).expect("both are under way in the cold ledger");
    world.frozen.freeze();
    // As long as the session lasts, 20 s at most, and nobody is kept from believing Redis by it any more.
    world.thaw_after(0, || {
        world.keep_until_complete();
        wait_until_decides(&world.other, "hot");
        for key in keys {
            let new = check(&world.other, &plain(key));
            new.is_new();
            assert_eq!(new.body["decidedBy"], "hot", "{}", new.body);
        }
        block_on(waited_for.close()).expect("rolled back");
        wait(0).expect("the cold ledger has decided");
    });
    let [plain_check, identified_check] = answers(sent);
    // Its retry is told what stands; who cannot ask again is told NEW, which is counted.
    assert_eq!(identified_check.status, 503, "{}", identified_check.body);
    let is_new = plain_check.body["status"] == "NEW";
    if is_new {
        let linked = "SELECT count(*) FROM dedup_ledger WHERE key = 'plain' AND false_new_of IS NOT NULL";
        let found = eventually(|| (one_number(&world.database_url, linked) == 1).then_some(()));
        found.expect("it is found to be a second NEW");
    } else {
        is_not_new(&plain_check);
    }
    assert_eq!(world.frozen.get("/v1/health").body["answers"]["confirmLost"], u64::from(is_new));
    world.to_redis.set_mode(Mode::Pass);
    let again = eventually(|| Some(check(&world.frozen, &bodies[1])).filter(|again| again.status == 200));
    assert_eq!(again.expect("it is answered").body["status"], "SEEN");
}

//! Several levels of one message in one atomic batch.

use ledger_domain::check::{Check, Looked, TogetherAnswer};
use ledger_domain::ports::HotTier;
use ledger_domain::transition::Found;
use ledger_domain::{DecidedBy, Disposition, Fact, NewVerdict, Refusal, Slot, State, Undecided, Verdict};
use ledger_testkit::between::Op;
use ledger_testkit::house::{Send, check, claiming, with_request_id};

use super::{MINUTE_MS, Place, token};

super::on_each_place!(
    all_are_new_and_claimed_by_one_message,
    one_that_was_seen_leaves_all_as_they_were,
    one_in_progress_and_one_resolved_are_looked_at_and_not_counted,
    what_cannot_be_taken_together_is_refused_by_name,
    a_refused_message_registers_nothing,
    a_message_that_may_be_durable_hands_out_marked_claims,
    a_lost_confirmation_is_made_up_for_by_the_batchs_retry,
    once_its_message_may_be_durable_nothing_is_let_go_of,
    what_the_cold_ledger_has_not_heard_of_it_is_told_before_it_decides,
    a_crash_before_the_message_leaves_pendings_that_lapse,
    a_crash_after_the_message_leaves_claims_that_the_cold_writer_confirms,
    a_failed_and_a_lapsed_one_are_taken_over_together,
    the_cold_ledger_decides_all_or_none_where_misses_are_confirmed,
    a_miss_that_is_confirmed_and_a_take_over_go_together,
    a_take_over_that_only_the_cold_ledger_knows_of_can_be_acted_on_at_once,
    an_answer_that_is_not_durable_is_made_so_by_the_batch_that_meets_it,
    its_facts_are_persisted_together,
);

const LEVELS: [&str; 3] = ["as4:message-1", "sbdh:instance-1", "invoice:4711"];

fn level(key: &str) -> Check {
    with_request_id(claiming(check("t:as4", key, 1), 60), &format!("delivery-1/{key}"))
}

fn levels() -> Vec<Check> {
    LEVELS.map(level).to_vec()
}

fn new(item: &Result<Looked, Refusal>) -> &NewVerdict {
    match item {
        Ok(Looked::Verdict(Verdict::New(new))) => new,
        other => panic!("expected NEW, got {other:?}"),
    }
}

impl Place {
    async fn ask_together(&self, checks: &[Check]) -> TogetherAnswer {
        self.house.ledger.check_together(checks).await
    }

    async fn all_new(&self, checks: &[Check]) -> Vec<NewVerdict> {
        let answer = self.ask_together(checks).await;
        assert!(answer.applied, "{answer:?}");
        answer.items.iter().map(new).cloned().collect()
    }

    async fn act_on(&self, key: &str, new: &NewVerdict, act: ledger_domain::claim::Act) {
        let act = ledger_domain::claims::ClaimAct { subject: level(key).subject, token: token(new), act };
        self.house.ledger.act(&act).await.expect("the holder may");
    }

    async fn found(&self, key: &str) -> Found {
        let subject = level(key).subject;
        self.hot.read(&[Slot::of(&subject.scope, &subject.key)]).await.pop().expect("one result").expect("answers")
    }

    async fn nothing_stands(&self, keys: &[&str]) {
        for key in keys {
            assert_eq!(self.found(key).await, Found::Absent, "{key}");
        }
    }
}

async fn all_are_new_and_claimed_by_one_message(p: Place) {
    let told = p.all_new(&levels()).await;
    for new in &told {
        assert_eq!((new.state, new.attempt, new.replayed), (State::InProgress, Some(1), false));
        assert!(new.durable && new.confirmed && new.claim.is_some());
    }
    assert_eq!(p.house.queue.taken().len(), 3);
    // Each is a claim of its own from then on.
    let act = ledger_domain::claims::ClaimAct {
        subject: level(LEVELS[1]).subject,
        token: token(&told[1]),
        act: super::resolve(b"x"),
    };
    assert_eq!(p.house.ledger.act(&act).await.map(|done| done.state), Ok(State::Resolved));
    // The same batch again: its own answer, the resolved level seen.
    let again = p.ask_together(&levels()).await;
    assert!(!again.applied);
    assert!(new(&again.items[0]).replayed && new(&again.items[2]).replayed);
    assert!(matches!(&again.items[1], Ok(Looked::Verdict(Verdict::Seen(seen))) if seen.retry_count == 0));
}

async fn one_that_was_seen_leaves_all_as_they_were(p: Place) {
    let other = check("t:as4", LEVELS[2], 2);
    p.told_new(other.clone()).await;
    let before = p.found(LEVELS[2]).await;
    let answer = p.ask_together(&levels()).await;
    assert!(!answer.applied);
    assert_eq!((&answer.items[0], &answer.items[1]), (&Ok(Looked::Free), &Ok(Looked::Free)));
    let Ok(Looked::Verdict(Verdict::Seen(seen))) = &answer.items[2] else { panic!("SEEN, got {answer:?}") };
    assert_eq!((seen.disposition, seen.retry_count, seen.payload_hash_drift), (Disposition::Discard, 0, true));
    assert_eq!(p.found(LEVELS[2]).await, before, "no sighting counted");
    p.nothing_stands(&LEVELS[..2]).await;
    assert_eq!(p.house.queue.taken().len(), 1);
}

async fn one_in_progress_and_one_resolved_are_looked_at_and_not_counted(p: Place) {
    let holder = |key| with_request_id(level(key), "somebody-else");
    p.told_new(holder(LEVELS[0])).await;
    let resolved = p.told_new(holder(LEVELS[1])).await;
    let act = ledger_domain::claims::ClaimAct {
        subject: level(LEVELS[1]).subject,
        token: token(&resolved),
        act: super::resolve(b"receipt"),
    };
    p.house.ledger.act(&act).await.expect("done");
    let answer = p.ask_together(&levels()).await;
    assert!(!answer.applied);
    let seen = |at: usize| match &answer.items[at] {
        Ok(Looked::Verdict(Verdict::Seen(seen))) => seen.clone(),
        other => panic!("SEEN, got {other:?}"),
    };
    assert_eq!((seen(0).disposition, seen(0).retry_count), (Disposition::Retry, 0));
    assert_eq!((seen(1).disposition, seen(1).response), (Disposition::Discard, Some(super::response(b"receipt"))));
    assert_eq!(answer.items[2], Ok(Looked::Free));
    p.nothing_stands(&LEVELS[2..]).await;
}

async fn what_cannot_be_taken_together_is_refused_by_name(p: Place) {
    let field = |item: &Result<Looked, Refusal>| match item {
        Err(Refusal::Invalid(invalid)) => invalid.field.clone(),
        other => panic!("a refusal, got {other:?}"),
    };
    let mut twice = levels();
    twice[1] = twice[0].clone();
    let answer = p.ask_together(&twice).await;
    assert!(!answer.applied);
    assert_eq!((field(&answer.items[1]).as_str(), &answer.items[0]), ("key", &Ok(Looked::Free)));
    let mut plain = levels();
    plain[2] = check("t:as4", LEVELS[2], 1);
    assert_eq!(field(&p.ask_together(&plain).await.items[2]), "claim");
    let mut long = levels();
    long[0] = claiming(check("t:as4", LEVELS[0], 1), 0);
    assert_eq!(field(&p.ask_together(&long).await.items[0]), "claim.leaseSeconds");
    p.nothing_stands(&LEVELS).await;
    assert!(p.house.queue.taken().is_empty());
}

async fn a_refused_message_registers_nothing(p: Place) {
    p.cut_off_cold();
    let without_id = |key| claiming(check("t:as4", key, 1), 60);
    p.house.queue.script([Send::Refuse]);
    let answer = p.ask_together(&LEVELS.map(without_id)).await;
    assert!(!answer.applied);
    assert!(answer.items.iter().all(|item| *item == Err(Undecided::Queue.into())));
    p.nothing_stands(&LEVELS).await;
    p.all_new(&levels()).await;
}

async fn a_message_that_may_be_durable_hands_out_marked_claims(p: Place) {
    p.house.queue.script([Send::DropAndLoseReply; 3]);
    let told = p.all_new(&levels()).await;
    assert!(told.iter().all(|new| !new.durable && new.claim.is_some()));
    let Found::Record(record) = p.found(LEVELS[0]).await else { panic!("a record") };
    assert!(record.undurable);
}

async fn a_lost_confirmation_is_made_up_for_by_the_batchs_retry(p: Place) {
    p.hot.lose_reply(Op::Settle);
    p.hot.lose_request(Op::Settle);
    let answer = p.ask_together(&levels()).await;
    assert!(!answer.applied);
    assert!(answer.items.iter().all(|item| *item == Err(Undecided::Unconfirmed.into())), "{answer:?}");
    let told = p.all_new(&levels()).await;
    assert!(told.iter().all(|new| new.replayed));
    assert_eq!(p.house.queue.taken().len(), 3, "the first message stands");
}

async fn a_crash_before_the_message_leaves_pendings_that_lapse(p: Place) {
    {
        let checks = levels();
        let batch = p.house.ledger.check_together(&checks);
        let (reached, crashed) = tokio::sync::oneshot::channel::<()>();
        p.hot.after(Op::Begin, async move {
            reached.send(()).expect("somebody waits");
            std::future::pending::<()>().await;
        });
        tokio::select! {
            answer = batch => panic!("it was to crash, and answered {answer:?}"),
            _ = crashed => {}
        }
    }
    assert!(p.house.queue.taken().is_empty());
    for key in LEVELS {
        assert!(matches!(p.found(key).await, Found::Record(record) if record.state == State::Pending), "{key}");
    }
    // Its own retry goes on where it was.
    let told = p.all_new(&levels()).await;
    assert!(told.iter().all(|new| new.replayed && new.durable));
}

async fn a_crash_after_the_message_leaves_claims_that_the_cold_writer_confirms(p: Place) {
    {
        let checks = levels();
        let batch = p.house.ledger.check_together(&checks);
        let (reached, crashed) = tokio::sync::oneshot::channel::<()>();
        p.hot.before(Op::Settle, async move {
            reached.send(()).expect("somebody waits");
            std::future::pending::<()>().await;
        });
        tokio::select! {
            answer = batch => panic!("it was to crash, and answered {answer:?}"),
            _ = crashed => {}
        }
    }
    assert_eq!(p.drain().await.healed, 3);
    let somebody_else = with_request_id(level(LEVELS[0]), "somebody-else");
    assert_eq!(p.told_seen(somebody_else.clone()).await.disposition, Disposition::Retry);
    p.clock.advance(2 * MINUTE_MS);
    assert_eq!(p.told_new(somebody_else).await.attempt, Some(2), "the leases run out");
}

async fn a_failed_and_a_lapsed_one_are_taken_over_together(p: Place) {
    let holder = |key| with_request_id(level(key), "somebody-else");
    let failed = p.told_new(holder(LEVELS[0])).await;
    p.told_new(holder(LEVELS[1])).await;
    let act = ledger_domain::claims::ClaimAct {
        subject: level(LEVELS[0]).subject,
        token: token(&failed),
        act: super::fail("x"),
    };
    p.house.ledger.act(&act).await.expect("done");
    p.clock.advance(MINUTE_MS);
    let told = p.all_new(&levels()).await;
    let attempts: Vec<_> = told.iter().map(|new| (new.attempt, new.retry_count)).collect();
    assert_eq!(attempts, [(Some(2), 1), (Some(2), 1), (Some(1), 0)]);
}

async fn the_cold_ledger_decides_all_or_none_where_misses_are_confirmed(p: Place) {
    p.confirm_each_miss();
    let told = p.all_new(&levels()).await;
    assert!(told.iter().all(|new| new.decided_by == DecidedBy::Cold && new.confirmed));
    assert!(p.house.queue.taken().is_empty());
    // What only the cold ledger knows stops the others.
    let known = check("t:as4", "known", 1);
    p.cold.register(&known.subject, &told_record(&p, &known).await, 900).await.expect("answers");
    let batch = [claiming(known.clone(), 60), level("free-1"), level("free-2")];
    let answer = p.ask_together(&batch).await;
    assert!(!answer.applied, "{answer:?}");
    let Ok(Looked::Verdict(Verdict::Seen(seen))) = &answer.items[0] else { panic!("SEEN, got {answer:?}") };
    assert_eq!((seen.disposition, seen.decided_by, seen.retry_count), (Disposition::Discard, DecidedBy::Cold, 0));
    for key in ["free-1", "free-2"] {
        assert_eq!(p.cold.standing(&level(key).subject).await.expect("answers"), None, "{key}");
    }
}

/// A registration that the hot tier has not heard of.
async fn told_record(p: &Place, check: &Check) -> ledger_domain::Record {
    use ledger_domain::ports::Clock as _;
    let now = p.clock.now().expect("known");
    let Found::Record(like) = p.found(LEVELS[0]).await else { panic!("a record") };
    ledger_domain::Record {
        registration_id: [5; 8].into(),
        nonce: [6; 8].into(),
        state: State::Registered,
        lease_ends_at: None,
        won_at: now,
        first_seen_at: now,
        last_seen_at: now,
        payload_hash: check.payload,
        ..*like
    }
}

async fn its_facts_are_persisted_together(p: Place) {
    p.all_new(&levels()).await;
    let facts = p.house.queue.taken();
    let writer =
        ledger_domain::persist::Writer::of(std::sync::Arc::clone(&p.cold), std::sync::Arc::clone(&p.clock) as _);
    // One of them is refused: none is written, and the message fails as one.
    let mut refused = facts.clone();
    refused[1].record.window_ends_at = refused[1].record.first_seen_at.plus_seconds(367 * 86_400);
    let written = writer.write(&[Fact::to_json_together(&refused), facts[0].to_json()]).await;
    assert_eq!(written.failures.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0]);
    assert_eq!(written.persisted, 1);
    assert_eq!(p.cold.standing(&level(LEVELS[2]).subject).await.expect("answers"), None);
    let written = writer.write(&[Fact::to_json_together(&facts)]).await;
    assert_eq!((written.failures.len(), written.persisted), (0, 3));
    assert!(p.cold.standing(&level(LEVELS[2]).subject).await.expect("answers").is_some());
}

async fn a_miss_that_is_confirmed_and_a_take_over_go_together(p: Place) {
    p.confirm_each_miss();
    let holder = |key| with_request_id(level(key), "somebody-else");
    p.told_new(holder(LEVELS[0])).await;
    let failed = p.told_new(holder(LEVELS[1])).await;
    p.act_on(LEVELS[1], &failed, super::fail("x")).await;
    p.drain().await;
    p.clock.advance(MINUTE_MS);
    let told = p.all_new(&levels()).await;
    let attempts: Vec<_> = told.iter().map(|new| (new.attempt, new.retry_count, new.decided_by)).collect();
    assert_eq!(attempts, [(Some(2), 1, DecidedBy::Cold), (Some(2), 1, DecidedBy::Cold), (Some(1), 0, DecidedBy::Cold)]);
    for (key, new) in LEVELS.iter().zip(&told) {
        p.act_on(key, new, super::resolve(key.as_bytes())).await;
    }
}

async fn a_take_over_that_only_the_cold_ledger_knows_of_can_be_acted_on_at_once(mut p: Place) {
    let holder = with_request_id(level(LEVELS[0]), "somebody-else");
    let failed = p.told_new(holder).await;
    p.act_on(LEVELS[0], &failed, super::fail("x")).await;
    p.drain().await;
    super::durable::forget(&mut p);
    p.confirm_each_miss();
    let told = p.all_new(&levels()).await;
    assert_eq!(told.iter().map(|new| new.attempt).collect::<Vec<_>>(), [Some(2), Some(1), Some(1)]);
    assert!(told.iter().all(|new| new.confirmed));
    p.act_on(LEVELS[0], &told[0], super::resolve(b"x")).await;
}

async fn an_answer_that_is_not_durable_is_made_so_by_the_batch_that_meets_it(p: Place) {
    let holder = p.told_new(with_request_id(level(LEVELS[0]), "somebody-else")).await;
    p.cut_off_cold();
    p.house.queue.script([Send::Refuse]);
    let act = ledger_domain::claims::ClaimAct {
        subject: level(LEVELS[0]).subject,
        token: token(&holder),
        act: super::resolve(b"x"),
    };
    p.house.ledger.act(&act).await.expect_err("not durable");
    let answer = p.ask_together(&levels()).await;
    assert!(!answer.applied);
    assert!(matches!(&answer.items[0], Ok(Looked::Verdict(Verdict::Seen(seen))) if seen.state == State::Resolved));
}

async fn once_its_message_may_be_durable_nothing_is_let_go_of(p: Place) {
    // Without requestIds nobody else can have adopted the PENDINGs; their facts are durable all the same.
    let without_id = |key| claiming(check("t:as4", key, 1), 60);
    p.hot.lose_request(Op::Settle);
    p.hot.lose_request(Op::Settle);
    let answer = p.ask_together(&LEVELS.map(without_id)).await;
    assert!(answer.items.iter().all(|item| *item == Err(Undecided::Unconfirmed.into())), "{answer:?}");
    for key in LEVELS {
        assert!(matches!(p.found(key).await, Found::Record(record) if record.state == State::Pending), "{key}");
    }
    assert_eq!(p.drain().await.healed, 3);
}

async fn what_the_cold_ledger_has_not_heard_of_it_is_told_before_it_decides(p: Place) {
    let failed = p.told_new(with_request_id(level(LEVELS[0]), "somebody-else")).await;
    p.act_on(LEVELS[0], &failed, super::fail("x")).await;
    // The facts are still on the queue, and the cold ledger is asked for the other levels' sake.
    p.confirm_each_miss();
    let told = p.all_new(&levels()).await;
    assert_eq!(told.iter().map(|new| new.attempt).collect::<Vec<_>>(), [Some(2), Some(1), Some(1)]);
    p.act_on(LEVELS[0], &told[0], super::resolve(b"x")).await;
}

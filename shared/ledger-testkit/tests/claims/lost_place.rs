//! A hot tier that lost its place and does not know, as the old primary of a split: it may be read, and what it is told nobody
//! else hears. The cold ledger decides, and a cold session says so to everybody.

use std::sync::Arc;

use ledger_domain::claims::ActProblem;
use ledger_domain::persist::Writer;
use ledger_domain::ports::{ColdSessions, HotTier, HotTrust};
use ledger_domain::transition::{ActRefused, Found};
use ledger_domain::{DecidedBy, Disposition, Fact, State, Undecided, Verdict};
use ledger_testkit::house::{check, claiming, with_request_id};

use super::{Place, claim, fail, plain, resolve, token};

super::on_each_place!(
    it_is_told_no_registration_and_a_session_stands,
    without_a_session_nothing_is_decided,
    what_it_alone_knows_is_told_to_the_cold_ledger,
    a_holders_act_is_done_in_the_cold_ledger_under_a_session,
    an_atomic_batch_is_decided_in_the_cold_ledger_under_a_session,
    a_place_that_is_lost_while_it_is_told_is_found,
    a_cold_writer_that_healed_it_says_so,
);

async fn it_is_told_no_registration_and_a_session_stands(p: Place) {
    p.house.trust.set_in_place(false);
    let new = p.told_new(plain(1)).await;
    assert_eq!((new.decided_by, new.durable, new.confirmed), (DecidedBy::Cold, true, true));
    assert_eq!((p.stands().await, p.house.sessions.ensured()), (Found::Absent, 1));
    let seen = p.told_seen(plain(1)).await;
    assert_eq!((seen.decided_by, seen.retry_count, seen.disposition), (DecidedBy::Cold, 1, Disposition::Discard));
    assert_eq!(p.house.sessions.ensured(), 2);
    // In its place again, and not filled yet.
    p.house.trust.set_in_place(true);
    p.house.trust.set(false);
    assert_eq!(p.told_seen(plain(1)).await.retry_count, 2);
    assert_eq!((p.record().await.retry_count, p.house.sessions.ensured()), (2, 2));
}

async fn without_a_session_nothing_is_decided(p: Place) {
    let new = p.told_new(claim(1, 60)).await;
    p.drain().await;
    p.house.trust.set_in_place(false);
    p.house.sessions.refuse(true);
    let other = || check("t:as4", "other", 1);
    assert!(matches!(p.ask(other()).await, Err(refusal) if refusal == Undecided::ColdSession.into()));
    assert_eq!(p.cold.standing(&other().subject).await.expect("answers"), None);
    let acted = p.act(&token(&new), resolve(b"x")).await;
    assert_eq!(acted, Err(ActProblem::Undecided(Undecided::ColdSession)), "done, and to be asked for again");
    p.house.sessions.refuse(false);
    assert_eq!(p.done(&token(&new), resolve(b"x")).await.state, State::Resolved);
}

async fn what_it_alone_knows_is_told_to_the_cold_ledger(p: Place) {
    let new = p.told_new(plain(1)).await;
    assert_eq!(p.cold.standing(&plain(1).subject).await.expect("answers"), None, "its fact is in the queue");
    p.house.trust.set_in_place(false);
    let seen = p.told_seen(plain(1)).await;
    assert_eq!((seen.decided_by, seen.first_seen_at, seen.retry_count), (DecidedBy::Cold, new.first_seen_at, 1));
    assert_eq!(p.record().await.retry_count, 0, "nobody else hears what is counted there");
}

async fn a_holders_act_is_done_in_the_cold_ledger_under_a_session(p: Place) {
    let first = p.told_new(claim(1, 60)).await;
    p.house.trust.set_in_place(false);
    assert_eq!(p.done(&token(&first), fail("partner is down")).await.decided_by, DecidedBy::Cold);
    assert_eq!(p.house.sessions.ensured(), 1);
    let second = p.told_new(claim(1, 60)).await;
    assert_eq!((second.attempt, second.decided_by, p.house.sessions.ensured()), (Some(2), DecidedBy::Cold, 2));
    let late = p.act(&token(&first), resolve(b"x")).await;
    assert_eq!(late, Err(ActProblem::Refused(ActRefused::Stale)));
    p.done(&token(&second), resolve(b"x")).await;
}

async fn an_atomic_batch_is_decided_in_the_cold_ledger_under_a_session(p: Place) {
    p.house.trust.set_in_place(false);
    let of = |key: &str| with_request_id(claiming(check("t:as4", key, 1), 60), "delivery-1");
    let together = p.house.ledger.check_together(&[of("k"), of("l")]).await;
    assert!(together.applied, "{together:?}");
    assert_eq!((p.stands().await, p.house.sessions.ensured()), (Found::Absent, 1));
    assert!(p.house.queue.taken().is_empty());
    let other = with_request_id(claiming(check("t:as4", "k", 1), 60), "another");
    assert!(!p.house.ledger.check_together(&[other]).await.applied);
}

async fn a_place_that_is_lost_while_it_is_told_is_found(p: Place) {
    p.house.trust.set(false);
    let trust = Arc::clone(&p.house.trust);
    p.hot.before(ledger_testkit::between::Op::Fill, async move { trust.set_in_place(false) });
    assert!(matches!(p.ask(plain(1)).await, Ok(Verdict::New(new)) if new.decided_by == DecidedBy::Cold));
    assert_eq!(p.house.sessions.ensured(), 1);
}

async fn a_cold_writer_that_healed_it_says_so(p: Place) {
    p.told_new(plain(1)).await;
    let facts: Vec<_> = p.house.queue.taken().iter().map(Fact::to_json).collect();
    let writer = Writer {
        trust: Some(Arc::clone(&p.house.trust) as Arc<dyn HotTrust>),
        sessions: Some(Arc::clone(&p.house.sessions) as Arc<dyn ColdSessions>),
        poison: None,
        cold: Arc::clone(&p.cold),
        hot: Some(Arc::clone(&p.hot) as Arc<dyn HotTier>),
        clock: Arc::clone(&p.clock) as _,
    };
    assert!(writer.write(&facts).await.heal_error.is_none());
    assert_eq!(p.house.sessions.ensured(), 0);
    p.house.trust.set_in_place(false);
    let written = writer.write(&facts).await;
    assert!(written.heal_error.is_some() && written.failures.is_empty(), "{written:?}");
    assert_eq!(p.house.sessions.ensured(), 1);
    p.house.sessions.refuse(true);
    assert_eq!(writer.write(&facts).await.failures.len(), 1, "it comes again until everybody can be told");
}

//! What attempts leave behind: history, in whatever order facts come, and what an auditor reads of it.

use ledger_domain::{Fact, State};
use ledger_testkit::clock::SeededEntropy;
use ledger_testkit::faulty::seed;
use ledger_testkit::house::from_service;

use super::{MINUTE_MS, Place, claim, fail, plain, renew, resolve, token};

super::on_each_place!(
    history_tells_of_each_attempt,
    the_end_of_an_attempt_whose_fact_was_refused_is_told_by_its_successor,
    facts_in_any_order_and_number_leave_the_same_rows,
);

/// Attempt 1 fails, 2 lapses after a renewal, 3 resolves; others ask in between.
async fn live(p: &Place) {
    let first = p.told_new(from_service(claim(1, 60), "as4-ingest")).await;
    p.told_seen(claim(2, 60)).await;
    p.clock.advance(1_000);
    p.done(&token(&first), fail("partner is down")).await;
    p.clock.advance(1_000);
    let second = p.told_new(from_service(claim(1, 60), "edifact")).await;
    p.done(&token(&second), renew(120)).await;
    p.clock.advance(2 * MINUTE_MS);
    let third = p.told_new(claim(1, 60)).await;
    p.clock.advance(1_000);
    p.done(&token(&third), resolve(b"receipt")).await;
    p.told_seen(plain(3)).await;
}

async fn history_tells_of_each_attempt(p: Place) {
    live(&p).await;
    p.drain().await;
    let history = p.history().await;
    let [(record, trail)] = history.as_slice() else { panic!("one row, got {history:?}") };
    assert_eq!((record.state, record.attempt, record.retry_count), (State::Resolved, 3, 4));
    let start = record.first_seen_at;
    let told: Vec<_> = trail
        .attempts()
        .iter()
        .map(|attempt| {
            let ended = attempt.ended.as_ref();
            (
                (attempt.attempt, attempt.state, attempt.started_at.millis_since(start)),
                ended.map(|ended| ended.at.millis_since(start)),
                ended.and_then(|ended| ended.reason.as_ref()).map(ToString::to_string),
                attempt.source_service.as_ref().map(ToString::to_string),
            )
        })
        .collect();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(
        told,
        [
            ((1, State::Failed, 0), Some(1_000), text("partner is down"), text("as4-ingest")),
            ((2, State::InProgress, 2_000), None, None, text("edifact")),
            ((3, State::Resolved, 122_000), Some(123_000), None, None),
        ]
    );
    assert_eq!(trail.attempts()[1].lease_ends_at, Some(start.plus_seconds(122)));
}

async fn the_end_of_an_attempt_whose_fact_was_refused_is_told_by_its_successor(p: Place) {
    p.cut_off_cold();
    use ledger_testkit::house::Send;
    let first = p.told_new(claim(1, 60)).await;
    p.house.queue.script([Send::Refuse]);
    drop(p.act(&token(&first), fail("partner is down")).await.expect_err("not durable"));
    p.told_new(claim(1, 60)).await;
    p.drain().await;
    let history = p.history().await;
    let first = &history[0].1.attempts()[0];
    let reason = first.ended.as_ref().and_then(|ended| ended.reason.as_ref()).map(ToString::to_string);
    assert_eq!((first.state, reason.as_deref()), (State::Failed, Some("partner is down")));
}

async fn facts_in_any_order_and_number_leave_the_same_rows(p: Place) {
    live(&p).await;
    let facts: Vec<Fact> = p.house.queue.taken().into_iter().chain(p.house.queue.offered()).collect();
    p.write(&facts).await;
    let (expected, standing) = (p.history().await, p.cold.standing(&plain(1).subject).await.expect("answers"));
    assert_eq!(expected.len(), 1);
    let seed = seed();
    let random = SeededEntropy::new(seed);
    for round in 0..20 {
        // The same life of another message: only the key differs.
        let subject = ledger_testkit::house::subject("t:as4", &format!("round {round}"));
        let mut shuffled: Vec<Fact> =
            facts.iter().map(|fact| Fact { subject: subject.clone(), ..fact.clone() }).collect();
        for _ in 0..random.below(5) {
            let again = usize::try_from(random.below(shuffled.len() as u64)).expect("small");
            shuffled.push(shuffled[again].clone());
        }
        for at in (1..shuffled.len()).rev() {
            shuffled.swap(at, usize::try_from(random.below(at as u64 + 1)).expect("small"));
        }
        while !shuffled.is_empty() {
            let rest = shuffled.split_off(usize::try_from(random.below(shuffled.len() as u64) + 1).expect("small"));
            p.write(&shuffled).await;
            shuffled = rest;
        }
        let query = ledger_domain::ports::HistoryQuery {
            from: ledger_domain::Timestamp::MIN,
            to: ledger_domain::Timestamp::MAX,
            after: None,
            limit: 10,
        };
        let rows = p.cold.by_key(&subject, &query).await.expect("answers").rows;
        let rows: Vec<_> = rows.into_iter().map(|row| (row.record, row.trail)).collect();
        assert_eq!(rows, expected, "seed {seed}, round {round}");
        assert_eq!(p.cold.standing(&subject).await.expect("answers"), standing, "seed {seed}, round {round}");
    }
}

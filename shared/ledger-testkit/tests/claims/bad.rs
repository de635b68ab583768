//! What a holder may not do: each refusal is its own, and the record stays as it was.

use ledger_domain::check::Check;
use ledger_domain::claim::{Act, TokenError, TokenKeys};
use ledger_domain::claims::{ActProblem, ClaimAct};
use ledger_domain::transition::{ActRefused, Found};
use ledger_domain::{Invalid, Refusal, Slot, Undecided};
use ledger_testkit::house::{check, claiming};

use super::{MINUTE_MS, Place, claim, fail, plain, renew, resolve, token};

super::on_each_place!(
    a_token_that_is_none_and_one_of_another_key_or_deployment_are_told_apart,
    resolve_with_other_content_is_refused_and_the_first_stands,
    resolve_after_fail_and_fail_after_resolve_are_refused,
    renew_after_the_window_is_refused,
    a_lease_out_of_bounds_is_refused_and_nothing_is_registered,
    a_claim_that_nobody_knows_is_unknown_only_where_that_can_be_confirmed,
    a_claim_that_a_plain_check_took_over_has_no_holder,
);

async fn a_token_that_is_none_and_one_of_another_key_or_deployment_are_told_apart(p: Place) {
    let new = p.told_new(claim(1, 60)).await;
    let before = p.record().await;
    for malformed in ["", "x", "A".repeat(45).as_str(), "%%%%"] {
        assert_eq!(p.act(malformed, fail("x")).await, Err(ActProblem::Token(TokenError::Malformed)), "{malformed}");
    }
    let other = claiming(check("t:as4", "other", 1), 60);
    let ledger_domain::Verdict::New(other) = p.ask(other).await.expect("a verdict") else { panic!("NEW") };
    assert_eq!(p.act(&token(&other), fail("x")).await, Err(ActProblem::Token(TokenError::Foreign)));
    let slot = Slot::of(&plain(1).subject.scope, &plain(1).subject.key);
    let foreign = TokenKeys::new(&[[8; 32]]).expect("a key").issue(&slot, &ledger_domain::claim::ClaimId::of(&before));
    assert_eq!(p.act(&foreign, fail("x")).await, Err(ActProblem::Token(TokenError::Foreign)));
    // In its own scope a token is good for its own scope only.
    let elsewhere = ClaimAct { subject: check("t:as2", "k", 1).subject, token: token(&new), act: fail("x") };
    assert_eq!(p.house.ledger.act(&elsewhere).await, Err(ActProblem::Token(TokenError::Foreign)));
    assert_eq!(p.record().await, before);
}

async fn resolve_with_other_content_is_refused_and_the_first_stands(p: Place) {
    let new = p.told_new(claim(1, 60)).await;
    p.done(&token(&new), resolve(b"first")).await;
    let before = p.record().await;
    for other in [resolve(b"second"), resolve(b""), Act::Resolve(None), renew(60), fail("x")] {
        assert_eq!(p.act(&token(&new), other).await, Err(ActProblem::Refused(ActRefused::Resolved)));
    }
    assert_eq!(p.record().await, before);
}

async fn resolve_after_fail_and_fail_after_resolve_are_refused(p: Place) {
    let new = p.told_new(claim(1, 60)).await;
    p.done(&token(&new), fail("first")).await;
    let before = p.record().await;
    for other in [resolve(b"x"), fail("second"), Act::Fail(None), renew(60)] {
        assert_eq!(p.act(&token(&new), other).await, Err(ActProblem::Refused(ActRefused::Failed)));
    }
    assert_eq!(p.done(&token(&new), fail("first")).await.state, ledger_domain::State::Failed);
    assert_eq!(p.record().await, before);
}

async fn renew_after_the_window_is_refused(p: Place) {
    let new = p.told_new(Check { ttl_seconds: Some(60), ..claim(1, 30) }).await;
    p.clock.advance(MINUTE_MS);
    let before = p.record().await;
    for act in [renew(30), resolve(b"x"), fail("x")] {
        assert_eq!(p.act(&token(&new), act).await, Err(ActProblem::Refused(ActRefused::WindowOver)));
    }
    assert_eq!(p.record().await, before);
}

async fn a_lease_out_of_bounds_is_refused_and_nothing_is_registered(p: Place) {
    for bad in [0, 12 * 3_600 + 1, u64::MAX] {
        let refused = p.ask(claim(1, bad)).await;
        assert!(matches!(&refused, Err(Refusal::Invalid(Invalid { field, .. })) if field == "claim.leaseSeconds"));
    }
    assert_eq!(p.stands().await, Found::Absent);
    let new = p.told_new(claim(1, 60)).await;
    let before = p.record().await;
    for bad in [0, 12 * 3_600 + 1] {
        let refused = p.act(&token(&new), renew(bad)).await;
        assert!(matches!(&refused, Err(ActProblem::Invalid(Invalid { field, .. })) if field == "leaseSeconds"));
    }
    assert_eq!(p.record().await, before);
}

async fn a_claim_that_nobody_knows_is_unknown_only_where_that_can_be_confirmed(mut p: Place) {
    let slot = Slot::of(&plain(1).subject.scope, &plain(1).subject.key);
    let nobodys = ledger_domain::claim::ClaimId { registration_id: [9; 8].into(), attempt: 1, nonce: [9; 8].into() };
    let token = p.house.ledger.tokens.issue(&slot, &nobodys);
    assert_eq!(p.act(&token, fail("x")).await, Err(ActProblem::UnknownClaim));
    p.house.trust.set(false);
    assert_eq!(p.act(&token, fail("x")).await, Err(ActProblem::Undecided(Undecided::Absence)));
    p.house.ledger.cold = None;
    assert_eq!(p.act(&token, fail("x")).await, Err(ActProblem::Undecided(Undecided::Absence)));
    p.house.trust.set(true);
    assert_eq!(p.act(&token, fail("x")).await, Err(ActProblem::UnknownClaim));
    assert_eq!(p.stands().await, Found::Absent);
}

async fn a_claim_that_a_plain_check_took_over_has_no_holder(p: Place) {
    let first = p.told_new(claim(1, 60)).await;
    p.clock.advance(MINUTE_MS);
    p.told_new(plain(1)).await;
    let before = p.record().await;
    for act in [resolve(b"x"), fail("x"), renew(60)] {
        assert_eq!(p.act(&token(&first), act).await, Err(ActProblem::Refused(ActRefused::Stale)));
    }
    assert_eq!(p.record().await, before);
}

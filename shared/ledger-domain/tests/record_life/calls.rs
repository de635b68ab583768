//! Calls of the use case, as it is: what one asks next follows from the replies it had, so a call is kept as its log and run
//! again from the start when a reply is added. Each log is run once.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use ledger_domain::check::{Check, ClaimRequest, Ledger};
use ledger_domain::claim::{Act, ClaimId, TokenKeys};
use ledger_domain::claims::{ActProblem, ClaimAct};
use ledger_domain::transition::ActRefused;
use ledger_domain::{
    ContentType, Disposition, Fact, MessageKey, Nonce, PayloadHash, Principal, RequestId, Scope, Slot, StoredResponse,
    Subject, Timestamp, Undecided, Verdict, nonce_of,
};

use crate::keep::{Keeper, Kept};
use crate::ports::{Ask, Reply, Script};

/// How a caller checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    Plain,
    Claim,
}

/// What a caller does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Doing {
    Check,
    Resolve(ClaimId),
    Fail(ClaimId),
    Renew(ClaimId),
}

/// One call of the use case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    /// Whose.
    pub(crate) caller: u8,
    /// Its number among the caller's calls.
    pub(crate) number: u8,
    pub(crate) doing: Doing,
    pub(crate) began: Timestamp,
}

/// What a call was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    New { first_seen_at: Timestamp, claim: Option<ClaimId>, replayed: bool, taken_over: bool, durable: bool },
    Discard,
    Retry,
    Undecided(Undecided),
    Acknowledged,
    Refused(ActRefused),
    UnknownClaim,
}

/// What comes next of a call.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one at a time, on its way to where it is kept")]
pub(crate) enum Next {
    Ask(Ask),
    Told(Told),
}

/// A call that had these replies.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) call: Call,
    log: Vec<(Reply, Timestamp)>,
    pub(crate) next: Next,
    /// The facts that it offered for nobody to wait for since the last reply.
    pub(crate) offered: Vec<Fact>,
}

/// What tells one node from another.
#[derive(PartialEq, Eq, Hash)]
enum Log {
    Began(Call),
    Longer(Kept<Node>, Reply, Timestamp),
}

/// All calls of a model.
pub(crate) struct Calls {
    modes: Vec<Mode>,
    lease_seconds: u64,
    window_seconds: u64,
    tokens: TokenKeys,
    nodes: Keeper<Log, Node>,
}

impl Calls {
    pub(crate) fn new(modes: Vec<Mode>, lease_seconds: u64, window_seconds: u64) -> Self {
        let tokens = TokenKeys::new(&[[7; 32]]).expect("a key");
        Self { modes, lease_seconds, window_seconds, tokens, nodes: Keeper::new() }
    }

    /// How many logs were run.
    pub(crate) fn runs(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn begin(&self, call: Call) -> Kept<Node> {
        self.nodes.keep(Log::Began(call), || self.run(call, Vec::new()))
    }

    pub(crate) fn reply(&self, node: Kept<Node>, reply: Reply, at: Timestamp) -> Kept<Node> {
        self.nodes.keep(Log::Longer(node, reply, at), || {
            let mut log = node.log.clone();
            log.push((reply, at));
            self.run(node.call, log)
        })
    }

    /// The nonce of a caller's checks.
    pub(crate) fn nonce(&self, caller: u8) -> Nonce {
        let check = self.check(caller);
        let mode = if check.claim.is_some() { "claim" } else { "plain" };
        let request_id = check.request_id.expect("each has one");
        nonce_of(&check.principal, &request_id, &check.payload, mode)
    }

    fn run(&self, call: Call, log: Vec<(Reply, Timestamp)>) -> Node {
        let script = Script::new(call.began, log.clone(), [0, 0, 0, 0, 0, call.number + 1, call.caller + 1, 0]);
        let ledger = Ledger {
            hot: script.clone(),
            trust: script.clone(),
            queue: script.clone(),
            repeats: script.clone(),
            cold: None,
            sessions: script.clone(),
            policies: script.clone(),
            clock: script.clone(),
            entropy: script.clone(),
            tokens: self.tokens.clone(),
            counters: ledger_domain::check::Counters::default(),
        };
        let next = match call.doing {
            Doing::Check => poll(self.told_of_check(&ledger, call)),
            Doing::Resolve(claim) => poll(self.told_of_act(&ledger, claim, Act::Resolve(Some(response(call.caller))))),
            Doing::Fail(claim) => poll(self.told_of_act(&ledger, claim, Act::Fail(None))),
            Doing::Renew(claim) => {
                poll(self.told_of_act(&ledger, claim, Act::Renew { lease_seconds: self.lease_seconds }))
            }
        };
        let (asked, offered) = script.progress();
        let next = next.map_or_else(|| Next::Ask(asked.expect("it waits for a reply")), Next::Told);
        Node { call, log, next, offered }
    }

    async fn told_of_check(&self, ledger: &Ledger, call: Call) -> Told {
        let check = self.check(call.caller);
        match ledger.check(std::slice::from_ref(&check)).await.pop().expect("an answer") {
            Ok(Verdict::New(new)) => Told::New {
                first_seen_at: new.first_seen_at,
                claim: new.claim.map(|claim| self.tokens.verify(&slot(), &claim.token).expect("a token")),
                replayed: new.replayed,
                taken_over: new.taken_over,
                durable: new.durable,
            },
            Ok(Verdict::Seen(seen)) => match seen.disposition {
                Disposition::Discard => Told::Discard,
                Disposition::Retry => Told::Retry,
                Disposition::Process => panic!("SEEN is not to be processed"),
            },
            Err(ledger_domain::Refusal::Undecided(why)) => Told::Undecided(why),
            Err(ledger_domain::Refusal::Invalid(why)) => panic!("the check is valid: {why}"),
        }
    }

    async fn told_of_act(&self, ledger: &Ledger, claim: ClaimId, act: Act) -> Told {
        let token = self.tokens.issue(&slot(), &claim);
        match ledger.act(&ClaimAct { subject: subject(), token, act }).await {
            Ok(_) => Told::Acknowledged,
            Err(ActProblem::Refused(refused)) => Told::Refused(refused),
            Err(ActProblem::Undecided(why)) => Told::Undecided(why),
            Err(ActProblem::UnknownClaim) => Told::UnknownClaim,
            Err(ActProblem::Invalid(why)) => panic!("the act is valid: {why}"),
            Err(ActProblem::Token(why)) => panic!("the token is ours: {why}"),
        }
    }

    fn check(&self, caller: u8) -> Check {
        let lease_seconds = self.lease_seconds;
        Check {
            subject: subject(),
            // The last caller's message differs: drift.
            payload: PayloadHash::from_bytes([u8::from(usize::from(caller) + 1 == self.modes.len()); 32]),
            ttl_seconds: Some(self.window_seconds),
            source_service: None,
            request_id: Some(RequestId::parse(&format!("delivery-{caller}")).expect("a request id")),
            principal: Principal::parse("service").expect("a principal"),
            claim: match self.modes[usize::from(caller)] {
                Mode::Plain => None,
                Mode::Claim => Some(ClaimRequest { lease_seconds }),
            },
        }
    }
}

/// What a caller resolves its claim with.
pub(crate) fn response(caller: u8) -> StoredResponse {
    StoredResponse { content_type: ContentType::parse("text/plain").expect("a type"), body: vec![caller] }
}

pub(crate) fn subject() -> Subject {
    Subject {
        scope: Scope::parse("tenant:flow", None).expect("a scope"),
        key: MessageKey::text("message").expect("a key"),
    }
}

fn slot() -> Slot {
    let Subject { scope, key } = subject();
    Slot::of(&scope, &key)
}

/// One poll: a call that has all its replies is done by it, and one that has not waits for good.
fn poll<T>(call: impl Future<Output = T>) -> Option<T> {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(told) => Some(told),
        Poll::Pending => None,
    }
}

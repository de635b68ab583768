//! The model: its states, and what can happen in each.

use std::sync::atomic::{AtomicU64, Ordering};

use ledger_domain::claim::ClaimId;
use ledger_domain::{Fact, Nonce, Record, State, Timestamp, transition};
use stateright::{Model, Property};

use crate::calls::{Call, Calls, Doing, Mode, Next, Node, Told};
use crate::keep::{Kept, Values};
use crate::ports::{Ask, Reply};
use crate::properties::{self, Broken, Reached};
use crate::tiers::{Rows, Slot, ask_hot, found};

/// What is explored.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    pub(crate) name: &'static str,
    /// Who calls. The last one's payload differs from the others'.
    pub(crate) callers: Vec<Who>,
    /// Whether the first caller holds a claim already, won without a fault at the first instant.
    pub(crate) held: bool,
    /// From which instant on it is explored.
    pub(crate) from: u8,
    /// When anything can happen, in milliseconds from the start.
    pub(crate) instants_ms: Vec<i64>,
    pub(crate) lease_seconds: u64,
    pub(crate) window_seconds: u64,
    /// How many replies are lost, requests not done, facts refused, and calls killed, in all.
    pub(crate) faults: u8,
    /// Whether facts about repeats reach the queue.
    pub(crate) repeats: bool,
}

/// A caller as it is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) mode: Mode,
    /// How often it checks, always with the same requestId.
    pub(crate) checks: u8,
    /// How often it resolves, fails or renews a claim.
    pub(crate) acts: u8,
}

/// One caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Caller {
    pub(crate) checks: u8,
    pub(crate) acts: u8,
    pub(crate) call: Option<Kept<Node>>,
    /// The claim that it was handed last.
    pub(crate) token: Option<ClaimId>,
    /// The registration that it was last told to process, by its first sighting.
    pub(crate) processes: Option<Timestamp>,
}

/// One state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) instant: u8,
    pub(crate) hot: Option<Slot>,
    /// The durable facts, in the order of their numbers: on the queue, and delivered in any order, number and combination.
    pub(crate) facts: Vec<Kept<Fact>>,
    /// Facts that nobody waited for: they may be delivered, but prove nothing.
    pub(crate) repeats: Vec<Kept<Fact>>,
    pub(crate) callers: Vec<Caller>,
    pub(crate) faults: u8,
    pub(crate) broken: Option<Broken>,
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Happens {
    /// Time goes on to the next instant.
    Time,
    /// A caller calls.
    Begins(u8, Doing),
    /// A call's request is worked on and answered.
    Goes(u8, How),
    /// A call's process is killed before its next request.
    Dies(u8),
    /// The cold writer, or a refill, heals from the row that some of the facts make.
    Heals(Kept<Record>),
}

/// How a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// As it should.
    Well,
    /// Done, the reply lost.
    ReplyLost,
    /// Not done, and the caller does not know.
    Lost,
    /// The queue says that it was not done.
    Refused,
}

/// The model of one message's record.
pub(crate) struct Life {
    pub(crate) bounds: Bounds,
    pub(crate) calls: Calls,
    pub(crate) values: Values,
    pub(crate) rows: Rows,
    nonces: Vec<Nonce>,
    reached: [AtomicU64; Reached::ALL.len()],
}

const START_MS: i64 = 1_790_000_000_000;

impl Life {
    pub(crate) fn new(bounds: Bounds) -> Self {
        let modes = bounds.callers.iter().map(|who| who.mode).collect();
        let calls = Calls::new(modes, bounds.lease_seconds, bounds.window_seconds);
        let callers = u8::try_from(bounds.callers.len()).expect("few callers");
        let nonces = (0..callers).map(|caller| calls.nonce(caller)).collect();
        let reached = std::array::from_fn(|_| AtomicU64::new(0));
        Self { bounds, calls, values: Values::new(), rows: Rows::new(), nonces, reached }
    }

    pub(crate) fn now(&self, world: &World) -> Timestamp {
        Timestamp::from_millis(START_MS + self.bounds.instants_ms[usize::from(world.instant)])
    }

    /// Who checks with `nonce`.
    pub(crate) fn caller_of(&self, nonce: Nonce) -> usize {
        self.nonces.iter().position(|of| *of == nonce).expect("some caller's")
    }

    pub(crate) fn note(&self, reached: Reached) {
        self.reached[reached as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn times_reached(&self, reached: Reached) -> u64 {
        self.reached[reached as usize].load(Ordering::Relaxed)
    }

    /// A caller calls.
    pub(crate) fn begin(&self, world: &mut World, caller: u8, doing: Doing) {
        let now = self.now(world);
        let it = &mut world.callers[usize::from(caller)];
        let number = it.checks + it.acts;
        match doing {
            Doing::Check => it.checks += 1,
            Doing::Resolve(_) | Doing::Fail(_) | Doing::Renew(_) => it.acts += 1,
        }
        it.call = Some(self.calls.begin(Call { caller, number, doing, began: now }));
    }

    /// What a caller's call waits for.
    pub(crate) fn asked(&self, world: &World, caller: u8) -> Option<&'static Ask> {
        let node = world.callers[usize::from(caller)].call?;
        match &node.get().next {
            Next::Ask(ask) => Some(ask),
            Next::Told(_) => None,
        }
    }

    /// The call's request goes as `how` says; what the call was told, if it is over by that, and the last reply.
    pub(crate) fn go(&self, world: &mut World, caller: u8, how: How) -> Option<(Told, Reply)> {
        let now = self.now(world);
        let mut node = world.callers[usize::from(caller)].call.expect("it waits for a reply");
        let Next::Ask(ask) = &node.get().next else { panic!("a call that is over is forgotten") };
        let mut reply = match how {
            How::Well => self.answer(world, ask, now),
            How::ReplyLost => {
                self.answer(world, ask, now);
                Reply::Unknown
            }
            How::Lost => Reply::Unknown,
            How::Refused => Reply::Refused,
        };
        node = self.calls.reply(node, reply, now);
        if matches!(ask, Ask::Pause) {
            // It looks again and again while nothing changes; a change before one of its looks is a pause that lasts longer.
            while let Next::Ask(ask @ (Ask::Pause | Ask::Read)) = &node.get().next {
                reply = self.answer(world, ask, now);
                node = self.calls.reply(node, reply, now);
            }
        }
        if self.bounds.repeats {
            for fact in &node.get().offered {
                insert(&mut world.repeats, self.values.fact(fact));
            }
        }
        world.callers[usize::from(caller)].call = Some(node);
        match node.get().next {
            Next::Ask(_) => None,
            Next::Told(told) => {
                let it = &mut world.callers[usize::from(caller)];
                it.call = None;
                if let Told::New { first_seen_at, claim, .. } = told {
                    it.token = claim;
                    it.processes = Some(first_seen_at);
                }
                Some((told, reply))
            }
        }
    }

    fn answer(&self, world: &mut World, ask: &Ask, now: Timestamp) -> Reply {
        match ask {
            Ask::Send(fact) => {
                insert(&mut world.facts, self.values.fact(fact));
                Reply::Done
            }
            Ask::Pause => Reply::Done,
            Ask::Begin(_)
            | Ask::Settle(_)
            | Ask::Count(_)
            | Ask::Replace(_)
            | Ask::Amend(_)
            | Ask::Release(_)
            | Ask::Read => {
                let (slot, reply) = ask_hot(&self.values, world.hot, ask, now);
                world.hot = slot;
                reply
            }
        }
    }

    /// The rows from which a heal would change the hot tier now.
    fn heals(&self, world: &World, heals: &mut Vec<Kept<Record>>) {
        let open = world.hot.is_none_or(|slot| slot.record.state == State::Pending || slot.record.take_over.is_some());
        let mut all: Vec<_> = world.facts.iter().chain(&world.repeats).copied().collect();
        if !open || all.is_empty() {
            return;
        }
        all.sort_unstable();
        let (found, now) = (found(world.hot), self.now(world));
        let rows = self.rows.of_some(&self.values, &all).iter();
        heals.extend(rows.filter(|row| !row.is_over(now) && transition::heal(&found, row).is_some()));
    }

    /// Callers that are bounded alike are alike until they begin: they do so in order.
    fn may_begin(&self, world: &World, caller: usize) -> bool {
        let all = &self.bounds.callers;
        let is_last = caller + 1 == all.len();
        caller == 0 || is_last || all[caller - 1] != all[caller] || world.callers[caller - 1].checks > 0
    }
}

/// Puts a fact among the others, once.
fn insert(facts: &mut Vec<Kept<Fact>>, fact: Kept<Fact>) {
    if let Err(at) = facts.binary_search(&fact) {
        facts.insert(at, fact);
    }
}

impl Model for Life {
    type State = World;
    type Action = Happens;

    fn init_states(&self) -> Vec<World> {
        let mut world = World {
            instant: 0,
            hot: None,
            facts: Vec::new(),
            repeats: Vec::new(),
            callers: vec![Caller::default(); self.bounds.callers.len()],
            faults: 0,
            broken: None,
        };
        if self.bounds.held {
            self.begin(&mut world, 0, Doing::Check);
            while world.callers[0].call.is_some() {
                self.go(&mut world, 0, How::Well);
            }
        }
        world.instant = self.bounds.from;
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Happens>) {
        if world.broken.is_some() {
            return;
        }
        let can_fail = world.faults < self.bounds.faults;
        for (at, caller) in world.callers.iter().enumerate() {
            let of = u8::try_from(at).expect("few callers");
            if let Some(ask) = self.asked(world, of) {
                let hows: &[How] = match ask {
                    Ask::Pause => &[How::Well],
                    _ if !can_fail => &[How::Well],
                    Ask::Read | Ask::Release(_) => &[How::Well, How::Lost],
                    Ask::Send(_) => &[How::Well, How::ReplyLost, How::Lost, How::Refused],
                    Ask::Begin(_) | Ask::Settle(_) | Ask::Count(_) | Ask::Replace(_) | Ask::Amend(_) => {
                        &[How::Well, How::ReplyLost, How::Lost]
                    }
                };
                actions.extend(hows.iter().map(|how| Happens::Goes(of, *how)));
                if can_fail {
                    actions.push(Happens::Dies(of));
                }
                continue;
            }
            let bounds = self.bounds.callers[at];
            if caller.checks < bounds.checks && self.may_begin(world, at) {
                actions.push(Happens::Begins(of, Doing::Check));
            }
            if let Some(claim) = caller.token.filter(|_| caller.acts < bounds.acts) {
                let acts = [Doing::Resolve(claim), Doing::Fail(claim), Doing::Renew(claim)];
                actions.extend(acts.map(|act| Happens::Begins(of, act)));
            }
        }
        if usize::from(world.instant) + 1 < self.bounds.instants_ms.len() {
            actions.push(Happens::Time);
        }
        let mut heals = Vec::new();
        self.heals(world, &mut heals);
        actions.extend(heals.into_iter().map(Happens::Heals));
    }

    fn next_state(&self, before: &World, happens: Happens) -> Option<World> {
        let mut world = before.clone();
        match happens {
            Happens::Time => {
                world.instant += 1;
                let now = self.now(&world);
                world.hot = world.hot.filter(|slot| now < slot.expires_at);
            }
            Happens::Begins(caller, doing) => self.begin(&mut world, caller, doing),
            Happens::Dies(caller) => {
                world.callers[usize::from(caller)].call = None;
                world.faults += 1;
            }
            Happens::Heals(row) => {
                let healed = transition::heal(&found(before.hot), &row)?;
                world.hot = Some(Slot::until_window_end(self.values.record(healed)));
                properties::judge_heal(self, before);
            }
            Happens::Goes(caller, how) => {
                world.faults += u8::from(how != How::Well);
                let ask = self.asked(before, caller)?;
                let told = self.go(&mut world, caller, how);
                world.broken = properties::judge_call(self, before, &world, caller, ask, told);
            }
        }
        world.broken = world.broken.or_else(|| properties::judge_hot(self, before, &world));
        world.broken = world.broken.or_else(|| properties::judge_facts(self, before, &world));
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}

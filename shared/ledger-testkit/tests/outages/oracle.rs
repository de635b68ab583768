//! What must be true of a run, whatever went wrong in it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use ledger_domain::claim::{Act, ClaimId, TokenKeys};
use ledger_domain::ports::{HistoryRow, HotTier};
use ledger_domain::transition::Found;
use ledger_domain::{
    DecidedBy, Disposition, NewVerdict, Nonce, Record, Refusal, State, Timestamp, Undecided, Verdict, nonce_of,
};
use ledger_stores::redis::RedisHotTier;
use ledger_testkit::history::{all, false_news_are_linked};

use crate::load::{Deed, KeyUse, Told, pause_ms};
use crate::lock;
use crate::process::{TOKEN_KEY, patient_url};
use crate::servers::{Outage, Part};
use crate::world::World;

/// How long after a loss a repeat may still be told NEW, beside the age of the oldest fact that was not drained (DESIGN section
/// 7): the age of what is believed, and a PENDING.
const FALSE_NEW_MS: i64 = 12_000;
/// No check may take longer than this, whatever is down: it is what the limits of all tiers add up to.
const CHECK_MAX: Duration = Duration::from_secs(20);
/// How long after its end an outage may still make a call count its sighting twice.
const AFTERMATH: Duration = Duration::from_secs(5);
/// A call tries each tier twice at most, and each try may count.
const COUNTS_MAX: u64 = 4;

/// When it went wrong, since the run began and by the ledger's time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trouble {
    pub(crate) began_at: Timestamp,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
    /// When every process has noticed it, if not at its end, in milliseconds since it began.
    pub(crate) noticed_after_ms: i64,
}

impl Numbers {
    /// Whether anything came of what went wrong.
    pub(crate) fn show(&self, outage: Outage) -> bool {
        match outage.part() {
            Part::Redis | Part::Network => self.by_cold > 0,
            Part::Postgres => self.failed > 0,
            Part::Queue => self.queue_faults > 0 || outage == Outage::QueueDuplicates,
            // What is remembered may last.
            Part::ControlPlane => true,
        }
    }
}

/// What a run came to.
#[derive(Debug, Default, Clone)]
pub(crate) struct Numbers {
    pub(crate) checks: usize,
    pub(crate) acts: usize,
    pub(crate) new: usize,
    pub(crate) seen: usize,
    pub(crate) undecided: BTreeMap<String, usize>,
    pub(crate) by_cold: usize,
    /// NEW that was not known to be durable.
    pub(crate) undurable: usize,
    /// Rows that are linked as false NEWs.
    pub(crate) false_new: usize,
    /// How long after the trouble began the last of them came.
    pub(crate) false_new_until_ms: i64,
    /// NEWs of a claim that another caller held too, or had resolved: its trail shows both.
    pub(crate) double_claims: usize,
    pub(crate) owners_asked: usize,
    pub(crate) longest: Duration,
    /// Facts that the queue refused, lost, or lost the reply to.
    pub(crate) queue_faults: u64,
    /// Deliveries to the cold writer that failed.
    pub(crate) failed: usize,
    /// Messages that it gave up on, and that came again.
    pub(crate) redriven: usize,
}

impl Told {
    fn new_verdict(&self) -> Option<&NewVerdict> {
        match &self.answer {
            Some(Ok(Verdict::New(new))) => Some(new),
            Some(Ok(Verdict::Seen(_)) | Err(_)) | None => None,
        }
    }

    /// The nonce of its check.
    fn nonce(&self) -> Option<Nonce> {
        let mode = if self.check.claim.is_some() { "claim" } else { "plain" };
        let of = |request_id| nonce_of(&self.check.principal, request_id, &self.check.payload, mode);
        self.check.request_id.as_ref().map(of)
    }

    /// The first sighting of the registration that this caller was told to discard for.
    fn discarded(&self) -> Option<Timestamp> {
        match &self.answer {
            Some(Ok(Verdict::Seen(seen))) if seen.disposition == Disposition::Discard => Some(seen.first_seen_at),
            Some(Ok(Verdict::Seen(_) | Verdict::New(_)) | Err(_)) | None => None,
        }
    }
}

impl World {
    /// The first promise: whoever was told to discard was told so of what somebody heard NEW for, or hears now on a retry. Of
    /// a window that is over no retry is promised anything.
    pub(crate) async fn nobody_discards_what_nobody_processes(&self) -> usize {
        let discarded: BTreeSet<(usize, Timestamp)> =
            lock(&self.told).iter().filter_map(|told| Some((told.key, told.discarded()?))).collect();
        let mut asked = 0;
        for (key, first_seen_at) in discarded {
            if self.is_processed(key, first_seen_at) {
                continue;
            }
            asked += 1;
            if !self.some_owner_is_told(key, first_seen_at).await {
                self.violation(format!("key {key} of {first_seen_at} was discarded, and nobody is told to process it"));
            }
        }
        asked
    }

    /// Asks each caller that got no answer again, until one is told to process what was registered then.
    async fn some_owner_is_told(&self, key: usize, first_seen_at: Timestamp) -> bool {
        let give_up_at = self.at() + Duration::from_secs(15);
        loop {
            let window_ms = window_ms(key);
            if self.now().millis_since(first_seen_at) + 200 >= window_ms {
                return true;
            }
            let owners: BTreeMap<String, Told> = lock(&self.told)
                .iter()
                .filter(|told| told.key == key && told.heard_new().is_none())
                .filter_map(|told| Some((told.check.request_id.as_ref()?.to_string(), told.clone())))
                .collect();
            for owner in owners.into_values() {
                self.ask(&[(key, owner.check)], &self.random, false).await;
                if self.is_processed(key, first_seen_at) {
                    return true;
                }
            }
            // A PENDING of somebody who died may still stand.
            if self.at() > give_up_at {
                return false;
            }
            pause_ms(500).await;
        }
    }

    /// Nobody is told to discard for what is not durable yet: the queue took it, or it is in the cold ledger, which may not
    /// answer now; what is there is looked for at the end too.
    pub(crate) async fn nothing_is_discarded_too_early(&self, told: &[Told]) {
        for told in told {
            let Some(Ok(Verdict::Seen(seen))) = &told.answer else { continue };
            let subject = self.subject(told.key);
            if told.discarded().is_none() || self.queue.ever_took(&subject, seen.first_seen_at, seen.state) {
                continue;
            }
            let Ok(page) = self.keeping.cold.by_key(&subject, &all()).await else { continue };
            let is_it =
                |row: &HistoryRow| (row.record.first_seen_at, row.record.state) == (seen.first_seen_at, seen.state);
            if !page.rows.iter().any(is_it) {
                // How it came to be there, if it did, tells what went wrong.
                pause_ms(3_000).await;
                let later = self.queue.ever_took(&subject, seen.first_seen_at, seen.state);
                let rows = self.cold().by_key(&subject, &all()).await.map(|page| page.rows);
                let what = format!("rows {:?}; later the queue had taken it: {later}, rows {rows:?}", page.rows);
                self.violation(format!("to be discarded for what is not durable: {told:?}, {what}"));
            }
        }
    }

    /// Whether some caller heard NEW of a registration whose window overlaps that of `first_seen_at`.
    fn is_processed(&self, key: usize, first_seen_at: Timestamp) -> bool {
        let near = |at: Timestamp| at.millis_since(first_seen_at).abs() < window_ms(key);
        lock(&self.told).iter().any(|told| told.key == key && told.heard_new().is_some_and(near))
    }

    /// Judges the whole run, which is over and healed.
    pub(crate) async fn judge(&self, trouble: Option<Trouble>, false_new_can_be: bool) -> Numbers {
        let told = lock(&self.told).clone();
        let deeds = lock(&self.deeds).clone();
        let mut numbers = self.count(&told, deeds.len(), trouble);
        let mut told_of: BTreeMap<usize, Vec<&Told>> = BTreeMap::new();
        for told in &told {
            told_of.entry(told.key).or_default().push(told);
        }
        let mut deeds_of: BTreeMap<usize, Vec<&Deed>> = BTreeMap::new();
        for deed in &deeds {
            deeds_of.entry(deed.key).or_default().push(deed);
        }
        // Nobody else's limits or breakers are in the way.
        let inspected = RedisHotTier::open(&patient_url(self.redis_address())).expect("a URL of this fixture");
        let mut violations = Vec::new();
        for (key, told) in &told_of {
            let rows = self.cold().by_key(&self.subject(*key), &all()).await.expect("it answers").rows;
            let of_key = Of { key: *key, told, rows: &rows };
            violations.extend(false_news_are_linked(&rows));
            of_key.no_fact_is_lost(&mut violations);
            of_key.each_new_has_its_row(&mut violations);
            of_key.counts_are_bounded(trouble, &mut violations);
            if trouble.is_none() {
                of_key.all_is_exact(&mut violations);
            }
            let deeds = deeds_of.get(key).map_or(&[][..], Vec::as_slice);
            numbers.double_claims += self.claims_are_traced(&of_key, deeds, &mut violations);
            self.stands_in_hot(&inspected, &of_key, &mut violations).await;
            for row in rows.iter().filter(|row| row.false_new_of.is_some()) {
                numbers.false_new += 1;
                let after_ms = trouble.map_or(0, |trouble| row.record.first_seen_at.millis_since(trouble.began_at));
                numbers.false_new_until_ms = numbers.false_new_until_ms.max(after_ms);
                let earlier = rows.iter().find(|earlier| Some(earlier.record.registration_id) == row.false_new_of);
                let is_of_nobodys = earlier.is_some_and(|earlier| of_key.is_nobodys(&earlier.record));
                if !false_new_can_be && !is_of_nobodys {
                    violations.push(format!("a false NEW where none can be: {row:#?} among {rows:#?}, told {told:#?}"));
                }
            }
        }
        let reported = self.false_new.load(Ordering::Relaxed);
        if reported > numbers.false_new as u64 {
            violations.push(format!("{reported} false NEWs were reported, {} are linked", numbers.false_new));
        }
        if let Some(trouble) = trouble {
            let millis = |length: Duration| i64::try_from(length.as_millis()).expect("minutes");
            let unnoticed_ms = millis(trouble.to - trouble.from).min(trouble.noticed_after_ms);
            let limit_ms = unnoticed_ms + FALSE_NEW_MS + millis(self.queue.oldest());
            if numbers.false_new_until_ms > limit_ms {
                let until_ms = numbers.false_new_until_ms;
                violations.push(format!("a false NEW {until_ms} ms after the trouble began, {limit_ms} are the limit"));
            }
        }
        if numbers.longest > CHECK_MAX {
            violations.push(format!("a check took {:?}", numbers.longest));
        }
        lock(&self.violations).extend(violations);
        numbers
    }

    fn count(&self, told: &[Told], acts: usize, trouble: Option<Trouble>) -> Numbers {
        let mut numbers = Numbers { checks: told.len(), acts, ..Numbers::default() };
        for told in told {
            if told.answer.is_some() && trouble.is_none_or(|trouble| told.meets(trouble, Duration::ZERO)) {
                numbers.longest = numbers.longest.max(told.told_at.saturating_sub(told.asked_at));
            }
            match &told.answer {
                Some(Ok(Verdict::New(new))) => {
                    numbers.new += 1;
                    numbers.by_cold += usize::from(new.decided_by == DecidedBy::Cold);
                    numbers.undurable += usize::from(!new.durable);
                }
                Some(Ok(Verdict::Seen(seen))) => {
                    numbers.seen += 1;
                    numbers.by_cold += usize::from(seen.decided_by == DecidedBy::Cold);
                }
                Some(Err(Refusal::Undecided(why))) => *numbers.undecided.entry(name_of(*why)).or_default() += 1,
                Some(Err(Refusal::Invalid(invalid))) => self.violation(format!("refused: {invalid}")),
                None => {}
            }
        }
        numbers.queue_faults = self.sending.faults();
        numbers.failed = self.failed.load(Ordering::Relaxed);
        numbers.redriven = self.redriven.load(Ordering::Relaxed);
        numbers
    }

    /// A claim may be acted on in two tiers at once while they do not hear of each other. What was acknowledged is never
    /// undone, and whoever was told NEW stands in the trail. Returns how many NEWs another holder's claim contradicts.
    fn claims_are_traced(&self, of_key: &Of<'_>, deeds: &[&Deed], violations: &mut Vec<String>) -> usize {
        let tokens = TokenKeys::new(&[TOKEN_KEY]).expect("a key");
        let mut holders: BTreeMap<(Timestamp, u16), BTreeSet<ClaimIdOrd>> = BTreeMap::new();
        for told in of_key.told {
            let Some(new) = told.new_verdict().filter(|new| new.durable) else { continue };
            let (Some(claim), Some(attempt)) = (&new.claim, new.attempt) else { continue };
            let id = tokens.verify(&self.slot(of_key.key), &claim.token).expect("a token of this deployment");
            holders.entry((new.first_seen_at, attempt)).or_default().insert(ClaimIdOrd::of(&id));
            let traced = of_key.rows.iter().any(|row| {
                let mut attempts = row.trail.attempts().iter();
                row.record.registration_id == id.registration_id
                    && attempts.any(|attempt| attempt.place() == (id.attempt, id.nonce))
            });
            if !traced {
                violations.push(format!("no trail of {told:?} in {:?}", of_key.rows));
            }
        }
        for deed in deeds {
            let Some(Ok(_)) = &deed.outcome else { continue };
            let Act::Resolve(_) = &deed.act else { continue };
            let claim = tokens.verify(&self.slot(of_key.key), &deed.token).expect("a token of this deployment");
            let row = of_key.rows.iter().find(|row| row.record.registration_id == claim.registration_id);
            if row.is_none_or(|row| row.record.state != State::Resolved) {
                let took = row.is_some_and(|row| {
                    self.queue.ever_took(&self.subject(of_key.key), row.record.first_seen_at, State::Resolved)
                });
                let queue = format!("the queue took it: {took}");
                violations.push(format!("{deed:?}, {queue}, and its row is {row:?}; of all {deeds:?}"));
            }
        }
        holders.values().map(|holders| holders.len() - 1).sum()
    }

    /// What stands in the cold ledger stands in the hot tier, for it was filled since, unless it is nobody's.
    async fn stands_in_hot(&self, inspected: &dyn HotTier, of_key: &Of<'_>, violations: &mut Vec<String>) {
        let Of { key, rows, .. } = *of_key;
        let standing = self.cold().standing(&self.subject(key)).await.expect("it answers");
        let hot = inspected.read(&[self.slot(key)]).await.remove(0).expect("it answers");
        // Taken after both were read: a window that ends meanwhile is over.
        let Some(row) = standing.filter(|row| !row.is_over(self.now().plus_millis(500))) else { return };
        let same = match &hot {
            Found::Record(hot) => {
                hot.identity() == row.identity() && hot.state == row.state && hot.retry_count >= row.retry_count
            }
            Found::Absent | Found::Unreadable => false,
        };
        if !same && !of_key.is_nobodys(&row) {
            violations.push(format!("key {key}: the hot tier holds {hot:?}, the cold ledger {row:?} of {rows:?}"));
        }
    }
}

/// [`ClaimId`] in some order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ClaimIdOrd([u8; 8], [u8; 8]);

impl ClaimIdOrd {
    fn of(id: &ClaimId) -> Self {
        Self(*id.registration_id.as_bytes(), *id.nonce.as_bytes())
    }
}

/// A key's callers, and its rows, newest first.
struct Of<'a> {
    key: usize,
    told: &'a [&'a Told],
    rows: &'a [HistoryRow],
}

impl Of<'_> {
    fn rows_at(&self, first_seen_at: Timestamp) -> impl Iterator<Item = &HistoryRow> {
        self.rows.iter().filter(move |row| row.record.first_seen_at == first_seen_at)
    }

    /// Whether nobody was ever told NEW of what stands in this row, for the process of whoever won it died after the cold ledger
    /// had decided and before the hot tier knew. Where nothing was lost, nothing fills that in.
    fn is_nobodys(&self, row: &Record) -> bool {
        let won = |told: &&&Told| told.nonce() == Some(row.nonce);
        let is_of_it = |new: &NewVerdict| {
            new.first_seen_at == row.first_seen_at && new.attempt.is_none_or(|attempt| attempt == row.attempt)
        };
        let mut died = self.told.iter().filter(won).filter(|told| told.answer.is_none());
        died.next().is_some() && !self.told.iter().filter(won).any(|told| told.new_verdict().is_some_and(is_of_it))
    }

    /// Each NEW that was said to be durable, and whatever somebody was told to discard for, is in the cold ledger.
    fn no_fact_is_lost(&self, violations: &mut Vec<String>) {
        for told in self.told {
            let durable = told.new_verdict().filter(|new| new.durable).map(|new| new.first_seen_at);
            if let Some(first_seen_at) = durable.or(told.discarded())
                && self.rows_at(first_seen_at).next().is_none()
            {
                violations.push(format!("no row of {told:?} among {:?}", self.rows));
            }
        }
    }

    /// The second promise: of one window one caller is told NEW, and each other one has a row that says so, or took over.
    fn each_new_has_its_row(&self, violations: &mut Vec<String>) {
        let mut owners: BTreeMap<Timestamp, BTreeSet<Nonce>> = BTreeMap::new();
        // And whoever took over, heard of it or not: told NEW again, it is told nothing that it does not do already.
        let mut holders = owners.clone();
        for told in self.told {
            let Some((new, owner)) = told.new_verdict().filter(|new| new.durable).zip(told.nonce()) else { continue };
            if !new.replayed && !new.taken_over {
                owners.entry(new.first_seen_at).or_default().insert(owner);
            }
            let holders = holders.entry(new.first_seen_at).or_default();
            holders.insert(owner);
            let rows = self.rows_at(new.first_seen_at);
            holders.extend(rows.flat_map(|row| row.trail.attempts().iter().map(|attempt| attempt.nonce)));
        }
        for (first_seen_at, owners_then) in &owners {
            let rows = self.rows_at(*first_seen_at).count();
            let taken_over = self.rows_at(*first_seen_at).any(|row| row.record.attempt > 1);
            if owners_then.len() > rows && !taken_over {
                let key = self.key;
                violations.push(format!("key {key} of {first_seen_at}: {rows} rows, and NEW to {owners_then:?}"));
            }
            let earlier = holders.range(..first_seen_at).find(|(earlier, holders_before)| {
                first_seen_at.millis_since(**earlier) < window_ms(self.key) && holders_before.is_disjoint(owners_then)
            });
            if let Some((earlier, _)) = earlier
                && !self.rows_at(*first_seen_at).any(|row| row.false_new_of.is_some())
            {
                let (key, rows) = (self.key, self.rows);
                violations.push(format!("key {key}: NEW of {first_seen_at} after {earlier}, unrecorded: {rows:?}"));
            }
        }
    }

    /// No repeat counts more often than it may have been tried.
    fn counts_are_bounded(&self, trouble: Option<Trouble>, violations: &mut Vec<String>) {
        let counted: u64 = self.rows.iter().map(|row| u64::from(row.record.retry_count)).sum();
        let may_count = |told: &&Told| match &told.answer {
            _ if trouble.is_some_and(|trouble| told.meets(trouble, AFTERMATH)) => COUNTS_MAX,
            Some(Ok(Verdict::New(new))) => u64::from(new.taken_over || new.replayed),
            Some(Ok(Verdict::Seen(_)) | Err(_)) | None => 1,
        };
        let limit: u64 = self.told.iter().map(may_count).sum();
        if counted > limit {
            let (key, calls) = (self.key, self.told.len());
            violations.push(format!("key {key}: {counted} repeats counted of {calls} calls, at most {limit} may be"));
        }
    }

    /// Where nothing goes wrong: one NEW for each row, and each repeat counted once.
    fn all_is_exact(&self, violations: &mut Vec<String>) {
        for row in self.rows {
            let record = &row.record;
            let (mut new, mut seen) = (0, 0);
            for told in self.told {
                match &told.answer {
                    Some(Ok(Verdict::New(told))) if told.first_seen_at == record.first_seen_at && !told.replayed => {
                        seen += u32::from(told.taken_over);
                        new += u32::from(!told.taken_over);
                    }
                    Some(Ok(Verdict::Seen(told))) if told.first_seen_at == record.first_seen_at => seen += 1,
                    Some(Ok(_) | Err(_)) | None => {}
                }
            }
            if new != 1 || seen != record.retry_count {
                violations.push(format!("key {}: told NEW {new}, repeats {seen}, the row is {row:?}", self.key));
            }
        }
    }
}

impl Told {
    /// Whether it was under way during the trouble, or not long after.
    fn meets(&self, trouble: Trouble, aftermath: Duration) -> bool {
        self.told_at >= trouble.from && self.asked_at <= trouble.to + aftermath
    }
}

fn window_ms(key: usize) -> i64 {
    i64::try_from(KeyUse::of(key).window_seconds * 1_000).expect("a window")
}

fn name_of(why: Undecided) -> String {
    format!("{why:?}")
}

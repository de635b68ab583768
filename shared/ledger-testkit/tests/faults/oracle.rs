//! What must be true of a run, whatever happened in it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use ledger_domain::ports::HistoryRow;
use ledger_domain::transition::Found;
use ledger_domain::{Disposition, Timestamp, Verdict};
use ledger_testkit::faulty::FaultRates;
use ledger_testkit::history::{all, false_news_are_linked};

use crate::world::{Told, Trust, World, lock};

/// What a run came to.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Numbers {
    pub(crate) checks: u64,
    pub(crate) new: u64,
    pub(crate) seen: u64,
    pub(crate) faults: u64,
    pub(crate) false_new: u64,
    pub(crate) owners_asked: u64,
}

impl World {
    fn window_ms(&self, key: usize) -> i64 {
        i64::try_from(self.tiers.windows[key] * 1_000).expect("a window")
    }

    /// Whether some caller heard NEW of a registration whose window overlaps that of `first_seen_at`.
    fn is_processed(&self, key: usize, first_seen_at: Timestamp) -> bool {
        let window_ms = self.window_ms(key);
        let near = |at: Timestamp| at.millis_since(first_seen_at).abs() < window_ms;
        lock(&self.told).iter().any(|told| told.key == key && told.heard_new().is_some_and(near))
    }

    /// The first promise: whoever was told SEEN was told so of what somebody heard NEW for, or hears now on a retry.
    pub(crate) async fn nobody_discards_what_nobody_processes(&self, from: usize) -> u64 {
        let seen: BTreeSet<(usize, Timestamp)> = lock(&self.told)[from..]
            .iter()
            .filter_map(|told| match &told.answer {
                Some(Ok(Verdict::Seen(seen))) if seen.disposition == Disposition::Discard => {
                    Some((told.key, seen.first_seen_at))
                }
                Some(Ok(Verdict::Seen(_) | Verdict::New(_)) | Err(_)) | None => None,
            })
            .collect();
        let mut asked = 0;
        self.set_faults(FaultRates::NONE);
        for (key, first_seen_at) in seen {
            if self.is_processed(key, first_seen_at) {
                continue;
            }
            if self.is_almost_over(key, first_seen_at) {
                continue;
            }
            asked += 1;
            let owners: BTreeMap<String, Told> = lock(&self.told)
                .iter()
                .filter(|told| told.key == key && told.heard_new().is_none())
                .filter_map(|told| Some((told.check.request_id.as_ref()?.to_string(), told.clone())))
                .collect();
            let mut found = self.some_owner_is_told(key, first_seen_at, &owners).await;
            if !found {
                // One of them may have left a PENDING, which its own retry has ended now, or which lapses.
                self.let_pendings_lapse().await;
                found = self.is_almost_over(key, first_seen_at)
                    || self.some_owner_is_told(key, first_seen_at, &owners).await;
            }
            if !found {
                let told: Vec<_> = lock(&self.told).iter().filter(|told| told.key == key).cloned().collect();
                let rows = self.tiers.cold.by_key(&self.subject(key), &all()).await.expect("answers").rows;
                let hot = self.tiers.hot.read(&[self.slot(key)]).await;
                let what = format!(
                    "key {key} of {first_seen_at} was discarded, and nobody is told to process it: {rows:?}, {hot:?}\n{told:#?}"
                );
                lock(&self.violations).push(what);
            }
        }
        self.set_faults(self.profile.faults);
        asked
    }

    /// By the slowest process's clock too: then no retry is promised anything any more.
    fn is_almost_over(&self, key: usize, first_seen_at: Timestamp) -> bool {
        let now = self.tiers.clock.now().expect("known");
        now.millis_since(first_seen_at) + 100 >= self.window_ms(key)
    }

    /// Asks each caller that heard no NEW again, until one is told to process what was registered then.
    async fn some_owner_is_told(&self, key: usize, first_seen_at: Timestamp, owners: &BTreeMap<String, Told>) -> bool {
        for owner in owners.values() {
            let retry = self.ask(&[(key, owner.check.clone())], false).await;
            if retry[0].heard_new().is_some() || self.is_processed(key, first_seen_at) {
                return true;
            }
        }
        false
    }

    async fn let_pendings_lapse(&self) {
        self.advance(&[11_000]);
        if self.tiers.manual.is_none() {
            // This clock waits for a tenth of what it is told to.
            self.tiers.clock.pause(110_000).await;
        }
    }

    /// Drains everything and judges the whole run.
    pub(crate) async fn judge(&self) -> Numbers {
        self.set_faults(FaultRates::NONE);
        while !self.queue.is_empty() {
            self.drain(1_000).await;
        }
        let told = lock(&self.told).clone();
        let mut violations = Vec::new();
        let mut linked = 0;
        for key in 0..self.tiers.windows.len() {
            let told: Vec<_> = told.iter().filter(|told| told.key == key).collect();
            let rows = self.tiers.cold.by_key(&self.subject(key), &all()).await.expect("answers").rows;
            linked += rows.iter().filter(|row| row.false_new_of.is_some()).count() as u64;
            no_fact_is_lost(&told, &rows, &mut violations);
            violations.extend(false_news_are_linked(&rows));
            self.claims_hold(key, &told, &rows, &mut violations).await;
            counts_are_bounded(&told, &rows, &mut violations);
            if self.is_calm() && !self.profile.claims {
                self.all_is_exact(key, &told, &rows, &mut violations).await;
            }
        }
        let reported = self.false_new.load(Ordering::Relaxed);
        if reported > linked || (self.profile.faults == FaultRates::NONE && reported != linked) {
            violations.push(format!("{reported} false NEWs were reported, {linked} are linked"));
        }
        if linked > 0 && (self.is_calm() || self.profile.trust == Trust::Never) {
            violations.push(format!("{linked} false NEWs where none can be"));
        }
        lock(&self.violations).extend(violations);
        let count = |of: fn(&Verdict) -> bool| {
            told.iter().filter(|told| matches!(&told.answer, Some(Ok(verdict)) if of(verdict))).count() as u64
        };
        Numbers {
            checks: self.sent.load(Ordering::Relaxed),
            new: count(|verdict| matches!(verdict, Verdict::New(_))),
            seen: count(|verdict| matches!(verdict, Verdict::Seen(_))),
            faults: self.faults(),
            false_new: linked,
            owners_asked: 0,
        }
    }

    /// Where nothing goes wrong: one NEW per window, each repeat counted once, hot and cold alike.
    async fn all_is_exact(&self, key: usize, told: &[&Told], rows: &[HistoryRow], violations: &mut Vec<String>) {
        let mut new: BTreeMap<Timestamp, u32> = BTreeMap::new();
        let mut seen: BTreeMap<Timestamp, u32> = BTreeMap::new();
        for told in told {
            match &told.answer {
                Some(Ok(Verdict::New(told))) if !told.replayed => *new.entry(told.first_seen_at).or_default() += 1,
                Some(Ok(Verdict::Seen(told))) => *seen.entry(told.first_seen_at).or_default() += 1,
                Some(Ok(Verdict::New(_)) | Err(_)) | None => {}
            }
        }
        for row in rows {
            let record = &row.record;
            let (news, repeats) = (new.remove(&record.first_seen_at), seen.remove(&record.first_seen_at));
            if news != Some(1) || repeats.unwrap_or(0) != record.retry_count {
                violations.push(format!("key {key}: told NEW {news:?}, SEEN {repeats:?}, the row is {record:?}"));
            }
        }
        if !(new.is_empty() && seen.is_empty()) {
            violations.push(format!("key {key}: no rows of NEW {new:?}, SEEN {seen:?}"));
        }
        let hot = self.tiers.hot.read(&[self.slot(key)]).await.remove(0).expect("answers");
        match (hot, rows.first()) {
            (Found::Record(hot), Some(row)) if *hot == row.record => {}
            (Found::Absent, row)
                if row.is_none_or(|row| row.record.is_over(self.tiers.clock.now().expect("known"))) => {}
            (hot, row) => violations.push(format!("key {key}: hot {hot:?}, cold {row:?}")),
        }
    }
}

fn no_fact_is_lost(told: &[&Told], rows: &[HistoryRow], violations: &mut Vec<String>) {
    for told in told {
        let first_seen_at = match &told.answer {
            Some(Ok(Verdict::New(new))) if new.durable => new.first_seen_at,
            Some(Ok(Verdict::Seen(seen))) if seen.disposition == Disposition::Discard => seen.first_seen_at,
            Some(Ok(Verdict::New(_) | Verdict::Seen(_)) | Err(_)) | None => continue,
        };
        if !rows.iter().any(|row| row.record.first_seen_at == first_seen_at) {
            violations.push(format!("no row of {told:?}"));
        }
    }
}

/// A reply that was lost may count its sighting twice, and no sighting counts more often.
fn counts_are_bounded(told: &[&Told], rows: &[HistoryRow], violations: &mut Vec<String>) {
    let counted: u64 = rows.iter().map(|row| u64::from(row.record.retry_count)).sum();
    if counted > 2 * told.len() as u64 {
        violations.push(format!("{counted} repeats counted of {} checks", told.len()));
    }
}

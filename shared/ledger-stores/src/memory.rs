//! The hot tier in memory, for `local` and for tests: Redis's twin, one process wide.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use ledger_domain::ports::{
    Amend, Begin, Begun, Clock, Count, Fill, Heal, HotHealth, HotTier, Release, Replace, Settle, StoreError, WarmMarker,
};
use ledger_domain::transition::{self, Amended, Counted, Found, Swapped};
use ledger_domain::{EPSILON_MS, FillPass, Record, Slot, Timestamp, value};

/// How many locks the slots are spread over: a power of two, well above the cores of one machine.
const SHARDS: usize = 64;

/// There is no room for one more record, and none has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("all {max_records} records are in use and none has expired")]
pub struct Full {
    /// How many records there may be.
    pub max_records: usize,
}

struct Stored {
    value: Box<[u8]>,
    expires_at: Timestamp,
}

type Shard = HashMap<Slot, Stored>;

/// The hot tier in memory. Clones of an `Arc` of it are handles on the same place; nothing outlives the process.
///
/// It holds the same bytes as Redis does and runs the functions of [`ledger_domain::transition`] as they are. Expiry is
/// judged by the clock it was given; where that clock is unknown, nothing happens and the error says so.
pub struct MemoryHotTier {
    shards: [Mutex<Shard>; SHARDS],
    /// How many records the shards hold together.
    records: AtomicUsize,
    max_records: usize,
    /// No record expires before this; kept so that a full tier is not searched at each write.
    earliest_expiry_ms: AtomicI64,
    /// The pass that fills or filled it, and whether that has ended.
    filled: Mutex<Option<(FillPass, bool)>>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for MemoryHotTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryHotTier")
            .field("records", &self.records.load(Ordering::Relaxed))
            .field("max_records", &self.max_records)
            .finish_non_exhaustive()
    }
}

impl MemoryHotTier {
    /// An empty tier for at most `max_records` records (a plain one takes about 200 bytes). With no room left, expired
    /// records are dropped; where there are none, writes are refused.
    #[must_use]
    pub fn new(max_records: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::new(Shard::new())),
            records: AtomicUsize::new(0),
            max_records,
            earliest_expiry_ms: AtomicI64::new(i64::MAX),
            filled: Mutex::new(None),
            clock,
        }
    }

    /// Puts `value` as it is under `slot` until `expires_at`, whatever stands there: how a test or a repair plants a value
    /// that this version would not write.
    ///
    /// # Errors
    /// [`StoreError::DidNotHappen`] with no room left, or where the clock is unknown.
    pub fn put_raw(&self, slot: Slot, value: &[u8], expires_at: Timestamp) -> Result<(), StoreError> {
        self.at(slot, "put a value", |entry| entry.write(value.into(), expires_at))
    }

    /// The value under `slot` as it is, and when it expires.
    ///
    /// # Errors
    /// [`StoreError::DidNotHappen`] where the clock is unknown.
    pub fn get_raw(&self, slot: Slot) -> Result<Option<(Vec<u8>, Timestamp)>, StoreError> {
        self.at(slot, "get a value", |entry| {
            Ok(entry.stored().map(|stored| (stored.value.to_vec(), stored.expires_at)))
        })
    }

    fn shard_of(&self, slot: Slot) -> MutexGuard<'_, Shard> {
        // A slot is a digest: any byte of it spreads evenly.
        let index = usize::from(slot.as_bytes()[0]) % SHARDS;
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One atomic step on one slot. An expired value is dropped first. A step refused for want of room has changed nothing
    /// and is taken once more after the expired records were dropped.
    fn at<T>(
        &self,
        slot: Slot,
        operation: &'static str,
        step: impl Fn(&mut Entry<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let now = self.clock.now().map_err(|error| StoreError::did_not_happen(operation, error))?;
        let (outcome, no_room) = self.step(slot, now, operation, &step);
        if no_room && self.purge(now) { self.step(slot, now, operation, &step).0 } else { outcome }
    }

    fn step<T>(
        &self,
        slot: Slot,
        now: Timestamp,
        operation: &'static str,
        step: impl Fn(&mut Entry<'_>) -> Result<T, StoreError>,
    ) -> (Result<T, StoreError>, bool) {
        let mut shard = self.shard_of(slot);
        if shard.get(&slot).is_some_and(|stored| stored.expires_at <= now) {
            shard.remove(&slot);
            self.records.fetch_sub(1, Ordering::Relaxed);
        }
        let mut entry = Entry { tier: self, shard, slot, now, operation, no_room: false };
        (step(&mut entry), entry.no_room)
    }

    /// Drops every expired record; `false` where none can have expired.
    fn purge(&self, now: Timestamp) -> bool {
        if self.earliest_expiry_ms.load(Ordering::Relaxed) > now.as_millis() {
            return false;
        }
        self.earliest_expiry_ms.store(i64::MAX, Ordering::Relaxed);
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let before = shard.len();
            shard.retain(|_, stored| stored.expires_at > now);
            self.records.fetch_sub(before - shard.len(), Ordering::Relaxed);
            if let Some(earliest) = shard.values().map(|stored| stored.expires_at.as_millis()).min() {
                self.earliest_expiry_ms.fetch_min(earliest, Ordering::Relaxed);
            }
        }
        true
    }
}

/// A slot under its lock.
struct Entry<'a> {
    tier: &'a MemoryHotTier,
    shard: MutexGuard<'a, Shard>,
    slot: Slot,
    now: Timestamp,
    operation: &'static str,
    no_room: bool,
}

impl Entry<'_> {
    fn stored(&self) -> Option<&Stored> {
        self.shard.get(&self.slot)
    }

    fn found(&self) -> Found {
        self.stored()
            .map_or(Found::Absent, |stored| value::decode(&stored.value).map_or(Found::Unreadable, Found::record))
    }

    fn write(&mut self, value: Box<[u8]>, expires_at: Timestamp) -> Result<(), StoreError> {
        if !self.shard.contains_key(&self.slot) {
            let room = |records: usize| (records < self.tier.max_records).then_some(records + 1);
            if self.tier.records.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_err() {
                self.no_room = true;
                return Err(StoreError::did_not_happen(self.operation, Full { max_records: self.tier.max_records }));
            }
        }
        self.tier.earliest_expiry_ms.fetch_min(expires_at.as_millis(), Ordering::Relaxed);
        self.shard.insert(self.slot, Stored { value, expires_at });
        Ok(())
    }

    fn write_pending(&mut self, pending: &Record, ttl_ms: u64) -> Result<(), StoreError> {
        let ttl_ms = i64::try_from(ttl_ms).unwrap_or(i64::MAX).saturating_add(EPSILON_MS * 2);
        self.write(value::encode(pending).into(), self.now.plus_millis(ttl_ms))
    }

    fn write_until_window_end(&mut self, record: &Record) -> Result<(), StoreError> {
        self.write(value::encode(record).into(), record.window_ends_at.plus_millis(EPSILON_MS * 2))
    }

    /// Writes in place: the expiry stays.
    fn rewrite(&mut self, record: &Record) {
        if let Some(stored) = self.shard.get_mut(&self.slot) {
            stored.value = value::encode(record).into();
        }
    }

    fn remove(&mut self) {
        if self.shard.remove(&self.slot).is_some() {
            self.tier.records.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[async_trait]
impl HotTier for MemoryHotTier {
    async fn begin(&self, requests: &[Begin]) -> Vec<Result<Begun, StoreError>> {
        let begin = |request: &Begin| {
            self.at(request.slot, "begin a registration", |entry| {
                match transition::begin(entry.found(), &request.pending) {
                    Ok(pending) => entry.write_pending(&pending, request.ttl_ms).map(|()| Begun::Won),
                    Err(found) => Ok(Begun::Present(found)),
                }
            })
        };
        requests.iter().map(begin).collect()
    }

    async fn settle(&self, requests: &[Settle]) -> Vec<Result<Swapped, StoreError>> {
        let settle = |request: &Settle| {
            self.at(request.slot, "settle a registration", |entry| {
                let (write, swapped) = transition::settle(entry.found(), &request.guard, &request.settled);
                write.map_or(Ok(()), |record| entry.write_until_window_end(&record)).map(|()| swapped)
            })
        };
        requests.iter().map(settle).collect()
    }

    async fn count(&self, requests: &[Count]) -> Vec<Result<Counted, StoreError>> {
        let count = |request: &Count| {
            self.at(request.slot, "count a sighting", |entry| {
                let counted = transition::count(entry.found(), &request.guard, request.now, &request.payload);
                if let Counted::Counted(record) = &counted {
                    entry.rewrite(record);
                }
                Ok(counted)
            })
        };
        requests.iter().map(count).collect()
    }

    async fn replace(&self, requests: &[Replace]) -> Vec<Result<Swapped, StoreError>> {
        let replace = |request: &Replace| {
            self.at(request.slot, "replace a registration whose window is over", |entry| {
                let (write, swapped) = transition::replace(entry.found(), &request.guard, &request.pending);
                write.map_or(Ok(()), |record| entry.write_pending(&record, request.ttl_ms)).map(|()| swapped)
            })
        };
        requests.iter().map(replace).collect()
    }

    async fn amend(&self, requests: &[Amend]) -> Vec<Result<Amended, StoreError>> {
        let amend = |request: &Amend| {
            self.at(request.slot, "make a claim's transition", |entry| {
                let Amend { read, to, sighting, .. } = request;
                let (write, amended) = transition::amend(entry.found(), read, to, sighting.as_ref());
                if let Some(record) = &write {
                    entry.rewrite(record);
                }
                Ok(amended)
            })
        };
        requests.iter().map(amend).collect()
    }

    async fn release(&self, requests: &[Release]) -> Vec<Result<(), StoreError>> {
        let release = |request: &Release| {
            self.at(request.slot, "release a registration", |entry| {
                if transition::release(&entry.found(), &request.guard) {
                    entry.remove();
                }
                Ok(())
            })
        };
        requests.iter().map(release).collect()
    }

    async fn read(&self, slots: &[Slot]) -> Vec<Result<Found, StoreError>> {
        slots.iter().map(|slot| self.at(*slot, "read a slot", |entry| Ok(entry.found()))).collect()
    }

    async fn fill(&self, requests: &[Fill]) -> Vec<Result<bool, StoreError>> {
        let fill = |request: &Fill| {
            self.at(request.slot, "fill a key", |entry| match transition::fill(&entry.found(), &request.row) {
                Some(record) => entry.write_until_window_end(&record).map(|()| true),
                None => Ok(false),
            })
        };
        requests.iter().map(fill).collect()
    }

    async fn begin_fill(&self, pass: FillPass) -> Result<(), StoreError> {
        *self.filled.lock().unwrap_or_else(PoisonError::into_inner) = Some((pass, false));
        Ok(())
    }

    async fn end_fill(&self, pass: FillPass) -> Result<bool, StoreError> {
        let mut filled = self.filled.lock().unwrap_or_else(PoisonError::into_inner);
        let is_its = filled.is_some_and(|(of, _)| of == pass);
        if is_its {
            *filled = Some((pass, true));
        }
        Ok(is_its)
    }

    async fn heal(&self, requests: &[Heal]) -> Vec<Result<bool, StoreError>> {
        let heal = |request: &Heal| {
            self.at(request.slot, "heal a registration", |entry| match transition::heal(&entry.found(), &request.row) {
                Some(row) => entry.write_until_window_end(&row).map(|()| true),
                None => Ok(false),
            })
        };
        requests.iter().map(heal).collect()
    }

    async fn time(&self) -> Result<Timestamp, StoreError> {
        self.clock.now().map_err(|error| StoreError::did_not_happen("ask the hot tier's time", error))
    }

    /// It evicts nothing, and what it forgets it forgets with the process that asks: a new tier is empty, and once filled it
    /// stays warm.
    async fn health(&self) -> Result<HotHealth, StoreError> {
        let marker = match *self.filled.lock().unwrap_or_else(PoisonError::into_inner) {
            None => WarmMarker::Missing,
            Some((pass, false)) => WarmMarker::Filling(pass),
            Some((pass, true)) => WarmMarker::Warm(pass),
        };
        Ok(HotHealth { marker, problems: Vec::new() })
    }
}

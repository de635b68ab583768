//! Values that many states share, each kept once: a state holds and hashes a number in place of it.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::RwLock;

use ledger_domain::{Fact, Record, value};

/// A value that is kept until the test's process ends. Equal values are one, so the number stands for the value.
pub(crate) struct Kept<T: 'static> {
    number: u32,
    value: &'static T,
}

impl<T> Kept<T> {
    /// The value, for as long as the process runs.
    pub(crate) fn get(&self) -> &'static T {
        self.value
    }
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Kept<T> {}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> PartialEq for Kept<T> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<T> Eq for Kept<T> {}

impl<T> PartialOrd for Kept<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Kept<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.number.cmp(&other.number)
    }
}

impl<T> Hash for Kept<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.number.hash(hasher);
    }
}

impl<T: fmt::Debug> fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// Keeps values of one type by what makes them equal.
pub(crate) struct Keeper<K, T: 'static>(RwLock<HashMap<K, Kept<T>>>);

impl<K: Hash + Eq, T> Keeper<K, T> {
    pub(crate) fn new() -> Self {
        Self(RwLock::default())
    }

    /// The value kept under `key`, made now if there is none.
    pub(crate) fn keep(&self, key: K, make: impl FnOnce() -> T) -> Kept<T> {
        if let Some(kept) = self.0.read().expect("no thread panicked").get(&key) {
            return *kept;
        }
        let value = make();
        let mut kept = self.0.write().expect("no thread panicked");
        let number = u32::try_from(kept.len()).expect("fewer than 2^32 values");
        *kept.entry(key).or_insert_with(|| Kept { number, value: Box::leak(Box::new(value)) })
    }

    pub(crate) fn len(&self) -> usize {
        self.0.read().expect("no thread panicked").len()
    }
}

/// The records and facts of a model.
pub(crate) struct Values {
    records: Keeper<Vec<u8>, Record>,
    facts: Keeper<String, Fact>,
}

impl Values {
    pub(crate) fn new() -> Self {
        Self { records: Keeper::new(), facts: Keeper::new() }
    }

    /// A record, by the hot tier's own layout.
    pub(crate) fn record(&self, record: Record) -> Kept<Record> {
        self.records.keep(value::encode(&record), || record)
    }

    /// A fact, by what goes over the wire.
    pub(crate) fn fact(&self, fact: &Fact) -> Kept<Fact> {
        self.facts.keep(fact.to_json(), || fact.clone())
    }
}

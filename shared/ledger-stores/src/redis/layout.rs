//! Which primary of a cluster serves which hash slot.

use std::fmt::Write as _;
use std::sync::LazyLock;

use ::redis::{RedisError, RedisResult, Value};

use super::error::unexpected_reply;
use crate::hash_slot::{HASH_SLOTS, hash_slot};

/// The tags tried for [`tag_of`] are numbers of six digits below this; each hash slot has one (a test looks at all).
const TAGS_END: u32 = 170_000;

/// Where a node listens.
pub(super) type Address = (String, u16);

/// A text whose hash slot is `slot`.
pub(super) fn tag_of(slot: u16) -> String {
    static TAGS: LazyLock<Vec<u32>> = LazyLock::new(|| {
        let mut tags = vec![0; usize::from(HASH_SLOTS)];
        for number in (0..TAGS_END).rev() {
            tags[usize::from(hash_slot(tag(number).as_bytes()))] = number;
        }
        tags
    });
    tag(TAGS[usize::from(slot % HASH_SLOTS)])
}

fn tag(number: u32) -> String {
    format!("{number:06}")
}

/// One primary and what it serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shard {
    /// Where it listens.
    pub(super) primary: Address,
    /// The hash slots it serves, first and last of each range, in order; at least one.
    pub(super) ranges: Vec<(u16, u16)>,
}

impl Shard {
    /// The lowest hash slot it serves.
    pub(super) fn lowest(&self) -> u16 {
        self.ranges.first().map_or(0, |(first, _)| *first)
    }

    /// What it serves, as text: `0-99,200-299`.
    pub(super) fn slots(&self) -> String {
        let mut text = String::new();
        for (first, last) in &self.ranges {
            let comma = if text.is_empty() { "" } else { "," };
            // Writing to a String does not fail.
            let _ = write!(text, "{comma}{first}-{last}");
        }
        text
    }
}

/// The cluster's layout as some node told it, and what redirections have told since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    primaries: Vec<Address>,
    /// For each hash slot an index into `primaries`.
    owners: Box<[Option<u16>]>,
}

impl Layout {
    /// Reads the reply to `CLUSTER SLOTS` of the node at `asked`.
    pub(super) fn read(reply: Value, asked: &Address) -> RedisResult<Self> {
        let mut layout = Self { primaries: Vec::new(), owners: vec![None; usize::from(HASH_SLOTS)].into_boxed_slice() };
        let Value::Array(ranges) = reply else { return Err(unexpected_reply()) };
        for range in ranges {
            let Value::Array(fields) = range else { return Err(unexpected_reply()) };
            let mut fields = fields.into_iter();
            let (Some(Value::Int(first)), Some(Value::Int(last)), Some(Value::Array(primary))) =
                (fields.next(), fields.next(), fields.next())
            else {
                return Err(unexpected_reply());
            };
            let primary = node(primary, asked)?;
            let (first, last) = (as_slot(first)?, as_slot(last)?);
            for slot in first..=last {
                layout.set(slot, &primary);
            }
        }
        Ok(layout)
    }

    /// From now on `slot` is served by `primary`.
    pub(super) fn set(&mut self, slot: u16, primary: &Address) {
        let known = self.primaries.iter().position(|address| address == primary);
        let index = known.unwrap_or_else(|| {
            self.primaries.push(primary.clone());
            self.primaries.len() - 1
        });
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = u16::try_from(index).ok();
        }
    }

    /// Who serves `slot`.
    pub(super) fn owner(&self, slot: u16) -> Option<&Address> {
        self.primaries.get(usize::from((*self.owners.get(usize::from(slot))?)?))
    }

    /// Every primary that serves something, in the order of their lowest hash slots.
    pub(super) fn shards(&self) -> Vec<Shard> {
        let mut shards: Vec<Shard> = Vec::new();
        for slot in 0..HASH_SLOTS {
            let Some(primary) = self.owner(slot) else { continue };
            match shards.iter_mut().find(|shard| shard.primary == *primary) {
                None => shards.push(Shard { primary: primary.clone(), ranges: vec![(slot, slot)] }),
                Some(shard) => match shard.ranges.last_mut() {
                    Some((_, last)) if *last + 1 == slot => *last = slot,
                    Some(_) | None => shard.ranges.push((slot, slot)),
                },
            }
        }
        shards
    }

    /// How many hash slots nobody serves.
    pub(super) fn unserved(&self) -> usize {
        self.owners.iter().filter(|owner| owner.is_none()).count()
    }
}

fn as_slot(number: i64) -> RedisResult<u16> {
    u16::try_from(number).ok().filter(|slot| *slot < HASH_SLOTS).ok_or_else(unexpected_reply)
}

/// A node's host and port. A host that is not said, or unknown, is that of the node that was asked.
fn node(fields: Vec<Value>, asked: &Address) -> RedisResult<Address> {
    let mut fields = fields.into_iter();
    let (Some(host), Some(Value::Int(port))) = (fields.next(), fields.next()) else { return Err(unexpected_reply()) };
    let host: Option<String> = ::redis::from_redis_value(host)?;
    let host = host.filter(|host| !host.is_empty() && host != "?").unwrap_or_else(|| asked.0.clone());
    Ok((host, u16::try_from(port).map_err(|_| unexpected_reply())?))
}

/// Where a redirection leads and for which hash slot; `HOST:PORT`, the host that of the node that was asked where it is empty.
pub(super) fn redirection(error: &RedisError, asked: &Address) -> Option<(u16, Address)> {
    let (address, slot) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    let host = if host.is_empty() || host == "?" { asked.0.as_str() } else { host };
    // Servers do not put brackets around IPv6; whoever configures `cluster-announce-hostname` might.
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((slot, (host.to_owned(), port.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> Address {
        ("h".to_owned(), port)
    }

    fn reply(ranges: &[(i64, i64, Option<&str>, i64)]) -> Value {
        let range = |(first, last, host, port): &(i64, i64, Option<&str>, i64)| {
            let host = host.map_or(Value::Nil, |host| Value::BulkString(host.into()));
            let primary = Value::Array(vec![host, Value::Int(*port), Value::BulkString("id".into())]);
            Value::Array(vec![Value::Int(*first), Value::Int(*last), primary])
        };
        Value::Array(ranges.iter().map(range).collect())
    }

    #[test]
    fn each_hash_slot_has_a_tag() {
        for slot in 0..HASH_SLOTS {
            let tag = tag_of(slot);
            assert_eq!((hash_slot(tag.as_bytes()), tag.len()), (slot, 6), "{tag}");
        }
    }

    #[test]
    fn a_layout_is_read_and_changed() {
        let slots = [(0, 9, Some("h"), 1), (10, 19, None, 2), (20, 29, Some("h"), 1), (30, 16_383, Some(""), 3)];
        let mut layout = Layout::read(reply(&slots), &at(9)).expect("a layout");
        let ranges = |layout: &Layout| {
            layout.shards().into_iter().map(|shard| (shard.primary.1, shard.slots())).collect::<Vec<_>>()
        };
        let first = [(1, "0-9,20-29".to_owned()), (2, "10-19".to_owned()), (3, "30-16383".to_owned())];
        assert_eq!(ranges(&layout), first);
        assert_eq!((layout.owner(25), layout.unserved()), (Some(&at(1)), 0));
        layout.set(0, &at(4));
        let moved = [(4, "0-0".into()), (1, "1-9,20-29".into()), (2, "10-19".into()), (3, "30-16383".to_owned())];
        assert_eq!(ranges(&layout), moved);
        assert_eq!(layout.shards()[1].lowest(), 1);
        let holes = Layout::read(reply(&[(1, 16_383, Some("h"), 1)]), &at(9)).expect("a layout");
        assert_eq!((holes.unserved(), holes.owner(0), holes.owner(HASH_SLOTS)), (1, None, None));
        for wrong in [Value::Nil, reply(&[(0, 16_384, None, 1)]), reply(&[(0, 1, None, 70_000)])] {
            assert!(Layout::read(wrong, &at(9)).is_err());
        }
    }

    #[test]
    fn a_redirection_names_the_slot_and_the_node() {
        let of = |line: &str| {
            let error = ::redis::parse_redis_value(format!("-{line}\r\n").as_bytes())
                .and_then(Value::extract_error)
                .expect_err("an error reply");
            redirection(&error, &at(9))
        };
        assert_eq!(of("MOVED 7 a.example:1"), Some((7, ("a.example".to_owned(), 1))));
        assert_eq!(of("ASK 7 :1"), Some((7, at(1))));
        assert_eq!(of("MOVED 7 ::1:6379"), Some((7, ("::1".to_owned(), 6379))));
        assert_eq!(of("CLUSTERDOWN 7 h:1"), None);
        assert_eq!(of("MOVED 7 h"), None);
    }
}

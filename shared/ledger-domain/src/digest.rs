//! Digests. All are cryptographic, over a tagged, length-prefixed encoding, so no two inputs ever spell the same bytes.

use sha2::{Digest as _, Sha256};

use crate::hash::PayloadHash;
use crate::ids::Nonce;
use crate::key::MessageKey;
use crate::scope::Scope;
use crate::text::{Principal, RequestId};

/// The name of a (scope, key) in the hot tier: 128 bits of SHA-256, so long keys cost nothing. A collision would need about
/// 2^64 records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot([u8; 16]);

impl Slot {
    /// The slot of a (scope, key).
    #[must_use]
    pub fn of(scope: &Scope, key: &MessageKey) -> Self {
        let kind: &[u8] = if key.is_parts() { b"parts" } else { b"text" };
        Self(digest(b"dedup-ledger/slot/1", &[scope.as_str().as_bytes(), kind, key.as_str().as_bytes()]))
    }

    /// The sixteen bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// The nonce of a check that gave a `requestId`: the same caller's retry of the same message has the same nonce, and
/// nobody else's has. `mode` is `plain` or `claim`.
#[must_use]
pub fn nonce_of(principal: &Principal, request_id: &RequestId, payload: &PayloadHash, mode: &str) -> Nonce {
    Nonce::from_bytes(digest(
        b"dedup-ledger/nonce/1",
        &[principal.as_str().as_bytes(), request_id.as_str().as_bytes(), payload.as_bytes(), mode.as_bytes()],
    ))
}

fn digest<const N: usize>(tag: &[u8], fields: &[&[u8]]) -> [u8; N] {
    let mut hasher = Sha256::new();
    for field in std::iter::once(&tag).chain(fields) {
        hasher.update((field.len() as u64).to_be_bytes());
        hasher.update(field);
    }
    let full = hasher.finalize();
    let mut out = [0; N];
    out.copy_from_slice(&full[..N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(scope: &str, key: MessageKey) -> Slot {
        Slot::of(&Scope::parse(scope, None).expect("valid"), &key)
    }

    #[test]
    fn r23_scope_and_key_never_run_into_each_other() {
        let text = |s: &str| MessageKey::text(s).expect("valid");
        assert_ne!(slot("a:b", text("c")), slot("a:b", text("c:")));
        assert_ne!(slot("a:b", text("/c")), slot("a:b/", text("c")));
        assert_ne!(slot("a:b", text("x")), slot("b:a", text("x")));
    }

    #[test]
    fn a_text_never_meets_a_tuple() {
        let parts = MessageKey::parts(&["a", "b"]).expect("valid");
        let text = MessageKey::text(parts.as_str()).expect("valid");
        assert_ne!(slot("t:f", parts), slot("t:f", text));
    }

    #[test]
    fn the_slot_of_a_known_key_never_changes() {
        // A change here would make every record in a running hot tier unfindable.
        let found = slot("tenant42:as4", MessageKey::text("a1@partner.example").expect("valid"));
        assert_eq!(hex::encode(found.as_bytes()), SLOT_OF_KNOWN_KEY);
    }

    const SLOT_OF_KNOWN_KEY: &str = "4bdee5fb9b473c4657e2bc94ab5c4b7c";

    #[test]
    fn a_nonce_depends_on_each_of_its_fields() {
        let base = ("arn:a", "r1", [1; 32], "plain");
        let of = |(p, r, h, m): (&str, &str, [u8; 32], &str)| {
            let principal = Principal::parse(p).expect("valid");
            nonce_of(&principal, &RequestId::parse(r).expect("valid"), &PayloadHash::from_bytes(h), m)
        };
        assert_eq!(of(base), of(base));
        for other in [
            ("arn:b", "r1", [1; 32], "plain"),
            ("arn:a", "r2", [1; 32], "plain"),
            ("arn:a", "r1", [2; 32], "plain"),
            ("arn:a", "r1", [1; 32], "claim"),
        ] {
            assert_ne!(of(base), of(other));
        }
    }
}

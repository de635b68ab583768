//! Claims: what a token names, how one is made and recognised, and what its holder may ask for.
//!
//! A token is base64url of registration id (8 bytes), attempt (2), nonce of the winning check (8) and the first 16 bytes of
//! an HMAC-SHA-256 under the deployment's key over these and the key's slot. The process that gets one back verifies the MAC, so
//! that a forged or foreign token is told from a stale one; the store compares the rest. Nothing secret is stored, and any
//! tier can give a replay its token again.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::digest::Slot;
use crate::ids::{Nonce, RegistrationId};
use crate::record::{Record, StoredResponse};
use crate::text::{FailReason, Invalid};
use crate::time::Timestamp;

/// Which claim: one attempt on one registration, won by one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId {
    /// The registration.
    pub registration_id: RegistrationId,
    /// The attempt, from 1.
    pub attempt: u16,
    /// The nonce of the check that won it.
    pub nonce: Nonce,
}

impl ClaimId {
    /// The claim that stands on a record.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        let (registration_id, attempt, nonce) = record.identity();
        Self { registration_id, attempt, nonce }
    }
}

/// What a claim's holder asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// It is done; repeats get this answer.
    Resolve(Option<StoredResponse>),
    /// It failed: the next check may take it over.
    Fail(Option<FailReason>),
    /// It needs longer: a lease of so many seconds from now.
    Renew {
        /// From now; the lease never gets shorter by it, and never runs past the window.
        lease_seconds: u64,
    },
}

impl Act {
    /// What is asked for, as a log line names it.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Resolve(_) => "resolve",
            Self::Fail(_) => "fail",
            Self::Renew { .. } => "renew",
        }
    }
}

/// When a lease of `lease_seconds` from `now` ends: never past the window.
#[must_use]
pub fn lease_end(now: Timestamp, lease_seconds: u64, window_ends_at: Timestamp) -> Timestamp {
    now.plus_seconds(lease_seconds).min(window_ends_at)
}

const MAC_BYTES: usize = 16;
const NAMED_BYTES: usize = 18;
const TOKEN_BYTES: usize = NAMED_BYTES + MAC_BYTES;

/// Why a token proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It has not the form of a token.
    #[error("not a token")]
    Malformed,
    /// It has the form, but this deployment did not give it out for this scope and key.
    #[error("not a token of this scope and key")]
    Foreign,
}

/// The deployment's keys for tokens. The first makes them, all recognise them: a new key is put first, and the old one taken away
/// when its last lease is over.
#[derive(Clone)]
pub struct TokenKeys(Vec<Hmac<Sha256>>);

impl std::fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenKeys({} keys)", self.0.len())
    }
}

impl TokenKeys {
    /// The shortest key, in bytes: as long as the digest.
    pub const KEY_MIN_BYTES: usize = 32;

    /// Keys of at least [`TokenKeys::KEY_MIN_BYTES`] each, at least one.
    ///
    /// # Errors
    /// [`Invalid`] where there is none, or one is shorter.
    pub fn new<K: AsRef<[u8]>>(keys: &[K]) -> Result<Self, Invalid> {
        let expected =
            || Invalid::new("token key", format!("one key or more of at least {} bytes", Self::KEY_MIN_BYTES));
        if keys.is_empty() || keys.iter().any(|key| key.as_ref().len() < Self::KEY_MIN_BYTES) {
            return Err(expected());
        }
        let keys = keys.iter().map(|key| Hmac::new_from_slice(key.as_ref()).map_err(|_| expected()));
        keys.collect::<Result<_, _>>().map(Self)
    }

    /// The token of a claim on the key of `slot`.
    #[must_use]
    pub fn issue(&self, slot: &Slot, claim: &ClaimId) -> String {
        let mut token = [0; TOKEN_BYTES];
        token[..8].copy_from_slice(claim.registration_id.as_bytes());
        token[8..10].copy_from_slice(&claim.attempt.to_be_bytes());
        token[10..NAMED_BYTES].copy_from_slice(claim.nonce.as_bytes());
        if let Some(key) = self.0.first() {
            let mac = mac(key, slot, &token[..NAMED_BYTES]).finalize().into_bytes();
            token[NAMED_BYTES..].copy_from_slice(&mac[..MAC_BYTES]);
        }
        URL_SAFE_NO_PAD.encode(token)
    }

    /// The claim that a token names, where this deployment gave it out for the key of `slot`.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn verify(&self, slot: &Slot, token: &str) -> Result<ClaimId, TokenError> {
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| TokenError::Malformed)?;
        let bytes: [u8; TOKEN_BYTES] = bytes.try_into().map_err(|_| TokenError::Malformed)?;
        let (named, sent_mac) = bytes.split_at(NAMED_BYTES);
        // In constant time, whatever the difference.
        let is_ours = |key| mac(key, slot, named).verify_truncated_left(sent_mac).is_ok();
        if !self.0.iter().any(is_ours) {
            return Err(TokenError::Foreign);
        }
        let eight = |from: usize| std::array::from_fn(|at| named[from + at]);
        Ok(ClaimId {
            registration_id: RegistrationId::from_bytes(eight(0)),
            attempt: u16::from_be_bytes([named[8], named[9]]),
            nonce: Nonce::from_bytes(eight(10)),
        })
    }
}

/// All parts have fixed lengths, so nothing runs into anything.
fn mac(key: &Hmac<Sha256>, slot: &Slot, named: &[u8]) -> Hmac<Sha256> {
    key.clone().chain_update(b"dedup-ledger/token/1").chain_update(slot.as_bytes()).chain_update(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::MessageKey;
    use crate::scope::Scope;

    fn slot(key: &str) -> Slot {
        Slot::of(&Scope::parse("t:f", None).expect("a scope"), &MessageKey::text(key).expect("a key"))
    }

    fn claim() -> ClaimId {
        ClaimId { registration_id: RegistrationId::from_bytes([1; 8]), attempt: 258, nonce: Nonce::from_bytes([2; 8]) }
    }

    fn keys(of: &[[u8; 32]]) -> TokenKeys {
        TokenKeys::new(of).expect("keys")
    }

    #[test]
    fn a_token_names_its_claim_and_is_good_for_its_key_alone() {
        let ours = keys(&[[7; 32]]);
        let token = ours.issue(&slot("k"), &claim());
        assert_eq!(token.len(), 46);
        assert_eq!(ours.verify(&slot("k"), &token), Ok(claim()));
        assert_eq!(ours.verify(&slot("K"), &token), Err(TokenError::Foreign));
        assert_eq!(keys(&[[8; 32]]).verify(&slot("k"), &token), Err(TokenError::Foreign));
    }

    #[test]
    fn any_changed_byte_makes_a_token_foreign() {
        let ours = keys(&[[7; 32]]);
        let token = URL_SAFE_NO_PAD.decode(ours.issue(&slot("k"), &claim())).expect("base64url");
        for at in 0..token.len() {
            let mut forged = token.clone();
            forged[at] ^= 1;
            let forged = URL_SAFE_NO_PAD.encode(forged);
            assert_eq!(ours.verify(&slot("k"), &forged), Err(TokenError::Foreign), "byte {at}");
        }
    }

    #[test]
    fn what_has_not_the_form_of_a_token_is_malformed() {
        let ours = keys(&[[7; 32]]);
        let token = ours.issue(&slot("k"), &claim());
        for malformed in
            ["", "x", &token[1..], &format!("{token}AA"), &token.replace(&token[..1], "+"), &format!("{token}=")]
        {
            assert_eq!(ours.verify(&slot("k"), malformed), Err(TokenError::Malformed), "{malformed}");
        }
    }

    #[test]
    fn an_old_key_is_recognised_until_it_is_taken_away() {
        let (old, new) = ([7; 32], [9; 32]);
        let token = keys(&[old]).issue(&slot("k"), &claim());
        assert_eq!(keys(&[new, old]).verify(&slot("k"), &token), Ok(claim()));
        assert_ne!(keys(&[new, old]).issue(&slot("k"), &claim()), token);
        assert_eq!(keys(&[new]).verify(&slot("k"), &token), Err(TokenError::Foreign));
    }

    #[test]
    fn a_short_key_or_none_is_refused() {
        assert!(TokenKeys::new(&[[1; 31]]).is_err());
        assert!(TokenKeys::new::<[u8; 32]>(&[]).is_err());
    }
}

//! SHA-256 of a message's payload, as the caller computed it.

use std::fmt;

use crate::text::Invalid;

/// SHA-256 of the payload: 64 hexadecimal digits on the wire (either case), 32 bytes inside.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PayloadHash([u8; 32]);

impl PayloadHash {
    /// Wraps 32 digest bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Reads exactly 64 hexadecimal digits, upper or lower case.
    ///
    /// # Errors
    /// [`Invalid`] naming `payloadSha256`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes)
            .map_err(|_| Invalid::new("payloadSha256", "64 hexadecimal digits, the SHA-256 of the payload"))?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for PayloadHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for PayloadHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PayloadHash({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_64_digits_of_either_case_and_nothing_else() {
        let lower = "ab".repeat(32);
        let upper = lower.to_uppercase();
        assert_eq!(PayloadHash::parse(&lower), PayloadHash::parse(&upper));
        assert_eq!(PayloadHash::parse(&upper).map(|h| h.to_string()), Ok(lower.clone()));
        for bad in
            ["", &lower[..63], &format!("{lower}a"), &format!("{}g", &lower[..63]), &format!(" {}", &lower[..63])]
        {
            assert_eq!(PayloadHash::parse(bad).map_err(|e| e.field), Err("payloadSha256".into()), "{bad:?}");
        }
    }
}

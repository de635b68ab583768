//! Eight-byte identifiers: what tells one registration, and one winning check, from another of the same key.

use std::fmt;

macro_rules! id8 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 8]);

        impl $name {
            /// Wraps eight bytes; their order is the big-endian order of the number they write.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 8]) -> Self {
                Self(bytes)
            }

            /// The eight bytes.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; 8] {
                &self.0
            }

            /// Reads 16 hexadecimal digits.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                let mut bytes = [0; 8];
                hex::decode_to_slice(text, &mut bytes).ok()?;
                Some(Self(bytes))
            }
        }

        impl From<[u8; 8]> for $name {
            fn from(bytes: [u8; 8]) -> Self {
                Self(bytes)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }
    };
}

id8!(
    /// One first sighting of a key. A key has one per window; history keeps all. Random; unique within its (scope, key).
    RegistrationId
);
id8!(
    /// How a check recognises what it won itself: a digest of principal, `requestId`, payload hash and mode, or random
    /// where the caller gave no `requestId`.
    Nonce
);
id8!(
    /// One run of decisions in the cold ledger by one process. Random.
    SessionId
);
id8!(
    /// One pass of the keeper that fills the hot tier. Random.
    FillPass
);

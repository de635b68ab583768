//! Short texts with a bound, and how a refused one is reported.

use std::fmt;

/// Input that was refused: which field, and what was expected there. Nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: expected {expected}")]
pub struct Invalid {
    /// The request's field, as the caller wrote it (`ttlSeconds`, `keyParts[1]`).
    pub field: String,
    /// What would have been accepted, in words.
    pub expected: String,
}

impl Invalid {
    /// A refusal of `field`, with what was expected.
    pub fn new(field: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { field: field.into(), expected: expected.into() }
    }
}

fn bounded(field: &str, text: &str, max_bytes: usize) -> Result<Box<str>, Invalid> {
    if text.is_empty() || text.len() > max_bytes || text.chars().any(char::is_control) {
        return Err(Invalid::new(field, format!("1 to {max_bytes} bytes of UTF-8 without control characters")));
    }
    Ok(text.into())
}

macro_rules! bounded_text {
    ($(#[$doc:meta])* $name:ident, $field:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Box<str>);

        impl $name {
            /// The longest accepted text, in bytes of UTF-8.
            pub const MAX_BYTES: usize = $max;

            /// Accepts 1 to [`Self::MAX_BYTES`] bytes without control characters.
            ///
            /// # Errors
            /// [`Invalid`] naming the field otherwise; nothing is trimmed or cut.
            pub fn parse(text: &str) -> Result<Self, Invalid> {
                bounded($field, text, $max).map(Self)
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

bounded_text!(
    /// The hub service that asks, as it names itself.
    SourceService, "sourceService", 40
);
bounded_text!(
    /// What a caller gives once per delivery attempt, so that its own retry is recognised.
    RequestId, "requestId", 64
);
bounded_text!(
    /// The media type of a stored response.
    ContentType, "contentType", 128
);
bounded_text!(
    /// Why a claim's holder gave up, in its own words.
    FailReason, "reason", 200
);
bounded_text!(
    /// Who asks, as the gateway vouches for it (an IAM ARN, a JWT subject); never a field of the request.
    Principal, "principal", 2048
);

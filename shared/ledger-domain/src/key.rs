//! The source system's own identifier of a message: one opaque text, or a tuple of them.

use std::fmt::{self, Write as _};

use crate::text::Invalid;

/// The longest key, in bytes of UTF-8; for key parts, of their JSON array.
pub const KEY_MAX_BYTES: usize = 1_024;
/// The fewest parts a tuple has.
pub const KEY_PARTS_MIN: usize = 2;
/// The most parts a tuple has.
pub const KEY_PARTS_MAX: usize = 8;

/// A message's key: opaque, case- and space-sensitive, never trimmed, folded or cut.
///
/// A text and a tuple never meet, even where a text happens to spell a tuple's JSON: [`MessageKey::is_parts`] belongs to
/// the identity in every tier.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageKey {
    text: Box<str>,
    is_parts: bool,
}

impl MessageKey {
    /// A key of one text: 1 to 1,024 bytes of UTF-8, no control characters.
    ///
    /// # Errors
    /// [`Invalid`] naming `key`.
    pub fn text(text: &str) -> Result<Self, Invalid> {
        if text.is_empty() || text.len() > KEY_MAX_BYTES {
            return Err(Invalid::new("key", format!("1 to {KEY_MAX_BYTES} bytes of UTF-8, got {}", text.len())));
        }
        if text.chars().any(char::is_control) {
            return Err(Invalid::new("key", "no control characters (NUL, CR, LF, ...); give a tuple as keyParts"));
        }
        Ok(Self { text: text.into(), is_parts: false })
    }

    /// A key of 2 to 8 texts, stored as their JSON array without white space; control characters in a part are kept as
    /// JSON escapes. An empty part is refused: it is a failed extraction upstream.
    ///
    /// # Errors
    /// [`Invalid`] naming `keyParts` or the part.
    pub fn parts<S: AsRef<str>>(parts: &[S]) -> Result<Self, Invalid> {
        if !(KEY_PARTS_MIN..=KEY_PARTS_MAX).contains(&parts.len()) {
            let expected = format!("{KEY_PARTS_MIN} to {KEY_PARTS_MAX} strings, got {}", parts.len());
            return Err(Invalid::new("keyParts", expected));
        }
        if let Some(at) = parts.iter().position(|part| part.as_ref().is_empty()) {
            return Err(Invalid::new(format!("keyParts[{at}]"), "a string that is not empty"));
        }
        let mut text = String::with_capacity(parts.iter().map(|p| p.as_ref().len() + 3).sum());
        for (at, part) in parts.iter().enumerate() {
            text.push(if at == 0 { '[' } else { ',' });
            push_json_string(&mut text, part.as_ref());
        }
        text.push(']');
        if text.len() > KEY_MAX_BYTES {
            let expected = format!("parts whose JSON array has at most {KEY_MAX_BYTES} bytes, got {}", text.len());
            return Err(Invalid::new("keyParts", expected));
        }
        Ok(Self { text: text.into(), is_parts: true })
    }

    /// A key as a tier stored it: the text, and whether it is a tuple's JSON.
    ///
    /// # Errors
    /// [`Invalid`] if no caller could have given it, so the stored row is damaged.
    pub fn from_stored(text: &str, is_parts: bool) -> Result<Self, Invalid> {
        if !is_parts {
            return Self::text(text);
        }
        let parts: Vec<String> = serde_json::from_str(text)
            .map_err(|_| Invalid::new("key", "a JSON array of strings, as key parts are stored"))?;
        let key = Self::parts(&parts)?;
        if *key.text == *text { Ok(key) } else { Err(Invalid::new("key", "key parts in their stored form")) }
    }

    /// The key's text; of a tuple, its JSON array.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the key is a tuple.
    #[must_use]
    pub fn is_parts(&self) -> bool {
        self.is_parts
    }

    /// The tuple's parts, or `None` for a key of one text.
    #[must_use]
    pub fn to_parts(&self) -> Option<Vec<String>> {
        if self.is_parts { serde_json::from_str(&self.text).ok() } else { None }
    }
}

impl fmt::Display for MessageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn push_json_string(out: &mut String, part: &str) {
    out.push('"');
    for c in part.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            // One spelling for every control character, C1 and DEL included, so that the stored text holds none.
            // Writing to a String cannot fail.
            c if c.is_control() => drop(write!(out, "\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_key_of_1024_bytes_is_taken_and_one_of_1025_refused() {
        assert!(MessageKey::text(&"k".repeat(1024)).is_ok());
        assert_eq!(MessageKey::text(&"k".repeat(1025)).map_err(|e| e.field), Err("key".into()));
        // 512 two-byte letters are 1,024 bytes; one more letter is over, counted in bytes.
        assert!(MessageKey::text(&"é".repeat(512)).is_ok());
        assert!(MessageKey::text(&"é".repeat(513)).is_err());
    }

    #[test]
    fn control_characters_are_refused_in_a_text_and_escaped_in_a_part() {
        for bad in ["\0", "a\r\nb", "a\u{7f}", "a\u{85}b"] {
            assert!(MessageKey::text(bad).is_err(), "{bad:?}");
            let key = MessageKey::parts(&[bad, "x"]).expect("kept as escapes");
            assert!(!key.as_str().chars().any(char::is_control));
            assert_eq!(key.to_parts(), Some(vec![bad.to_owned(), "x".to_owned()]));
        }
    }

    #[test]
    fn r24_keys_are_never_folded() {
        for (a, b) in [("Key", "key"), ("k", "k "), ("\u{e9}", "e\u{301}")] {
            assert_ne!(MessageKey::text(a), MessageKey::text(b));
        }
    }

    #[test]
    fn parts_are_injective_and_never_meet_a_text() {
        let a = MessageKey::parts(&["a", "b,c"]).expect("valid");
        let b = MessageKey::parts(&["a,b", "c"]).expect("valid");
        assert_ne!(a, b);
        assert_eq!(a.as_str(), r#"["a","b,c"]"#);
        assert_ne!(a, MessageKey::text(a.as_str()).expect("valid"));
    }

    #[test]
    fn the_number_of_parts_and_empty_parts_are_checked() {
        assert!(MessageKey::parts(&["a"]).is_err());
        assert!(MessageKey::parts(&["a"; 8]).is_ok());
        assert!(MessageKey::parts(&["a"; 9]).is_err());
        assert_eq!(MessageKey::parts(&["a", ""]).map_err(|e| e.field), Err("keyParts[1]".into()));
        assert!(MessageKey::parts(&["a".repeat(1018), "b".into()]).is_err());
        assert!(MessageKey::parts(&["a".repeat(1017), "b".into()]).is_err());
        assert!(MessageKey::parts(&["a".repeat(1016), "b".into()]).is_ok());
    }

    proptest! {
        #[test]
        fn a_stored_key_reads_back_as_itself(parts in proptest::collection::vec(".{1,20}", 2..8)) {
            if let Ok(key) = MessageKey::parts(&parts) {
                prop_assert_eq!(key.to_parts(), Some(parts));
                prop_assert_eq!(MessageKey::from_stored(key.as_str(), true), Ok(key.clone()));
            }
        }
    }
}

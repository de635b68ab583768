//! Reading a JSON object strictly, field by field, so that each refusal names its field and what was expected.
//!
//! Unknown and repeated fields are refused: a misspelt `ttlSecond` must not silently mean the default.

use std::fmt;

use ledger_domain::Invalid;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::problem::{Kind, Problem};

/// The fields of one JSON object, each still unread.
#[derive(Debug)]
pub struct Fields<'a>(Vec<(String, &'a RawValue)>);

/// The most fields an object may have before it is refused unread.
const FIELDS_MAX: usize = 32;

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut fields: Vec<(String, &RawValue)> = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                    if fields.len() == FIELDS_MAX {
                        return Err(serde::de::Error::custom("too many fields"));
                    }
                    fields.push((name, value));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

impl<'a> Fields<'a> {
    /// Reads an object of which only `known` fields are allowed, each once.
    ///
    /// # Errors
    /// [`Problem`] naming the field, or `body` where it is no JSON object.
    pub fn read(json: &'a [u8], known: &[&str]) -> Result<Self, Problem> {
        let fields: Self = serde_json::from_slice(json)
            .map_err(|e| Problem::from(Invalid::new("body", format!("a JSON object in UTF-8 ({e})"))))?;
        for (at, (name, _)) in fields.0.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                return Err(Invalid::new(shorten(name), format!("one of {}", known.join(", "))).into());
            }
            if fields.0[..at].iter().any(|(earlier, _)| earlier == name) {
                return Err(Invalid::new(name.as_str(), "the field once").into());
            }
        }
        Ok(fields)
    }

    fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(field, _)| field == name).map(|(_, value)| *value)
    }

    /// Whether the field is there.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }

    /// A string, or `None` where the field is left out.
    ///
    /// # Errors
    /// [`Invalid`] naming the field where it is anything else, `null` included, or no valid Unicode (a lone surrogate).
    pub fn string(&self, name: &str) -> Result<Option<String>, Invalid> {
        self.typed(name, "a string of valid Unicode")
    }

    /// A string that must be there.
    ///
    /// # Errors
    /// As [`Fields::string`].
    pub fn required_string(&self, name: &str) -> Result<String, Invalid> {
        self.string(name)?.ok_or_else(|| Invalid::new(name, "a string, but it is missing"))
    }

    /// A whole number that is not negative, or `None` where the field is left out.
    ///
    /// # Errors
    /// [`Invalid`] naming the field where it is anything else: a fraction, a negative number, a number in a string.
    pub fn whole_number(&self, name: &str) -> Result<Option<u64>, Invalid> {
        self.typed(name, "a whole number, not negative")
    }

    /// A list of strings, or `None` where the field is left out.
    ///
    /// # Errors
    /// [`Invalid`] naming the field or its element.
    pub fn strings(&self, name: &str) -> Result<Option<Vec<String>>, Invalid> {
        let Some(elements) = self.typed::<Vec<&RawValue>>(name, "a list of strings")? else { return Ok(None) };
        let strings = elements.into_iter().enumerate().map(|(at, raw)| {
            serde_json::from_str(raw.get())
                .map_err(|_| Invalid::new(format!("{name}[{at}]"), "a string of valid Unicode"))
        });
        strings.collect::<Result<_, _>>().map(Some)
    }

    /// A list, its elements unread.
    ///
    /// # Errors
    /// [`Invalid`] naming the field where it is missing or no list.
    pub fn required_list(&self, name: &str) -> Result<Vec<&'a RawValue>, Invalid> {
        self.typed(name, "a list")?.ok_or_else(|| Invalid::new(name, "a list, but it is missing"))
    }

    fn typed<T: Deserialize<'a>>(&self, name: &str, expected: &str) -> Result<Option<T>, Invalid> {
        self.raw(name).map(|raw| serde_json::from_str(raw.get()).map_err(|_| Invalid::new(name, expected))).transpose()
    }
}

/// A caller's own field name, safe to say back: at most 64 characters, none of them control characters.
fn shorten(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(64).collect()
}

/// A body that is too large.
#[must_use]
pub fn too_large(max_bytes: usize) -> Problem {
    Problem::new(Kind::TooLarge, format!("body: expected at most {max_bytes} bytes")).with_field("body")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 4] = ["s", "n", "l", "x"];

    fn read(json: &str) -> Result<Fields<'_>, Problem> {
        Fields::read(json.as_bytes(), &KNOWN)
    }

    #[test]
    fn reads_what_it_knows() {
        let fields = read(r#"{"s":"a\u00e9","n":3,"l":["x","y"]}"#).expect("valid");
        assert_eq!(fields.required_string("s"), Ok("aé".to_owned()));
        assert_eq!(fields.whole_number("n"), Ok(Some(3)));
        assert_eq!(fields.strings("l"), Ok(Some(vec!["x".to_owned(), "y".to_owned()])));
        assert_eq!(fields.string("x"), Ok(None));
    }

    #[test]
    fn names_the_field_it_refuses() {
        for (json, field) in [
            (r#"{"s":"a","S":"b"}"#, "S"),
            (r#"{"s":"a","s":"b"}"#, "s"),
            ("[]", "body"),
            ("", "body"),
            ("{", "body"),
            (r#"{"s":"a"} x"#, "body"),
        ] {
            let problem = read(json).expect_err(json);
            assert_eq!((problem.status(), problem.field()), (400, Some(field)), "{json}");
        }
        let deep = format!("{{\"s\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let refused = read(&deep).expect("an object").string("s");
        assert_eq!(refused.map_err(|e| e.field), Err("s".into()), "deep JSON is refused, not recursed into");
    }

    #[test]
    fn wrong_types_are_refused() {
        for (json, name) in [(r#"{"s":1}"#, "s"), (r#"{"s":null}"#, "s"), (r#"{"s":"\ud800"}"#, "s")] {
            assert_eq!(read(json).expect("an object").string(name).map_err(|e| e.field), Err(name.into()), "{json}");
        }
        for json in [
            r#"{"n":-1}"#,
            r#"{"n":1.5}"#,
            r#"{"n":"1"}"#,
            r#"{"n":1e3}"#,
            r#"{"n":null}"#,
            r#"{"n":18446744073709551616}"#,
        ] {
            assert_eq!(
                read(json).expect("an object").whole_number("n").map_err(|e| e.field),
                Err("n".into()),
                "{json}"
            );
        }
        let list = read(r#"{"l":["a",1]}"#).expect("an object").strings("l");
        assert_eq!(list.map_err(|e| e.field), Err("l[1]".into()));
    }
}

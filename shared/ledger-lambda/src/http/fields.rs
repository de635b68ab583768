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
pub struct Fields<'a> {
    fields: Vec<(String, &'a RawValue)>,
    /// What refusals put before a field's name: empty, or the object's own field and a dot.
    within: String,
}

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
                Ok(Fields { fields, within: String::new() })
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
        fields.only(known).map_err(Problem::from)
    }

    /// The same, where each is one of `known` and stands there once.
    fn only(self, known: &[&str]) -> Result<Self, Invalid> {
        for (at, (name, _)) in self.fields.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                return Err(Invalid::new(self.path(&shorten(name)), format!("one of {}", known.join(", "))));
            }
            if self.fields[..at].iter().any(|(earlier, _)| earlier == name) {
                return Err(Invalid::new(self.path(name), "the field once"));
            }
        }
        Ok(self)
    }

    /// A field's name as a refusal gives it.
    fn path(&self, name: &str) -> String {
        format!("{}{name}", self.within)
    }

    fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| *value)
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
        self.string(name)?.ok_or_else(|| Invalid::new(self.path(name), "a string, but it is missing"))
    }

    /// A whole number that is not negative, or `None` where the field is left out.
    ///
    /// # Errors
    /// [`Invalid`] naming the field where it is anything else: a fraction, a negative number, a number in a string.
    pub fn whole_number(&self, name: &str) -> Result<Option<u64>, Invalid> {
        self.typed(name, "a whole number, not negative")
    }

    /// [`Fields::whole_number`] that must be there.
    ///
    /// # Errors
    /// As [`Fields::whole_number`].
    pub fn required_whole_number(&self, name: &str) -> Result<u64, Invalid> {
        self.whole_number(name)?.ok_or_else(|| Invalid::new(self.path(name), "a whole number, but it is missing"))
    }

    /// `true` or `false`, or `None` where the field is left out.
    ///
    /// # Errors
    /// [`Invalid`] naming the field where it is anything else.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>, Invalid> {
        self.typed(name, "true or false")
    }

    /// An object of which only `known` fields are allowed, each once, or `None` where the field is left out. Its refusals name
    /// its own field too: `claim.leaseSeconds`.
    ///
    /// # Errors
    /// [`Invalid`] naming the field, or what is wrong inside.
    pub fn object(&self, name: &str, known: &[&str]) -> Result<Option<Self>, Invalid> {
        let Some(object) = self.typed::<Self>(name, "an object")? else { return Ok(None) };
        Self { within: format!("{}.", self.path(name)), ..object }.only(known).map(Some)
    }

    /// A list of strings, or `None` where the field is left out.
    ///
    /// # Errors
    /// [`Invalid`] naming the field or its element.
    pub fn strings(&self, name: &str) -> Result<Option<Vec<String>>, Invalid> {
        let Some(elements) = self.typed::<Vec<&RawValue>>(name, "a list of strings")? else { return Ok(None) };
        let strings = elements.into_iter().enumerate().map(|(at, raw)| {
            serde_json::from_str(raw.get())
                .map_err(|_| Invalid::new(format!("{}[{at}]", self.path(name)), "a string of valid Unicode"))
        });
        strings.collect::<Result<_, _>>().map(Some)
    }

    /// A list, its elements unread.
    ///
    /// # Errors
    /// [`Invalid`] naming the field where it is missing or no list.
    pub fn required_list(&self, name: &str) -> Result<Vec<&'a RawValue>, Invalid> {
        self.typed(name, "a list")?.ok_or_else(|| Invalid::new(self.path(name), "a list, but it is missing"))
    }

    fn typed<T: Deserialize<'a>>(&self, name: &str, expected: &str) -> Result<Option<T>, Invalid> {
        let read = |raw: &'a RawValue| serde_json::from_str(raw.get());
        self.raw(name).map(read).transpose().map_err(|_| Invalid::new(self.path(name), expected))
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

    #[test]
    fn what_is_refused_inside_an_object_is_named_with_the_object() {
        fn inner(json: &str) -> Result<Fields<'_>, Invalid> {
            let inner = read(json).expect("an object").object("x", &["n", "l", "x"])?;
            Ok(inner.expect("it is there"))
        }
        let refused = |json: &str| inner(json).expect_err(json).field;
        for json in [r#"{"x":null}"#, r#"{"x":[]}"#, r#"{"x":1}"#, r#"{"x":"{}"}"#] {
            assert_eq!(refused(json), "x", "{json}");
        }
        assert_eq!(refused(r#"{"x":{"N":1}}"#), "x.N");
        assert_eq!(refused(r#"{"x":{"n":1,"n":1}}"#), "x.n");
        let field = |result: Result<(), Invalid>| result.expect_err("refused").field;
        let good = inner(r#"{"x":{"n":-1,"l":["a",1],"x":{"y":1}}}"#).expect("an object");
        assert_eq!(field(good.whole_number("n").map(drop)), "x.n");
        assert_eq!(field(good.strings("l").map(drop)), "x.l[1]");
        assert_eq!(field(good.object("x", &["z"]).map(drop)), "x.x.y");
        let empty = inner(r#"{"x":{}}"#).expect("an object");
        assert_eq!(field(empty.required_whole_number("n").map(drop)), "x.n");
        assert_eq!(field(empty.required_string("n").map(drop)), "x.n");
        assert!(read("{}").expect("an object").object("x", &[]).expect("left out").is_none());
    }

    #[test]
    fn true_and_false_and_nothing_else_are_booleans() {
        let boolean = |json: &str| read(json).expect("an object").boolean("x").map_err(|invalid| invalid.field);
        assert_eq!(boolean(r#"{"x":true}"#), Ok(Some(true)));
        assert_eq!(boolean(r#"{"x":false}"#), Ok(Some(false)));
        assert_eq!(boolean("{}"), Ok(None));
        for json in [r#"{"x":null}"#, r#"{"x":"true"}"#, r#"{"x":1}"#] {
            assert_eq!(boolean(json), Err("x".into()), "{json}");
        }
    }
}

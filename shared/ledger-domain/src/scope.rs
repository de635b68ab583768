//! `tenant:flow`, the space in which a key is unique.

use std::fmt;

use crate::text::Invalid;

/// A tenant: `[a-z0-9-]{1,32}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(Box<str>);

impl Tenant {
    /// Accepts `[a-z0-9-]{1,32}`.
    ///
    /// # Errors
    /// [`Invalid`] naming `tenant`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if is_tenant(text) { Ok(Self(text.into())) } else { Err(Invalid::new("tenant", "1 to 32 of a-z, 0-9 and -")) }
    }

    /// The tenant's name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `tenant:flow`, with flow `[A-Za-z0-9._/-]{1,95}`. It is stored with its tenant, also where the caller left it to the
/// deployment's default.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    text: Box<str>,
    tenant_len: u8,
}

const EXPECTED: &str = "tenant:flow, tenant being 1 to 32 of a-z, 0-9 and -, flow 1 to 95 of A-Z, a-z, 0-9 and . _ / -";

impl Scope {
    /// The longest scope, in bytes.
    pub const MAX_BYTES: usize = 32 + 1 + 95;

    /// Reads `tenant:flow`, or `flow` alone where `default_tenant` is set.
    ///
    /// # Errors
    /// [`Invalid`] naming `scope`.
    pub fn parse(text: &str, default_tenant: Option<&Tenant>) -> Result<Self, Invalid> {
        match (text.split_once(':'), default_tenant) {
            (Some((tenant, flow)), _) if is_tenant(tenant) && is_flow(flow) => Ok(Self::join(tenant, flow)),
            (None, Some(tenant)) if is_flow(text) => Ok(Self::join(tenant.as_str(), text)),
            (None, None) if is_flow(text) => {
                Err(Invalid::new("scope", format!("{EXPECTED}; this deployment sets no default tenant")))
            }
            (Some(_) | None, _) => Err(Invalid::new("scope", EXPECTED)),
        }
    }

    fn join(tenant: &str, flow: &str) -> Self {
        // A tenant has at most 32 bytes.
        let tenant_len = u8::try_from(tenant.len()).unwrap_or(u8::MAX);
        Self { text: format!("{tenant}:{flow}").into(), tenant_len }
    }

    /// The tenant's name.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.text[..usize::from(self.tenant_len)]
    }

    /// The flow.
    #[must_use]
    pub fn flow(&self) -> &str {
        &self.text[usize::from(self.tenant_len) + 1..]
    }

    /// The flow up to its first `/`: what policies and metrics group by.
    #[must_use]
    pub fn flow_family(&self) -> &str {
        self.flow().split('/').next().unwrap_or_default()
    }

    /// `tenant:flow`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn is_tenant(text: &str) -> bool {
    (1..=32).contains(&text.len()) && text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

fn is_flow(text: &str) -> bool {
    (1..=95).contains(&text.len())
        && text.bytes().all(|b| matches!(b, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'/' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_its_parts() {
        let scope = Scope::parse("tenant42:as4/in/PARTNER-A", None).expect("valid");
        assert_eq!((scope.tenant(), scope.flow(), scope.flow_family()), ("tenant42", "as4/in/PARTNER-A", "as4"));
    }

    #[test]
    fn without_a_tenant_it_takes_the_default_and_is_stored_with_it() {
        let tenant = Tenant::parse("acme").expect("valid");
        assert_eq!(Scope::parse("as2", Some(&tenant)).map(|s| s.to_string()), Ok("acme:as2".into()));
        assert!(Scope::parse("as2", None).is_err());
    }

    #[test]
    fn refuses_what_is_no_scope() {
        let tenant = Tenant::parse("acme").expect("valid");
        let long = format!("t:{}", "f".repeat(96));
        for bad in ["", ":", "t:", ":f", "t:a:b", "T:a", "t_x:a", "t:a b", "t:ä", "t:a\0", &long, " t:a"] {
            for default in [None, Some(&tenant)] {
                assert_eq!(Scope::parse(bad, default).map_err(|e| e.field), Err("scope".into()), "{bad:?}");
            }
        }
    }
}

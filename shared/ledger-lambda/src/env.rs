//! The environment, read once, with errors that name the variable.

use std::collections::{BTreeSet, HashMap};

use ledger_domain::claim::TokenKeys;
use ledger_domain::{Scope, Tenant};

/// The environment variables of a process, as they were at start.
pub struct Env(HashMap<String, String>);

impl std::fmt::Debug for Env {
    /// Names only: values hold passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: BTreeSet<_> = self.0.keys().collect();
        f.debug_tuple("Env").field(&names).finish()
    }
}

/// A variable that is missing or wrong. A function that meets one does not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: expected {expected}")]
pub struct EnvError {
    /// The variable.
    pub name: &'static str,
    /// What would have been accepted.
    pub expected: String,
}

impl EnvError {
    /// An error about `name`.
    pub fn new(name: &'static str, expected: impl Into<String>) -> Self {
        Self { name, expected: expected.into() }
    }
}

impl Env {
    /// The process's own.
    #[must_use]
    pub fn process() -> Self {
        Self(
            std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect(),
        )
    }

    /// Given variables, for tests.
    #[must_use]
    pub fn of<const N: usize>(variables: [(&str, &str); N]) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// A variable, or `None` where it is unset or empty.
    #[must_use]
    pub fn optional(&self, name: &'static str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A variable that must be set.
    ///
    /// # Errors
    /// [`EnvError`] naming it, and saying what it is for.
    pub fn required(&self, name: &'static str, what: &str) -> Result<&str, EnvError> {
        self.optional(name).ok_or_else(|| EnvError::new(name, format!("{what}, but it is not set")))
    }

    /// `LEDGER_TENANTS`: the tenants this deployment serves, comma separated; `None` where unset.
    ///
    /// # Errors
    /// [`EnvError`] where a name is no tenant.
    pub fn tenants(&self) -> Result<Option<Tenants>, EnvError> {
        let Some(list) = self.optional("LEDGER_TENANTS") else { return Ok(None) };
        let names: Result<BTreeSet<_>, _> =
            list.split(',').map(|name| Tenant::parse(name.trim()).map(|tenant| tenant.as_str().into())).collect();
        let names = names
            .map_err(|_| EnvError::new("LEDGER_TENANTS", "a comma list of tenants, each 1 to 32 of a-z, 0-9 and -"))?;
        Ok(Some(Tenants::Named(names)))
    }

    /// [`Env::tenants`] for a function, which does not start without it.
    ///
    /// # Errors
    /// [`EnvError`] where it is unset or wrong.
    pub fn required_tenants(&self) -> Result<Tenants, EnvError> {
        self.tenants()?
            .ok_or_else(|| EnvError::new("LEDGER_TENANTS", "the tenants this deployment serves, but it is not set"))
    }

    /// `LEDGER_TOKEN_KEYS`: the keys for claims' tokens ([`parse_token_keys`]); `None` where unset.
    ///
    /// # Errors
    /// [`EnvError`] where they are no such keys; their text is not repeated.
    pub fn token_keys(&self) -> Result<Option<TokenKeys>, EnvError> {
        let keys = self.optional("LEDGER_TOKEN_KEYS").map(parse_token_keys).transpose();
        keys.map_err(|expected| EnvError::new("LEDGER_TOKEN_KEYS", expected))
    }

    /// [`Env::token_keys`] for a function, which does not start without them.
    ///
    /// # Errors
    /// [`EnvError`] where they are unset or wrong.
    pub fn required_token_keys(&self) -> Result<TokenKeys, EnvError> {
        self.token_keys()?
            .ok_or_else(|| EnvError::new("LEDGER_TOKEN_KEYS", "the keys for claims' tokens, but it is not set"))
    }

    /// `LEDGER_DEFAULT_TENANT`: the tenant of scopes that name none.
    ///
    /// # Errors
    /// [`EnvError`] where it is no tenant.
    pub fn default_tenant(&self) -> Result<Option<Tenant>, EnvError> {
        self.optional("LEDGER_DEFAULT_TENANT")
            .map(Tenant::parse)
            .transpose()
            .map_err(|invalid| EnvError::new("LEDGER_DEFAULT_TENANT", invalid.expected))
    }
}

/// Reads a comma list of keys of 64 to 128 letters and digits each (Secrets Manager makes such texts; 32 random bytes in hexadecimal are
/// another). The first makes tokens, all recognise them.
///
/// # Errors
/// What was expected, in words.
pub fn parse_token_keys(list: &str) -> Result<TokenKeys, String> {
    let expected = || "a comma list of keys, each 64 to 128 letters and digits".to_owned();
    let keys: Vec<&str> = list.split(',').map(str::trim).collect();
    let is_key = |key: &&str| (64..=128).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !keys.iter().all(is_key) {
        return Err(expected());
    }
    TokenKeys::new(&keys).map_err(|_| expected())
}

/// The tenants a deployment serves. Per-caller grants come on top of it, not in place of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tenants {
    /// Every one: `local` only.
    All,
    /// These.
    Named(BTreeSet<Box<str>>),
}

impl Tenants {
    /// Whether this deployment serves the scope's tenant.
    #[must_use]
    pub fn serve(&self, scope: &Scope) -> bool {
        self.serve_name(scope.tenant())
    }

    /// Whether this deployment serves the tenant of this name.
    #[must_use]
    pub fn serve_name(&self, tenant: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.contains(tenant),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_without_tenants_does_not_start() {
        let error = Env::of([("LEDGER_TENANTS", "")]).required_tenants().expect_err("unset");
        assert_eq!(error.name, "LEDGER_TENANTS");
        assert!(Env::of([("LEDGER_TENANTS", "t1,T2")]).required_tenants().is_err());
    }

    #[test]
    fn named_tenants_are_served_and_no_others() {
        let tenants = Env::of([("LEDGER_TENANTS", "t1, t2")]).required_tenants().expect("valid");
        assert!(tenants.serve_name("t1") && tenants.serve_name("t2"));
        assert!(!tenants.serve_name("t10"));
    }

    #[test]
    fn a_function_without_token_keys_does_not_start_and_short_ones_are_refused() {
        let (a, b) = ("a".repeat(64), "B9".repeat(32));
        assert!(Env::of([("LEDGER_TOKEN_KEYS", "")]).required_token_keys().is_err());
        for wrong in [&a[1..], &format!("{a},"), &format!("{a},{}", &b[1..]), &"-".repeat(64), &"a".repeat(129)] {
            let error = Env::of([("LEDGER_TOKEN_KEYS", wrong)]).required_token_keys().expect_err(wrong);
            assert!(!error.to_string().contains(&a), "{error}");
        }
        assert!(Env::of([("LEDGER_TOKEN_KEYS", &format!("{a}, {b}"))]).required_token_keys().is_ok());
    }

    #[test]
    fn values_are_never_printed() {
        let env = Env::of([("REDIS_URL", "redis://:secret@h")]);
        assert_eq!(format!("{env:?}"), r#"Env({"REDIS_URL"})"#);
    }
}

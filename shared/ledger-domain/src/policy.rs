//! Scope policies: how long a window is, and what a check must give.

use std::collections::HashMap;

use crate::scope::{Scope, Tenant};
use crate::text::Invalid;

const DAY_SECONDS: u64 = 86_400;

/// Built-in window defaults by flow family, in days (the hub's pattern); any other family has [`OTHER_WINDOW_DAYS`].
const WINDOW_DAYS: [(&str, u64); 4] = [("as2", 7), ("as4", 30), ("peppol", 30), ("x12", 60)];
const OTHER_WINDOW_DAYS: u64 = 30;
/// The shortest window there is.
pub const WINDOW_MIN_SECONDS: u64 = 1;
/// The longest window there is: a year and a day.
pub const WINDOW_MAX_SECONDS: u64 = 366 * DAY_SECONDS;
/// The shortest lease of a claim.
pub const LEASE_MIN_SECONDS: u64 = 1;
/// The longest lease of a claim, unless a policy says otherwise: 12 hours.
pub const LEASE_MAX_SECONDS: u64 = 12 * 3_600;
/// How long a check's own retry gets its answer again, unless a policy says otherwise: 15 minutes.
pub const REPLAY_SECONDS: u64 = 15 * 60;

/// Whether a hot miss is settled in the cold ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfirmMiss {
    /// Where the hot tier cannot vouch for a miss.
    WhenIncomplete,
    /// Every miss: exactly one NEW per window whatever the hot tier does, for one PostgreSQL statement each.
    Always,
}

impl ConfirmMiss {
    /// The name used in policies.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::WhenIncomplete => "whenIncomplete",
            Self::Always => "always",
        }
    }

    /// Reads [`ConfirmMiss::as_str`]'s names.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::WhenIncomplete, Self::Always].into_iter().find(|value| value.as_str() == text)
    }
}

/// What is answered to a check of which no tier can say whether it was seen before: the hot tier is down, or not complete, and
/// the cold ledger does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unconfirmed {
    /// 503: asking again later costs less than processing twice.
    Refuse,
    /// NEW with `confirmed: false`: processing twice costs less than waiting.
    Allow,
}

impl Unconfirmed {
    /// The name used in policies.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Allow => "allow",
        }
    }

    /// Reads [`Unconfirmed::as_str`]'s names.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Refuse, Self::Allow].into_iter().find(|value| value.as_str() == text)
    }
}

/// What one policy entry sets; a field left out is decided by the next more general entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyFields {
    /// The window where the check gives no `ttlSeconds`.
    pub window_default_seconds: Option<u64>,
    /// The shortest `ttlSeconds` accepted.
    pub window_min_seconds: Option<u64>,
    /// The longest `ttlSeconds` accepted.
    pub window_max_seconds: Option<u64>,
    /// The shortest `leaseSeconds` accepted.
    pub lease_min_seconds: Option<u64>,
    /// The longest `leaseSeconds` accepted.
    pub lease_max_seconds: Option<u64>,
    /// Whether a check must give a `requestId`.
    pub require_request_id: Option<bool>,
    /// Whether a hot miss is settled in the cold ledger.
    pub confirm_miss: Option<ConfirmMiss>,
    /// What is answered where no tier can say whether a message was seen.
    pub unconfirmed: Option<Unconfirmed>,
    /// How long a check's own retry gets its answer again.
    pub replay_seconds: Option<u64>,
}

/// A scope's policy, resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The window where the check gives no `ttlSeconds`.
    pub window_default_seconds: u64,
    /// The shortest `ttlSeconds` accepted.
    pub window_min_seconds: u64,
    /// The longest `ttlSeconds` accepted.
    pub window_max_seconds: u64,
    /// The shortest `leaseSeconds` accepted.
    pub lease_min_seconds: u64,
    /// The longest `leaseSeconds` accepted.
    pub lease_max_seconds: u64,
    /// Whether a check must give a `requestId`.
    pub require_request_id: bool,
    /// Whether a hot miss is settled in the cold ledger.
    pub confirm_miss: ConfirmMiss,
    /// What is answered where no tier can say whether a message was seen.
    pub unconfirmed: Unconfirmed,
    /// How long a check's own retry gets its answer again.
    pub replay_seconds: u64,
}

impl Policy {
    /// The window of a check, in seconds.
    ///
    /// # Errors
    /// [`Invalid`] naming `ttlSeconds` and the bounds.
    pub fn window_seconds(&self, ttl_seconds: Option<u64>) -> Result<u64, Invalid> {
        let (min, max) = (self.window_min_seconds, self.window_max_seconds);
        match ttl_seconds {
            None => Ok(self.window_default_seconds),
            Some(ttl) if (min..=max).contains(&ttl) => Ok(ttl),
            Some(_) => Err(Invalid::new("ttlSeconds", format!("{min} to {max}, the bounds of the scope's policy"))),
        }
    }

    /// Whether a lease is within the policy's bounds; `field` is its name in the request.
    ///
    /// # Errors
    /// [`Invalid`] naming the field and the bounds.
    pub fn check_lease(&self, field: &'static str, lease_seconds: u64) -> Result<(), Invalid> {
        let (min, max) = (self.lease_min_seconds, self.lease_max_seconds);
        if (min..=max).contains(&lease_seconds) {
            return Ok(());
        }
        Err(Invalid::new(field, format!("{min} to {max}, the bounds of the scope's policy")))
    }
}

/// A policy entry that contradicts itself or the built-in bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy {entry}: {problem}")]
pub struct PolicyError {
    /// Which entry.
    pub entry: String,
    /// What is wrong with it.
    pub problem: String,
}

/// All policies of a deployment.
#[derive(Debug, Clone, Default)]
pub struct PolicySet {
    scopes: HashMap<Box<str>, PolicyFields>,
    tenants: HashMap<Box<str>, PolicyFields>,
    families: HashMap<Box<str>, PolicyFields>,
}

impl PolicySet {
    /// Sets the entry of one scope.
    ///
    /// # Errors
    /// [`PolicyError`] where the fields contradict themselves or the built-in bounds.
    pub fn set_scope(&mut self, scope: &Scope, fields: PolicyFields) -> Result<(), PolicyError> {
        fields.check(&format!("scope {scope}"))?;
        self.scopes.insert(scope.as_str().into(), fields);
        Ok(())
    }

    /// Sets a tenant's default.
    ///
    /// # Errors
    /// As [`PolicySet::set_scope`].
    pub fn set_tenant(&mut self, tenant: &Tenant, fields: PolicyFields) -> Result<(), PolicyError> {
        fields.check(&format!("tenant {tenant}"))?;
        self.tenants.insert(tenant.as_str().into(), fields);
        Ok(())
    }

    /// Sets a flow family's default.
    ///
    /// # Errors
    /// As [`PolicySet::set_scope`]; also where `family` is no flow family.
    pub fn set_family(&mut self, family: &str, fields: PolicyFields) -> Result<(), PolicyError> {
        let entry = format!("family {family}");
        if family.contains('/') || Scope::parse(&format!("t:{family}"), None).is_err() {
            let problem = "expected a flow up to its first '/': 1 to 95 of A-Z, a-z, 0-9 and . _ -".to_owned();
            return Err(PolicyError { entry, problem });
        }
        fields.check(&entry)?;
        self.families.insert(family.into(), fields);
        Ok(())
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.scopes.len() + self.tenants.len() + self.families.len()
    }

    /// Whether there is no entry, so that the built-in defaults hold everywhere.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The policy of a scope, field by field: exact scope, then tenant, then flow family, then built-in. A default window
    /// that the bounds of another entry leave outside is moved to the nearer bound.
    #[must_use]
    pub fn resolve(&self, scope: &Scope) -> Policy {
        let entries =
            [self.scopes.get(scope.as_str()), self.tenants.get(scope.tenant()), self.families.get(scope.flow_family())];
        fn first<T>(entries: &[Option<&PolicyFields>], field: impl Fn(&PolicyFields) -> Option<T>) -> Option<T> {
            entries.iter().flatten().find_map(|fields| field(fields))
        }
        let window_max_seconds = first(&entries, |f| f.window_max_seconds).unwrap_or(WINDOW_MAX_SECONDS);
        let window_min_seconds =
            first(&entries, |f| f.window_min_seconds).unwrap_or(WINDOW_MIN_SECONDS).min(window_max_seconds);
        let lease_max_seconds = first(&entries, |f| f.lease_max_seconds).unwrap_or(LEASE_MAX_SECONDS);
        Policy {
            window_default_seconds: first(&entries, |f| f.window_default_seconds)
                .unwrap_or_else(|| built_in_window_seconds(scope.flow_family()))
                .clamp(window_min_seconds, window_max_seconds),
            window_min_seconds,
            window_max_seconds,
            lease_min_seconds: first(&entries, |f| f.lease_min_seconds)
                .unwrap_or(LEASE_MIN_SECONDS)
                .min(lease_max_seconds),
            lease_max_seconds,
            require_request_id: first(&entries, |f| f.require_request_id).unwrap_or(false),
            confirm_miss: first(&entries, |f| f.confirm_miss).unwrap_or(ConfirmMiss::WhenIncomplete),
            unconfirmed: first(&entries, |f| f.unconfirmed).unwrap_or(Unconfirmed::Refuse),
            replay_seconds: first(&entries, |f| f.replay_seconds).unwrap_or(REPLAY_SECONDS),
        }
    }
}

fn built_in_window_seconds(family: &str) -> u64 {
    let days = WINDOW_DAYS.iter().find(|(name, _)| *name == family).map_or(OTHER_WINDOW_DAYS, |(_, days)| *days);
    days * DAY_SECONDS
}

impl PolicyFields {
    fn check(&self, entry: &str) -> Result<(), PolicyError> {
        let wrong = |problem: String| Err(PolicyError { entry: entry.to_owned(), problem });
        let bounds = WINDOW_MIN_SECONDS..=WINDOW_MAX_SECONDS;
        let windows = [
            ("windowMinSeconds", self.window_min_seconds),
            ("windowDefaultSeconds", self.window_default_seconds),
            ("windowMaxSeconds", self.window_max_seconds),
        ];
        for (field, value) in windows {
            if value.is_some_and(|value| !bounds.contains(&value)) {
                return wrong(format!("{field}: expected {WINDOW_MIN_SECONDS} to {WINDOW_MAX_SECONDS}"));
            }
        }
        let given: Vec<_> = windows.iter().filter_map(|(field, value)| value.map(|value| (field, value))).collect();
        if let Some([(low, _), (high, _)]) = given.windows(2).find(|pair| pair[0].1 > pair[1].1) {
            return wrong(format!("{low}: expected at most {high}"));
        }
        let leases = [("leaseMinSeconds", self.lease_min_seconds), ("leaseMaxSeconds", self.lease_max_seconds)];
        for (field, value) in leases {
            if value.is_some_and(|value| !(LEASE_MIN_SECONDS..=WINDOW_MAX_SECONDS).contains(&value)) {
                return wrong(format!("{field}: expected {LEASE_MIN_SECONDS} to {WINDOW_MAX_SECONDS}"));
            }
        }
        if let (Some(min), Some(max)) = (self.lease_min_seconds, self.lease_max_seconds)
            && min > max
        {
            return wrong("leaseMinSeconds: expected at most leaseMaxSeconds".to_owned());
        }
        if self.replay_seconds.is_some_and(|seconds| seconds > DAY_SECONDS) {
            return wrong(format!("replaySeconds: expected at most {DAY_SECONDS}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(text: &str) -> Scope {
        Scope::parse(text, None).expect("valid")
    }

    #[test]
    fn built_in_windows_are_those_of_the_pattern() {
        let none = PolicySet::default();
        for (flow, days) in
            [("as2", 7), ("as2/in", 7), ("as4", 30), ("peppol/x", 30), ("x12", 60), ("sftp", 30), ("as2x", 30)]
        {
            let policy = none.resolve(&scope(&format!("t:{flow}")));
            assert_eq!(policy.window_default_seconds, days * DAY_SECONDS, "{flow}");
            assert_eq!(policy.confirm_miss, ConfirmMiss::WhenIncomplete);
            assert!(!policy.require_request_id);
        }
    }

    #[test]
    fn each_field_is_decided_by_the_most_specific_entry_that_sets_it() {
        let mut set = PolicySet::default();
        let fields = |default, require| PolicyFields {
            window_default_seconds: default,
            require_request_id: require,
            ..PolicyFields::default()
        };
        set.set_family("as4", fields(Some(10), Some(true))).expect("valid");
        set.set_tenant(&Tenant::parse("t1").expect("valid"), fields(Some(20), None)).expect("valid");
        set.set_scope(&scope("t1:as4/in"), fields(None, Some(false))).expect("valid");
        let of = |s: &str| {
            let p = set.resolve(&scope(s));
            (p.window_default_seconds, p.require_request_id)
        };
        assert_eq!(of("t1:as4/in"), (20, false));
        assert_eq!(of("t1:as4/out"), (20, true));
        assert_eq!(of("t2:as4/in"), (10, true));
        assert_eq!(of("t2:sftp"), (30 * DAY_SECONDS, false));
    }

    #[test]
    fn a_ttl_outside_the_bounds_names_them() {
        let policy = PolicySet::default().resolve(&scope("t:as2"));
        assert_eq!(policy.window_seconds(None), Ok(7 * DAY_SECONDS));
        assert_eq!(policy.window_seconds(Some(1)), Ok(1));
        assert_eq!(policy.window_seconds(Some(366 * DAY_SECONDS)), Ok(366 * DAY_SECONDS));
        for bad in [0, 366 * DAY_SECONDS + 1, u64::MAX] {
            assert_eq!(policy.window_seconds(Some(bad)).map_err(|e| e.field), Err("ttlSeconds".into()));
        }
    }

    #[test]
    fn a_lease_outside_the_bounds_names_them() {
        let policy = PolicySet::default().resolve(&scope("t:as2"));
        for good in [1, 12 * 3_600] {
            assert_eq!(policy.check_lease("claim.leaseSeconds", good), Ok(()));
        }
        for bad in [0, 12 * 3_600 + 1, u64::MAX] {
            let refused = policy.check_lease("claim.leaseSeconds", bad).map_err(|e| e.field);
            assert_eq!(refused, Err("claim.leaseSeconds".into()));
        }
    }

    #[test]
    fn entries_that_contradict_themselves_are_refused() {
        let mut set = PolicySet::default();
        let bad =
            PolicyFields { window_default_seconds: Some(5), window_max_seconds: Some(4), ..PolicyFields::default() };
        assert!(set.set_scope(&scope("t:f"), bad).is_err());
        let bad = PolicyFields { lease_min_seconds: Some(5), lease_max_seconds: Some(4), ..PolicyFields::default() };
        assert!(set.set_scope(&scope("t:f"), bad).is_err());
        let bad = PolicyFields { lease_max_seconds: Some(0), ..PolicyFields::default() };
        assert!(set.set_scope(&scope("t:f"), bad).is_err());
        let bad = PolicyFields { window_max_seconds: Some(WINDOW_MAX_SECONDS + 1), ..PolicyFields::default() };
        assert!(set.set_scope(&scope("t:f"), bad).is_err());
        assert!(set.set_family("as4/in", PolicyFields::default()).is_err());
        assert!(set.is_empty());
    }
}

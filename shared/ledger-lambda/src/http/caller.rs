//! Who calls, as the gateway vouches for it; never a field of the request.

use axum::extract::FromRequestParts;
use http::request::Parts;
use lambda_http::request::RequestContext;
use ledger_domain::{Invalid, Principal};

use super::problem::{Kind, Problem};

/// A caller somebody vouches for: API Gateway, or `local` for whoever reaches its address.
#[derive(Debug, Clone)]
pub struct Caller(pub Principal);

impl Caller {
    /// The caller of an HTTP API event: the ARN of the IAM user, or of the role without its session, or the JWT's issuer and
    /// subject (its client where there is no subject). `None` where the gateway vouches for nobody.
    #[must_use]
    pub fn of(context: &RequestContext) -> Option<Self> {
        let RequestContext::ApiGatewayV2(context) = context else { return None };
        let authorizer = context.authorizer.as_ref()?;
        let name = match (&authorizer.iam, &authorizer.jwt) {
            (Some(iam), _) => without_session(iam.user_arn.as_deref()?).to_owned(),
            (None, Some(jwt)) => {
                let issuer = jwt.claims.get("iss")?;
                let subject = jwt.claims.get("sub").or_else(|| jwt.claims.get("client_id"))?;
                format!("{issuer}#{subject}")
            }
            (None, None) => return None,
        };
        Principal::parse(&name).ok().map(Self)
    }

    /// A caller named by the deployment itself.
    ///
    /// # Errors
    /// [`Invalid`] where the name is no principal.
    pub fn named(name: &str) -> Result<Self, Invalid> {
        Principal::parse(name).map(Self)
    }
}

/// A role's sessions are one caller: the retry of a service comes from another of its instances, under another session, and
/// must find what the first one won.
fn without_session(arn: &str) -> &str {
    match arn.split_once(":assumed-role/") {
        Some((_, role_and_session)) if role_and_session.contains('/') => {
            arn.rsplit_once('/').map_or(arn, |(role, _session)| role)
        }
        Some(_) | None => arn,
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Self::Rejection> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| {
            Problem::new(Kind::UnknownCaller, "the gateway names no caller: sign the request (SigV4) or send a token")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(authorizer: &str) -> Option<String> {
        let http = r#"{"method":"POST","path":"/v1/check"}"#;
        let context = format!(r#"{{"accountId":"1","http":{http},"timeEpoch":0,"authorizer":{authorizer}}}"#);
        let context = serde_json::from_str(&context).expect("a context");
        Caller::of(&RequestContext::ApiGatewayV2(context)).map(|caller| caller.0.to_string())
    }

    #[test]
    fn a_roles_sessions_are_one_caller_and_users_are_themselves() {
        let iam = |arn: &str| caller(&format!(r#"{{"iam":{{"userArn":"{arn}"}}}}"#));
        let role = "arn:aws:sts::111122223333:assumed-role/hub-as4";
        assert_eq!(iam(&format!("{role}/task-1")).as_deref(), Some(role));
        assert_eq!(iam(&format!("{role}/task-2")), iam(&format!("{role}/task-1")));
        assert_ne!(iam("arn:aws:sts::111122223333:assumed-role/other/task-1"), iam(&format!("{role}/task-1")));
        let user = "arn:aws:iam::111122223333:user/a/b";
        assert_eq!(iam(user).as_deref(), Some(user));
    }

    #[test]
    fn a_token_names_its_issuer_and_subject() {
        let jwt = |claims: &str| caller(&format!(r#"{{"jwt":{{"claims":{claims},"scopes":null}}}}"#));
        assert_eq!(jwt(r#"{"iss":"https://i","sub":"s"}"#).as_deref(), Some("https://i#s"));
        assert_eq!(jwt(r#"{"iss":"https://i","client_id":"c"}"#).as_deref(), Some("https://i#c"));
        assert_eq!(jwt(r#"{"sub":"s"}"#), None);
        assert_eq!(caller("{}"), None);
    }
}

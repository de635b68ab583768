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
    /// The caller of an HTTP API event: the IAM user's ARN, or the JWT's issuer and subject (its client where there is no
    /// subject). `None` where the gateway vouches for nobody.
    #[must_use]
    pub fn of(context: &RequestContext) -> Option<Self> {
        let RequestContext::ApiGatewayV2(context) = context else { return None };
        let authorizer = context.authorizer.as_ref()?;
        let name = match (&authorizer.iam, &authorizer.jwt) {
            (Some(iam), _) => iam.user_arn.clone()?,
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

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Self::Rejection> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| {
            Problem::new(Kind::UnknownCaller, "the gateway names no caller: sign the request (SigV4) or send a token")
        })
    }
}

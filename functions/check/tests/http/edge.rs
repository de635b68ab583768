//! A router on a ledger in memory, and requests to it.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use check::{App, Asked, router};
use http::{HeaderMap, Request, Response, StatusCode};
use ledger_domain::ports::{Clock, HotTier};
use ledger_domain::{Fact, MessageKey, Scope, Slot, Tenant, Timestamp};
use ledger_lambda::env::{Env, Tenants};
use ledger_lambda::http::Caller;
use ledger_stores::memory::MemoryHotTier;
use ledger_testkit::clock::ManualClock;
use ledger_testkit::house::{FixedTrust, House, ScriptedQueue};
use serde_json::{Value, json};
use tower::ServiceExt;

pub(crate) const HASH: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

pub(crate) struct Test {
    router: Router,
    pub(crate) queue: Arc<ScriptedQueue>,
    pub(crate) trust: Arc<FixedTrust>,
    pub(crate) clock: Arc<ManualClock>,
    hot: Arc<MemoryHotTier>,
}

pub(crate) fn start_with(default_tenant: Option<&str>) -> Test {
    let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_790_000_000_000)));
    let as_clock: Arc<dyn Clock> = Arc::clone(&clock) as _;
    let hot = Arc::new(MemoryHotTier::new(10_000, Arc::clone(&as_clock)));
    let as_hot: Arc<dyn HotTier> = Arc::clone(&hot) as _;
    let House { ledger, queue, trust, .. } = House::new(as_hot, None, as_clock);
    let tenants: Tenants = Env::of([("LEDGER_TENANTS", "t,t2")]).required_tenants().expect("valid");
    let default_tenant = default_tenant.map(|name| Tenant::parse(name).expect("valid"));
    let app = App { ledger, tenants, default_tenant, asked: Asked::default() };
    Test { router: router(Arc::new(app)), queue, trust, clock, hot }
}

pub(crate) fn start() -> Test {
    start_with(None)
}

/// All that a refused request may not change: the record of `t:as4`, key `k`, as it lies in the hot tier, and the facts sent.
pub(crate) type Traces = (Option<(Vec<u8>, Timestamp)>, Vec<Fact>);

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) content_type: String,
    pub(crate) retry_after: Option<String>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    /// The token of the claim that NEW handed out.
    #[track_caller]
    pub(crate) fn token(&self) -> String {
        let token = self.body["claim"]["token"].as_str();
        token.unwrap_or_else(|| panic!("no claim: {}", self.body)).to_owned()
    }

    /// A problem of this status and type.
    #[track_caller]
    pub(crate) fn is_problem(&self, status: u16, name: &str) {
        assert_eq!((self.status.as_u16(), &self.body["status"]), (status, &json!(status)), "{}", self.body);
        assert_eq!(self.body["type"], format!("urn:dedup-ledger:problem:{name}"), "{}", self.body);
        assert_eq!(self.content_type, "application/problem+json");
    }
}

impl Test {
    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response: Response<Body> = self.router.clone().oneshot(request).await.expect("infallible");
        let headers = response.headers().clone();
        let header = |name| headers.get(name).map(|value| value.to_str().expect("ascii").to_owned());
        let (content_type, retry_after) = (header("content-type").unwrap_or_default(), header("retry-after"));
        let status = response.status();
        let bytes = to_bytes(response.into_body(), usize::MAX).await.expect("in memory");
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Answer { status, content_type, retry_after, headers, body }
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        let mut request = Request::post(path).body(body.into()).expect("valid");
        request.extensions_mut().insert(Caller::named("tester").expect("valid"));
        self.send(request).await
    }

    pub(crate) async fn check(&self, body: &Value) -> Answer {
        self.post("/v1/check", body.to_string()).await
    }

    /// Refused with 400 naming `field`, and nothing was registered.
    pub(crate) async fn refused(&self, body: &str, field: &str) {
        self.refused_as("invalid-input", body, field).await;
    }

    /// [`Test::refused`] with a problem of this type.
    pub(crate) async fn refused_as(&self, name: &str, body: &str, field: &str) {
        let answer = self.post("/v1/check", body.to_owned()).await;
        answer.is_problem(400, name);
        assert_eq!(answer.body["field"], field, "{body}: {}", answer.body);
        assert!(answer.body["detail"].as_str().is_some_and(|detail| detail.contains("expected")), "{}", answer.body);
        assert!(self.queue.taken().is_empty(), "nothing was done");
    }

    /// What [`Traces`] are there now.
    pub(crate) fn traces(&self) -> Traces {
        let (scope, key) = (Scope::parse("t:as4", None).expect("valid"), MessageKey::text("k").expect("valid"));
        let value = self.hot.get_raw(Slot::of(&scope, &key)).expect("the clock is known");
        (value, self.queue.taken())
    }
}

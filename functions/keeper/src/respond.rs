//! The answer to CloudFormation: a PUT to the URL that the request names.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request as HttpRequest, Uri};
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::custom_resource::{Outcome, Request};

/// How often and how long the answer is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponderSettings {
    /// Attempts, the first included.
    pub attempts: u32,
    /// How long one may take, in milliseconds.
    pub attempt_timeout_ms: u64,
    /// The pause before the second, in milliseconds; it doubles.
    pub pause_ms: u64,
}

impl Default for ResponderSettings {
    /// 3 attempts of 2.5 s, 250 ms and 500 ms apart: inside the 10 s that the work leaves.
    fn default() -> Self {
        Self { attempts: 3, attempt_timeout_ms: 2_500, pause_ms: 250 }
    }
}

/// Sends answers.
#[derive(Debug)]
pub struct Responder {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    settings: ResponderSettings,
}

impl Responder {
    /// A client of its own, by the system's root certificates.
    ///
    /// # Errors
    /// In words, where there are none.
    pub fn new(settings: ResponderSettings) -> Result<Self, String> {
        let provider = rustls::crypto::ring::default_provider();
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(provider)
            .map_err(|error| format!("the system's root certificates: {error}"))?
            .https_or_http()
            .enable_http1()
            .build();
        Ok(Self { client: Client::builder(TokioExecutor::new()).build(connector), settings })
    }

    /// Answers, again where that can help.
    ///
    /// # Errors
    /// In words, what the last attempt failed by; the URL is not in them.
    pub(crate) async fn answer(&self, request: &Request, outcome: &Outcome) -> Result<(), String> {
        let uri: Uri = request.response_url.parse().map_err(|_| "ResponseURL: expected a URL".to_owned())?;
        let body = Bytes::from(request.answer(outcome));
        let mut pause_ms = self.settings.pause_ms;
        let mut attempt = 1;
        loop {
            let put = self.put(&uri, body.clone());
            let limit = Duration::from_millis(self.settings.attempt_timeout_ms);
            let answered = tokio::time::timeout(limit, put).await;
            let why = match answered {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(why)) => why,
                Err(_) => "no answer in time".to_owned(),
            };
            tracing::warn!(attempt, why, "CloudFormation did not take the answer");
            if attempt >= self.settings.attempts {
                return Err(why);
            }
            attempt += 1;
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            pause_ms = pause_ms.saturating_mul(2);
        }
    }

    /// The URL is signed for a PUT without a content type.
    async fn put(&self, uri: &Uri, body: Bytes) -> Result<(), String> {
        let request = HttpRequest::builder().method(Method::PUT).uri(uri).body(Full::new(body));
        let request = request.map_err(|error| error.to_string())?;
        let response = self.client.request(request).await.map_err(|error| {
            let kind = if error.is_connect() { "no connection" } else { "the connection broke" };
            kind.to_owned()
        })?;
        let status = response.status();
        if status.is_success() { Ok(()) } else { Err(format!("status {}", status.as_u16())) }
    }
}

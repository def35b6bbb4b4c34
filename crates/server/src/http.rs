//! `/healthz` and `/metrics`, for probes and Prometheus.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use slackline_core::api;
use tokio::time::timeout;
use tracing::warn;

use crate::mailbox::Mailbox;
use crate::metrics::{Sources, render};
use crate::service::call;

/// The most quotas whose tokens are shown as metrics; the first ones by name.
const SHOWN_QUOTAS: u32 = 1_000;

/// How long the machine may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(1);

/// The routes of one site.
pub(crate) fn routes(sources: Arc<Sources>, ready: Arc<AtomicBool>) -> Router {
    let healthz = move || {
        let ready = ready.load(Ordering::Relaxed);
        async move { health(ready) }
    };
    let metrics = move || {
        let sources = Arc::clone(&sources);
        async move { metrics(&sources).await }
    };
    Router::new().route("/healthz", get(healthz)).route("/metrics", get(metrics))
}

fn health(ready: bool) -> Response {
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = format!("{{\"live\":true,\"ready\":{ready}}}\n");
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

async fn metrics(sources: &Sources) -> Response {
    let status = status(&sources.mailbox).await;
    let list = api::Request::List { after: String::new(), limit: SHOWN_QUOTAS };
    let quotas = match timeout(PATIENCE, call(&sources.mailbox, list)).await {
        Ok(Ok(api::Response::Listed(quotas))) => quotas,
        _ => Vec::new(),
    };
    match render(sources, status, quotas) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
            .into_response(),
        Err(error) => {
            warn!(%error, "the metrics cannot be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// How the machine says it is; nothing if it cannot be asked.
pub(crate) async fn status(mailbox: &Arc<Mailbox>) -> Option<api::Status> {
    match timeout(PATIENCE, call(mailbox, api::Request::Status)).await {
        Ok(Ok(api::Response::Status(status))) => Some(status),
        _ => None,
    }
}

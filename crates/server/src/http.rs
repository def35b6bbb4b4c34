//! `/healthz` and `/metrics`, for probes and Prometheus.

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::watch;
use tracing::warn;

use crate::health::Health;
use crate::metrics::{Sources, render};
use crate::topology::Topology;

/// The routes of one site.
pub(crate) fn routes(sources: Arc<Sources>, health: watch::Receiver<Health>) -> Router {
    let topology = Arc::clone(&sources.topology);
    let healthz = move || {
        let response = respond(&health.borrow(), &topology);
        async move { response }
    };
    let metrics = move || {
        let sources = Arc::clone(&sources);
        async move { metrics(&sources).await }
    };
    Router::new().route("/healthz", get(healthz)).route("/metrics", get(metrics))
}

/// The answer of `/healthz`.
fn respond(health: &Health, topology: &Topology) -> Response {
    let ready = health.is_ready();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let because = if ready { "null".to_owned() } else { format!("\"{}\"", health.name()) };

    // Names of sites are letters, digits, '-', '_', '.' and ':': nothing that JSON would want escaped.
    let waiting_for: Vec<String> =
        health.waiting_for.iter().map(|site| format!("\"{}\"", topology.name(*site))).collect();
    let waiting_for = waiting_for.join(",");
    let body = format!("{{\"live\":true,\"ready\":{ready},\"because\":{because},\"waiting_for\":[{waiting_for}]}}\n");
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// The answer of `/metrics`.
async fn metrics(sources: &Sources) -> Response {
    let figures = sources.figures.ask(&sources.mailbox).await;
    match render(sources, figures) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
            .into_response(),
        Err(error) => {
            warn!(%error, "the metrics cannot be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

//! The counters and gauges of a site, as Prometheus text.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use slackline_core::api::Readiness;
use slackline_core::node;

use crate::health::{FigureDesk, Figures};
use crate::link::LinkState;
use crate::links::Links;
use crate::mailbox::{Lengths, Mailbox};
use crate::topology::Topology;

/// The upper ends of the buckets for the times of a sync, in seconds.
const SYNC_BUCKETS: [f64; 14] =
    [25e-6, 50e-6, 100e-6, 200e-6, 400e-6, 800e-6, 1.6e-3, 3.2e-3, 6.4e-3, 12.8e-3, 25.6e-3, 0.1, 0.4, 1.6];

/// The states that a site can be in, each with a series of its own.
const STATES: [Readiness; 7] = [
    Readiness::Joining,
    Readiness::Confirming,
    Readiness::Ready,
    Readiness::Stale,
    Readiness::Draining,
    Readiness::AwaitingNewStorage,
    Readiness::StorageFull,
];

/// The figures that the engine publishes after each turn.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Gauges {
    pub(crate) node: node::Metrics,
    /// Effects that the gate holds until a sync.
    pub(crate) waiting_for_sync: usize,
    /// Bytes of log that are certain to be there.
    pub(crate) room: u64,
    /// Rows that storage has not absorbed.
    pub(crate) overlay_rows: usize,
    /// Transactions under way that the site coordinates.
    pub(crate) coordinated: usize,
    /// Transactions under way in which the site takes part.
    pub(crate) prepared: usize,
    /// Objects with warranties out.
    pub(crate) warranties: usize,
    /// Copies of other sites' objects.
    pub(crate) copies: usize,
}

/// The durations of syncs.
#[derive(Debug)]
pub(crate) struct SyncTimes(Histogram);

impl SyncTimes {
    pub(crate) fn new() -> Self {
        Self(Histogram::new(SYNC_BUCKETS))
    }

    pub(crate) fn observe(&self, took: Duration) {
        self.0.observe(took.as_secs_f64());
    }
}

/// The sources of the figures.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) topology: Arc<Topology>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) links: Arc<Links>,
    pub(crate) gauges: Arc<Mutex<Gauges>>,
    pub(crate) sync_times: Arc<SyncTimes>,
    pub(crate) figures: Arc<FigureDesk>,
}

/// Writes the metrics of one moment. `figures` are the machine's, of just now.
pub(crate) fn render(sources: &Sources, figures: Arc<Figures>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("slackline");
    registry.register_collector(Box::new(Snapshot {
        gauges: *sources.gauges.lock().unwrap_or_else(PoisonError::into_inner),
        lengths: sources.mailbox.lengths(),
        links: sources.links.states(),
        topology: Arc::clone(&sources.topology),
        figures,
    }));
    registry.register("sync_seconds", "Durations of the log's syncs", sources.sync_times.0.clone());
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

/// One moment's figures.
#[derive(Debug)]
struct Snapshot {
    gauges: Gauges,
    lengths: Lengths,
    links: Vec<LinkState>,
    topology: Arc<Topology>,
    figures: Arc<Figures>,
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let mut page = Page(encoder);
        self.encode_site(&mut page)?;
        self.encode_operations(&mut page)?;
        self.encode_transactions(&mut page)?;
        self.encode_queues(&mut page)?;
        self.encode_clock_and_peers(&mut page)?;
        self.encode_quotas(&mut page)
    }
}

impl Snapshot {
    fn encode_site(&self, page: &mut Page) -> fmt::Result {
        let labels = [
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("cluster", self.topology.cluster.clone()),
            ("site", self.topology.name(self.topology.me)),
        ];

        page.gauges("build_info", "The version that runs here", [(labels, 1)])?;
        let status = &self.figures.status;
        let states = STATES.map(|state| ([("state", state.name())], i64::from(status.readiness == state)));
        page.gauge("ready", "1 while the site serves", i64::from(status.readiness == Readiness::Ready))?;
        page.gauges("state", "The site's progress towards serving; 1 for the state that it is in", states)?;
        page.gauge("incarnation", "The site's incarnation", status.incarnation.0.into())?;
        let lost = status.incarnation.0.saturating_sub(1).into();
        page.gauge("incarnations_lost", "Incarnations of the site whose storage was lost or replaced", lost)?;
        page.gauge("life", "The site's life", signed(status.life.0))
    }

    fn encode_operations(&self, page: &mut Page) -> fmt::Result {
        let node = &self.gauges.node;
        let acquires = [
            ([("outcome", "granted"), ("waited", "no")], node.granted_local),
            ([("outcome", "granted"), ("waited", "yes")], node.granted_waited),
            ([("outcome", "refused"), ("waited", "no")], node.refused_local),
            ([("outcome", "refused"), ("waited", "yes")], node.refused_waited),
        ];

        page.counters("acquires", "Acquires by outcome, with and without a wait for tokens of other sites", acquires)?;
        let operations = [
            ([("outcome", "granted")], node.granted_local + node.granted_waited),
            ([("outcome", "released")], node.released),
            ([("outcome", "exhausted")], node.refused_local + node.refused_waited),
            ([("outcome", "refused")], node.refused_other),
            ([("outcome", "repeated")], node.repeated),
        ];

        page.counters("requests", "Operations by outcome", operations)?;
        page.counter("holds_expired", "Holds whose time was up", node.expired)?;
        let rounds = [
            ([("cause", "reactive")], node.rounds_reactive),
            ([("cause", "proactive")], node.rounds_proactive),
            ([("cause", "recovery")], node.rounds_recovery),
        ];

        page.counters("rounds", "Rounds led here, by cause", rounds)?;
        page.counter("rebalances", "Rounds applied here, except those that create or delete", node.rebalances)?;
        let gifts = [
            ([("cause", "asked")], node.gifts_asked),
            ([("cause", "ahead")], node.gifts_ahead),
            ([("cause", "leaving")], node.gifts_leaving),
        ];

        page.counters("gifts_sent", "Gifts of tokens sent, by cause", gifts)?;
        page.counter("gifts_received", "Gifts of tokens received", node.gifts_received)?;
        let handed = "Times that what is to be refilled was handed over to another site";
        page.counter("refills_handed_over", handed, node.backlog_handed)?;
        page.counter("messages_sent", "Messages handed out for other sites", node.messages_sent)?;
        page.counter("messages_ignored", "Messages that fitted no rule", node.ignored)?;
        page.gauge("quotas", "Quotas known here", signed(node.quotas))?;
        page.gauge("sessions", "Sessions open here", signed(node.sessions))
    }

    fn encode_transactions(&self, page: &mut Page) -> fmt::Result {
        let Gauges { node, .. } = &self.gauges;
        let committed = [0, 1, 2].map(|phases| ([("phases", phases.to_string())], node.committed[phases]));
        page.counters("transactions_committed", "Transactions committed through this site, by phases", committed)?;
        page.counter("transactions_aborted", "Transactions aborted that came to this site", node.aborted)?;
        page.counter("fetches", "Questions to other sites for objects", node.fetches)?;
        page.counter("warranties_issued", "Warranties issued and extended", node.rights_issued)?;
        page.counter("warranties_revoked", "Warranties asked back before their end", node.revocations)?;
        page.counter("writes_defended", "Parts of transactions that waited for warranties to end", node.defended)?;
        page.counter("turns_given", "Programs that were given a turn, and others barred", node.turns_given)?;
        page.counter("reads_waited", "Reads of objects that waited for their turn", node.turns_awaited)?;
        page.counter(
            "calls_evicted",
            "Results of memoized functions deleted because nobody used them",
            node.calls_evicted,
        )?;

        page.counter("treaties_retracted", "Treaties that were retracted", node.treaties_retracted)?;
        page.counter("names_forgotten", "Names of deleted quotas that were forgotten", node.forgotten)?;
        page.counter("doubts_resolved", "In-doubt transactions resolved", node.doubts_resolved)?;
        let under_way = [
            ([("role", "coordinator")], signed(self.gauges.coordinated as u64)),
            ([("role", "participant")], signed(self.gauges.prepared as u64)),
        ];

        page.gauges("transactions_under_way", "Transactions that are not over, by this site's role", under_way)?;
        page.gauge("warranties", "Objects of this site with warranties out", signed(self.gauges.warranties as u64))?;
        page.gauge("copies", "Copies of other sites' objects", signed(self.gauges.copies as u64))
    }

    fn encode_queues(&self, page: &mut Page) -> fmt::Result {
        let lengths = [
            ([("queue", "requests")], signed(self.lengths.operations as u64)),
            ([("queue", "messages")], signed(self.lengths.messages as u64)),
            ([("queue", "waiting_for_tokens")], signed(self.gauges.node.waiting)),
            ([("queue", "waiting_for_sync")], signed(self.gauges.waiting_for_sync as u64)),
        ];

        page.gauges("queue_length", "Entries that wait, by queue", lengths)?;
        page.gauge("clients", "Streams and calls of clients", signed(self.lengths.clients as u64))?;
        page.counter(
            "messages_dropped",
            "Messages of other sites dropped at a full queue",
            self.lengths.messages_dropped,
        )?;

        page.gauge("storage_room_bytes", "Bytes of log that are certain to be there", signed(self.gauges.room))?;
        page.gauge("overlay_rows", "Rows that storage has not absorbed yet", signed(self.gauges.overlay_rows as u64))
    }

    fn encode_clock_and_peers(&self, page: &mut Page) -> fmt::Result {
        let to = |link: &LinkState| [("peer", self.topology.name(link.to))];
        let links = self.links.iter();
        page.gauges(
            "link_up",
            "1 while this site's link to the peer stands",
            links.clone().map(|l| (to(l), i64::from(l.linked))),
        )?;

        page.gauges("link_queue_length", "Messages that wait to be sent", {
            links.clone().map(|l| (to(l), signed(l.queued as u64)))
        })?;

        page.counters("link_dropped", "Messages dropped before they were sent", links.map(|l| (to(l), l.dropped)))?;
        let status = &self.figures.status;
        page.gauge(
            "clock_epsilon_microseconds",
            "The bound assumed on this clock's error",
            signed(status.clock.epsilon),
        )?;
        page.gauge(
            "clock_error_microseconds",
            "The largest part of a peer's offset that epsilon and the round trip cannot explain",
            signed(status.clock.error),
        )?;

        page.gauge(
            "clock_trusted",
            "1 while no site disagrees with this clock, or enough others agree",
            i64::from(status.clock.is_trusted),
        )?;

        let peers = || status.peers.iter().map(|peer| ([("peer", self.topology.name(peer.site))], peer));
        page.gauges("peer_up", "1 while the peer is heard from", peers().map(|(l, p)| (l, i64::from(p.up))))?;
        let rtts = peers().map(|(labels, peer)| (labels, peer.rtt.map_or(f64::NAN, |rtt| rtt as f64)));
        page.measured("peer_rtt_microseconds", "The last measured round trip", rtts)?;
        let offsets = peers().map(|(labels, peer)| (labels, peer.offset.map_or(f64::NAN, |offset| offset as f64)));
        page.measured("peer_offset_microseconds", "The last measured offset of the peer's clock", offsets)
    }

    fn encode_quotas(&self, page: &mut Page) -> fmt::Result {
        let quotas = || self.figures.quotas.iter().map(|quota| ([("quota", quota.name.clone())], quota));
        page.gauges("tokens", "Tokens of a quota at this site", quotas().map(|(labels, q)| (labels, q.tokens)))?;
        page.gauges("limit", "Tokens of a quota at all sites", quotas().map(|(labels, q)| (labels, q.limit)))
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Writes one metric after the other.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: i64) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(encoder)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(encoder)
    }

    fn gauges<L: fmt::Display, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, L); N], i64)>,
    ) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        family(encoder, values.into_iter().map(|(labels, value)| (labels, ConstGauge::new(value))))
    }

    /// Gauges whose value is "not a number" until they are measured.
    fn measured<L: fmt::Display, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, L); N], f64)>,
    ) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        family(encoder, values.into_iter().map(|(labels, value)| (labels, ConstGauge::new(value))))
    }

    fn counters<L: fmt::Display, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, L); N], u64)>,
    ) -> fmt::Result {
        let encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        family(encoder, values.into_iter().map(|(labels, value)| (labels, ConstCounter::new(value))))
    }
}

fn family<L: fmt::Display, const N: usize>(
    mut encoder: MetricEncoder,
    values: impl Iterator<Item = ([(&'static str, L); N], impl EncodeMetric)>,
) -> fmt::Result {
    for (labels, value) in values {
        let labels: Vec<(&str, String)> = labels.into_iter().map(|(key, value)| (key, value.to_string())).collect();
        value.encode(encoder.encode_family(&labels)?)?;
    }
    Ok(())
}

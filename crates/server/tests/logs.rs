//! What sites log.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slackline_core::id::SiteId;
use slackline_wire::LINK_VERSIONS;
use slackline_wire::internal::peer_client::PeerClient;
use slackline_wire::internal::{Link, LinkFrame, PeerMessage};

use crate::support::{block_on, channel, cluster};

/// What was logged so far, by the sites of other tests too.
#[derive(Clone, Default)]
struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    fn gather() -> Self {
        let logs = Self::default();
        let writer = logs.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
        subscriber.try_init().expect("no other test gathers logs");
        logs
    }

    fn lines(&self) -> Vec<String> {
        let bytes = self.0.lock().expect("no writer panics").clone();
        String::from_utf8(bytes).expect("text").lines().map(str::to_owned).collect()
    }
}

impl Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panics").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn log_names_its_site_and_is_not_filled_by_a_peer() {
    let logs = Logs::gather();
    let dev = cluster(&["first", "second"], 1);
    block_on(async {
        let link = Link {
            version_min: *LINK_VERSIONS.start(),
            version_max: *LINK_VERSIONS.end(),
            cluster: "dev".to_owned(),
            from: Some(SiteId::new(1, 0).into()),
            to: Some(SiteId::new(0, 0).into()),
            regions: vec!["first".to_owned(), "second".to_owned()],
            lanes: 1,
        };
        let senseless = vec![PeerMessage::default(); 500];
        let frames = [
            LinkFrame { link: Some(link), messages: Vec::new() },
            LinkFrame { link: None, messages: senseless.clone() },
            LinkFrame { link: None, messages: senseless },
        ];
        let mut peer = PeerClient::new(channel(&dev.sites()[0]).await);
        let mut replies = peer.link(tokio_stream::iter(frames)).await.expect("a link").into_inner();
        while replies.message().await.expect("no error").is_some() {}
    });
    dev.drain(Duration::from_secs(5)).expect("drains");

    let lines = logs.lines();
    let of = |site: &str, text: &str| {
        let site = format!(" site{{name={site}}}: ");
        lines.iter().filter(|line| line.contains(&site) && line.contains(text)).count()
    };
    assert_eq!((of("first", ": started"), of("second", ": started")), (1, 1), "{lines:?}");
    assert_eq!((of("first", ": linked peer=second"), of("second", ": linked peer=first")), (1, 1), "{lines:?}");
    // Sites of other tests, which were started before logs were gathered, bear no name.
    assert_eq!((of("first", ": the site is ready"), of("second", ": the site is ready")), (1, 1), "{lines:?}");
    assert_eq!(of("first", "peer=second count=1 last=body is missing"), 1, "{lines:?}");
    assert!((2..5).contains(&of("first", "no sense")), "the first of a thousand, then how many there were: {lines:?}");
}

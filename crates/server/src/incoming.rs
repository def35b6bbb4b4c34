//! The connections that a site takes in.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use std::io;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use tracing::warn;

/// The pause after a connection could not be accepted. The usual reason is the limit on open files; asking again at once
/// would burn a core and change nothing.
const PAUSE: Duration = Duration::from_millis(200);

/// Accepts connections for ever.
pub(crate) struct Incoming {
    listener: TcpListener,
    pause: Option<Pin<Box<Sleep>>>,
    /// Whether the last attempt failed; then that was said.
    failing: bool,
}

impl Incoming {
    pub(crate) fn new(listener: TcpListener) -> Self {
        Self { listener, pause: None, failing: false }
    }
}

impl Stream for Incoming {
    type Item = io::Result<TcpStream>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                std::task::ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match std::task::ready!(self.listener.poll_accept(context)) {
                Ok((stream, _)) => {
                    self.failing = false;
                    // Answers are small, and are waited for.
                    let _ = stream.set_nodelay(true);
                    return Poll::Ready(Some(Ok(stream)));
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.failing, true) {
                        warn!(%error, "connections cannot be accepted; raise the limit on open files, or use fewer clients");
                    }
                    self.pause = Some(Box::pin(sleep(PAUSE)));
                }
            }
        }
    }
}

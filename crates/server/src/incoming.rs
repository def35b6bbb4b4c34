//! The connections that a site takes in.
//!
//! A connection is handed on when its other end has begun to speak. One that says nothing is closed after [`GREETING`]: the
//! libraries that serve connections ask for a sign of life only later, and each takes one of the files that the site may have open.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};
use tokio_stream::Stream;
use tracing::warn;

/// The pause after a connection could not be accepted. The usual reason is the limit on open files; asking again at once
/// would burn a core and change nothing.
const PAUSE: Duration = Duration::from_millis(200);
/// The time that a new connection may take to begin to speak.
const GREETING: Duration = Duration::from_secs(10);
/// The pause between two looks at a connection that has said too little.
const STEP: Duration = Duration::from_millis(20);
/// The life of an HTTP connection. A scraper opens another one afterwards; a client that says little cannot keep a file open.
const HTTP_LASTS: Duration = Duration::from_secs(60);
/// The length of the first words of an HTTP/2 client, in bytes (RFC 9113, section 3.4).
pub(crate) const HTTP2_PREFACE: usize = 24;
/// The shortest request line of HTTP/1, in bytes: `GET / HTTP/1.1`.
pub(crate) const HTTP1_REQUEST: usize = 14;

/// Accepts connections until it is dropped.
pub(crate) struct Incoming {
    listener: TcpListener,
    /// The number of bytes that a connection must have sent before it is handed on.
    greeting: usize,
    /// Connections that have not sent them. Each leaves after [`GREETING`] at the latest.
    silent: JoinSet<Option<TcpStream>>,
    /// The pause after a failed attempt, while it lasts.
    pause: Option<Pin<Box<Sleep>>>,
    /// True if the last attempt failed; then that was logged.
    failing: bool,
}

impl Incoming {
    pub(crate) fn new(listener: TcpListener, greeting: usize) -> Self {
        Self { listener, greeting, silent: JoinSet::new(), pause: None, failing: false }
    }
}

/// Waits until the connection has sent `greeting` bytes. Returns nothing, and closes it, if they do not come in time.
async fn spoken(stream: TcpStream, greeting: usize) -> Option<TcpStream> {
    let speaks = async {
        let mut bytes = vec![0; greeting];
        loop {
            match stream.peek(&mut bytes).await {
                Ok(0) | Err(_) => return false,
                Ok(count) if count >= greeting => return true,
                // `peek` leaves the bytes there, so a second one would return them at once.
                Ok(_) => sleep(STEP).await,
            }
        }
    };
    timeout(GREETING, speaks).await.unwrap_or(false).then_some(stream)
}

impl Stream for Incoming {
    type Item = io::Result<TcpStream>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            // Those that speak first: a listener that cannot accept must not hold back connections that it has accepted.
            while let Poll::Ready(Some(spoken)) = self.silent.poll_join_next(context) {
                if let Ok(Some(stream)) = spoken {
                    return Poll::Ready(Some(Ok(stream)));
                }
            }

            if let Some(pause) = &mut self.pause {
                std::task::ready!(pause.as_mut().poll(context));
                self.pause = None;
            }

            match std::task::ready!(self.listener.poll_accept(context)) {
                Ok((stream, _)) => {
                    self.failing = false;
                    // Answers are small, and clients wait for each.
                    let _ = stream.set_nodelay(true);
                    let greeting = self.greeting;
                    self.silent.spawn(spoken(stream, greeting));
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

/// A connection that ends when its time is over, even while it is used: `axum::serve` lets a connection wait without a limit, for
/// its next request or for the rest of a header.
pub(crate) struct Brief {
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
}

impl Brief {
    fn new(stream: TcpStream, lasts: Duration) -> Self {
        Self { stream, end: Box::pin(sleep(lasts)) }
    }
}

impl AsyncRead for Brief {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Brief {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl axum::serve::Listener for Incoming {
    type Io = Brief;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Brief, SocketAddr) {
        loop {
            let next = poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await;
            if let Some(Ok(stream)) = next
                && let Ok(address) = stream.peer_addr()
            {
                return (Brief::new(stream, HTTP_LASTS), address);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn connection_ends_when_its_time_is_over_though_its_other_end_goes_on_speaking() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("starts");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let mut other = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connects");
            let (stream, _) = listener.accept().await.expect("comes");
            let mut brief = Brief::new(stream, Duration::from_millis(200));
            let speaks = tokio::spawn(async move {
                while other.write_all(b"x").await.is_ok() {
                    sleep(Duration::from_millis(20)).await;
                }
            });
            let mut bytes = [0; 16];
            let end = loop {
                match brief.read(&mut bytes).await {
                    Ok(count) => assert!(count > 0, "the other end is open"),
                    Err(error) => break error.kind(),
                }
            };
            assert_eq!(end, io::ErrorKind::TimedOut);
            drop(brief);
            speaks.await.expect("its connection is gone");
        });
    }
}

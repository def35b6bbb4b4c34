//! Answers that were taken from the mailbox and have not left yet, in pieces.
//!
//! A client that grants no window keeps what it is sent at the site: HTTP/2 takes each part of a body whole, as soon as it is made, and
//! holds it until the client takes it. One connection may have a thousand streams with an answer each. So answers are handed over
//! piece by piece, the next one when the client has room again, and what is left of them counts in what waits for all clients
//! ([`Mailbox`](crate::mailbox::Mailbox)): at that bound reads are refused.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tonic::Status;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;

/// The longest piece, in bytes: with another one, what a stream holds beyond what is counted.
const PIECE: usize = 64 << 10;

/// A service whose answers leave in pieces and are counted until then.
#[derive(Clone, Debug)]
pub(crate) struct Pieces<S> {
    inner: S,
    /// The bytes of answers that have not left yet, of all clients.
    unsent: Arc<AtomicUsize>,
}

impl<S> Pieces<S> {
    pub(crate) fn new(inner: S, unsent: Arc<AtomicUsize>) -> Self {
        Self { inner, unsent }
    }
}

impl<S: NamedService> NamedService for Pieces<S> {
    const NAME: &'static str = S::NAME;
}

type Request = http::Request<tonic::body::Body>;
type Answer = http::Response<tonic::body::Body>;

impl<S> Service<Request> for Pieces<S>
where
    S: Service<Request, Response = Answer, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = BoxFuture<Answer, Infallible>;

    fn poll_ready(&mut self, context: &mut Context) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let (answer, unsent) = (self.inner.call(request), Arc::clone(&self.unsent));
        Box::pin(async move { Ok(answer.await?.map(|body| tonic::body::Body::new(Leaving::new(body, unsent)))) })
    }
}

/// The body of an answer, in pieces.
#[derive(Debug)]
struct Leaving<B> {
    body: B,
    /// What is left of the part that was taken last.
    left: Bytes,
    /// The bytes of it that are counted: what is left, and the piece that was handed over last.
    counted: usize,
    /// The bytes of all answers that are counted.
    unsent: Arc<AtomicUsize>,
}

impl<B> Leaving<B> {
    fn new(body: B, unsent: Arc<AtomicUsize>) -> Self {
        Self { body, left: Bytes::new(), counted: 0, unsent }
    }

    /// Counts so many bytes from now on.
    fn count(&mut self, bytes: usize) {
        self.unsent.fetch_add(bytes, Relaxed);
        self.unsent.fetch_sub(self.counted, Relaxed);
        self.counted = bytes;
    }
}

impl<B: Body<Data = Bytes, Error = Status> + Unpin> Body for Leaving<B> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        // Whoever asks for more has handed the last piece on to the connection, for which the client had room.
        let left = self.left.len();
        if self.counted > left {
            self.count(left);
        }
        if self.left.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.left = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                end => return Poll::Ready(end),
            }
            let bytes = self.left.len();
            self.count(bytes);
        }
        let length = self.left.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.left.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (of, left) = (self.body.size_hint(), self.left.len() as u64);
        let mut hint = SizeHint::new();
        if let Some(most) = of.upper() {
            hint.set_upper(most.saturating_add(left));
        }
        hint.set_lower(of.lower().saturating_add(left));
        hint
    }
}

impl<B> Drop for Leaving<B> {
    fn drop(&mut self) {
        self.count(0);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::Waker;

    use super::*;

    /// A body of these parts.
    struct Parts(VecDeque<Bytes>);

    impl Body for Parts {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.0.pop_front().map(|part| Ok(Frame::data(part))))
        }

        fn is_end_stream(&self) -> bool {
            self.0.is_empty()
        }
    }

    #[test]
    fn answer_leaves_in_pieces_and_counts_until_the_last_has_left() {
        let whole: Vec<u8> = (0..3 * PIECE as u32 / 2).map(|at| (at % 251) as u8).collect();
        let parts = [Bytes::from(whole.clone()), Bytes::from_static(b"end")];
        let unsent = Arc::new(AtomicUsize::new(0));
        let mut body = Leaving::new(Parts(parts.into()), Arc::clone(&unsent));
        let next = |body: &mut Leaving<Parts>| {
            let frame = Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(frame) = frame else { panic!("it is there") };
            let piece = frame.map(|frame| frame.expect("no error").into_data().expect("data"));
            (piece, unsent.load(Relaxed))
        };
        let (Some(first), counted) = next(&mut body) else { panic!("it has a first piece") };
        assert_eq!((first.len(), counted), (PIECE, whole.len()), "none of it is known to have left");
        let (Some(second), counted) = next(&mut body) else { panic!("it has a second piece") };
        assert_eq!(([first, second].concat(), counted), (whole, PIECE / 2));
        assert!(!body.is_end_stream());
        assert_eq!(next(&mut body), (Some(Bytes::from_static(b"end")), 3));
        assert!(body.is_end_stream());
        assert_eq!(next(&mut body), (None, 0));

        let mut cut = Leaving::new(Parts([Bytes::from(vec![0; 3 * PIECE])].into()), Arc::clone(&unsent));
        assert_eq!(next(&mut cut).1, 3 * PIECE);
        drop(cut);
        assert_eq!(unsent.load(Relaxed), 0, "its client has gone");
    }
}

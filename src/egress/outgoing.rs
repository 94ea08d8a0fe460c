//! The body of a request: whole in memory, or passed on as it comes. Tells the meter when hyper has taken all of it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::io::Meter;
use crate::call::{Broken, ByteSource};

/// What is sent after a request's head.
pub enum Sending {
    Whole(Bytes),
    Streaming(Box<dyn ByteSource<Broken>>),
}

impl fmt::Debug for Sending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sending::Whole(bytes) => write!(f, "Whole({} bytes)", bytes.len()),
            Sending::Streaming(_) => f.write_str("Streaming"),
        }
    }
}

impl From<Bytes> for Sending {
    fn from(bytes: Bytes) -> Self {
        Sending::Whole(bytes)
    }
}

/// The agent's own body broke off, so the request to the tool did.
#[derive(Debug)]
pub(super) struct BrokenOff;

impl fmt::Display for BrokenOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request's own body broke off")
    }
}
impl std::error::Error for BrokenOff {}

pub(super) struct Outgoing {
    body: Sending,
    meter: Arc<Meter>,
}

impl Outgoing {
    pub(super) fn new(body: Sending, meter: Arc<Meter>) -> Self {
        let outgoing = Self { body, meter };
        if outgoing.is_end_stream() {
            outgoing.meter.handed_over();
        }
        outgoing
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let this = self.get_mut();
        let polled = match &mut this.body {
            Sending::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Sending::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Sending::Streaming(source) => source
                .poll_next(cx)
                .map(|next| next.map(|next| next.map(Frame::data).map_err(|_| BrokenOff))),
        };
        if matches!(polled, Poll::Ready(Some(Ok(_)))) {
            this.meter.taken();
        }
        if matches!(polled, Poll::Ready(None)) || this.is_end_stream() {
            this.meter.handed_over();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Sending::Whole(bytes) => bytes.is_empty(),
            Sending::Streaming(source) => source.left() == Some(0),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Sending::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Sending::Streaming(source) => {
                source.left().map_or_else(SizeHint::default, SizeHint::with_exact)
            }
        }
    }
}

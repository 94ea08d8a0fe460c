//! A client's body that is passed on as it comes: bounded in bytes, read only as fast as the tool takes it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::Body as HttpBody;

use crate::call::{Broken, ByteSource, Standing, Turn};

pub(super) struct Uploading<B> {
    body: B,
    left: usize,
    standing: Arc<Standing>,
}

impl<B> Uploading<B> {
    /// At most `limit` bytes.
    pub(super) fn new(body: B, limit: usize, standing: Arc<Standing>) -> Self {
        Self { body, left: limit, standing }
    }

    fn broken(&self, why: Broken) -> Poll<Option<Result<Bytes, Broken>>> {
        self.standing.set(Turn::Broken(why));
        Poll::Ready(Some(Err(why)))
    }
}

impl<B> ByteSource<Broken> for Uploading<B>
where
    B: HttpBody<Data = Bytes> + Send + Unpin,
{
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        loop {
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending => {
                    self.standing.set(Turn::Client);
                    return Poll::Pending;
                }
                Poll::Ready(None) => {
                    self.standing.set(Turn::Over);
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(Err(_))) => return self.broken(Broken::Client),
                Poll::Ready(Some(Ok(frame))) => frame,
            };
            // Trailers end here.
            let Ok(bytes) = frame.into_data() else { continue };
            match self.left.checked_sub(bytes.len()) {
                Some(left) => self.left = left,
                None => return self.broken(Broken::TooLong),
            }
            let over = self.body.is_end_stream();
            self.standing.set(if over { Turn::Over } else { Turn::Tool });
            return Poll::Ready(Some(Ok(bytes)));
        }
    }

    fn left(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }
}

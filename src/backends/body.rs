//! The body of an answer, whole, in at most so many *decoded* bytes: memory is spent on those.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use super::room::Place;
use crate::egress::AnswerBody;

/// How reading ended.
#[derive(Debug)]
pub(super) enum BodyEnd {
    Whole(Bytes),
    /// More than the limit; what is over it was not kept, and the connection is closed.
    TooLarge,
    /// The connection broke, or the body's own coding is broken, before its end.
    Cut(String),
    /// A coding that was not asked for and is not understood.
    Coded(String),
}

/// Reads to the end, or to the limit. We ask for `identity`; gzip is understood all the same, as some servers send
/// it whatever is asked.
pub(super) async fn read(mut body: AnswerBody, headers: &HeaderMap, limit: usize) -> BodyEnd {
    let gzip = match coding(headers) {
        Ok(gzip) => gzip,
        Err(name) => return BodyEnd::Coded(name),
    };
    if !gzip && body.expected() > limit as u64 {
        return BodyEnd::TooLarge;
    }
    let mut sink = if gzip {
        Sink::Gzip(Box::new(MultiGzDecoder::new(Bounded::new(limit))))
    } else {
        Sink::Plain(Bounded::new(limit))
    };
    // What a coding unfolds to is not told.
    let most = if gzip { limit } else { body.at_most(limit) };
    let mut place = Place::default();
    let mut empty = true;
    while let Some(chunk) = body.next().await {
        let chunk = match chunk {
            Ok(chunk) => chunk,
            Err(why) => return BodyEnd::Cut(why),
        };
        empty &= chunk.is_empty();
        place.wait(sink.held() + chunk.len(), most).await;
        // All of it in one piece: there is nothing to put together.
        if !gzip && sink.held() == 0 && body.is_over() && chunk.len() <= limit {
            return BodyEnd::Whole(chunk);
        }
        if let Err(error) = sink.write(&chunk) {
            return ended(&error);
        }
    }
    if empty {
        // Nothing at all is no broken gzip: an answer to HEAD, a 204.
        return BodyEnd::Whole(Bytes::new());
    }
    match sink.finish() {
        Ok(bytes) => BodyEnd::Whole(bytes.into()),
        Err(error) => ended(&error),
    }
}

fn ended(error: &io::Error) -> BodyEnd {
    if error.kind() == io::ErrorKind::FileTooLarge {
        BodyEnd::TooLarge
    } else {
        BodyEnd::Cut(format!("its gzip coding is broken: {error}"))
    }
}

/// True for gzip, false for none, else the coding's name.
fn coding(headers: &HeaderMap) -> Result<bool, String> {
    let mut gzip = false;
    for value in headers.get_all(CONTENT_ENCODING) {
        let text = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
        for name in text.split(',').map(str::trim) {
            match name {
                "" | "identity" => {}
                "gzip" | "x-gzip" if !gzip => gzip = true,
                other => return Err(other.chars().take(40).collect()),
            }
        }
    }
    Ok(gzip)
}

enum Sink {
    Plain(Bounded),
    Gzip(Box<MultiGzDecoder<Bounded>>),
}

impl Sink {
    fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        match self {
            Sink::Plain(bounded) => bounded.write_all(chunk),
            Sink::Gzip(decoder) => decoder.write_all(chunk),
        }
    }

    fn held(&self) -> usize {
        match self {
            Sink::Plain(bounded) => bounded.bytes.len(),
            Sink::Gzip(decoder) => decoder.get_ref().bytes.len(),
        }
    }

    fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Sink::Plain(bounded) => Ok(bounded.bytes),
            Sink::Gzip(decoder) => decoder.finish().map(|bounded| bounded.bytes),
        }
    }
}

/// Takes bytes up to a limit; one more is an error. The decoder writes into it in small pieces, so that a few bytes
/// that unfold into gigabytes are stopped at the limit, not after.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl Bounded {
    fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit }
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.bytes.len() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_few_bytes_that_unfold_into_many_stop_at_the_limit() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        let zeros = vec![0_u8; 1 << 20];
        for _ in 0..16 {
            packed.write_all(&zeros).expect("memory");
        }
        let packed = packed.finish().expect("memory");
        assert!(packed.len() < 100_000);
        let mut sink = Sink::Gzip(Box::new(MultiGzDecoder::new(Bounded::new(1 << 20))));
        let error = sink.write(&packed).expect_err("16 MiB");
        assert!(matches!(ended(&error), BodyEnd::TooLarge));
    }

    #[test]
    fn only_gzip_is_understood_and_only_once() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(CONTENT_ENCODING, HeaderValue::from_static(value));
            }
            coding(&headers)
        };
        assert_eq!(of(&[]), Ok(false));
        assert_eq!(of(&["identity"]), Ok(false));
        assert_eq!(of(&["GZIP"]), Ok(true));
        assert_eq!(of(&["gzip, gzip"]), Err("gzip".into()));
        assert_eq!(of(&["gzip", "br"]), Err("br".into()));
        assert_eq!(of(&["zstd"]), Err("zstd".into()));
    }
}

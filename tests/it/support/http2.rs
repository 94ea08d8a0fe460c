//! A tool that speaks HTTP/2, frame by frame (RFC 9113 §4.1): every word of the protocol is the test's own.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const ACK: u8 = 1;
/// Error codes (RFC 9113 §7).
pub const INTERNAL_ERROR: u32 = 2;
pub const REFUSED_STREAM: u32 = 7;
pub const CANCEL: u32 = 8;
pub const ENHANCE_YOUR_CALM: u32 = 11;

/// A request that has come whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Which connection, from 1 on.
    pub connection: usize,
    pub stream: u32,
    pub body: Vec<u8>,
}

/// What the tool says then.
#[derive(Debug, Clone)]
pub enum Say {
    /// 200 with this JSON, on a stream.
    Ok(u32, &'static str),
    /// The head of a 200 with so many fields of so many bytes.
    Fields(u32, usize, usize),
    Reset(u32, u32),
    /// The last stream that was processed, and why.
    GoAway(u32, u32),
    Close,
}

type Decide = Box<dyn Fn(&Seen) -> Vec<Say> + Send + Sync>;

pub struct Http2Tool {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    resets: Arc<Mutex<Vec<(usize, u32)>>>,
    _serving: AbortOnDropHandle<()>,
}

impl Http2Tool {
    /// `streams`: how many it allows at once.
    pub async fn start(
        streams: u32,
        decide: impl Fn(&Seen) -> Vec<Say> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (seen, resets) = (Arc::<Mutex<Vec<Seen>>>::default(), Arc::default());
        let decide: Arc<Decide> = Arc::new(Box::new(decide));
        let (log, undone) = (seen.clone(), Arc::<Mutex<Vec<(usize, u32)>>>::clone(&resets));
        let serving = tokio::spawn(async move {
            for connection in 1.. {
                let Ok((stream, _)) = listener.accept().await else { return };
                let wire = Wire {
                    stream,
                    connection,
                    log: log.clone(),
                    resets: undone.clone(),
                    decide: decide.clone(),
                    bodies: HashMap::new(),
                };
                tokio::spawn(wire.serve(streams));
            }
        });
        Self { address, seen, resets, _serving: AbortOnDropHandle::new(serving) }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no holder panics").clone()
    }

    /// Connection and stream of each exchange that the gateway took back.
    pub fn taken_back(&self) -> Vec<(usize, u32)> {
        self.resets.lock().expect("no holder panics").clone()
    }
}

struct Wire {
    stream: TcpStream,
    connection: usize,
    log: Arc<Mutex<Vec<Seen>>>,
    resets: Arc<Mutex<Vec<(usize, u32)>>>,
    decide: Arc<Decide>,
    bodies: HashMap<u32, Vec<u8>>,
}

impl Wire {
    async fn serve(mut self, streams: u32) -> Option<()> {
        let mut preface = [0; PREFACE.len()];
        self.stream.read_exact(&mut preface).await.ok()?;
        assert_eq!(preface, PREFACE);
        // SETTINGS_MAX_CONCURRENT_STREAMS.
        let mut settings = vec![0, 3];
        settings.extend(streams.to_be_bytes());
        self.send(SETTINGS, 0, 0, &settings).await?;
        loop {
            let (kind, flags, id, payload) = read_frame(&mut self.stream).await?;
            match kind {
                SETTINGS if flags & ACK == 0 => self.send(SETTINGS, ACK, 0, &[]).await?,
                PING if flags & ACK == 0 => self.send(PING, ACK, 0, &payload).await?,
                HEADERS => drop(self.bodies.insert(id, Vec::new())),
                DATA => self.bodies.entry(id).or_default().extend(&payload),
                RST_STREAM => {
                    self.resets.lock().expect("no holder panics").push((self.connection, id));
                }
                _ => {}
            }
            if matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0 {
                let body = self.bodies.remove(&id).unwrap_or_default();
                let seen = Seen { connection: self.connection, stream: id, body };
                self.log.lock().expect("no holder panics").push(seen.clone());
                for say in (self.decide)(&seen) {
                    self.say(say).await?;
                }
            }
        }
    }

    async fn say(&mut self, say: Say) -> Option<()> {
        match say {
            Say::Ok(id, json) => {
                self.send(HEADERS, END_HEADERS, id, &head("application/json")).await?;
                self.send(DATA, END_STREAM, id, json.as_bytes()).await
            }
            Say::Fields(id, fields, bytes) => {
                let mut block = head("application/json");
                for n in 0..fields {
                    block.extend(field(&format!("x-{n}"), &"v".repeat(bytes)));
                }
                let mut pieces = block.chunks(16_000).peekable();
                let mut kind = HEADERS;
                while let Some(piece) = pieces.next() {
                    let end = if pieces.peek().is_none() { END_HEADERS } else { 0 };
                    self.send(kind, end, id, piece).await?;
                    kind = CONTINUATION;
                }
                self.send(DATA, END_STREAM, id, b"{}").await
            }
            Say::Reset(id, reason) => self.send(RST_STREAM, 0, id, &reason.to_be_bytes()).await,
            Say::GoAway(last, reason) => {
                let mut payload = last.to_be_bytes().to_vec();
                payload.extend(reason.to_be_bytes());
                self.send(GOAWAY, 0, 0, &payload).await
            }
            Say::Close => {
                self.stream.shutdown().await.ok()?;
                None
            }
        }
    }

    async fn send(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) -> Option<()> {
        self.stream.write_all(&frame(kind, flags, id, payload)).await.ok()
    }
}

pub fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(id.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

pub async fn read_frame(
    stream: &mut (impl AsyncReadExt + Unpin),
) -> Option<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).await.ok()?;
    let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
    Some((head[3], head[4], id, payload))
}

/// `:status: 200` by the static table (RFC 7541, appendix A), and a content type.
fn head(media: &str) -> Vec<u8> {
    let mut block = vec![0x88];
    block.extend(field("content-type", media));
    block
}

/// A literal that is not indexed, without Huffman coding (RFC 7541 §6.2.2).
pub fn field(name: &str, value: &str) -> Vec<u8> {
    let mut block = vec![0];
    for text in [name, value] {
        length(&mut block, text.len());
        block.extend_from_slice(text.as_bytes());
    }
    block
}

/// An integer with a prefix of seven bits (RFC 7541 §5.1).
fn length(block: &mut Vec<u8>, length: usize) {
    if length < 127 {
        block.push(u8::try_from(length).expect("short"));
        return;
    }
    block.push(127);
    let mut left = length - 127;
    while left >= 128 {
        block.push(u8::try_from(left % 128).expect("seven bits") | 128);
        left /= 128;
    }
    block.push(u8::try_from(left).expect("seven bits"));
}

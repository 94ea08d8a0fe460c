//! Streams of a session over HTTP that can be gone on with: what was said on one is kept for an agent whose connection
//! broke, and given to it after the last event it names. Never another stream's, never in part, never past the bounds.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::frontends::body::{Body, EventSender, events};
use crate::mcp::session::EventId;
use crate::mcp::sse;

/// Events kept of one stream; fewer than wait for one reader, so that what is given again fits.
pub(super) const MAX_KEPT: usize = 128;
/// Bytes of events kept of one stream; past it older ones go. The last one may be longer, and costs none before it.
pub(super) const MAX_KEPT_BYTES: usize = 4 << 20;
/// Streams of a session that are over and kept.
pub(super) const MAX_ENDED: usize = 64;
/// Bytes kept of all streams of a session, and of all sessions of an agent.
pub(super) const SESSION_BYTES: usize = 8 << 20;
pub(super) const AGENT_BYTES: usize = 32 << 20;
/// How long a stream is kept after its end, and how long an agent that left one may still be asked on it.
pub(super) const KEPT: Duration = Duration::from_secs(600);
/// How long the stream by GET is kept without a reader: as long as its session may lie idle.
pub(super) const AWAY: Duration = super::sessions::IDLE;

/// What a session's revision and this process make of streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// Nobody can come back: no names, nothing is kept.
    Once,
    /// Events have names (2025-06-18).
    Named,
    /// A stream begins with a name, too, and may be polled (2025-11-25).
    Primed,
}

/// Bytes kept for one agent.
#[derive(Debug, Default)]
pub(super) struct Room(AtomicUsize);

impl Room {
    fn take(&self, bytes: usize) -> bool {
        let fits = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= AGENT_BYTES);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    fn give(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// All streams of one session.
#[derive(Debug)]
pub(super) struct Streams {
    mark: Box<str>,
    told: Told,
    room: Arc<Room>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    streams: BTreeMap<u64, Kept>,
    bytes: usize,
    /// The one by GET.
    listening: Option<u64>,
    closed: bool,
}

#[derive(Debug)]
struct Kept {
    /// Of the event to come.
    next: u64,
    /// The last ones, in order and without a gap.
    events: VecDeque<Bytes>,
    bytes: usize,
    reader: Option<EventSender>,
    over: bool,
    /// Since when it is over, or nobody reads.
    left: Option<Instant>,
    /// It is forgotten, nobody can come back to it, or nobody did for long.
    gone: CancellationToken,
}

impl Kept {
    fn is_read(&self) -> bool {
        self.reader.as_ref().is_some_and(|reader| !reader.gone().is_cancelled())
    }

    /// Notices a reader that has left.
    fn look(&mut self, now: Instant) {
        if self.reader.is_some() && !self.is_read() {
            self.reader = None;
        }
        if self.reader.is_some() && !self.over {
            self.left = None;
        } else {
            self.left.get_or_insert(now);
        }
    }

    fn is_left(&self, listens: bool, now: Instant) -> bool {
        let patience = if listens && !self.over { AWAY } else { KEPT };
        self.left.is_some_and(|left| now.saturating_duration_since(left) >= patience)
    }

    fn is_stale(&self, listens: bool, now: Instant) -> bool {
        (self.over || listens) && self.is_left(listens, now)
    }
}

/// The writer's end. The stream is over when the last clone is dropped, or at [`Stream::end`].
#[derive(Debug, Clone)]
pub(super) struct Stream(Arc<Writing>);

#[derive(Debug)]
struct Writing {
    of: Arc<Streams>,
    number: u64,
    gone: CancellationToken,
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.of.end(self.number);
    }
}

impl Stream {
    /// Says one message, to who reads now and to who comes back. False: neither is to be had.
    pub(super) fn send(&self, message: &[u8]) -> bool {
        self.0.of.send(self.0.number, message)
    }

    /// Closes the connection and not the stream: the agent is told to come again after `wait`. Nothing happens in a
    /// revision that does not know it.
    pub(super) fn let_go(&self, wait: Duration) {
        self.0.of.let_go(self.0.number, wait);
    }

    /// Nothing more is said.
    pub(super) fn end(&self) {
        self.0.of.end(self.0.number);
    }

    /// Cancelled once nobody reads, and nobody can come back or did for long.
    pub(super) fn gone(&self) -> &CancellationToken {
        &self.0.gone
    }
}

/// What comes of coming back.
#[derive(Debug)]
pub(super) enum Resumed {
    Goes(Body),
    /// Nothing more was said, and nothing will be.
    Over,
    /// No such event was given in this session, or what followed it is kept no more.
    NotKept,
}

impl Streams {
    /// `mark`: of the session, and of no other.
    pub(super) fn new(mark: String, told: Told, room: Arc<Room>) -> Arc<Self> {
        Arc::new(Self { mark: mark.into(), told, room, table: Mutex::default() })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn name(&self, stream: u64, event: u64) -> String {
        EventId { mark: &self.mark, stream, event }.to_string()
    }

    /// A new stream, of a call.
    pub(super) fn open(self: &Arc<Self>) -> (Stream, Body) {
        self.begin(false)
    }

    /// A new stream by GET. The one before it is over, and nobody comes back to that.
    pub(super) fn listen(self: &Arc<Self>) -> (Stream, Body) {
        self.begin(true)
    }

    fn begin(self: &Arc<Self>, listens: bool) -> (Stream, Body) {
        let (reader, body) = events();
        let mut table = self.table();
        table.last += 1;
        let number = table.last;
        let gone = match self.told {
            Told::Once => reader.gone().clone(),
            Told::Named | Told::Primed => CancellationToken::new(),
        };
        if self.told == Told::Primed {
            reader.send(sse::prime(&self.name(number, 0)));
        }
        if listens && let Some(former) = table.listening.replace(number) {
            table.forget(former, &self.room);
        }
        if table.closed {
            reader.end();
            gone.cancel();
        } else {
            let (events, reader, gone) = (VecDeque::new(), Some(reader), gone.clone());
            let kept = Kept { next: 1, events, bytes: 0, reader, over: false, left: None, gone };
            table.streams.insert(number, kept);
        }
        drop(table);
        (Stream(Arc::new(Writing { of: self.clone(), number, gone })), body)
    }

    fn send(&self, number: u64, message: &[u8]) -> bool {
        let mut table = self.table();
        let Some(kept) = table.streams.get_mut(&number).filter(|kept| !kept.over) else {
            return false;
        };
        let event = Bytes::from(match self.told {
            Told::Once => sse::event(message),
            Told::Named | Told::Primed => sse::named(&self.name(number, kept.next), message),
        });
        kept.next += 1;
        let reached = kept.reader.as_ref().is_some_and(|reader| reader.send(event.clone()));
        if self.told == Told::Once {
            return reached;
        }
        kept.look(Instant::now());
        table.keep(number, event, &self.room) || reached
    }

    fn let_go(&self, number: u64, wait: Duration) {
        let mut table = self.table();
        let Some(kept) = table.streams.get_mut(&number) else { return };
        if self.told == Told::Primed
            && !kept.over
            && let Some(reader) = kept.reader.take()
        {
            let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            let told = reader.send(sse::retry(wait));
            reader.end();
            kept.left = Some(Instant::now());
            tracing::debug!(told, wait, "an agent is to come back for its stream");
        }
    }

    fn end(&self, number: u64) {
        let mut table = self.table();
        let Some(kept) = table.streams.get_mut(&number).filter(|kept| !kept.over) else { return };
        kept.over = true;
        kept.left = Some(Instant::now());
        if let Some(reader) = kept.reader.take() {
            reader.end();
        }
        if self.told == Told::Once {
            return table.forget(number, &self.room);
        }
        if table.streams.values().filter(|kept| kept.over).count() > MAX_ENDED
            && let Some(first) = table.first_ended()
        {
            table.forget(first, &self.room);
        }
    }

    /// Goes on with the stream that `last` names: all that was said after it, then what is said from now on. Whoever
    /// read it before is cut.
    pub(super) fn resume(&self, last: &str) -> Resumed {
        self.resumed(last).unwrap_or(Resumed::NotKept)
    }

    fn resumed(&self, last: &str) -> Option<Resumed> {
        let last = EventId::parse(last).filter(|last| *last.mark == *self.mark)?;
        let first = if self.told == Told::Primed { 0 } else { 1 };
        let now = Instant::now();
        let mut table = self.table();
        let listens = table.listening == Some(last.stream);
        let kept = table.streams.get_mut(&last.stream)?;
        kept.look(now);
        if last.event < first || kept.is_stale(listens, now) {
            return None;
        }
        let missed = usize::try_from(kept.next.checked_sub(last.event.checked_add(1)?)?).ok()?;
        let heard = kept.events.len().checked_sub(missed)?;
        if kept.over && missed == 0 {
            return Some(Resumed::Over);
        }
        let (reader, body) = events();
        let given = kept.events.iter().skip(heard).all(|event| reader.send(event.clone()));
        tracing::debug!(missed, given, "an agent came back for its stream");
        if let Some(former) = kept.reader.take() {
            former.cut();
        }
        if kept.over {
            reader.end();
        } else {
            kept.reader = Some(reader);
            kept.left = None;
        }
        Some(Resumed::Goes(body))
    }

    /// Says what belongs to no call: on the stream by GET, else on that of the newest open call; the one that is read
    /// before the one that is not. The token is cancelled once nobody can hear it; `None`: nobody can.
    pub(super) fn say_aside(&self, message: &[u8]) -> Option<CancellationToken> {
        let (number, gone) = {
            let table = self.table();
            let listening = table.listening.and_then(|number| table.streams.get_key_value(&number));
            let open = || listening.into_iter().chain(table.streams.iter().rev());
            let open = || open().filter(|(_, kept)| !kept.over);
            let (number, kept) =
                open().find(|(_, kept)| kept.is_read()).or_else(|| open().next())?;
            (*number, kept.gone.clone())
        };
        self.send(number, message).then_some(gone)
    }

    /// Whether somebody reads one of them.
    pub(super) fn are_read(&self) -> bool {
        self.table().streams.values().any(Kept::is_read)
    }

    /// Forgets what nobody came back for, and asks nothing more of an agent that is away for so long; called on a timer.
    pub(super) fn sweep(&self) {
        let now = Instant::now();
        let mut table = self.table();
        let listening = table.listening;
        let mut stale = Vec::new();
        for (number, kept) in &mut table.streams {
            kept.look(now);
            let listens = listening == Some(*number);
            if kept.is_stale(listens, now) {
                stale.push(*number);
            } else if kept.is_left(listens, now) {
                kept.gone.cancel();
            }
        }
        for number in stale {
            table.forget(number, &self.room);
        }
    }

    /// The session is over, and with it all of its streams.
    pub(super) fn close(&self) {
        let mut table = self.table();
        table.closed = true;
        while let Some(number) = table.streams.keys().next().copied() {
            table.forget(number, &self.room);
        }
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.close();
    }
}

impl Table {
    /// The one that has been over for longest.
    fn first_ended(&self) -> Option<u64> {
        let over = self.streams.iter().filter(|(_, kept)| kept.over);
        over.min_by_key(|(_, kept)| kept.left).map(|(number, _)| *number)
    }

    fn forget(&mut self, number: u64, room: &Room) {
        let Some(kept) = self.streams.remove(&number) else { return };
        self.bytes -= kept.bytes;
        room.give(kept.bytes);
        kept.gone.cancel();
        if let Some(reader) = kept.reader {
            reader.end();
        }
    }

    /// The oldest event of a stream is kept no more. False: there is none.
    fn drop_first(&mut self, number: u64, room: &Room) -> bool {
        let Some(kept) = self.streams.get_mut(&number) else { return false };
        let Some(event) = kept.events.pop_front() else { return false };
        kept.bytes -= event.len();
        self.bytes -= event.len();
        room.give(event.len());
        true
    }

    /// Keeps an event that was just named. Older ones of its stream go for it, then streams that are over. False: there
    /// is no room, and as nothing may be missing between two events, those before it are kept no more either.
    fn keep(&mut self, number: u64, event: Bytes, room: &Room) -> bool {
        let size = event.len();
        while let Some(kept) = self.streams.get(&number) {
            let full = kept.events.len() >= MAX_KEPT || kept.bytes >= MAX_KEPT_BYTES;
            if !full || !self.drop_first(number, room) {
                break;
            }
        }
        while self.bytes + size > SESSION_BYTES || !room.take(size) {
            match self.first_ended().filter(|_| size <= SESSION_BYTES) {
                Some(first) => self.forget(first, room),
                None if self.drop_first(number, room) => {}
                None => return false,
            }
        }
        self.bytes += size;
        match self.streams.get_mut(&number) {
            Some(kept) => {
                kept.bytes += size;
                kept.events.push_back(event);
                true
            }
            None => {
                self.bytes -= size;
                room.give(size);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! An inner session over Streamable HTTP, in every revision: opened by its first request, renewed when the server has
//! forgotten it, closed when nobody needs it. A request is one POST.

mod doubt;
mod listen;
mod open;
mod read;
mod session;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use self::read::Expected;
use self::session::{Generation, Opened};
use super::door::{Door, Says};
use super::handshake;
use super::link::{Inbound, Lost, Met, Reply, Wire};
use super::sessions::Declares;
use crate::call::{Phase, Progress};
use crate::egress::Ask;
use crate::mcp::headers;
use crate::mcp::jsonrpc::{self, Id, Request};
use crate::mcp::messages::List;
use crate::mcp::meta::{TRACEPARENT, TRACESTATE};
use crate::mcp::version::Era;

/// For a word that no call waits for: a notification, an answer to the server's request, a farewell.
const ASIDE: Duration = Duration::from_secs(10);

/// One inner session. Cheap to clone.
#[derive(Debug, Clone)]
pub(in crate::backends::mcp) struct HttpLink(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    door: Door,
    declares: Declares,
    current: Mutex<Arc<Generation>>,
    /// Messages that nobody waited for.
    drops: Arc<super::drops::Drops>,
}

impl HttpLink {
    pub(in crate::backends::mcp) fn new(
        door: Door,
        declares: Declares,
        drops: Arc<super::drops::Drops>,
    ) -> Self {
        let current = Mutex::new(Arc::new(Generation::first()));
        Self(Arc::new(Inner { door, declares, current, drops }))
    }

    fn declares(&self) -> &Declares {
        &self.0.declares
    }

    fn door(&self) -> &Door {
        &self.0.door
    }

    fn dropped(&self, why: &'static str) {
        self.0.drops.count(why);
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Generation>> {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> Arc<Generation> {
        self.lock().clone()
    }

    /// The server does not know this generation any more: the next request opens another. Of many who hear it at once
    /// one makes the change.
    fn lost_session(&self, lost: &Arc<Generation>) {
        let mut current = self.lock();
        if Arc::ptr_eq(&current, lost) {
            *current = Arc::new(lost.next());
        }
    }

    /// Opens the session if it is not open; what was agreed on.
    pub(in crate::backends::mcp) async fn open(&self) -> Result<Arc<Met>, Lost> {
        self.opened().await.map(|(_, opened)| opened.met)
    }

    async fn opened(&self) -> Result<(Arc<Generation>, Opened), Lost> {
        let generation = self.current();
        let opened = generation
            .opened
            .get_or_try_init(|| Box::pin(self.begin(&generation)))
            .await
            .cloned()
            .map_err(|lost| Lost::Down(Box::new(lost)))?;
        Ok((generation, opened))
    }

    pub(in crate::backends::mcp) async fn request(&self, wire: Wire<'_>) -> Result<Reply, Lost> {
        let (generation, opened) = self.opened().await?;
        let modern = opened.met.revision.era() == Era::Modern;
        let id = generation.next_id();
        let params = match modern {
            true => {
                let mut declared = self.declares().declared(Era::Modern);
                if wire.tasks {
                    handshake::declare_tasks(&mut declared);
                }
                handshake::modern(wire.params, opened.met.revision, &declared)
            }
            false => wire.params,
        };
        let message = jsonrpc::write_request(&Id::from(id), wire.method, Some(&params));
        let mut says = generation.says();
        if modern {
            says.more = modern_headers(wire.method, wire.name, wire.param_headers);
        }
        says.more.extend(trace_of(&params));
        let ask = Ask { fresh: wire.fresh, gate: wire.gate, progress: wire.progress };
        let mut taking_back = TakeBack {
            link: (!modern && wire.gate.is_none()).then_some(self),
            progress: wire.progress,
            id,
        };
        let expected = Expected {
            id: Id::from(id),
            generation: &generation,
            inbound: wire.inbound,
            modern,
            list: List::of_method(wire.method).is_some(),
            resumable: opened.met.revision.features().resumable,
            in_session: opened.session.is_some(),
        };
        let mut exchange = std::pin::pin!(async {
            let answer = self.door().post(message, &says, ask).await?;
            self.read(answer, &expected).await
        });
        let mut told = modern;
        let ended = loop {
            tokio::select! {
                biased;
                ended = &mut exchange => break ended,
                () = wire.cancelled.cancelled(), if !told => {
                    told = true;
                    self.take_back(id, "the agent took the call back");
                }
            }
        };
        taking_back.link = None;
        if modern && let Err(Lost::Status { status: 400 | 404 | 405, .. }) = &ended {
            self.doubt();
        }
        if opened.session.is_some() && matches!(ended, Err(Lost::Status { status: 503, .. })) {
            self.compare(&generation);
        }
        ended
    }

    /// An answer that no modern server gives: the next session asks anew which era it is.
    fn doubt(&self) {
        self.door().learn(super::door::Known::Nothing);
    }

    /// Tells the server that nobody waits for a request any more (legacy revisions).
    fn take_back(&self, id: u64, reason: &'static str) {
        let link = self.clone();
        self.door().beside(async move {
            let params = json!({"requestId": id, "reason": reason});
            if let Err(lost) = link.notify("notifications/cancelled", Some(params)).await {
                tracing::debug!(?lost, "a cancellation did not reach its server");
            }
        });
    }

    /// A notification in the open session; where none is open there is nobody to tell.
    pub(in crate::backends::mcp) async fn notify(
        &self,
        method: &str,
        params: Option<Value>,
    ) -> Result<(), Lost> {
        let generation = self.current();
        if generation.opened.get().is_none() {
            return Ok(());
        }
        self.say(jsonrpc::write_notification(method, params.as_ref()), &generation.says()).await
    }

    /// One message that is not answered but by a status.
    async fn say(&self, message: Vec<u8>, says: &Says<'_>) -> Result<(), Lost> {
        let sent = self.door().post(message, says, Ask::default());
        let answer = tokio::time::timeout(ASIDE, sent)
            .await
            .map_err(|_| Lost::StreamEnded("the server did not take a message in time".into()))??;
        let status = answer.head.status.as_u16();
        if !(200..300).contains(&status) {
            return Err(Lost::Status { status, retry_after: None, text: String::new() });
        }
        let mut body = answer.body;
        // An empty body: its connection goes back to the idle ones.
        let rest =
            tokio::time::timeout(ASIDE, async { while let Some(Ok(_)) = body.next().await {} });
        drop(rest.await);
        Ok(())
    }

    /// Answers a request of the server, beside the exchange that it came with.
    fn answer(
        &self,
        request: Request,
        inbound: &Arc<dyn Inbound>,
        generation: &Arc<Generation>,
        place: OwnedSemaphorePermit,
    ) {
        let (link, generation) = (self.clone(), generation.clone());
        let id = request.id.clone();
        let answering = inbound.request(request);
        self.door().beside(async move {
            let _place = place;
            let message = match answering.await {
                Ok(result) => jsonrpc::write_result(&id, &result),
                Err(error) => {
                    jsonrpc::write_error(Some(&id), error.code, &error.message, error.data.as_ref())
                }
            };
            if let Err(lost) = link.say(message, &generation.says()).await {
                tracing::debug!(?lost, "an answer did not reach the server that asked");
            }
        });
    }

    /// Says farewell, where there is a session to end.
    pub(in crate::backends::mcp) fn close(&self) {
        self.farewell(self.current());
    }

    fn farewell(&self, generation: Arc<Generation>) {
        generation.closed.cancel();
        if generation.opened.get().is_none_or(|opened| opened.session.is_none()) {
            return;
        }
        let link = self.clone();
        self.door().to_the_end(async move {
            let says = generation.says();
            let farewell = tokio::time::timeout(ASIDE, link.door().delete(&says)).await;
            tracing::trace!(told = farewell.is_ok(), "an inner session was closed");
        });
    }
}

/// The trace that `_meta` names, for servers that look at fields.
fn trace_of(params: &Value) -> impl Iterator<Item = (String, String)> {
    let meta = params.get("_meta");
    [TRACEPARENT, TRACESTATE]
        .into_iter()
        .filter_map(move |name| Some((name.to_owned(), meta?.get(name)?.as_str()?.to_owned())))
}

fn modern_headers(
    method: &str,
    name: Option<&str>,
    params: Vec<(String, String)>,
) -> Vec<(String, String)> {
    let mut more = vec![(headers::METHOD.to_owned(), headers::encode(method).into_owned())];
    more.extend(name.map(|name| (headers::NAME.to_owned(), headers::encode(name).into_owned())));
    more.extend(
        params.into_iter().map(|(name, value)| (format!("{}{name}", headers::PARAM_PREFIX), value)),
    );
    more
}

/// A request whose future is dropped is taken back, once anything of it may be out. Closing its stream is no
/// cancellation before 2026-07-28.
struct TakeBack<'a> {
    /// `None` = nothing to take back.
    link: Option<&'a HttpLink>,
    progress: Option<&'a Progress>,
    id: u64,
}

impl Drop for TakeBack<'_> {
    fn drop(&mut self) {
        let sent = self.progress.is_none_or(|progress| progress.phase() >= Phase::Sending);
        if let Some(link) = self.link
            && sent
        {
            link.take_back(self.id, "nobody waits for it any more");
        }
    }
}

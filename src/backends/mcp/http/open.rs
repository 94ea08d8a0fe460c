//! How a session begins: which era the server speaks is asked once, by `server/discover` and never by a call, and a
//! legacy one is proven by nothing but an answered `initialize`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::read::Expected;
use super::session::{Generation, Opened};
use super::{HttpLink, modern_headers};
use crate::backends::mcp::door::{Known, Says};
use crate::backends::mcp::handshake::{self, Probed, newest};
use crate::backends::mcp::link::{Inbound, Lost, Reply};
use crate::backends::mcp::silent::Silent;
use crate::egress::Ask;
use crate::mcp::headers::SESSION_ID;
use crate::mcp::jsonrpc::{self, Id};
use crate::mcp::session::SessionId;
use crate::mcp::version::{Era, Revision};

impl HttpLink {
    pub(super) async fn begin(&self, generation: &Arc<Generation>) -> Result<Opened, Lost> {
        let offered = handshake::offered(&self.door().server().protocol);
        let modern = newest(&offered, Era::Modern);
        let legacy = newest(&offered, Era::Legacy);
        match (self.door().known(), modern, legacy) {
            (Known::Modern(met), Some(_), _) => Ok(Opened { met, session: None }),
            (Known::Legacy, _, Some(legacy)) => self.initialize(generation, legacy).await,
            (Known::Nothing | Known::Modern(_), None, Some(legacy)) => {
                self.initialize(generation, legacy).await
            }
            (Known::Nothing | Known::Legacy, Some(modern), legacy) => {
                match (self.discover(generation, modern, &offered).await?, legacy) {
                    (Probed::Modern(met), _) => {
                        self.door().learn(Known::Modern(met.clone()));
                        Ok(Opened { met, session: None })
                    }
                    (Probed::Perhaps, Some(legacy)) => self.initialize(generation, legacy).await,
                    (Probed::Perhaps, None) => Err(Lost::Unusable(format!(
                        "the server does not speak {modern}, the only revision that the policy offers it"
                    ))),
                }
            }
            (_, None, None) => Err(Lost::Unusable(
                "the policy offers this server no revision that is spoken here".into(),
            )),
        }
    }

    async fn discover(
        &self,
        generation: &Arc<Generation>,
        modern: Revision,
        offered: &[Revision],
    ) -> Result<Probed, Lost> {
        let params = handshake::modern(json!({}), modern, &self.declares().declared(Era::Modern));
        let says = Says {
            session: None,
            revision: Some(modern),
            more: modern_headers("server/discover", None, Vec::new()),
        };
        let asked = self.ask(generation, "server/discover", params, &says, true);
        let answer = match tokio::time::timeout(handshake::PROBE, asked).await {
            Ok(Ok((reply, _))) => reply,
            // Any other refusal, an answer that is none, and silence: perhaps a server that knows no such method.
            Ok(Err(
                Lost::Status { status: 400..=499, .. } | Lost::NotMcp(_) | Lost::StreamEnded(_),
            ))
            | Err(_) => return Ok(Probed::Perhaps),
            Ok(Err(lost)) => return Err(lost),
        };
        handshake::probed(&answer, modern, offered)
    }

    async fn initialize(
        &self,
        generation: &Arc<Generation>,
        legacy: Revision,
    ) -> Result<Opened, Lost> {
        let params = handshake::initialize(legacy, &self.declares().declared(Era::Legacy));
        let begun = self.ask(generation, "initialize", params, &Says::default(), false).await;
        let (reply, session) = begun.inspect_err(|lost| {
            if let Lost::Status { status: 400..=499, .. } | Lost::NotMcp(_) = lost {
                self.unlearn_legacy();
            }
        })?;
        let result = match reply {
            Reply::Result(result) => result,
            Reply::Error(error) => {
                self.unlearn_legacy();
                let words = format!("`initialize` was refused ({}): {}", error.code, error.message);
                return Err(Lost::Unusable(words));
            }
        };
        let met = Arc::new(handshake::initialized(&result).map_err(Lost::NotMcp)?);
        self.door().learn(Known::Legacy);
        let opened = Opened { met, session };
        let revision = opened.met.revision;
        let says = Says {
            session: opened.session.as_ref(),
            revision: revision.features().version_header.then_some(revision),
            more: Vec::new(),
        };
        // A server that refuses it has not begun the session either.
        self.say(jsonrpc::write_notification("notifications/initialized", None), &says).await?;
        Ok(opened)
    }

    /// What was taken for legacy may have become modern: asked anew by the next session.
    fn unlearn_legacy(&self) {
        if matches!(self.door().known(), Known::Legacy) {
            self.door().learn(Known::Nothing);
        }
    }

    /// One request outside of a session; with the session that its answer begins.
    pub(super) async fn ask(
        &self,
        generation: &Arc<Generation>,
        method: &str,
        params: Value,
        says: &Says<'_>,
        modern: bool,
    ) -> Result<(Reply, Option<SessionId>), Lost> {
        let id = Id::from(generation.next_id());
        let message = jsonrpc::write_request(&id, method, Some(&params));
        let answer = self.door().post(message, says, Ask::default()).await?;
        let value = answer.head.headers.get(SESSION_ID);
        let session = value.and_then(|value| SessionId::parse(value.as_bytes()));
        if value.is_some() && session.is_none() && !modern {
            return Err(Lost::NotMcp("a session id that is none".into()));
        }
        let silent: Arc<dyn Inbound> = Arc::new(Silent);
        let expected = Expected {
            id,
            generation,
            inbound: &silent,
            modern,
            list: false,
            resumable: false,
            in_session: false,
        };
        Ok((self.read(answer, &expected).await?, session))
    }
}

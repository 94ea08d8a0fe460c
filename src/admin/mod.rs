//! The listener of people, `/admin/v1/…`: what is unknown is settled, runs are stopped, circuits moved by hand.
//!
//! Its own socket, its own credentials; an agent has neither. GET reads, POST changes, every change is recorded with
//! who and why. Nothing here is for browsers: no CORS, a request with `Origin` is refused, `Host` must be ours.

mod access;
mod answer;
mod approvals;
mod ask;
mod breakers;
mod mcp_tools;
mod page;
mod process;
mod reviews;
mod runs;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Body;

use crate::engine::Engine;
use crate::identity::Peer;
use crate::people::{Person, Reviews};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::record::{PersonFacts, Recorder};

pub use self::access::{Access, BadTokens, Token, tokens};
use self::answer::Problem;
use self::ask::{Ask, Said};
pub use self::process::{PolicyView, Process, Reloaded};

/// Connections of people and their tools at once; past it new ones are closed.
pub const MAX_CONNECTIONS: usize = 32;

/// Everything the routes need.
#[derive(Clone)]
pub struct Admin {
    pub access: Arc<Access>,
    pub engine: Arc<Engine>,
    pub metrics: Arc<Metrics>,
    pub recorder: Arc<Recorder>,
    /// The process around the engine: its policy file, its end.
    pub process: Arc<dyn Process>,
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").field("access", &self.access).finish_non_exhaustive()
    }
}

type Answered = Result<Response<Full<Bytes>>, Problem>;

impl Admin {
    /// The answer to one request; never anything but an answer.
    pub async fn answer<B>(&self, peer: Peer, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        match self.answered(peer, request).await {
            Ok(response) => response,
            Err(problem) => problem.into_response(),
        }
    }

    async fn answered<B>(&self, peer: Peer, request: Request<B>) -> Answered
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let snapshot = self.engine.snapshot();
        // Before the path is looked at: who may not come in learns nothing of what is here.
        let person = self.access.admit(peer, &request, &snapshot).inspect_err(|problem| {
            if problem.is_unauthenticated() {
                self.metrics.unauthenticated("admin");
            }
        })?;
        let ask = Ask::read(request).await?;
        let pieces: Vec<&str> =
            ask.path.strip_prefix("/admin/v1/").unwrap_or_default().split('/').collect();
        match (ask.method.clone(), pieces.as_slice()) {
            (Method::GET, ["version"]) => process::version(),
            (Method::GET, ["policy"]) => self.policy(),
            (Method::POST, ["policy", "reload"]) => self.reload(&ask, person).await,
            (Method::POST, ["drain"]) => self.drain(&ask, person),
            (Method::GET, ["reviews"]) => self.list_reviews(&ask),
            (Method::GET, ["reviews", id]) => self.show_review(id),
            (Method::POST, ["reviews", id, "resolve"]) => self.resolve(&ask, person, id).await,
            (Method::GET, ["approvals"]) => self.list_approvals(&ask),
            (Method::GET, ["approvals", id]) => self.show_approval(id),
            (Method::POST, ["approvals", id, "decide"]) => self.decide(&ask, person, id).await,
            (Method::GET, ["runs"]) => self.list_runs(&ask),
            (Method::GET, ["runs", id]) => self.show_run(id),
            (Method::POST, ["runs", id, "interrupt"]) => self.interrupt(&ask, person, id),
            (Method::POST, ["runs", id, "resume"]) => self.resume(&ask, person, id),
            (Method::GET, ["breakers"]) => self.list_breakers(),
            (Method::POST, ["breakers", tool, "isolate"]) => self.isolate(&ask, person, tool),
            (Method::POST, ["breakers", tool, "reset"]) => self.reset(&ask, person, tool),
            (Method::GET, ["mcp-tools"]) => self.list_mcp_tools(),
            (Method::GET, ["mcp-tools", server]) => self.show_mcp_tools(server),
            (Method::POST, ["mcp-tools", server, "approve"]) => {
                self.approve_mcp_tool(&ask, person, server).await
            }
            (
                _,
                [
                    "version" | "policy" | "approvals" | "reviews" | "runs" | "breakers"
                    | "mcp-tools",
                ]
                | ["approvals" | "reviews" | "runs" | "mcp-tools", _],
            ) => Err(Problem::method("GET")),
            (
                _,
                ["drain"]
                | ["policy", "reload"]
                | ["approvals", _, "decide"]
                | ["reviews", _, "resolve"]
                | ["runs", _, "interrupt" | "resume"]
                | ["breakers", _, "isolate" | "reset"]
                | ["mcp-tools", _, "approve"],
            ) => Err(Problem::method("POST")),
            (_, _) => Err(Problem::no_such_path()),
        }
    }

    fn reviews(&self) -> Reviews {
        Reviews {
            ledger: self.engine.ledger().clone(),
            metrics: self.metrics.clone(),
            recorder: self.recorder.clone(),
        }
    }

    /// Who it is, as the body may add a name, and why.
    fn said(ask: &Ask, person: Person) -> Result<(Person, String), Problem> {
        let Said { who, why } = ask.said()?;
        Ok((named(person, who)?, why))
    }

    fn record(&self, facts: &PersonFacts<'_>) {
        self.recorder.person(facts);
    }
}

fn named(person: Person, who: Option<String>) -> Result<Person, Problem> {
    match who {
        Some(who) => person.named(&who).map_err(|bad| Problem::invalid(format!("`/who`: {bad}"))),
        None => Ok(person),
    }
}

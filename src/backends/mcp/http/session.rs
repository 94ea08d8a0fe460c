//! One generation of an inner session: what was agreed on, and its own row of request ids. A renewed session is the
//! next generation; what was asked in an older one is answered there or nowhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backends::mcp::door::Says;
use crate::backends::mcp::link::Met;
use crate::mcp::session::SessionId;

/// Requests of one session while another is tried beside it.
const APART: u64 = 1 << 20;

/// An opened session.
#[derive(Debug, Clone)]
pub(super) struct Opened {
    pub(super) met: Arc<Met>,
    /// Legacy servers may do without.
    pub(super) session: Option<SessionId>,
}

#[derive(Debug)]
pub(super) struct Generation {
    pub(super) opened: OnceCell<Opened>,
    ids: AtomicU64,
    /// Ends what listens on it.
    pub(super) closed: CancellationToken,
    pub(super) began: Instant,
    /// When it was doubted last, milliseconds after it began; 0 = never.
    pub(super) doubted: AtomicU64,
}

impl Generation {
    pub(super) fn first() -> Self {
        Self::from_id(1)
    }

    /// The one after this. Ids go on, so that a late answer to an old one meets nobody.
    pub(super) fn next(&self) -> Self {
        self.closed.cancel();
        Self::from_id(self.ids.load(Ordering::Relaxed))
    }

    /// One beside this, whose ids this will not come to.
    pub(super) fn rival(&self) -> Self {
        Self::from_id(self.ids.load(Ordering::Relaxed).saturating_add(APART))
    }

    fn from_id(id: u64) -> Self {
        Self {
            opened: OnceCell::new(),
            ids: AtomicU64::new(id),
            closed: CancellationToken::new(),
            began: Instant::now(),
            doubted: AtomicU64::new(0),
        }
    }

    /// Integers, rising, never twice: some servers read nothing else.
    pub(super) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// What a request in this session says in its head.
    pub(super) fn says(&self) -> Says<'_> {
        let Some(opened) = self.opened.get() else { return Says::default() };
        let revision = opened.met.revision;
        Says {
            session: opened.session.as_ref(),
            revision: revision.features().version_header.then_some(revision),
            more: Vec::new(),
        }
    }
}

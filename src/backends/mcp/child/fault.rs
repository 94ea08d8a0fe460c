//! Why there is no child to speak to.

use std::sync::Arc;

use crate::backends::classify;
use crate::backends::mcp::link::Lost;
use crate::egress::SendError;

/// Nothing of any call was sent.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// As many children as there may be, all in use.
    Busy,
    /// A secret of its environment is missing: where it should come from.
    NoCredential(Arc<str>),
    /// It does not start, or cannot be met.
    Unusable(String),
}

impl From<Fault> for Lost {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Busy => Lost::Busy,
            Fault::NoCredential(origin) => {
                let why = classify::no_credential(&origin);
                Lost::Down(Box::new(Lost::Send(SendError::GateShut(Box::new(why)))))
            }
            Fault::Unusable(why) => Lost::Unusable(why),
        }
    }
}

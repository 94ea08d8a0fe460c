//! What the ledger knows of the operation that a refused call repeats. A refusal says that this call sent nothing;
//! it must not say that the operation did not happen when it did, or may have.

use super::code::{Again, Executed};

/// Of an operation that a call repeats, where the call was refused before the ledger was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Known {
    /// It may have happened; a person must check.
    Unknown,
    /// It is being sent, or about to be.
    Running,
    /// It was done, and the call would have been answered by that.
    Executed,
    /// An identical one was done; the call would have been one of its own.
    Identical,
}

impl Known {
    /// Did the operation happen?
    pub fn executed(self) -> Executed {
        match self {
            Known::Unknown | Known::Running => Executed::Unknown,
            Known::Executed => Executed::Yes,
            Known::Identical => Executed::No,
        }
    }

    /// What may be done next, where the refusal alone would say `again`. Changed arguments would be the same deed by
    /// another way, so nobody is asked to change them.
    pub fn again(self, again: Again) -> Again {
        match (self, again) {
            (Known::Unknown, _) => Again::Person,
            (Known::Running, Again::Changed) => Again::After,
            (Known::Executed, Again::Changed) => Again::Never,
            (Known::Running | Known::Executed | Known::Identical, again) => again,
        }
    }

    /// The next step, in words a model can act on; `None` = that of the refusal.
    pub fn hint(self) -> Option<&'static str> {
        match self {
            Known::Unknown => Some(
                "not sent, but the same operation may already have happened; do not repeat it under any id or by \
                 another way, a person must check its review first",
            ),
            Known::Running => Some(
                "not sent, but the same operation is still running; wait for its answer and do not do it by another \
                 way",
            ),
            Known::Executed => {
                Some("not sent, but the same operation was executed before; do not do it again")
            }
            Known::Identical => None,
        }
    }
}

//! What people may decide, and who they are. An agent is never a person: nothing here is reached with what it has.

pub mod approvals;
pub mod card;
pub mod reviews;
pub mod visible;
pub mod who;

pub use approvals::{Approvals, NotDecided};
pub use reviews::{Refused, Reviews, Said};
pub use who::Person;

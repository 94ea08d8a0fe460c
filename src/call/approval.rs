//! A person's yes: its short name, what it is bound to, and the parcel in which it travels with a call.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::arguments::{Arguments, Digest};
use super::names::{AgentId, ToolName};

/// Bytes of chance in a name: nobody meets one by guessing.
const CHANCE: usize = 8;
const PREFIX: &str = "apr_";

/// The short name of an approval, for people, answers and records: `apr_` and 16 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApprovalId(Arc<str>);

impl ApprovalId {
    /// A fresh one.
    pub fn mint() -> Self {
        let mut bytes = [0; CHANCE];
        getrandom::fill(&mut bytes).expect("a system without randomness could not make a run's id");
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("{PREFIX}{digits}").into())
    }

    /// `None`: no text that [`ApprovalId::mint`] makes.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX)?;
        let sound = digits.len() == 2 * CHANCE
            && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        sound.then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ApprovalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a yes is bound to: who asks which tool for what, under which rules of that tool. All arguments count, also
/// volatile ones: what was looked at is what is sent.
pub fn binding(agent: &AgentId, tool: &ToolName, section: Digest, arguments: &Arguments) -> Digest {
    Digest::of_parts(&[
        b"checkrein/approval/v1",
        agent.as_str().as_bytes(),
        tool.as_str().as_bytes(),
        section.as_bytes(),
        arguments.digest(&[]).as_bytes(),
    ])
}

/// A yes that a call may use. Its copies are one: the last that goes away unused gives it back.
#[derive(Clone)]
pub struct Consent(Arc<dyn Any + Send + Sync>);

impl Consent {
    pub fn new<T: Any + Send + Sync>(yes: T) -> Self {
        Self(Arc::new(yes))
    }

    /// The content, for who knows its type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for Consent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Consent")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strict_json::Limits;

    #[test]
    fn a_name_is_made_once_and_read_back() {
        let (one, other) = (ApprovalId::mint(), ApprovalId::mint());
        assert_ne!(one, other);
        assert_eq!(ApprovalId::parse(one.as_str()), Some(one));
        for bad in ["", "apr_", "apr_00112233445566", "apr_00112233445566GG", "op_0011223344556677"]
        {
            assert_eq!(ApprovalId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_yes_is_bound_to_agent_tool_rules_and_every_argument() {
        let of = |agent: &str, tool: &str, section: &str, text: &str| {
            let arguments = Arguments::parse(text.as_bytes(), Limits::arguments(1 << 16, 32));
            let agent = AgentId::new(agent).expect("a name");
            let section = Digest::of(section.as_bytes());
            binding(&agent, &ToolName::asked(tool), section, &arguments.expect("sound"))
        };
        let first = of("a", "pay", "1", r#"{"x":1,"y":2}"#);
        assert_eq!(first, of("a", "pay", "1", r#"{"y":2.0,"x":1}"#));
        for other in [
            of("b", "pay", "1", r#"{"x":1,"y":2}"#),
            of("a", "pay2", "1", r#"{"x":1,"y":2}"#),
            of("a", "pay", "2", r#"{"x":1,"y":2}"#),
            of("a", "pay", "1", r#"{"x":1,"y":3}"#),
            of("a", "pay", "1", r#"{"x":1}"#),
        ] {
            assert_ne!(first, other);
        }
    }
}

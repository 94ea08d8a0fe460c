//! Who decides. A person comes from the credential of the admin listener, never from a body; a body may add a name.
//! Whoever made a write does not say what became of it.

use std::fmt;

use crate::call::AgentId;

/// Longest name of a person, bytes.
pub const MAX_NAME: usize = 128;

/// A person, as records name them: `NAME`, or `NAME (CREDENTIAL)` where several share a credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    credential: String,
    name: Option<String>,
}

/// Why a text names no person: one sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a person's name must have 1 to {MAX_NAME} bytes, none of them a control character")]
pub struct BadPerson;

impl Person {
    /// Whoever showed this credential (the name of a token, or `uid:N` of a socket's peer).
    pub fn of(credential: &str) -> Self {
        Self { credential: credential.to_owned(), name: None }
    }

    /// The name a person gives beside a credential that several may hold.
    pub fn named(self, name: &str) -> Result<Self, BadPerson> {
        let name = name.trim();
        if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
            return Err(BadPerson);
        }
        Ok(Self { name: Some(name.to_owned()), ..self })
    }

    /// What the listener knows them by.
    pub fn credential(&self) -> &str {
        &self.credential
    }

    /// False for the agent itself, under whichever of its names: nobody judges their own write.
    pub fn is_not(&self, agent: &AgentId) -> bool {
        let own = |name: &str| name.eq_ignore_ascii_case(agent.as_str());
        !own(&self.credential) && !self.name.as_deref().is_some_and(own)
    }
}

impl fmt::Display for Person {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) if *name != self.credential => write!(f, "{name} ({})", self.credential),
            Some(_) | None => f.write_str(&self.credential),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_is_named_by_the_credential_and_perhaps_by_themselves() {
        let ops = Person::of("ops");
        assert_eq!(ops.to_string(), "ops");
        assert_eq!(ops.clone().named(" Ada ").expect("a name").to_string(), "Ada (ops)");
        assert_eq!(ops.clone().named("ops").expect("a name").to_string(), "ops");
        for bad in ["", "  ", "a\nb", &"x".repeat(MAX_NAME + 1)] {
            assert_eq!(ops.clone().named(bad), Err(BadPerson), "{bad:?}");
        }
    }

    #[test]
    fn the_agent_of_a_write_is_not_a_person_for_it_under_any_name() {
        let agent = AgentId::new("billing").expect("a name");
        assert!(Person::of("ops").is_not(&agent));
        assert!(!Person::of("billing").is_not(&agent));
        assert!(!Person::of("ops").named("Billing").expect("a name").is_not(&agent));
    }
}

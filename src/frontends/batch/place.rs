//! A value of a body together with where it stands, so that a bad shape is told by its place.

use std::fmt;

use serde_json::Value;

use super::is_absent;
use crate::call::arguments::kind_of;
use crate::call::pointer::push_token;

/// A body that is not of its wire form.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadShape {
    at: String,
    why: String,
}

impl BadShape {
    pub(super) fn new(at: &str, why: impl Into<String>) -> Self {
        Self { at: at.to_owned(), why: why.into() }
    }
}

impl fmt::Display for BadShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = if self.at.is_empty() { "the body" } else { &self.at };
        write!(f, "`{at}` {}", self.why)
    }
}

/// A value and its JSON Pointer (RFC 6901).
#[derive(Debug)]
pub(super) struct Place<'v> {
    pub(super) at: String,
    pub(super) value: &'v Value,
}

impl<'v> Place<'v> {
    pub(super) fn root(value: &'v Value) -> Self {
        Self { at: String::new(), value }
    }

    pub(super) fn bad(&self, why: impl Into<String>) -> BadShape {
        BadShape::new(&self.at, why)
    }

    fn must_be(&self, what: &str) -> BadShape {
        self.bad(format!("must be {what}, not {}", kind_of(self.value)))
    }

    /// A member; missing and `null` are `None`. Refused where this is no object.
    pub(super) fn member(&self, name: &str) -> Result<Option<Place<'v>>, BadShape> {
        let Value::Object(members) = self.value else { return Err(self.must_be("an object")) };
        let value = members.get(name);
        if is_absent(value) {
            return Ok(None);
        }
        Ok(value.map(|value| {
            let mut at = self.at.clone();
            push_token(&mut at, name);
            Place { at, value }
        }))
    }

    pub(super) fn required(&self, name: &str) -> Result<Place<'v>, BadShape> {
        self.member(name)?.ok_or_else(|| self.bad(format!("lacks the member `{name}`")))
    }

    pub(super) fn text(&self) -> Result<&'v str, BadShape> {
        match self.value {
            Value::String(text) => Ok(text),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => Err(self.must_be("a string")),
        }
    }

    pub(super) fn items(&self) -> Result<impl Iterator<Item = Place<'v>>, BadShape> {
        let Value::Array(items) = self.value else { return Err(self.must_be("an array")) };
        let at = self.at.clone();
        Ok(items.iter().enumerate().map(move |(n, value)| Place { at: format!("{at}/{n}"), value }))
    }

    /// A member that is a string, where it is there.
    pub(super) fn text_of(&self, name: &str) -> Result<Option<&'v str>, BadShape> {
        self.member(name)?.map(|member| member.text()).transpose()
    }

    /// An id: a string where it is there; which ids are missing is told for the whole message at once.
    pub(super) fn id(&self, name: &str) -> Result<Option<String>, BadShape> {
        Ok(self.text_of(name)?.map(str::to_owned))
    }
}

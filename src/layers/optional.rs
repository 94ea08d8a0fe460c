//! A layer that a tool's policy may leave out. Where it is left out, calls go past it as if it were not written down.

use std::task::{Context, Poll};

use tower::{Layer, Service};

use super::gate::{Answering, Answers, Below};
use crate::call::{CallError, ToolCall, ToolResult};

/// The layer, or none.
#[derive(Debug, Clone)]
pub struct Optional<L>(pub Option<L>);

impl<L: Layer<S>, S> Layer<S> for Optional<L> {
    type Service = Perhaps<L::Service, S>;
    fn layer(&self, inner: S) -> Perhaps<L::Service, S> {
        match &self.0 {
            Some(layer) => Perhaps::With(layer.layer(inner)),
            None => Perhaps::Without(inner),
        }
    }
}

/// What calls go through: the layer's service, or what is below it.
#[derive(Debug, Clone)]
pub enum Perhaps<A, B> {
    With(A),
    Without(B),
}

impl<A: Below, B: Below> Service<ToolCall> for Perhaps<A, B> {
    type Response = ToolResult;
    type Error = CallError;
    type Future = Answering;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        match self {
            Perhaps::With(layer) => layer.poll_ready(cx).map_err(Into::into),
            Perhaps::Without(below) => below.poll_ready(cx).map_err(Into::into),
        }
    }

    fn call(&mut self, call: ToolCall) -> Answering {
        match self {
            Perhaps::With(layer) => layer.call(call).answering(),
            Perhaps::Without(below) => below.call(call).answering(),
        }
    }
}

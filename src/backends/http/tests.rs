mod answers;
mod connections;
mod requests;
pub(crate) mod support;
mod tls;
mod writes;

mod answers;
mod connections;
mod requests;
mod support;
mod writes;

//! Acceptance cases re-cut from public failures, each test named by its case (see tests/cases.md).

mod arguments;
mod breaker;
mod loops;
mod names;
mod operations;
mod output;
mod pairing;
mod restarts;
mod time;
mod writes;

/// `lookup_order` for one order.
fn order(id: &str) -> String {
    format!(r#"{{"order_id":"{id}"}}"#)
}

/// `create_order` under one business key.
fn create(reference: &str) -> String {
    format!(r#"{{"order_ref":"{reference}","sku":"A","qty":1}}"#)
}

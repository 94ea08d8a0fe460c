//! How a session with a child begins: which era its server speaks is asked once, by `server/discover` and never by a
//! call; a legacy one is proven by nothing but an answered `initialize`.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::timeout;

use super::exchange::Ask;
use super::fault::Fault;
use super::process::Process;
use crate::backends::mcp::door::Known;
use crate::backends::mcp::handshake::{self, PROBE, Probed, newest};
use crate::backends::mcp::link::{Inbound, Lost, Met, Reply};
use crate::backends::mcp::sessions::Declares;
use crate::backends::mcp::silent::Silent;
use crate::mcp::jsonrpc;
use crate::mcp::version::{Era, Revision};

/// What became of the first words with a new child.
pub(super) enum First {
    Met(Arc<Met>),
    /// It ended when it was asked for its era, as some legacy servers do: started again, it is told `initialize` at
    /// once.
    EndedOnProbe,
}

/// Meets a child that has just been started. `probed`: its predecessor ended on the question of the era.
pub(super) async fn meet(
    process: &Arc<Process>,
    declares: &Declares,
    probed: bool,
) -> Result<First, Fault> {
    let offered = process.nursery.offered();
    let modern = newest(&offered, Era::Modern);
    let legacy = newest(&offered, Era::Legacy);
    let legacy_is_known = probed || matches!(process.nursery.known(), Known::Legacy);
    let perhaps = match (modern, legacy) {
        (Some(_), Some(legacy)) if legacy_is_known => legacy,
        (Some(modern), legacy) => {
            let params = handshake::modern(json!({}), modern, &declares.declared(Era::Modern));
            let mut asked = std::pin::pin!(ask(process, "server/discover", &params));
            let answered = timeout(PROBE, asked.as_mut()).await;
            let silent = answered.is_err();
            match answered.map_or(Ok(Probed::Perhaps), |answer| heard(answer, modern, &offered)) {
                Ok(Probed::Modern(met)) => {
                    process.nursery.learn(Known::Modern(met.clone()));
                    return Ok(First::Met(met));
                }
                // Perhaps it knows no such method, and perhaps it is slow: whichever it answers first.
                Ok(Probed::Perhaps) if silent && legacy.is_some() => {
                    let late = async { heard(asked.await, modern, &offered) };
                    return either(process, declares, late, legacy.unwrap_or(modern)).await;
                }
                Ok(Probed::Perhaps) => {}
                Err(Lost::ChildGone { .. }) if legacy.is_some() => return Ok(First::EndedOnProbe),
                Err(lost) => return Err(unusable(process, &lost)),
            }
            legacy.ok_or_else(|| {
                Fault::Unusable(format!(
                    "the server does not speak {modern}, the only revision that the policy offers it"
                ))
            })?
        }
        (None, Some(legacy)) => legacy,
        (None, None) => {
            let words = "the policy offers this server no revision that is spoken here";
            return Err(Fault::Unusable(words.into()));
        }
    };
    initialize(process, declares, perhaps).await.map(First::Met)
}

fn heard(
    answer: Result<Reply, Lost>,
    modern: Revision,
    offered: &[Revision],
) -> Result<Probed, Lost> {
    match answer {
        Ok(reply) => handshake::probed(&reply, modern, offered),
        // An answer that is none: perhaps a server that knows no such method.
        Err(Lost::NotMcp(_) | Lost::TooLarge(_)) => Ok(Probed::Perhaps),
        Err(lost) => Err(lost),
    }
}

/// A server that was silent on its era is told `initialize` as well. One that was only slow answers in the order in
/// which it was asked, and refuses the second.
async fn either(
    process: &Arc<Process>,
    declares: &Declares,
    late: impl Future<Output = Result<Probed, Lost>>,
    legacy: Revision,
) -> Result<First, Fault> {
    let mut initialized = std::pin::pin!(initialize(process, declares, legacy));
    tokio::select! {
        biased;
        late = late => if let Ok(Probed::Modern(met)) = late {
            process.nursery.learn(Known::Modern(met.clone()));
            return Ok(First::Met(met));
        },
        met = initialized.as_mut() => return met.map(First::Met),
    }
    initialized.await.map(First::Met)
}

async fn initialize(
    process: &Arc<Process>,
    declares: &Declares,
    legacy: Revision,
) -> Result<Arc<Met>, Fault> {
    let params = handshake::initialize(legacy, &declares.declared(Era::Legacy));
    let unlearn = |fault| {
        // What was taken for legacy may have become modern: asked anew by the next child.
        if matches!(process.nursery.known(), Known::Legacy) {
            process.nursery.learn(Known::Nothing);
        }
        fault
    };
    let result = match ask(process, "initialize", &params).await {
        Ok(Reply::Result(result)) => result,
        Ok(Reply::Error(error)) => {
            let told: String = error.message.chars().take(200).collect();
            let words = format!("`initialize` was refused ({}): {told}", error.code);
            return Err(unlearn(Fault::Unusable(words)));
        }
        Err(lost) => return Err(unlearn(unusable(process, &lost))),
    };
    let met = handshake::initialized(&result).map_err(Fault::Unusable)?;
    process.nursery.learn(Known::Legacy);
    process.say(jsonrpc::write_notification("notifications/initialized", None));
    Ok(Arc::new(met))
}

async fn ask(process: &Arc<Process>, method: &str, params: &Value) -> Result<Reply, Lost> {
    let inbound: Arc<dyn Inbound> = Arc::new(Silent);
    let ask = Ask {
        method,
        params,
        inbound: &inbound,
        gate: None,
        progress: None,
        cancelled: None,
        opens: true,
    };
    process.ask(ask).await
}

/// What is known of the end of the child says more than that it ended.
fn unusable(process: &Process, lost: &Lost) -> Fault {
    let words = match (lost, process.over.get()) {
        (Lost::ChildGone { .. }, Some(over)) => over.words.clone(),
        _ => lost.to_string(),
    };
    Fault::Unusable(words)
}

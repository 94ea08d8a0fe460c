//! Which call ids and messages a run has seen, and what was answered: a message sent again after a broken
//! connection is answered again, not run again. Bounded; what is forgotten is run anew (writes: the ledger knows).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::call::turn::LoopState;
use crate::call::{CallId, Digest, OperationId, Outcome, ToolName};

/// Calls whose answers are kept.
pub(crate) const MAX_KEPT_CALLS: usize = 64;
/// Bytes of results kept, with what surrounds each.
pub(crate) const MAX_KEPT_BYTES: usize = 1 << 20;
/// What an answer weighs beside its content.
const ANSWER_WEIGHT: usize = 512;
/// Call ids remembered with the digest of what they asked; past it the oldest is forgotten.
pub(crate) const MAX_IDS: usize = 1024;
/// Messages whose round is remembered.
const MAX_ROUNDS: usize = 64;

/// One call's answer, as it was first given.
#[derive(Debug, Clone)]
pub struct Kept {
    pub id: CallId,
    pub tool: ToolName,
    pub outcome: Outcome,
    pub attempts: u32,
    pub operation: Option<OperationId>,
    pub alternatives: Vec<ToolName>,
}

/// A whole message's answer.
#[derive(Debug, Clone)]
pub struct KeptTurn {
    pub digest: Digest,
    pub round: u64,
    pub state: LoopState,
    pub summary: Option<String>,
    pub answers: Vec<Kept>,
}

impl KeptTurn {
    fn weight(&self) -> usize {
        self.answers
            .iter()
            .map(|kept| {
                ANSWER_WEIGHT
                    + match &kept.outcome {
                        Ok(result) => result.content.bytes.len(),
                        Err(_) => 0,
                    }
            })
            .sum()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Answers {
    ids: HashMap<CallId, Digest>,
    order: VecDeque<CallId>,
    rounds: VecDeque<(Digest, u64)>,
    turns: VecDeque<Arc<KeptTurn>>,
    kept_calls: usize,
    kept_bytes: usize,
}

impl Answers {
    /// Takes all ids at once, or none: `Err` names the first that this run used for something else.
    pub(crate) fn claim(&mut self, calls: &[(CallId, Digest)]) -> Result<(), CallId> {
        let other =
            |(id, digest): &&(CallId, Digest)| self.ids.get(id).is_some_and(|was| was != digest);
        if let Some((id, _)) = calls.iter().find(other) {
            return Err(id.clone());
        }
        for (id, digest) in calls {
            if self.ids.insert(id.clone(), *digest).is_none() {
                self.order.push_back(id.clone());
            }
        }
        while self.order.len() > MAX_IDS {
            if let Some(oldest) = self.order.pop_front() {
                self.ids.remove(&oldest);
            }
        }
        Ok(())
    }

    /// The round a message already had, answered or not.
    pub(crate) fn round(&self, digest: Digest) -> Option<u64> {
        self.rounds.iter().find(|(known, _)| *known == digest).map(|(_, round)| *round)
    }

    pub(crate) fn begin_round(&mut self, digest: Digest, round: u64) {
        if self.rounds.len() >= MAX_ROUNDS {
            self.rounds.pop_front();
        }
        self.rounds.push_back((digest, round));
    }

    pub(crate) fn keep(&mut self, turn: KeptTurn) {
        self.turns.retain(|kept| kept.digest != turn.digest);
        self.turns.push_back(Arc::new(turn));
        self.kept_calls = self.turns.iter().map(|turn| turn.answers.len()).sum();
        self.kept_bytes = self.turns.iter().map(|turn| turn.weight()).sum();
        while self.kept_calls > MAX_KEPT_CALLS || self.kept_bytes > MAX_KEPT_BYTES {
            let Some(oldest) = self.turns.pop_front() else { break };
            self.kept_calls -= oldest.answers.len();
            self.kept_bytes -= oldest.weight();
        }
    }

    pub(crate) fn turn(&self, digest: Digest) -> Option<Arc<KeptTurn>> {
        self.turns.iter().find(|turn| turn.digest == digest).cloned()
    }

    /// How one call ended in an earlier message: only an end of the tool's own, which asking again cannot better.
    /// Refusals and unknown writes are asked anew.
    pub(crate) fn call(&self, id: &CallId) -> Option<Kept> {
        let kept = self.turns.iter().rev().flat_map(|turn| &turn.answers).find(|k| k.id == *id)?;
        kept.outcome.is_ok().then(|| kept.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Content, Notes, Source, ToolResult};

    fn id(text: &str) -> CallId {
        CallId::new(text).expect("id")
    }

    fn turn(name: &str, calls: usize, bytes: usize) -> KeptTurn {
        let answer = |n: usize| Kept {
            id: id(&format!("{name}-{n}")),
            tool: ToolName::new("t").expect("name"),
            outcome: Ok(ToolResult {
                head: None,
                content: Content { bytes: vec![b'x'; bytes].into(), form: crate::call::Form::Text },
                source: Source::Tool,
                notes: Notes::default(),
            }),
            attempts: 1,
            operation: None,
            alternatives: Vec::new(),
        };
        KeptTurn {
            digest: Digest::of(name.as_bytes()),
            round: 1,
            state: LoopState::Continue,
            summary: None,
            answers: (0..calls).map(answer).collect(),
        }
    }

    #[test]
    fn an_id_used_for_other_content_refuses_all_and_claims_none() {
        let mut answers = Answers::default();
        answers.claim(&[(id("c1"), Digest::of(b"a"))]).expect("new");
        answers.claim(&[(id("c1"), Digest::of(b"a"))]).expect("the same call again");
        let refused = answers.claim(&[(id("c2"), Digest::of(b"b")), (id("c1"), Digest::of(b"x"))]);
        assert_eq!(refused, Err(id("c1")));
        answers.claim(&[(id("c2"), Digest::of(b"other"))]).expect("c2 was not claimed");
    }

    #[test]
    fn answers_are_kept_by_count_and_by_weight_oldest_out_first() {
        let mut answers = Answers::default();
        answers.keep(turn("a", 40, 1));
        answers.keep(turn("b", 40, 1));
        assert!(answers.turn(Digest::of(b"a")).is_none());
        assert!(answers.turn(Digest::of(b"b")).is_some());
        answers.keep(turn("c", 1, MAX_KEPT_BYTES));
        assert!(answers.turns.is_empty(), "too heavy to be kept at all");
        assert_eq!((answers.kept_calls, answers.kept_bytes), (0, 0));
    }

    #[test]
    fn ids_are_bounded() {
        let mut answers = Answers::default();
        for n in 0..MAX_IDS + 5 {
            answers.claim(&[(id(&format!("c{n}")), Digest::of(b"a"))]).expect("new");
        }
        assert_eq!((answers.ids.len(), answers.order.len()), (MAX_IDS, MAX_IDS));
    }
}

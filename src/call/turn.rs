//! The eight states in which a loop can stand after a message.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LoopState {
    Continue,
    Done,
    ProtocolError,
    BudgetExhausted,
    ReviewRequired,
    ApprovalRequired,
    Interrupted,
    DecisionStall,
}

impl LoopState {
    pub const ALL: &'static [LoopState] = &[
        LoopState::Continue,
        LoopState::Done,
        LoopState::ProtocolError,
        LoopState::BudgetExhausted,
        LoopState::ReviewRequired,
        LoopState::ApprovalRequired,
        LoopState::Interrupted,
        LoopState::DecisionStall,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            LoopState::Continue => "continue",
            LoopState::Done => "done",
            LoopState::ProtocolError => "protocol_error",
            LoopState::BudgetExhausted => "budget_exhausted",
            LoopState::ReviewRequired => "review_required",
            LoopState::ApprovalRequired => "approval_required",
            LoopState::Interrupted => "interrupted",
            LoopState::DecisionStall => "decision_stall",
        }
    }
}

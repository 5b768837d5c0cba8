"""The glossary, in code: axes and array names that every module uses.

Axes
    P  prompts            G  samples per prompt      B  sequences (P·G only when groups are equal, never assumed)
    T  tokens after the prompt                       V  vocabulary

Per-token tensors are [B, T]: index t is the t-th token after the prompt, and nothing outside `rung.models` shifts.

Symbols
    r_t      reward for taking a_t in s_t            R(τ)   return of a trajectory (one number a sequence)
    G_t      return from t                           Ψ_t    credit: what multiplies ∇log π(a_t|s_t)
    π        policy          μ  behaviour            ρ_t    importance ratio π/π_old, never written r_t
    β        KL coefficient  γ  discount             λ      GAE's trace parameter
    KL(p‖q)  the order in a name is the order in the divergence: `kl_policy_reference` is KL(policy‖reference)

Masks are boolean and True counts: the policy sampled this token (the end token included). Tokens it did not sample
(a tool's output) keep their slot with mask False.
"""

from typing import Annotated

import torch

PerToken = Annotated[torch.Tensor, "B T"]
PerSequence = Annotated[torch.Tensor, "B"]
TokenMask = Annotated[torch.Tensor, "B T bool"]
GroupIds = Annotated[torch.Tensor, "B int64"]
Scalar = Annotated[torch.Tensor, ""]

# Rewards, credit and weights are small [B, T] tensors: kept in float64, and cast once, where they meet the model.
BOOKKEEPING = torch.float64

# e^x overflows float32 at 88.72, and ∞ times a gradient of 0 is NaN. A log-ratio beyond this, in nats, is capped before
# it is exponentiated, so that one absurd token cannot make a batch NaN.
MAX_LOG_RATIO = 40.0

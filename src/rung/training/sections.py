"""The keys of a recipe, by section: what each means, its default and its bounds. `rung explain KEY` prints them."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

# TOML has lists, not tuples: that one conversion is allowed, their members are still checked.
Share = Annotated[float, Field(ge=0, lt=1)]
Betas = Annotated[tuple[Share, Share], Field(strict=False)]
Band = Annotated[tuple[float, float], Field(strict=False)]


class Section(BaseModel):
    """Unknown keys are refused; values are checked and not silently converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Scratch(Section):
    """Sizes of a Llama made from nothing, for `model = "scratch"`."""

    hidden_size: int = Field(128, gt=0, description="Width of the residual stream.")
    intermediate_size: int = Field(512, gt=0, description="Width inside each feed-forward block.")
    layers: int = Field(3, gt=0, description="Number of transformer blocks.")
    heads: int = Field(4, gt=0, description="Attention heads of each block.")
    key_value_heads: int = Field(
        4, gt=0, description="Heads of keys and values, shared by the attention heads; it divides `heads`."
    )
    max_positions: int = Field(
        64,
        gt=0,
        description="The longest sequence that the model is made for, prompt and completion together.",
    )
    initializer_range: float = Field(
        0.05, gt=0, description="Standard deviation of the normal distribution that weights start from."
    )
    rope_theta: float = Field(100.0, gt=0, description="Base of the rotary position embedding.")

    @model_validator(mode="after")
    def _consistent(self) -> "Scratch":
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"hidden_size {self.hidden_size} over {self.heads} heads is no even number of dimensions each"
            )
        if self.heads % self.key_value_heads:
            raise ValueError(f"{self.key_value_heads} key_value_heads do not divide {self.heads} heads")
        return self


class Rollout(Section):
    """How completions are sampled: P prompts a step, G samples each.

    A method that leaves groups out draws up to `max_rounds` times P prompts for a step, to fill it.
    """

    prompts_per_step: int = Field(32, gt=0, description="P: prompts drawn for each step.")
    samples_per_prompt: int = Field(
        8,
        gt=0,
        description="G: completions sampled of each prompt; at least 2 for a method that compares them.",
    )
    max_new_tokens: int = Field(
        8, gt=0, description="The cap on the tokens of a completion, end token included."
    )
    temperature: float = Field(
        1.0,
        gt=0,
        description="Divides the logits, of the sampler and the trainer alike: it is part of the policy.",
    )
    max_rows: int = Field(
        256, gt=0, description="Completions sampled at the same time: memory, not the estimate."
    )
    mismatch_tolerance: float = Field(
        2e-4,
        gt=0,
        description="Largest difference of sampler and trainer in a token's log-probability, nats, before a run stops.",
    )
    max_rounds: int = Field(
        4,
        gt=0,
        description="At most so many times P prompts are drawn to fill a step, where a method leaves groups out.",
    )


class Optimizer(Section):
    """AdamW, clipped gradients, and a learning-rate schedule counted in optimizer steps."""

    learning_rate: float = Field(
        1e-4, gt=0, description="Step size of AdamW after warm-up. TRPO takes none: its trust region decides."
    )
    betas: Betas = Field(
        (0.9, 0.95), description="Decay of AdamW's averages of the gradient and of its square."
    )
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay of AdamW.")
    max_grad_norm: float = Field(
        1.0, gt=0, description="The gradient is scaled down to this length where it is longer."
    )
    warmup_updates: int = Field(
        0, ge=0, description="Updates over which the learning rate rises linearly to its full value."
    )
    schedule: Literal["constant", "linear"] = Field(
        "constant",
        description="The learning rate after warm-up: constant, or falling linearly to 0 at the end of the run.",
    )


class Training(Section):
    """Length of the run. A step is one rollout batch (or one batch of examples); an update one optimizer step."""

    steps: int = Field(
        ...,
        gt=0,
        description="Length of the run in steps: rollout batches, or batches of examples with method sft.",
    )
    epochs: int = Field(
        1,
        gt=0,
        description="Passes over each rollout batch. More than 1 needs a method with an importance ratio.",
    )
    mini_batches: int = Field(
        1, gt=0, description="Updates of one pass: the rollout batch is dealt to so many parts."
    )
    batch_size: int = Field(128, gt=0, description="Examples of a step, for method sft.")
    micro_batch_tokens: int = Field(
        16_384, gt=0, description="Tokens in one forward and backward pass: memory, not the gradient."
    )
    stop_between: Band | None = Field(
        None,
        description="With method sft: two rewards; the run stops at the first validation that reaches the lower.",
    )


class Evaluation(Section):
    """Held-out problems: the test split before and after, the validation split every so many steps (0: never)."""

    test_problems: int = Field(
        500, ge=0, description="Problems of the test split, before and after training (0: none)."
    )
    validation_problems: int = Field(
        200,
        ge=0,
        description="Problems of the validation split at each evaluation during training (0: none).",
    )
    every: int = Field(0, ge=0, description="Steps between evaluations on the validation split (0: never).")


class Checkpoint(Section):
    """A checkpoint every so many steps (0: only the last one); the newest `keep` of them stay."""

    every: int = Field(0, ge=0, description="Steps between checkpoints (0: only the last one).")
    keep: int = Field(2, gt=0, description="How many of the newest checkpoints stay.")


class Keys(Section):
    """All keys of a recipe: those at its top, then its sections."""

    name: str = Field(
        ...,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="The name of the run, and of its folder; without it, that of the recipe's file.",
    )
    method: str = Field(
        ...,
        description="What is estimated and minimized: a method of the catalogue, or sft to imitate answers.",
    )
    task: str = Field(..., description="Where prompts and rewards come from.")
    model: str = Field(
        ..., description='The folder of a model, or of a run that ended with one; or "scratch".'
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Everything random of the run follows from it.")
    threads: int | None = Field(None, gt=0, description="Processor threads; without it, torch's own number.")
    kl_coefficient: float | None = Field(
        None, ge=0, description="β: what a nat of the method's KL penalty costs, in reward units."
    )
    kl_target: float | None = Field(
        None,
        gt=0,
        description="Nats per sequence from the reference that β is steered towards; goes with kl_horizon.",
    )
    kl_horizon: float | None = Field(
        None,
        gt=0,
        description="n completions change a steered β by a share of at most 0.2 n/kl_horizon; goes with kl_target.",
    )
    clip_low: float | None = Field(
        None,
        ge=0,
        le=1,
        description="ε below: an importance ratio under 1 − ε is clipped. clip_high is the other side.",
    )
    clip_high: float | None = Field(
        None,
        ge=0,
        description="ε above: an importance ratio over 1 + ε is clipped. clip_low is the other side.",
    )
    dual_clip: float | None = Field(
        None, gt=1, description="c: for a negative credit, a ratio above c stops pulling."
    )
    cap: float | None = Field(
        None,
        gt=0,
        description="Upper bound of a ratio held constant: to the old policy (cispo), to the sampler (rloo-corrected).",
    )
    baseline: float | None = Field(
        None,
        description="What is taken off each return: always (reinforce-constant), or at first (moving average).",
    )
    momentum: float | None = Field(
        None, ge=0, le=1, description="m of the moving baseline: b ← m b + (1 − m) mean R after each batch."
    )
    lam: float | None = Field(
        None, ge=0, le=1, description="λ of GAE: 0 trusts the critic after one step, 1 only sampled rewards."
    )
    max_kl: float | None = Field(
        None, gt=0, description="δ: the trust region's bound on KL(old‖policy), nats per token."
    )
    overlong_buffer: int | None = Field(
        None,
        gt=0,
        description="Tokens before max_new_tokens in which a penalty grows; without it, a fifth of max_new_tokens.",
    )
    entropy_coefficient: float | None = Field(
        None, ge=0, description="What a nat of the policy's entropy at a token is worth in the loss: a bonus."
    )
    scratch: Scratch | None = Field(None, description="Sizes of the model, where it is made from nothing.")
    rollout: Rollout = Field(Rollout(), description="How completions are sampled.")
    optimizer: Optimizer = Field(Optimizer(), description="AdamW and its learning rate.")
    training: Training = Field(..., description="Length of the run, and how a batch is cut.")
    evaluation: Evaluation = Field(Evaluation(), description="Held-out problems.")
    checkpoint: Checkpoint = Field(Checkpoint(), description="What a run can be resumed from.")

"""The sections of a recipe: their keys, defaults and bounds."""

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

    hidden_size: int = Field(128, gt=0)
    intermediate_size: int = Field(512, gt=0)
    layers: int = Field(3, gt=0)
    heads: int = Field(4, gt=0)
    key_value_heads: int = Field(4, gt=0)
    max_positions: int = Field(64, gt=0)
    initializer_range: float = Field(0.05, gt=0)
    rope_theta: float = Field(100.0, gt=0)

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

    prompts_per_step: int = Field(32, gt=0)
    samples_per_prompt: int = Field(8, gt=0)
    max_new_tokens: int = Field(8, gt=0)
    temperature: float = Field(1.0, gt=0)
    max_rows: int = Field(256, gt=0)
    mismatch_tolerance: float = Field(2e-4, gt=0)
    max_rounds: int = Field(4, gt=0)


class Optimizer(Section):
    """AdamW, clipped gradients, and a learning-rate schedule counted in optimizer steps."""

    learning_rate: float = Field(1e-4, gt=0)
    betas: Betas = (0.9, 0.95)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    warmup_updates: int = Field(0, ge=0)
    schedule: Literal["constant", "linear"] = "constant"


class Training(Section):
    """Length of the run. A step is one rollout batch (or one batch of examples); an update one optimizer step."""

    steps: int = Field(..., gt=0)
    epochs: int = Field(1, gt=0)
    mini_batches: int = Field(1, gt=0)
    batch_size: int = Field(128, gt=0)
    micro_batch_tokens: int = Field(16_384, gt=0)
    stop_between: Band | None = None


class Evaluation(Section):
    """Held-out problems: the test split before and after, the validation split every so many steps (0: never)."""

    test_problems: int = Field(500, ge=0)
    validation_problems: int = Field(200, ge=0)
    every: int = Field(0, ge=0)


class Checkpoint(Section):
    """A checkpoint every so many steps (0: only the last one); the newest `keep` of them stay."""

    every: int = Field(0, ge=0)
    keep: int = Field(2, gt=0)

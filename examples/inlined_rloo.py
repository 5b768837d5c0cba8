"""RLOO, the whole of it, in one file that imports nothing from rung: to read, and as an independent check.

It trains the reinforcement-learning stage of `rung quickstart`: a small Llama that was fine-tuned until it adds
two-digit numbers half right gets better at it by trying, from a reward that says only right or wrong.

    rung train addition-sft
    python examples/inlined_rloo.py runs/addition-sft/checkpoints/step-*/model

What it leaves out: sharing prompts within a group, batching rows of unequal length without padding, checkpoints,
files, progress. tests/examples/test_inlined_rloo.py shows that on the same batch its gradient equals rung's.
"""

import copy
import hashlib
import random
import sys
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS, SAMPLES, STEPS = 32, 8, 250  # P prompts a step, G samples of each
NEW_TOKENS = 5
KL_COEFFICIENT = 0.01
LEARNING_RATE, WARMUP, MAX_GRAD_NORM = 3e-4, 5, 1.0


def held_out(a, b):
    """Whether rung keeps this problem from training: 15 of 100 hash buckets are validation and test."""
    return int.from_bytes(hashlib.sha256(f"{a}+{b}".encode()).digest()[:8], "big") % 100 < 15


def pad_left(rows, value=0):
    """Rows of unequal length as one tensor, with the mask of what is real."""
    longest = max(map(len, rows))
    ids = torch.tensor([[value] * (longest - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


@torch.no_grad()
def sample(model, prompts, end):
    """One completion of each prompt from the model's own distribution: lists of ids, the end token included."""
    ids, mask = pad_left(prompts)
    answers = [[] for _ in prompts]
    for _ in range(NEW_TOKENS):
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits[:, -1]
        token = torch.multinomial(logits.softmax(-1), 1)
        for answer, t in zip(answers, token[:, 0].tolist(), strict=True):
            if not answer or answer[-1] != end:
                answer.append(t)
        ids, mask = torch.cat([ids, token], 1), torch.cat([mask, torch.ones_like(token)], 1)
    return answers


def token_logprobs(model, prompts, answers):
    """log π of each answer token [B, T], and which slots are real [B, T]."""
    ids, attention = pad_left([p + a for p, a in zip(prompts, answers, strict=True)])
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    longest = max(map(len, answers))
    logits = model(input_ids=ids, attention_mask=attention, position_ids=positions).logits
    # The logits at a position predict the *next* token. Answers end at the right edge: their last T tokens.
    predicted = logits[:, -longest - 1 : -1].log_softmax(-1)
    logprobs = predicted.gather(-1, ids[:, -longest:, None])[..., 0]
    lengths = torch.tensor([len(a) for a in answers])
    return logprobs, torch.arange(longest) >= longest - lengths[:, None]


def rloo_loss(model, reference, prompts, answers, rewards, samples, kl_coefficient):
    """A number whose gradient is minus the policy gradient; answers of one prompt stand next to each other.

    Also returns the mean KL(policy‖reference) per answer, estimated by k1.
    """
    logprobs, real = token_logprobs(model, prompts, answers)
    with torch.no_grad():
        reference_logprobs, _ = token_logprobs(reference, prompts, answers)
        k1 = torch.where(real, logprobs - reference_logprobs, 0.0).sum(1)
        returns = (rewards - kl_coefficient * k1).view(-1, samples)
        others = (returns.sum(1, keepdim=True) - returns) / (samples - 1)
        advantages = (returns - others).flatten()
    sequence_logprobs = torch.where(real, logprobs, 0.0).sum(1)
    return -(advantages * sequence_logprobs).mean(), k1.mean()


def main(folder, seed=0):
    """Train, and say how it goes."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reference = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    train = [(a, b) for a in range(100) for b in range(100) if not held_out(a, b)]
    begin = time.time()
    for step in range(STEPS):
        problems = [problem for problem in rng.sample(train, PROMPTS) for _ in range(SAMPLES)]
        prompts = [tokenizer(f"{a}+{b}=")["input_ids"] for a, b in problems]
        answers = sample(model, prompts, tokenizer.eos_token_id)
        texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
        right = [float(text == str(a + b)) for text, (a, b) in zip(texts, problems, strict=True)]
        loss, kl = rloo_loss(model, reference, prompts, answers, torch.tensor(right), SAMPLES, KL_COEFFICIENT)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min((step + 1) / WARMUP, (STEPS - step) / (STEPS - WARMUP), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 or step == STEPS - 1:
            print(
                f"step {step + 1}/{STEPS}  reward {sum(right) / len(right):.3f}  KL {kl:.3f}  "
                f"{time.time() - begin:.0f} s"
            )
    return model


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(
            "usage: python examples/inlined_rloo.py FOLDER, a fine-tuned model as `rung train addition-sft` leaves it"
        )
    main(sys.argv[1])

"""Settings of every test: one thread, and examples of hypothesis that are the same in every run."""

import hypothesis
import torch

torch.set_num_threads(1)

# A failure must be the same tomorrow and on another machine: no clock, no database of earlier examples.
hypothesis.settings.register_profile("rung", deadline=None, derandomize=True, database=None, max_examples=40)
hypothesis.settings.load_profile("rung")

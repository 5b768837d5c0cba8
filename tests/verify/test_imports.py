"""`rung.verify` in anybody's tests: it brings torch and numpy, and nothing else of what rung depends on."""

import json
import subprocess
import sys

OTHERS = ("transformers", "tokenizers", "safetensors", "pydantic", "typer", "rich", "trl")
CODE = f"""
import json, sys
from rung.verify import assert_unbiased
assert_unbiased(lambda policy_logprobs, rewards: -(rewards.unsqueeze(1) * policy_logprobs).sum() / len(rewards))
print(json.dumps([name for name in {OTHERS!r} if name in sys.modules]))
"""


def test_nothing_but_torch_and_numpy_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []

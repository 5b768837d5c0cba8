"""The oracle stands alone: what it shares with an estimator, it cannot check."""

import subprocess
import sys

ALLOWED = {"rung", "rung.errors", "rung.notation"}


def test_the_oracle_loads_no_estimator_and_no_torch():
    program = "import sys, rung.exact; print(*sys.modules, sep='\\n')"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    loaded = set(output.split())
    ours = {name for name in loaded if name.split(".")[0] == "rung"}
    assert {name for name in ours if not name.startswith("rung.exact")} <= ALLOWED
    assert "torch" not in loaded

"""rlax in an environment and a process of its own. For core.py."""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / "build" / "rlax"
VERSIONS = ("jax==0.10.2", "rlax==0.1.9")


def build() -> Path:
    """The interpreter that has rlax; installs it where it is missing.

    Raises:
        subprocess.CalledProcessError: pip could not install it.
    """
    python, done = ENVIRONMENT / "bin" / "python", ENVIRONMENT / ".rlax"
    if not (done.is_file() and done.read_text() == " ".join(VERSIONS) and python.exists()):
        print(f"installing {' '.join(VERSIONS)} into {ENVIRONMENT.relative_to(ROOT)}", file=sys.stderr)
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, *VERSIONS], check=True, capture_output=True, text=True)
        done.write_text(" ".join(VERSIONS))
    return python


class Rlax:
    """rlax_worker.py, kept running: one line in (what, how often), one line out (seconds)."""

    def __init__(self, data: dict[str, torch.Tensor], settings: tuple[float, float, float]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        for name, tensor in data.items():
            np.save(Path(self.folder.name) / f"{name}.npy", tensor.numpy())
        worker = Path(__file__).with_name("rlax_worker.py")
        command = [str(build()), str(worker), self.folder.name, *map(str, settings)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self) -> None:
        self.process.communicate()
        self.folder.cleanup()

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"rlax_worker.py ended when asked for {line!r}")
        return answer.strip()

    def result(self, name: str) -> tuple[torch.Tensor, ...]:
        count = int(self.ask(f"result {name}"))
        return tuple(torch.from_numpy(np.load(Path(self.folder.name) / f"out{i}.npy")) for i in range(count))

    def seconds(self, name: str, calls: int) -> float:
        return float(self.ask(f"time {name} {calls}"))


def start(data: dict[str, torch.Tensor], settings: tuple[float, float, float]) -> Rlax | None:
    """With (γ, λ, ε); None, and a line that says so, where rlax cannot be installed."""
    try:
        return Rlax(data, settings)
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:]
        print(f"rlax is left out: it could not be installed ({' '.join(last)})", file=sys.stderr)
        return None

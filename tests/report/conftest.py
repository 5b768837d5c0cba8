"""Run folders to report on, and a reader of pages."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.report.fabricated import Page, fabricate


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Makes a run folder: `make_run(steps=60, every=20, stage="rl", seed=0)`; `every=0` means no evaluation."""
    return partial(fabricate, tmp_path)


@pytest.fixture
def read_page() -> Callable[[str], Page]:
    """Parses a page."""
    return Page

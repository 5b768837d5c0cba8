"""`python -m rung` is `rung`."""

from rung.cli import main

main()

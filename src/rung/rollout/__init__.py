"""Sampling: what an engine must do, the one in this process, and the randomness as a function."""

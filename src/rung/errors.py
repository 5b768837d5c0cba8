"""One exception type per kind of mistake. Each message says what was wrong, where, and what to do.

The command line prints these without a traceback: exit code 2 for `UsageError`, 1 for the others.
"""


class RungError(Exception):
    """Base of every error that rung raises on purpose. Catch it to handle all of them."""


class UsageError(RungError):
    """The command or recipe is wrong: an unknown key, a missing file, a setting out of range."""


class InvalidInput(RungError, ValueError):
    """A function got arguments that make no sense together: shapes, masks that are not boolean, group ids."""


class ModelError(RungError):
    """A model or tokenizer cannot be loaded, or does not behave as its configuration says."""


class SamplerMismatch(RungError):
    """Sampler and trainer disagree on the log-probabilities of the same tokens: training would be silently off."""


class CheckpointError(RungError):
    """No complete checkpoint was found, or one does not match its manifest."""


class TrainingDiverged(RungError):
    """A loss or gradient became infinite or NaN. The last checkpoint is intact."""

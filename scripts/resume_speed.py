"""How much sooner a kept conversation speaks with its state than by reading it again.

Keeps the state of a conversation of --tokens tokens, then times the first token both ways, several times in
turn, and what rebuilding the n-gram index takes. Loading the model comes before both and is left out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from localspec.chat.state import Cache, restore, save
from localspec.drafters.ngram import SuffixAutomaton
from localspec.llama.devices import default_threads
from localspec.llama.model import LlamaModel, LoadOptions
from localspec.models.facts import read_model
from localspec.models.find import packaged_model

TEXT = Path(__file__).parents[1] / "localspec"


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=packaged_model())
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--threads", type=int, default=default_threads())
    args = parser.parse_args()
    options = LoadOptions(n_ctx=args.tokens + 64, threads=args.threads, gpu_layers=0, kv_type=args.kv_type)
    fingerprint = read_model(args.model).fingerprint
    with tempfile.TemporaryDirectory() as name, LlamaModel(args.model, options) as model:
        folder, caches = Path(name), {"target": Cache(model, fingerprint)}
        text = "".join(path.read_text(encoding="utf-8") for path in sorted(TEXT.rglob("*.py")))
        *tokens, last = model.vocab.tokenize(text[: 16 * args.tokens], special=False)[: args.tokens]

        def read() -> None:
            model.rewind(0)
            model.eval([*tokens, last])

        def resume() -> None:
            why = restore(folder, "one", caches, "")
            assert not why, why
            model.eval([last])

        model.eval(tokens, rows=0)
        kept = seconds(lambda: save(folder, "one", caches, "", known=["one"]))
        size = sum(path.stat().st_size for path in folder.iterdir())
        pairs = [(seconds(read), seconds(resume)) for _ in range(args.times)]
        reading, resuming = (statistics.median(column) for column in zip(*pairs, strict=True))
        index = seconds(lambda: SuffixAutomaton().extend(tokens))
    print(f"{args.model.name}, {len(tokens)} tokens, {args.threads} threads, {args.kv_type} cache")
    print(f"keeping the state   {kept:8.3f} s, {size / 2**20:.0f} MiB")
    print(f"first token, read   {reading:8.3f} s")
    print(f"first token, state  {resuming:8.3f} s: {reading / resuming:.0f} times sooner")
    print(f"n-gram index        {index:8.3f} s: {1e6 * index / len(tokens):.1f} microseconds a token")


if __name__ == "__main__":
    main()

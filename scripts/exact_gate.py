"""Is the text under --exact that of plain decoding? Copies of the packaged 135M model, far past 512 tokens.

    .venv/bin/python scripts/exact_gate.py [--models q4_0 q4_1 q8_0] [--threads 1 2] [--tokens 600]

For each model and number of threads: `--exact --draft none` decodes a prompt of over 512 tokens, and
`--draft auto` and fixed lengths of n-gram and a draft model decode it again with the same seed. A line each:
ok where the texts are the same and something was guessed, else MISS, and then the exit code is 1. Proofs and
costs are made anew. About five minutes on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.app import open_target
from localspec.config import Settings
from localspec.engine.exactness import first_difference
from localspec.llama.library import CancelFlag
from localspec.llama.quantize import quantize
from localspec.loading import Hear
from localspec.models.find import packaged_model

PROMPT = (
    "Here are the minutes of a meeting. "
    + "Ann spoke of the harbour, Ben of the bridge, Cy of the mill. " * 33
) + "\nThe same minutes again: Ann spoke of"
KINDS = ("q4_0", "q4_1", "q8_0")
DRAFT_KIND = "q4_0"


@dataclass(frozen=True)
class Run:
    """One text, how many of its tokens had been guessed, the setup it was made under, and seconds."""

    text: list[int]
    guessed: int
    setup: str
    n_prompt: int
    seconds: float


def decode(settings: Settings, path: Path, draft: Path | None, tokens: int) -> Run:
    """The text that follows PROMPT; it does not end before `tokens` tokens."""
    with open_target(settings, path, draft, cancel=CancelFlag(), hear=Hear()) as loaded:
        loaded.generator.is_end = lambda _token: False
        prompt = loaded.target.vocab.tokenize(PROMPT, special=False)
        start = time.perf_counter()
        steps = list(loaded.generator.generate(prompt, tokens))
        seconds = time.perf_counter() - start
        options, widest = loaded.target.options, max(loaded.guessers.widths)
    setup = f"{options.kv_type}, flash {options.flash_attn}, widths up to {widest}"
    text = [token for step in steps for token in step.tokens]
    return Run(text, sum(step.accepted for step in steps), setup, len(prompt), seconds)


def check(kind: str, path: Path, draft: Path, threads: int, tokens: int, temp: float) -> bool:
    """Print a line for each way to guess; whether all were ok."""
    base = Settings(exact=True, threads=threads, temp=temp, seed=1, ctx=2048, draft="none")
    plain = decode(base, path, None, tokens)
    name = f"{kind}  threads {threads}  temp {temp:g}"
    print(f"     {name}  {plain.n_prompt} + {len(plain.text)} tokens, {plain.setup}, {plain.seconds:.0f} s")
    fine = True
    for sources, length in (("auto", None), (f"ngram,{draft}", 4)):
        file = draft if "," in sources else None
        found = decode(replace(base, draft=sources, draft_len=length), path, file, tokens)
        place = first_difference(plain.text, found.text)
        same = place is None and len(found.text) == len(plain.text)
        ok = same and found.guessed > 0
        fine = fine and ok
        how = f"{'ngram+draft' if file else sources}{f' {length}' if length else ''}"
        what = f"{found.guessed} guesses kept, {found.seconds:.0f} s" if same else f"parts at token {place}"
        print(f"{'ok  ' if ok else 'MISS'} {name}  {how:<14} {what}", flush=True)
    return fine


def main(args: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--temps", nargs="+", type=float, default=[0.8])
    parser.add_argument("--tokens", type=int, default=600)
    options = parser.parse_args(args)
    packaged = packaged_model()
    if packaged is None:
        sys.exit("install the demo extra: scripts/test does")
    fine = True
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOCALSPEC_HOME"] = folder
        draft = quantize(packaged, Path(folder) / f"draft-{DRAFT_KIND}.gguf", DRAFT_KIND, threads=1)
        for kind in options.models:
            copy = Path(folder) / f"{kind}.gguf"
            path = packaged if kind == "q4_1" else quantize(packaged, copy, kind, threads=1)
            for threads in options.threads:
                for temp in options.temps:
                    fine = check(kind, path, draft, threads, options.tokens, temp) and fine
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())

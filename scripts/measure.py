"""Measures what localspec adds to llama.cpp and prints a table of ratios.

    .venv/bin/python scripts/measure.py [--threads 1] [--tokens 128] [--rounds 7] [--steps 20000]

Needs a quiet machine. Everything is a ratio of interleaved runs within this process; the peer is llama-bench,
built by `scripts/peer` from the llama.cpp that the installed llama-cpp-python carries.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from localspec.chat.turn import run_turn
from localspec.drafters import ModelDrafter, NgramDrafter
from localspec.engine.generate import Fixed, Generator
from localspec.engine.sampling import Sampler
from localspec.engine.types import Sampling, Source
from localspec.llama import model as boundary
from localspec.llama.library import api
from localspec.llama.model import LlamaModel, LoadOptions
from localspec.models.find import packaged_model

ROOT = Path(__file__).parent.parent
PROMPT = (
    "<|im_start|>user\nRepeat this list, then write what each item is for: hammer, saw, drill, level, "
    "tape measure, chisel, plane, clamp, file, wrench.<|im_end|>\n<|im_start|>assistant\n"
)


class Meter:
    """Seconds spent inside llama.cpp: its decode is wrapped by a clock."""

    def __init__(self) -> None:
        self.seconds = 0.0
        inner = api.llama_decode

        def timed(context: Any, batch: Any) -> int:
            start = time.perf_counter()
            status = inner(context, batch)
            self.seconds += time.perf_counter() - start
            return int(status)

        boundary.api.llama_decode = timed


def never(_token: int) -> bool:
    return False


def quantize(source: Path, kind: int, folder: Path) -> Path:
    path = folder / f"{kind}.gguf"
    params = api.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = kind, True
    assert api.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(params)) == 0
    return path


def run(generator: Generator, prompt: list[int], tokens: int, model: LlamaModel) -> float:
    """Seconds of decoding (prefill left out) through the very code that `localspec chat` runs."""
    model.rewind(0)
    start = time.perf_counter()
    answer = run_turn(generator, prompt, piece=model.vocab.piece, max_tokens=tokens)
    assert answer.stats.tokens == tokens
    return time.perf_counter() - start - answer.prefill.seconds


def host_share(target: LlamaModel, draft: LlamaModel, tokens: int, rounds: int) -> None:
    """Share of decode time outside llama.cpp, for each source and temperature."""
    meter = Meter()
    prompt = target.vocab.tokenize(PROMPT, special=True)
    for temperature in (0.0, 0.8):
        sampler = Sampler(Sampling(temperature=temperature, seed=1))
        drafter = ModelDrafter("draft", draft, sampler, target.n_vocab, never)
        choices: dict[str, tuple[Source, ...]] = {
            "plain": (),
            "ngram": (Source(NgramDrafter(), 15),),
            "draft": (Source(drafter, 4, 0.4),),
        }
        shares: dict[str, list[float]] = {name: [] for name in choices}
        for _ in range(rounds):
            for name, sources in choices.items():
                generator = Generator(target, sampler, never, Fixed(sources))
                target.rewind(0)
                generator.prefill(prompt)
                meter.seconds = 0.0
                start = time.perf_counter()
                run_turn(generator, prompt, piece=target.vocab.piece, max_tokens=tokens)
                total = time.perf_counter() - start
                shares[name].append(1 - meter.seconds / total)
        for name, values in shares.items():
            share = statistics.median(values)
            report(
                f"outside llama.cpp, {name}, T={temperature:g}",
                f"{100 * share:.2f} %",
                "at most 3 %",
                share <= 0.03,
            )


def against_llama_bench(target: LlamaModel, threads: int, tokens: int, rounds: int) -> None:
    """Plain decoding against llama-bench: same file, threads and length, one after the other, medians."""
    binary = Path(subprocess.check_output([ROOT / "scripts/peer"], text=True).split()[-1]) / "llama-bench"
    command = [
        binary,
        "-m",
        target.path,
        "-t",
        threads,
        "-p",
        0,
        "-n",
        tokens,
        "-r",
        1,
        "-o",
        "json",
        "-fa",
        "auto",
    ]
    ours, theirs = [], []
    generator = Generator(target, Sampler(Sampling(temperature=0.0)), never)
    for _ in range(rounds):
        output = subprocess.check_output([str(part) for part in command], stderr=subprocess.DEVNULL)
        theirs.append(json.loads(output)[0]["avg_ts"])
        run(generator, [1], tokens, target)  # llama-bench warms up as well
        ours.append(tokens / run(generator, [1], tokens, target))
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    detail = f"{statistics.median(ours):.1f} against {statistics.median(theirs):.1f} tokens/s"
    report("plain decoding / llama-bench", f"{ratio:.3f} ({detail})", "at least 0.97", ratio >= 0.97)


def memory_growth(steps: int) -> None:
    """Resident memory over many speculative steps of a tiny model: only the index may grow."""
    sys.path.insert(0, str(ROOT / "tests"))
    import tiny

    shape = {"n_layer": 1, "n_embd": 32, "n_head": 1, "n_head_kv": 1, "n_ff": 32}
    with tempfile.TemporaryDirectory() as folder:
        path = tiny.write_llama(Path(folder) / "tiny.gguf", n_ctx_train=65536, end_bias=-20.0, **shape)
        with LlamaModel(path, LoadOptions(n_ctx=65536, threads=1)) as model:
            generator = Generator(
                model, Sampler(Sampling(seed=1)), never, Fixed((Source(NgramDrafter(), 2),))
            )
            warm_up, start, tokens = 1000, 0, 0
            for count, step in enumerate(generator.generate([3], 65000)):
                tokens += len(step.tokens)
                if count == warm_up:
                    gc.collect()
                    start, tokens = psutil.Process().memory_info().rss, 0
                if count == steps + warm_up:
                    break
            grown = (psutil.Process().memory_info().rss - start) / tokens
    report(f"memory growth over {steps} steps", f"{grown:.0f} bytes a token", "at most 600", grown <= 600)


def start_up() -> None:
    """`localspec --help`, median of 9, and what it imports."""

    def once(arguments: list[str]) -> float:
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "localspec", *arguments], check=True, capture_output=True, cwd=ROOT
        )
        return time.perf_counter() - start

    for arguments in (["--help"], ["chat", "--help"], ["--version"]):
        seconds = statistics.median(once(arguments) for _ in range(9))
        report(
            f"localspec {' '.join(arguments)}", f"{1000 * seconds:.0f} ms", "at most 150 ms", seconds <= 0.15
        )


def report(what: str, value: str, goal: str, held: bool) -> None:
    print(f"{'ok  ' if held else 'MISS'} {what:<38} {value:<42} {goal}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20000)
    args = parser.parse_args()
    source = packaged_model()
    assert source is not None, "install the demo extra: scripts/test does"
    options = LoadOptions(n_ctx=1024, threads=args.threads)
    start_up()
    memory_growth(args.steps)
    with tempfile.TemporaryDirectory() as folder:
        with LlamaModel(source, options) as target:
            against_llama_bench(target, args.threads, args.tokens, args.rounds)
        low, high = quantize(source, 2, Path(folder)), quantize(source, 7, Path(folder))
        with LlamaModel(high, options) as target, LlamaModel(low, options) as draft:
            host_share(target, draft, args.tokens, args.rounds)


if __name__ == "__main__":
    main()

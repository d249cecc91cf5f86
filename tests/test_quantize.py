"""Low-bit copies: they are whole or absent, whatever ends the work, and good enough to draft with."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import tiny

from localspec.drafters import ModelDrafter
from localspec.engine.generate import Fixed, Generator
from localspec.engine.sampling import Sampler
from localspec.engine.stats import Stats
from localspec.engine.types import Cancelled, Sampling, Source
from localspec.errors import LocalspecError, UsageError
from localspec.llama import quantize as module
from localspec.llama.model import LlamaModel, LoadOptions
from localspec.llama.quantize import FTYPES, planned_size, quantize

OPTIONS = LoadOptions(n_ctx=512, threads=1)
CHAT = "<|im_start|>user\nName five fruits and a colour for each.<|im_end|>\n<|im_start|>assistant\n"
MAKE = """
import sys
from pathlib import Path
from localspec.llama.quantize import quantize
source, copy, kind = sys.argv[1:]
quantize(Path(source), Path(copy), kind, threads=1, on_progress=lambda share: print(share, flush=True))
"""


def make_in_child(source: Path, copy: Path, kind: str) -> subprocess.Popen[str]:
    """A process of its own group that makes a copy and prints its progress."""
    return subprocess.Popen(
        [sys.executable, "-c", MAKE, str(source), str(copy), kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def half_way(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The children of `process`, once some of the copy is made."""
    assert process.stdout is not None
    assert 0 < float(process.stdout.readline()) < 0.5
    return psutil.Process(process.pid).children()


def workers() -> list[psutil.Process]:
    """The processes that make a copy for this one; other tests may have left theirs of other kinds."""
    return [child for child in psutil.Process().children() if "localspec.llama.quantize" in child.cmdline()]


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def greedy(path: Path, context: Sequence[int], n: int) -> list[int]:
    with LlamaModel(path, OPTIONS) as model:
        generator = Generator(model, Sampler(Sampling(temperature=0.0)), lambda _: False)
        return [token for step in generator.generate(context, n) for token in step.tokens]


@pytest.mark.parametrize("kind", ["q8_0", "q2_k"])
def test_copy_is_smaller_and_loads(tiny_path: Path, tmp_path: Path, kind: str) -> None:
    shares: list[float] = []
    copy = quantize(tiny_path, tmp_path / "new" / "copy.gguf", kind, threads=1, on_progress=shares.append)
    assert copy.stat().st_size < tiny_path.stat().st_size
    assert left_in(copy.parent) == ["copy.gguf"]
    assert shares == sorted(shares)
    assert len(shares) == 21  # tensors
    assert shares[-1] == 1.0
    with LlamaModel(tiny_path, OPTIONS) as source, LlamaModel(copy, OPTIONS) as model:
        close = np.corrcoef(source.eval([3, 70, 80])[0], model.eval([3, 70, 80])[0])[0, 1]
    assert close > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("kind", FTYPES)
def test_every_kind_can_be_made_and_guesses_well(real_model: Path, tmp_path: Path, kind: str) -> None:
    copy = quantize(real_model, tmp_path / "copy.gguf", kind, threads=1)
    assert acceptance(real_model, copy) > 0.4  # kinds that need an importance matrix reach 0.02


def test_real_copy_has_the_planned_size_and_guesses_well(real_model: Path, tmp_path: Path) -> None:
    plan = planned_size(real_model, "q4_0")
    copy = quantize(real_model, tmp_path / "copy.gguf", "q4_0", threads=1)
    header = copy.stat().st_size - plan.bytes
    assert 1e6 < header < 4e6  # the vocabulary
    assert header < module.HEADER_ROOM
    assert plan.bits == pytest.approx(5.35, abs=0.01)  # not 4.5: the output matrix is Q8_0
    assert plan.bits_source == pytest.approx(5.74, abs=0.01)
    assert acceptance(real_model, copy) > 0.4  # kinds that need an importance matrix reach 0.02


def acceptance(target_path: Path, draft_path: Path) -> float:
    with LlamaModel(target_path, OPTIONS) as target, LlamaModel(draft_path, OPTIONS) as draft:
        sampler = Sampler(Sampling(temperature=0.0))
        drafter = ModelDrafter("draft", draft, sampler, target.n_vocab, target.vocab.is_end)
        generator = Generator(target, sampler, target.vocab.is_end, Fixed((Source(drafter, 1),)))
        stats = Stats()
        for step in generator.generate(target.vocab.tokenize(CHAT, special=True), 24):
            stats.add(step)
    return stats.acceptance_rate


def test_fallback_shows_in_the_planned_bits(real_model: Path) -> None:
    """Rows of 576 take no k-quant: a Q2_K copy of this model is nearly a Q4_0 one."""
    assert planned_size(real_model, "q2_k").bits == pytest.approx(5.14, abs=0.01)


def test_an_existing_copy_is_kept(tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(b"whole")
    assert quantize(tmp_path / "no-source.gguf", copy, "q4_0", threads=1) == copy
    assert copy.read_bytes() == b"whole"


def test_shards_become_one_file(tmp_path: Path) -> None:
    shards, single = tiny.write_split(tmp_path)
    (tmp_path / "copies").mkdir()
    copy = quantize(shards[0], tmp_path / "copies" / "copy.gguf", "q8_0", threads=1)
    assert left_in(copy.parent) == ["copy.gguf"]
    whole = quantize(single, tmp_path / "copies" / "whole.gguf", "q8_0", threads=1)
    assert greedy(copy, [3, 70], 8) == greedy(whole, [3, 70], 8)


@pytest.mark.parametrize("kind", ["q4_2", "iq1_s", "Q4_0", ""])
def test_unknown_kind(tiny_path: Path, tmp_path: Path, kind: str) -> None:
    for call in (
        lambda: quantize(tiny_path, tmp_path / "new" / "copy.gguf", kind, threads=1),
        lambda: planned_size(tiny_path, kind),
    ):
        with pytest.raises(UsageError, match="copy can be made") as caught:
            call()
        assert "q4_0, q4_k" in caught.value.hint
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("damage", "reason"), [("data", "incomplete"), ("not_gguf", "failed to load")])
def test_damaged_source(tmp_path: Path, damage: tiny.Damage, reason: str) -> None:
    source = tiny.write_damaged(tmp_path / "broken.gguf", damage)
    folder = tmp_path / "copies"
    with pytest.raises(LocalspecError, match=rf"q4_0 copy of broken\.gguf: .*{reason}") as caught:
        quantize(source, folder / "copy.gguf", "q4_0", threads=1)
    assert "damaged" in caught.value.hint
    assert left_in(folder) == []


def test_no_room_is_said_before_anything_is_written(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2**40, 2**40, 31 * 2**20))
    began: list[float] = []
    with pytest.raises(LocalspecError, match=r"needs 32 MiB, 31 MiB free in"):
        quantize(tiny_path, tmp_path / "copy.gguf", "q4_0", threads=1, on_progress=began.append)
    assert began == []
    assert left_in(tmp_path) == []


def test_full_disk(real_model: Path, tmp_path: Path) -> None:
    """A limit on file sizes stands for the disk that fills up half-way."""
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000_000, -1))" + MAKE
    arguments = [str(real_model), str(tmp_path / "copy.gguf"), "q4_0"]
    done = subprocess.run(
        [sys.executable, "-c", limited, *arguments], capture_output=True, text=True, check=False
    )
    assert "LocalspecError: cannot make a q4_0 copy" in done.stderr
    assert "writing it failed" in done.stderr
    assert float(done.stdout.split()[-1]) < 1
    assert left_in(tmp_path) == []


def test_cancelled(real_model: Path, tmp_path: Path) -> None:
    shares: list[float] = []
    with pytest.raises(Cancelled):
        quantize(
            real_model,
            tmp_path / "copy.gguf",
            "q3_k",
            threads=1,
            cancelled=lambda: bool(shares),
            on_progress=shares.append,
        )
    assert len(shares) == 1
    assert left_in(tmp_path) == []
    assert workers() == []


def test_an_error_in_the_callback_ends_the_work(real_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        quantize(real_model, tmp_path / "copy.gguf", "q3_k", threads=1, on_progress=lambda _: 1 // 0)
    assert workers() == []  # with `caught` still holding every frame
    assert left_in(tmp_path) == []
    assert caught.traceback


def test_cancelled_while_another_process_works(tiny_path: Path, tmp_path: Path) -> None:
    with module.FileLock(tmp_path / ".lock"), pytest.raises(Cancelled):
        quantize(tiny_path, tmp_path / "copy.gguf", "q4_0", threads=1, cancelled=iter([False, True]).__next__)


def test_two_at_once_make_one(tiny_path: Path, tmp_path: Path) -> None:
    shares: list[float] = []
    copy = tmp_path / "copy.gguf"
    threads = [
        threading.Thread(
            target=quantize,
            args=(tiny_path, copy, "q4_0"),
            kwargs={"threads": 1, "on_progress": shares.append},
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shares.count(1.0) == 1
    assert left_in(tmp_path) == ["copy.gguf"]


def test_ctrl_c(real_model: Path, tmp_path: Path) -> None:
    """The terminal sends it to the whole group; the copy's process leaves it to its parent to answer."""
    with make_in_child(real_model, tmp_path / "copy.gguf", "q3_k") as process:
        children = half_way(process)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=10)
    assert stderr.endswith("KeyboardInterrupt\n")
    assert len(children) == 1
    assert not children[0].is_running()
    assert left_in(tmp_path) == []


def test_kill_9_of_the_parent_leaves_nothing(real_model: Path, tmp_path: Path) -> None:
    with make_in_child(real_model, tmp_path / "copy.gguf", "q3_k") as process:
        children = half_way(process)
        process.kill()
    gone, alive = psutil.wait_procs(children, timeout=5)
    assert (len(gone), alive) == (1, [])
    assert left_in(tmp_path) == []


@pytest.mark.slow
def test_kill_9_of_both_leaves_no_copy_and_does_not_hinder_the_next(
    real_model: Path, tiny_path: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.gguf"
    with make_in_child(real_model, copy, "q3_k") as process:
        children = half_way(process)
        children[0].suspend()
        process.kill()
        children[0].kill()
    psutil.wait_procs(children, timeout=5)
    assert not copy.exists()  # at most its part, if the worker was stopped in time
    quantize(tiny_path, copy, "q8_0", threads=1)
    assert left_in(tmp_path) == ["copy.gguf"]
    assert copy.stat().st_size < tiny_path.stat().st_size


def test_kill_9_of_the_worker(real_model: Path, tmp_path: Path) -> None:
    def kill(_: float) -> None:
        with suppress(psutil.NoSuchProcess):  # dead already, when its last lines are read
            for worker in workers():
                worker.kill()

    with pytest.raises(LocalspecError, match="ended with status -9"):
        quantize(
            real_model,
            tmp_path / "copy.gguf",
            "q3_k",
            threads=1,
            on_progress=kill,
        )
    assert left_in(tmp_path) == []


def test_nothing_is_imported_from_the_current_folder(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ctypes", "localspec"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    assert planned_size(tiny_path, "q4_0").bytes > 0

"""The composition root: Settings become a loaded target, its draft sources and a Generator.

The one place that joins `llama`, `models`, `drafters` and `engine`. Importing it imports llama_cpp.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from localspec.config import Settings
from localspec.drafters import NAMED, ModelDrafter, model_source
from localspec.engine.generate import Generator
from localspec.engine.sampling import RandomDice, Sampler
from localspec.engine.types import Sampling
from localspec.errors import BadModelFile, UsageError
from localspec.llama.devices import default_threads
from localspec.llama.library import CancelFlag
from localspec.llama.model import LlamaModel, LoadOptions
from localspec.models.find import check_file, find_model
from localspec.models.pairs import check_vocabulary


@dataclass(frozen=True, slots=True)
class Loaded:
    """A generator that is ready to run, with the model behind it. Close it, or use it in a `with`."""

    settings: Settings
    seed: int
    target: LlamaModel
    generator: Generator
    cancel: CancelFlag
    _stack: ExitStack

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Loaded:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_target(
    settings: Settings,
    *,
    cancel: CancelFlag,
    note: Callable[[str], None] = lambda _: None,
    on_load: Callable[[float], None] = lambda _: None,
) -> Loaded:
    """Load the target and what may guess for it. `note` receives one-line remarks for the user."""
    draft_names = _draft_names(settings.draft)
    path = find_model(settings.model)
    if settings.model is None:
        note(f"model: {path.stem} (packaged; choose another with -m)")
    options = _load_options(settings)
    with ExitStack() as stack:
        target = stack.enter_context(
            LlamaModel(path, options, cancel=cancel, on_notice=note, on_load=on_load)
        )
        sampling = _sampling(settings)
        sampler, dice = Sampler(sampling), RandomDice(sampling.seed)
        sources = []
        for name in draft_names if target.can_rewind else []:
            if name in NAMED:
                sources.append(NAMED[name](settings.draft_len))
                continue
            draft = stack.enter_context(_open_draft(name, target, settings, cancel, note))
            drafter = ModelDrafter(
                name="draft",
                model=draft,
                sampler=sampler,
                n_vocab=target.n_vocab,
                is_end=target.vocab.is_end,
                dice=dice if settings.accept == "rejection" and sampling.temperature > 0 else None,
            )
            sources.append(model_source(drafter, settings.draft_len))
        if draft_names and not target.can_rewind:
            note("this model's recurrent state cannot be taken back, so nothing is guessed for it")
        generator = Generator(target, sampler, target.vocab.is_end, tuple(sources), dice)
        return Loaded(settings, sampling.seed, target, generator, cancel, stack.pop_all())


def _sampling(settings: Settings) -> Sampling:
    return Sampling(
        temperature=settings.temp,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        repeat_penalty=settings.repeat_penalty,
        presence_penalty=settings.presence_penalty,
        seed=secrets.randbits(32) if settings.seed is None else settings.seed,
    )


def _load_options(settings: Settings) -> LoadOptions:
    return LoadOptions(
        n_ctx=settings.ctx or 0,
        threads=settings.threads or default_threads(),
        gpu_layers=settings.gpu_layers,
        kv_type=settings.kv_type,
        flash_attn=settings.flash_attn,
    )


def _open_draft(
    name: str, target: LlamaModel, settings: Settings, cancel: CancelFlag, note: Callable[[str], None]
) -> LlamaModel:
    """The draft model, with the target's context size; refused if it could not guess for this target."""
    options = LoadOptions(
        n_ctx=target.n_ctx,
        threads=target.options.threads,
        gpu_layers=settings.gpu_layers,
        flash_attn=settings.flash_attn,
    )
    draft = LlamaModel(check_file(Path(os.path.expanduser(name))), options, cancel=cancel, on_notice=note)
    try:
        check_vocabulary(target.vocab, draft.vocab)
        if not draft.can_rewind:
            raise BadModelFile(
                f"{draft.path.name} is recurrent: its state cannot be taken back after a wrong guess",
                "take an attention-only model as draft, or --draft ngram",
            )
    except BaseException:
        draft.close()
        raise
    return draft


def _draft_names(text: str) -> list[str]:
    """The sources `--draft` allows, in order; `none` alone means none."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if text.strip().isdigit():
        raise UsageError(f"--draft {text} names no source", f"did you mean --draft-len {text.strip()}?")
    if not names or ("none" in names and len(names) > 1) or len(set(names)) < len(names):
        raise UsageError(
            f"--draft {text!r}", "give none, or a list of different sources such as ngram,draft.gguf"
        )
    if names == ["none"]:
        return []
    files = [name for name in names if name not in NAMED]
    if len(files) > 1:
        raise UsageError(f"--draft names {len(files)} models", "one draft model at most")
    for name in files:
        if not os.path.exists(os.path.expanduser(name)):
            raise UsageError(
                f"--draft: {name!r} is neither a source nor a file",
                f"give none, {', '.join(NAMED)} or the path of a GGUF",
            )
    return names

"""`localspec verify`: on the user's model and settings, does guessing change the text?

Joins a loaded model, prompts and `verify.run`. The speculative text is made by two policies in turns: fixed
lengths, which guess whether it pays or not, and the scheduler that chats use.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from localspec.app import Loaded, open_target
from localspec.bench.certificate import DEFECT, About, Certificate
from localspec.bench.verify import CONTROL_WIDTH, run
from localspec.bench.workloads import FAMILIES, Prompt, built_in, read_prompts
from localspec.chat.opening import find_draft, find_model, hearing
from localspec.chat.prompt import ChatTemplate, Message
from localspec.config import Settings
from localspec.drafters import NAMED
from localspec.engine.generate import Fixed, Generator
from localspec.engine.sampling import RandomDice, Sampler
from localspec.engine.types import Attempt, Cancelled, Policy, Sampling, Source, Step
from localspec.errors import ExitStatus, UsageError
from localspec.llama import devices
from localspec.llama.library import LOG, CancelFlag
from localspec.policy import draft_names
from localspec.ui.interrupt import on_interrupt
from localspec.ui.terminal import Terminal

FIXED_FREE, FIXED_DRAFT = 7, 4
"""Guesses of the fixed policy: of the sources that cost nothing, and of a draft model."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to replay: each prompt at each temperature, `tokens` tokens of text. `prompts`: a file, or None
    for one prompt of each built-in family."""

    temps: tuple[float, ...] = (0.0, 0.8)
    tokens: int = 200
    prompts: Path | None = None


@dataclass(slots=True)
class InTurns:
    """Policies that decide about one pass each in turn; each learns from its own."""

    policies: Sequence[Policy]
    _turn: int = field(default=-1, init=False)

    def begin(self, context: Sequence[int]) -> None:
        for policy in self.policies:
            policy.begin(context)

    def draft(self, context: Sequence[int], room: int) -> Attempt:
        self._turn = (self._turn + 1) % len(self.policies)
        return self.policies[self._turn].draft(context, room)

    def plain(self, n_cached: int) -> float:
        return self.policies[-1].plain(n_cached)

    def learn(self, step: Step, n_cached: int) -> None:
        self.policies[self._turn].learn(step, n_cached)


def verify(settings: Settings, terminal: Terminal, wanted: Wanted, *, as_json: bool) -> ExitStatus:
    """Print the certificate of the model that `settings` name; ERROR when it finds a defect."""
    if not draft_names(settings.draft):
        raise UsageError("--draft none guesses nothing, so there is nothing to verify", "leave it out")
    prompts = read_prompts(wanted.prompts) if wanted.prompts else _one_of_each()
    cancel = CancelFlag()
    try:
        with on_interrupt(cancel.set), _load(settings, terminal, cancel, max(wanted.temps)) as loaded:
            found = certify(loaded, prompts, wanted, terminal)
    except Cancelled:
        return ExitStatus.INTERRUPTED
    finally:
        terminal.progress("")
    text = json.dumps(found.as_dict(), indent=2) if as_json else "\n".join(found.lines())
    terminal.write(text + "\n")
    return ExitStatus.ERROR if found.verdict == DEFECT else ExitStatus.OK


def certify(loaded: Loaded, prompts: Sequence[Prompt], wanted: Wanted, terminal: Terminal) -> Certificate:
    """Replay `prompts` with what may guess for `loaded`. Raises UsageError when none fits the context."""
    settings, guessers, target = loaded.settings, loaded.guessers, loaded.target
    policies: dict[Sampling, Policy] = {}
    rejection = settings.accept == "rejection" and guessers.draft is not None

    def generator(sampler: Sampler, speculative: bool) -> Generator:
        sampling = sampler.sampling
        dice = RandomDice(sampling.seed)
        policy: Policy = Fixed()
        if speculative:
            if sampling not in policies:
                policies[sampling] = _policy(loaded, sampler, dice)
            policy = policies[sampling]
        return Generator(target, sampler, target.vocab.is_end, policy, dice)

    def progress(text: str) -> None:
        terminal.progress(text) if terminal.live else terminal.note(text)

    base = loaded.generator.sampler.sampling
    seed = settings.seed or 0
    return run(
        target,
        generator,
        _encode(loaded, prompts, wanted.tokens, terminal.note),
        [replace(base, temperature=t, seed=seed) for t in wanted.temps],
        wanted.tokens,
        _about(loaded, wanted, seed),
        make_drafter=(lambda s: guessers.drafter(settings, s, RandomDice(seed))) if rejection else None,
        widths=guessers.widths if settings.exact else (),
        on_progress=progress,
    )


def _policy(loaded: Loaded, sampler: Sampler, dice: RandomDice) -> Policy:
    guessers = loaded.guessers
    if not guessers.names:
        return Fixed()
    settings = replace(loaded.settings, temp=sampler.sampling.temperature)
    length = settings.draft_len
    sources = [Source(NAMED[name](), length or FIXED_FREE) for name in guessers.free]
    if guessers.draft:
        sources.append(Source(guessers.drafter(settings, sampler, dice), length or FIXED_DRAFT))
    hybrid = len(sources) == 2 and guessers.draft is not None and settings.accept == "coupled"
    fixed = guessers.within(Fixed(sources, extend=hybrid))
    return fixed if length else InTurns([fixed, guessers.policy(settings, sampler, dice)])


def _one_of_each() -> list[Prompt]:
    return [built_in(family)[0] for family in FAMILIES]


def _encode(
    loaded: Loaded, prompts: Sequence[Prompt], max_tokens: int, note: Callable[[str], None]
) -> list[list[int]]:
    """The first turn of each prompt as tokens, those left out that would fill the context."""
    target = loaded.target
    template = ChatTemplate(target.chat_template, target.vocab, note)
    system = [Message("system", loaded.settings.system)] if loaded.settings.system else []
    texts = [template.encode([*system, Message("user", prompt.turns[0])]) for prompt in prompts]
    fitting = [text for text in texts if len(text) + max_tokens + CONTROL_WIDTH <= target.n_ctx]
    if not fitting:
        need = min(map(len, texts)) + max_tokens + CONTROL_WIDTH
        raise UsageError(
            f"no prompt leaves room for {max_tokens} tokens in a context of {target.n_ctx}",
            f"give --ctx {need} or more, or fewer --tokens",
        )
    if len(fitting) < len(texts):
        note(f"{len(texts) - len(fitting)} of {len(texts)} prompts do not fit the context and are left out")
    return fitting


def _load(settings: Settings, terminal: Terminal, cancel: CancelFlag, temp: float) -> Loaded:
    LOG.echo = terminal.verbosity >= 2
    path, draft = find_model(settings, terminal), find_draft(settings, terminal)
    return open_target(replace(settings, temp=temp), path, draft, cancel=cancel, hear=hearing(terminal))


def _about(loaded: Loaded, wanted: Wanted, seed: int) -> About:
    settings, guessers, target = loaded.settings, loaded.guessers, loaded.target
    machine = {
        "system": f"{platform.system()} {platform.machine()}",
        "devices": "; ".join(device.description or device.name for device in devices.devices()),
    }
    told = {
        "temperatures": " ".join(f"{t:g}" for t in wanted.temps),
        "seed": seed,
        "threads": target.options.threads,
        "kv_type": target.options.kv_type,
        "flash_attn": target.options.flash_attn,
        "context": target.n_ctx,
        "draft": "+".join([*guessers.free, *([guessers.draft.name] if guessers.draft else [])]) or "none",
        "accept": settings.accept,
        "exact": "yes" if settings.exact else "no",
    }
    return About(str(target.path.name), loaded.plan.target.fingerprint, machine, told)

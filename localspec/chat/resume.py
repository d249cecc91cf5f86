"""The caches of a session, kept when it ends and taken over when it goes on: its text need not be read again.

Joins state.py (bytes on disk) with the models that are loaded. Nothing here can fail a chat.
"""

from __future__ import annotations

from localspec.app import Loaded
from localspec.chat import state, store
from localspec.chat.state import Cache
from localspec.llama.model import LlamaModel


def keep(session: str, loaded: Loaded) -> str:
    """Keep what the models have read. "", or why that was not done."""
    caches = {"target": Cache(loaded.target, loaded.plan.target.fingerprint)}
    draft, planned = loaded.guessers.loaded_draft, loaded.guessers.draft
    if draft and planned:
        caches["draft"] = Cache(draft, planned.facts.fingerprint)
    return state.save(state.folder(), session, caches, loaded.guessers.conditions, known=store.names())


def take_over(session: str, loaded: Loaded) -> str:
    """Give the target its cache back, and the draft model when it is loaded. "", or why it reads again."""
    guessers, draft = loaded.guessers, loaded.guessers.draft

    def on_draft(model: LlamaModel) -> None:
        if draft:
            kept = {"draft": Cache(model, draft.facts.fingerprint)}
            state.restore(state.folder(), session, kept, guessers.conditions)

    if guessers.loaded_draft:
        on_draft(guessers.loaded_draft)
    elif draft:
        bound = draft.facts.fingerprint, guessers.conditions
        guessers.draft_tokens = state.tokens_kept(state.folder(), session, "draft", *bound)
        guessers.on_draft = on_draft
    target = {"target": Cache(loaded.target, loaded.plan.target.fingerprint)}
    return state.restore(state.folder(), session, target, guessers.conditions)

"""Every error a user can meet.

    LocalspecError            exit 1   anything that went wrong, with a hint
    |-- UsageError            exit 2   options, empty or invalid input, context too small
    |   `-- VocabularyError   exit 2   a draft of another vocabulary
    |-- BadModelFile          exit 1   unreadable, damaged, or a kind of model that cannot chat
    |-- ModelNotFound         exit 3   no such model on this machine
    |-- DownloadError         exit 3   the Hub cannot be reached, refuses, or sends something else
    |-- NoFit                 exit 4   the model does not fit this machine's memory
    |-- NotApplied            exit 5   an edit that was not made: declined, or it cannot be
    `-- FileChanged           exit 6   the file to edit or undo is no longer what was read or written

Raised where the cause is known, printed once, in `cli.py`: the message says what and why, the hint
says what to do next. Exit codes are those of `ExitStatus`.
"""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """Process exit codes, the same for every command."""

    OK = 0
    ERROR = 1
    USAGE = 2
    MODEL_MISSING = 3
    NO_FIT = 4
    NOT_APPLIED = 5
    FILE_CHANGED = 6
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class LocalspecError(Exception):
    """Base of every error: `message` says what and why, `hint` the next step ("" if there is none)."""

    exit_status = ExitStatus.ERROR

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def reason(error: Exception) -> str:
    """What went wrong, in the system's words without number and name, for messages that name the file."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class UsageError(LocalspecError):
    exit_status = ExitStatus.USAGE


class VocabularyError(UsageError):
    pass


class BadModelFile(LocalspecError):
    pass


class ModelNotFound(LocalspecError):
    exit_status = ExitStatus.MODEL_MISSING


class DownloadError(LocalspecError):
    exit_status = ExitStatus.MODEL_MISSING


class NoFit(LocalspecError):
    exit_status = ExitStatus.NO_FIT


class NotApplied(LocalspecError):
    exit_status = ExitStatus.NOT_APPLIED


class FileChanged(LocalspecError):
    exit_status = ExitStatus.FILE_CHANGED

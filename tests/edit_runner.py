"""`localspec edit` as a program of its own: the options as JSON in the first argument.

    python tests/edit_runner.py '{"files": ["a.py"], "instruction": "..."}'

"settings" holds Settings by name. Errors end as they do in every command.
"""

from __future__ import annotations

import json
import sys

from localspec import config
from localspec.edit.command import edit
from localspec.edit.inputs import Options
from localspec.errors import ExitStatus, LocalspecError
from localspec.ui.terminal import Terminal, silence


def main(given: dict[str, object]) -> int:
    terminal = Terminal.standard("auto")
    wanted = given.pop("settings", {})
    assert isinstance(wanted, dict)
    try:
        settings = config.load({"temp": 0.0, "threads": 1, **wanted})
        lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
        return edit(Options(**{**given, **lists}), settings, terminal)  # type: ignore[arg-type]
    except LocalspecError as error:
        terminal.complain(error.message, error.hint)
        return error.exit_status
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    except BrokenPipeError:
        silence(terminal.out)
        return ExitStatus.BROKEN_PIPE
    except OSError as error:
        terminal.complain(f"cannot go on: {error}")
        silence(terminal.out)
        return ExitStatus.ERROR


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))

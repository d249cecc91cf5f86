"""Ctrl-C while C code runs: a watcher thread sees the signal at once and raises a flag.

Python's own handler waits until llama.cpp returns, which may take seconds. The C-level handler writes a
byte to a socket instead, the watcher reads it, and llama.cpp asks the flag at every graph node.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENDING = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
"""Signals for which a running pass ends. All but Ctrl-C have handlers of their own, or end the process."""


@contextmanager
def on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` from another thread at the first Ctrl-C in the block; a second raises KeyboardInterrupt.

    Also at SIGTERM and SIGHUP. What their handlers raise is lost in a callback of C code, so that they are
    called again at the end of the block.
    In a thread other than the main one signals do not arrive and this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read, write = socket.socketpair()
    write.setblocking(False)
    presses = 0
    seen: set[int] = set()

    def handle(*_: object) -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            raise KeyboardInterrupt

    def watch() -> None:
        while signals := read.recv(64):
            seen.update(_ENDING.intersection(signals))
            if seen:
                stop()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    old_fd = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
    old_handler = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old_handler)
        signal.set_wakeup_fd(old_fd)
        write.close()
        watcher.join()
        read.close()
        for number in seen - {signal.SIGINT}:
            signal.raise_signal(number)

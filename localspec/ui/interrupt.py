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

ENDING = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))

"""Signals by which a program is told to end."""


@contextmanager
def on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` from another thread at the first Ctrl-C in the block; a second raises KeyboardInterrupt.

    The same at SIGTERM and SIGHUP where they have handlers, which are called at the end of the block: what
    they raise would be lost in a callback of C code. In a thread other than the main one signals do not
    arrive and this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read, write = socket.socketpair()
    write.setblocking(False)
    seen: list[int] = []

    def handle(number: int, _: object) -> None:
        seen.append(number)
        if len(seen) > 1:
            raise KeyboardInterrupt

    def watch() -> None:
        while signals := read.recv(64):
            if not before.keys().isdisjoint(signals):
                stop()

    before = {signal.SIGINT: signal.getsignal(signal.SIGINT)}
    before |= {number: found for number in ENDING if callable(found := signal.getsignal(number))}
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    old_fd = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_fd)
        write.close()
        watcher.join()
        read.close()
        for ending in {*seen} - {signal.SIGINT}:
            signal.raise_signal(ending)

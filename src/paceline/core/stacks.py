"""Stacks of threads that compile grammars, whatever `ulimit -s` gives to a thread: llguidance recurses."""

import sys
import threading

THREAD_STACK_BYTES = 8 << 20
"""Stack of each of them."""
TRIAL_STACK_BYTES = 2 << 20
"""Stack on which a grammar is tried, at most."""
_LOCK = threading.Lock()


def start_roomy(thread: threading.Thread) -> None:
    """Start a thread with THREAD_STACK_BYTES of stack."""
    with _LOCK:
        usual = threading.stack_size(THREAD_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)


def trial_stack() -> int:
    """Bytes of stack for a trial: a quarter of what a program's first thread has, which may compile as well."""
    if sys.platform == "win32":
        return TRIAL_STACK_BYTES
    import resource

    soft = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return TRIAL_STACK_BYTES if soft == resource.RLIM_INFINITY else min(TRIAL_STACK_BYTES, soft // 4)

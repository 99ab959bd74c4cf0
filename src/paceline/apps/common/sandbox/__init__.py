"""A command in a box: limits, no network, no file outside, and a list of what it tried.

    outcome = await run(Job(("python3", "main.py"), {"main.py": source}, limits=Limits(wall_s=5)))
    outcome.status      # "ok", "failed" (exit code), "crashed" (signal), "stopped" (by a limit, named in outcome.limit)
    outcome.attempts    # (Attempt("network", "AF_INET"), Attempt("write", "/etc/passwd"), ...)

What holds the command (Linux 5.14 or newer; x86-64 and arm64), all of it set up without other programs:

    namespaces   its own mounts (a fresh root with /usr and little more, read-only), processes, IPC, no network
    identity     as root: a user id of its own, without rights; else a user namespace of the caller's id
    rlimits      address space, processor seconds, processes, file size, open files, no core files
    seccomp      no sockets but Unix, io_uring, further namespaces, ptrace, mounts, keys, BPF; it reports what was tried
    tmpfs        /box (its working directory) and /tmp, of a limited size; copied out when the command has ended
    supervisor   resident memory and tasks of all its processes together, wall clock, output; the end of the process
                 namespace takes everything that is left with it

Where namespaces are forbidden, `run` raises SandboxError and nothing is run: there is no weaker way in its place.
"""

from .box import AppLimits, AppOutcome, Attempt, Job, SandboxError, run, unavailable

__all__ = ["AppLimits", "AppOutcome", "Attempt", "Job", "SandboxError", "run", "unavailable"]

"""What a process asks of the system it runs on."""

from contextlib import suppress

FILES = 65536


def allow_many_files() -> None:
    """Raise the soft limit on open files as far as the system lets us: each connection is one. Where there is no such
    limit (Windows), nothing."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))

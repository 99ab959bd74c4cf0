"""Ray (extra `paceline[cluster]`), for processes that it starts and that are called by name."""

import logging
import os
from contextlib import suppress
from typing import Any

from paceline.core.errors import InputError

_users = 0
"""How many use the Ray that was started here."""
_ours = False


def ray_for(what: str) -> Any:
    """Ray, or an InputError that says how to get it; `what` needs it."""
    try:
        import ray
    except ImportError as error:
        raise InputError(f"{what} needs Ray: pip install 'paceline[cluster]'.") from error
    return ray


def quiet_ray() -> None:
    """Environment of processes that Ray starts, unless the user has set it."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 leaves them little where anything else runs


def begin_ray(what: str) -> Any:
    """Ray, started on this machine unless this process has one; `end_ray` ends it with its last user."""
    global _users, _ours
    ray = ray_for(what)
    quiet_ray()
    if not ray.is_initialized():
        logging.getLogger("ray").setLevel(logging.ERROR)  # it says that a server's engine is made in another thread
        try:
            ray.init(address="local", include_dashboard=False, log_to_driver=False, configure_logging=False)
        except (OSError, OverflowError, ValueError, RuntimeError) as error:
            raise InputError(f"Ray cannot start here: {str(error).splitlines()[0].rstrip('.')}.") from None
        _ours = True
    _users += 1
    return ray


def end_ray(ray: Any) -> None:
    """Let go of it."""
    global _users, _ours
    _users -= 1
    if _ours and not _users:
        _ours = False
        with suppress(Exception):
            ray.shutdown()

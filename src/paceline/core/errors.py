"""Errors that a user can act on: what was wrong, what was expected, what to do."""

from errno import ENOMEM

MAX_MESSAGE_CHARS = 2000
"""Longest message: what a file or a client wrote may be in it, and goes to logs and to other clients' answers."""
CURSOR = "\r\v\f\x1c\x1d\x1e\x1f\x85\u2028\u2029"
"""White space that moves the cursor, other than tabs and line ends."""


class PacelineError(Exception):
    """Base of every error that bad input or an impossible request can cause. The message is one sentence; a longer one
    is shortened in its middle. Characters that move a terminal's cursor or hide text are written as escapes."""

    def __str__(self) -> str:
        text = shortened(super().__str__())
        if not text.isprintable():
            text = shortened(
                "".join(
                    it if it.isprintable() or (it.isspace() and it not in CURSOR) else ascii(it)[1:-1] for it in text
                )
            )
        return text


def shortened(text: str) -> str:
    """A text of at most MAX_MESSAGE_CHARS: of a longer one the beginning and the end."""
    half = MAX_MESSAGE_CHARS // 2
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:half]} ... {text[5 - half :]}"


class InputError(PacelineError, ValueError):
    """A prompt, parameter or file is not usable as given."""


class CheckpointError(PacelineError):
    """A checkpoint is missing, damaged or of a kind that this version does not serve. The lines of a library's
    message are joined."""

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())


class RefusalError(PacelineError):
    """Two features that cannot be served together exactly; the message names the pair (D6)."""


class BusyError(PacelineError):
    """This machine has too much to do; the same request can be served later."""


class CapacityError(PacelineError):
    """A byte or row budget is too small; the message names the smallest that would do."""


class DiskError(PacelineError):
    """A disk has no room, refuses, or gave back something else than was written."""


class LostError(PacelineError):
    """Another process that this one cannot do without has ended or does not answer; what it held is gone."""


class IntegrityError(AssertionError):
    """The cache's book-keeping contradicts itself. Always a defect of the engine, never of its input."""


def memory_ended(error: BaseException) -> bool:
    """Tell whether an error means that memory ran out: the machine's, or what this process may use of it. Each library
    words it differently."""
    if isinstance(error, PacelineError):
        return False
    return isinstance(error, MemoryError) or getattr(error, "errno", None) == ENOMEM or "allocate memory" in str(error)


def no_room_for(what: object) -> CapacityError:
    """Error for a file that memory has no room for."""
    return CapacityError(
        f"{what} does not fit into the memory that is free, or that this process may use (ulimit -v); free some, or "
        "use a smaller model."
    )

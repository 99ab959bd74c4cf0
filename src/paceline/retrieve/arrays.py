"""Arrays of a file that `numpy.savez` wrote: within the file's own bytes, whatever its headers say."""

import zipfile
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray


def arrays(file: IO[bytes], names: Sequence[str]) -> list[NDArray[Any]]:
    """The arrays of these names. Raises ValueError for a file that has not all of them, in one sentence."""
    try:
        with zipfile.ZipFile(file) as packed:
            if any(part.compress_type != zipfile.ZIP_STORED for part in packed.infolist()):
                raise ValueError("it is compressed, and could unpack to more than memory has")
        file.seek(0)
        with np.load(file, allow_pickle=False) as made:
            return [made[name] for name in names]
    except Exception as error:  # a damaged file raises what it likes
        raise ValueError(" ".join(f"{type(error).__name__}: {error}".split())[:300]) from None

"""One stage of `bench/gpu.sh`: `python -m bench.gpu STAGE`. It writes STAGE.json to the folder that OUT names."""

import sys

from bench.gpu.stages import STAGES

if __name__ == "__main__":
    STAGES[sys.argv[1]]()

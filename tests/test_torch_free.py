"""What decides imports neither torch nor numpy: a simulator or a cluster's controller runs without them."""

import subprocess
import sys

ROOMS = ("core", "cache", "plan", "schedule", "simulate")
BLOCKED = """
import sys, importlib, pkgutil
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "numpy", "transformers"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
for room in sys.argv[1:]:
    package = importlib.import_module(f"paceline.{room}")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"paceline.{room}.{module.name}")
print("ok")
"""


def test_deciding_rooms_import_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED, *ROOMS], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "ok", done.stderr


def test_torch_is_really_blocked() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED, "sample"], capture_output=True, text=True, check=False)
    assert "torch is blocked" in done.stderr

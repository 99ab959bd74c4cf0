"""Planners, queues, simulator and job shops import neither torch nor OR-tools."""

import subprocess
import sys

CODE = """
import sys, importlib, pkgutil
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "ortools", "ray", "transformers"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
package = importlib.import_module("paceline.cluster.workflow")
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
print("ok")
"""


def test_deciding_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "ok", done.stderr

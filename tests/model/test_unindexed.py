"""transformers without its index: submodules as ever, names as ever once somebody asks."""

import subprocess
import sys

PROGRAM = """
import sys
from paceline.model.unindexed import UnindexedPackage, submodules_alone
submodules_alone()
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template
stub = sys.modules["transformers"]
assert isinstance(stub, UnindexedPackage) and isinstance(sys.modules["transformers.models"], UnindexedPackage)
assert "transformers.models.auto" not in sys.modules, "nothing ran the packages' own code"
assert not hasattr(stub, "__wrapped__") and isinstance(sys.modules["transformers"], UnindexedPackage)
try:
    from transformers import NoSuchName
except ImportError as error:
    assert "NoSuchName" in str(error)
else:
    raise AssertionError("a name that there is not")
assert not isinstance(sys.modules["transformers"], UnindexedPackage)
import transformers
from transformers import AutoTokenizer, LlamaConfig
from transformers.models.auto import AutoConfig
assert transformers.Qwen2Tokenizer is Qwen2Tokenizer is stub.Qwen2Tokenizer, "one class, whichever way it came"
assert "LlamaConfig" in dir(stub) and LlamaConfig().model_type == "llama"
submodules_alone()
assert transformers is sys.modules["transformers"]
print("done")
"""


def test_submodules_alone() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "done", done.stderr[-2000:]

"""Run llama.cpp's converter on a checkpoint whose tokenizer it does not know.

    python to_gguf.py LLAMA_CPP_DIR [arguments of convert_hf_to_gguf.py]

The converter refuses a BPE whose hash it has not seen. For those the GPT-2 pre-tokenizer is named, which is right for
ByteLevel(use_regex=True); the benchmark sends ids, so that it plays no part in the figures.
"""

import runpy
import sys

if __name__ == "__main__":
    root = sys.argv[1]
    sys.path[:0] = [root, f"{root}/gguf-py"]
    sys.argv = ["convert_hf_to_gguf.py", *sys.argv[2:]]
    from conversion.base import TextModel

    known = TextModel.get_vocab_base_pre

    def name(self: TextModel, tokenizer: object) -> str:
        try:
            return known(self, tokenizer)
        except NotImplementedError:
            return "gpt-2"

    TextModel.get_vocab_base_pre = name
    runpy.run_path(f"{root}/convert_hf_to_gguf.py", run_name="__main__")

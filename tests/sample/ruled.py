"""Parameters that native runs apply as rules, apart from cases with grammars, which no sanitizer lets compile."""

from typing import Any

SOME_RULES: dict[str, Any] = {
    "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2, "logit_bias": {5: 0.7},
    "bad_words": [[4], [3, 6]], "min_tokens": 5,
}  # fmt: skip

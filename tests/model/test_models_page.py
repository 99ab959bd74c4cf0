"""The page of models is the tables' own."""

from tests.model.models_page import PAGE, page


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "regenerate it: python -m tests.model.models_page > docs/models.md"
    )

"""Settings of drafters, as a user gives them: swift.ratio=0.3."""

from collections.abc import Iterable

from paceline.core.errors import InputError
from paceline.draft import DRAFTERS


def settings_of(given: Iterable[str]) -> dict[str, float | str]:
    """{DRAFTER.NAME: value} of texts DRAFTER.NAME=VALUE. Raises InputError for a setting that no drafter has."""
    found = dict[str, float | str]()
    for each in given:
        key, equals, text = each.partition("=")
        drafter, dot, name = key.strip().partition(".")
        if not equals or not dot:
            raise InputError(f"drafter_settings has {each!r}, but a setting is DRAFTER.NAME=VALUE: swift.ratio=0.3.")
        known = {setting.name: setting for setting in DRAFTERS.card(drafter).settings}
        if name not in known:
            has = f"it has {', '.join(sorted(known))}" if known else "it has none"
            raise InputError(f"Drafter {drafter!r} has no setting {name!r}; {has}.")
        value = known[name].read(text.strip())
        if value is None:
            raise InputError(f"{key.strip()} is {text.strip()!r}, but it must be {known[name].expected}.")
        found[f"{drafter}.{name}"] = value
    return found

"""All that a diagnosis says, by language and key. Rules know keys and facts; sentences stand in the tables."""

from __future__ import annotations

from ..runs import in_chinese
from .chinese import TEXTS as CHINESE
from .english import TEXTS as ENGLISH

LANGUAGES: dict[str, dict[str, str]] = {"en": ENGLISH, "zh": CHINESE}


def say(language: str, key: str, **facts: object) -> str:
    """The text of that key with its facts put in.

    >>> say("en", "others", count=2)
    ' Other sites like it: 2.'
    """
    return LANGUAGES[language][key].format(**facts)


def rule_in(language: str, rule: str) -> str:
    """How a rule is called in a text of that language."""
    return in_chinese(rule) if language == "zh" else rule

"""Texts from users, without hidden characters that change how the surrounding text is read."""

import os
import re
from pathlib import Path

# Unicode's Bidi_Control (UAX 9, table 4), which reorders the surrounding text ("Trojan Source",
# CVE-2021-42574); C1 controls, which some terminals execute; lone surrogates, which UTF-8 cannot encode.
_HIDDEN = re.compile("[\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Return a text with its hidden characters spelled out, such as `⟨U+202E⟩`."""
    return _HIDDEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def escaped(json_text: str) -> str:
    """Return JSON of the same value with its hidden characters escaped, such as `\\u202e`."""
    return _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", json_text)


def from_here(text: str) -> str:
    """Return a text with paths below the current folder made relative."""
    return text.replace(f"{Path.cwd()}{os.sep}", "")

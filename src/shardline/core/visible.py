"""Text that a user gave, without characters that change how the text around them is read."""

import os
import re
from pathlib import Path

# Unicode's Bidi_Control (UAX 9, table 4), which reorders what stands beside it: "Trojan Source",
# CVE-2021-42574; C1 controls, which some terminals obey; lone surrogates, which UTF-8 cannot hold.
_HIDDEN = re.compile("[\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Return a text whose hidden characters are spelled, such as `⟨U+202E⟩`."""
    return _HIDDEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def escaped(json_text: str) -> str:
    """Return JSON of the same value whose hidden characters are escapes, such as `\\u202e`."""
    return _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", json_text)


def from_here(text: str) -> str:
    """Return a text in which paths of files in the present folder begin there, and not at the root."""
    return text.replace(f"{Path.cwd()}{os.sep}", "")

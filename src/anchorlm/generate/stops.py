"""Turn token ids into text as they come: no broken character, and no half of a stop string, is ever shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BROKEN = "\ufffd"  # what a decoder gives for the first bytes of an unfinished character


class TextStream:
    """Collects tokens; `text` is everything so far, `shown` how much of it has been handed to `on_text`."""

    def __init__(self, tokenizer: Any, stops: tuple[str, ...] = (), on_text: Callable[[str], None] | None = None):
        self.tokenizer, self.stops, self.on_text = tokenizer, stops, on_text
        self.ids: list[int] = []
        self.text, self.shown, self.finish = "", 0, ""

    @property
    def count(self) -> int:
        return len(self.ids)

    def add(self, token: int) -> bool:
        """Take one token; True when a stop string is complete, which is then cut off the text."""
        self.ids.append(token)
        self.text = self.tokenizer.decode(self.ids, skip_special_tokens=True)
        found = [position for position in (self.text.find(stop) for stop in self.stops) if position >= 0]
        if found:
            self.text = self.text[: min(found)]
            self.close("stop")
            return True
        self._show(self._certain())
        return False

    def close(self, finish: str = "") -> None:
        """Nothing follows: show what was held back."""
        self.finish = self.finish or finish
        self._show(len(self.text))

    def _certain(self) -> int:
        """Length of the part that later tokens cannot change or cut."""
        end = len(self.text.rstrip(BROKEN))
        for stop in self.stops:
            for size in range(min(len(stop) - 1, end), 0, -1):
                if self.text[:end].endswith(stop[:size]):
                    end = min(end, len(self.text[:end]) - size)
                    break
        return end

    def _show(self, end: int) -> None:
        if end > self.shown:
            if self.on_text:
                self.on_text(self.text[self.shown : end])
            self.shown = end

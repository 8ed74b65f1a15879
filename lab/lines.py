"""Lines for a terminal out of what a rank writes, progress bars included."""

LINE_LIMIT = 1 << 16
"""Characters of a line after which it is shown as several."""
CURSOR_UP = "\x1b[A"


class Lines:
    """Takes the chunks of one stream and gives its lines; holds no more than `LINE_LIMIT`.

    A line that was written over and over (carriage returns, as tqdm does) counts once, as it was
    last. While it is not ended, `update` has its current state.
    """

    def __init__(self) -> None:
        self._pending = ""
        self._went_up = False  # the pending line began with a step up
        self._held = False  # `update` is all there is of lines that went up
        self.update: str | None = None
        """The state of a line that is being written over."""

    def feed(self, text: str) -> list[str]:
        """The lines that are whole now."""
        *whole, self._pending = (self._pending + text).split("\n")
        lines = []
        for line in whole:
            shown = _final(line).replace(CURSOR_UP, "")
            if CURSOR_UP in line or self._went_up:  # bars one above the other, written over
                self.update, self._held = shown or self.update, True
            else:
                if self._held and self.update:
                    lines.append(self.update)
                lines.append(shown)
                self.update, self._held = None, False
            self._went_up = False
        if "\r" in self._pending[:-1]:  # \r at the end may be half of \r\n
            # What was written over is gone for good: only the last two states are kept.
            self._went_up = self._went_up or CURSOR_UP in self._pending
            before, _, last = self._pending.rpartition("\r")
            self._pending = f"{_final(before)}\r{last}"
            self.update = _final(self._pending).replace(CURSOR_UP, "") or self.update
        if len(self._pending) > LINE_LIMIT:
            lines.append(_final(self._pending))
            self._pending = ""
        return lines

    def end(self) -> list[str]:
        """What there is without a line break, when nothing comes any more."""
        rest = _final(self._pending).replace(CURSOR_UP, "") or self.update
        self._pending, self.update, self._held = "", None, False
        return [rest] if rest else []


def _final(line: str) -> str:
    """What stays of a line after its carriage returns."""
    if "\r" not in line:
        return line
    states = [state for state in line.split("\r") if state.strip()]
    return states[-1] if states else ""

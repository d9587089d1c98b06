"""Reasoning marked up inside content: splits a text stream into reasoning and answer; pure.

Theory of operation. Text comes in pieces that may end inside a tag, so a tail that could be the
beginning of one is held back until the next piece decides. A tag switches the channel; blanks
right after a tag belong to the mark-up, so the answer begins with its first visible character.
Models whose template already opens the thinking block send only the closing tag: then all text
before it was reasoning, which the caller learns from `reclassified`.
"""

from __future__ import annotations

import re

from probes.endpoint import Inline

_TAGS = {
    Inline.THINK: ("<think>", "</think>"),
    Inline.REASONING: ("<reasoning>", "</reasoning>", "[reasoning]", "[/reasoning]"),
    Inline.HARMONY: (
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|constrain|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
    ),
}
_REASONING, _ANSWER, _HEADER = "reasoning", "answer", "header"


class InlineSplitter:
    """Splits content into reasoning and answer.

    Attributes:
        reclassified: Whether the last `feed` found a closing tag that was never opened: every
            answer text before it was reasoning.
    """

    def __init__(self, style: Inline) -> None:
        tags = _TAGS[style]
        self._style = style
        self._tag = re.compile("|".join(map(re.escape, tags)))
        self._prefixes = frozenset(tag[:n] for tag in tags for n in range(1, len(tag)))
        self._longest = max(map(len, tags)) - 1
        self._channel = _ANSWER
        self._header = ""
        self._held = ""
        self._trim = True
        self._opened = False
        self.reclassified = False

    def feed(self, text: str) -> tuple[str, str]:
        """Return the (reasoning, answer) text that `text` completes."""
        self.reclassified = False
        text = self._held + text
        keep = self._tail(text)
        self._held = text[len(text) - keep :]
        return self._split(text[: len(text) - keep])

    def close(self) -> tuple[str, str]:
        """Return the text held back at the end: it was no tag."""
        text, self._held = self._held, ""
        return self._split(text)

    def _tail(self, text: str) -> int:
        """Length of the longest end of the text that may be the beginning of a tag."""
        for n in range(min(self._longest, len(text)), 0, -1):
            if text[-n:] in self._prefixes:
                return n
        return 0

    def _split(self, text: str) -> tuple[str, str]:
        said = {_REASONING: "", _ANSWER: ""}
        at = 0
        for match in self._tag.finditer(text):
            self._say(said, text[at : match.start()])
            self._switch(match.group(), said)
            at = match.end()
        self._say(said, text[at:])
        return said[_REASONING], said[_ANSWER]

    def _say(self, said: dict[str, str], text: str) -> None:
        if self._channel == _HEADER:
            self._header += text
            return
        if self._trim:
            text = text.lstrip()
        if text:
            self._trim = False
            said[self._channel] += text

    def _switch(self, tag: str, said: dict[str, str]) -> None:
        self._trim = True
        if self._style is Inline.HARMONY:
            self._switch_harmony(tag)
        elif tag[1] == "/":
            if not self._opened:
                self.reclassified = True
                said[_REASONING] += said[_ANSWER]
                said[_ANSWER] = ""
            self._channel, self._opened = _ANSWER, True
        else:
            self._channel, self._opened = _REASONING, True

    def _switch_harmony(self, tag: str) -> None:
        if tag == "<|message|>":
            self._channel = _REASONING if "analysis" in self._header else _ANSWER
            self._header = ""
        else:
            self._channel = _HEADER

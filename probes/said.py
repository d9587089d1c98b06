"""What the endpoint said, put together from its pieces: text, reasoning, refusal, tools; pure."""

from __future__ import annotations

import hashlib
from typing import Any

from probes.endpoint import Endpoint
from probes.inline import InlineSplitter
from probes.result import Content, ToolCall
from probes.wire import Piece, ToolDelta

_PARTS = ("text", "reasoning", "refusal")


class Said:
    """Gathers one answer."""

    def __init__(self, endpoint: Endpoint) -> None:
        style = endpoint.inline_reasoning
        self._inline = InlineSplitter(style) if style else None
        self._so_far: dict[str, str] | None = {} if endpoint.cumulative_content else None
        self._texts: dict[str, list[str]] = {part: [] for part in _PARTS}
        self._tools: dict[str, list[str]] = {}
        self._facts: dict[str, Any] = {}
        self._settled = 0

    def cut_repeated(self, piece: Piece) -> None:
        """Where deltas repeat everything so far, leave only what is new in the piece.

        Some servers repeat it now and then only: what does not begin with all of it is new.
        """
        if self._so_far is None:
            return
        for part in _PARTS:
            so_far, said = self._so_far.get(part, ""), getattr(piece, part)
            if so_far and said.startswith(so_far):
                said = said[len(so_far) :]
                setattr(piece, part, said)
            self._so_far[part] = so_far + said

    def add(self, piece: Piece) -> bool:
        """Take a piece; return whether it holds any of the answer, not only reasoning."""
        reasoning = piece.reasoning + piece.summary
        if self._inline is not None and piece.text:
            inline, piece.text = self._inline.feed(piece.text)
            reasoning += inline
        self._keep(piece.text, reasoning, piece.refusal)
        if piece.announced or piece.tools:
            self._call(piece.announced)
            self._call(piece.tools)
        if piece.content:
            self._facts |= piece.content
        return piece.has_answer()

    def retract(self) -> bool:
        """Whether the last piece ended a thinking block that was never opened.

        Then everything before it was reasoning, and so it is from now on.
        """
        if self._inline is None or not self._inline.reclassified:
            return False
        text = self._texts["text"]
        self._texts["reasoning"][:0] = text[: self._settled]
        self._texts["text"] = text[self._settled :]
        return True

    def close(self) -> None:
        """Take what the splitter held back: it was no tag."""
        if self._inline is not None:
            reasoning, text = self._inline.close()
            self._keep(text, reasoning, "")

    def _keep(self, text: str, reasoning: str, refusal: str) -> None:
        texts = self._texts
        self._settled = len(texts["text"])  # answer pieces before this one
        if text:
            texts["text"].append(text)
        if reasoning:
            texts["reasoning"].append(reasoning)
        if refusal:
            texts["refusal"].append(refusal)

    def _call(self, deltas: tuple[ToolDelta, ...]) -> None:
        for delta in deltas:
            key = delta.key
            if key is None:
                # No index and no id (Gemini): a name starts a call, arguments continue one.
                fresh = delta.name or not self._tools
                key = f"#{len(self._tools)}" if fresh else next(reversed(self._tools))
            call = self._tools.setdefault(key, ["", ""])
            call[0] = call[0] or delta.name
            call[1] += delta.arguments

    def text(self, part: str) -> str:
        """Return all of `text`, `reasoning` or `refusal`."""
        return "".join(self._texts[part])

    def has(self, part: str) -> bool:
        """Whether any of a part was said."""
        return bool(self._texts[part])

    def anything(self) -> bool:
        """Whether anything at all was generated."""
        return bool(any(self._texts.values()) or self._tools)

    def content(self) -> Content:
        """Return everything."""
        calls = (ToolCall(name=name, arguments=args) for name, args in self._tools.values())
        parts: dict[str, Any] = {part: self.text(part) for part in _PARTS}
        return Content(tool_calls=tuple(calls), **parts, **self._facts)


def digest(text: str) -> str | None:
    """Return the SHA-256 of a text in hex; None for an empty one."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() if text else None

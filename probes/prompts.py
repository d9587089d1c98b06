"""Generated prompts: about N tokens of plain English, new to every prefix cache; pure.

Nothing is downloaded. The words are short and frequent, each one token in large English
vocabularies, so the word count stands for the token count; what the server counted is in the
result's `prompt_tokens`.
"""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache

_WORDS = (
    "the river runs under an old stone bridge while people walk home from market with bread "
    "and fruit in small bags they talk about weather work music and the price of coal a boat "
    "moves slowly past green fields where horses rest near a long wooden fence children play "
    "games until evening light turns every window gold then shops close doors open lamps burn "
    "low in quiet streets one man writes letters to his sister who lives far north by the sea "
    "she keeps bees and sells honey each summer when roads are dry again "
).split()

_TASK = "Write a few plain sentences about the words above."


def salt(seed: int, boot: str, slot: int) -> str:
    """Return 16 hex digits (64 bits) that no other slot of any run shares.

    DESIGN: salt = H(seed, boot id, slot), so that a restart never repeats one.
    """
    text = f"{seed}/{boot}/{slot}".encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()


@lru_cache(maxsize=16)  # a workload sends the same text each time
def generate(tokens: int, seed: int) -> str:
    """Return about `tokens` tokens of text ending in a request to write; the same for a seed."""
    count = max(1, tokens - len(_TASK.split()) - 8)  # eight tokens for a salt and chat mark-up
    rng = random.Random(seed)  # noqa: S311 - wording, not a secret
    start = rng.randrange(len(_WORDS))
    words = [_WORDS[(start + i * 7) % len(_WORDS)] for i in range(count)]
    return f"{' '.join(words)}.\n{_TASK}"

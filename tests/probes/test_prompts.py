from __future__ import annotations

import re

from probes.kinds._ask import prompt
from probes.prompts import generate, salt
from probes.workload import Cache, Workload


def test_a_salt_is_64_bits_and_the_same_only_for_the_same_slot_of_the_same_run() -> None:
    """So a restart, a new seed or the next slot never finds the last one's cache."""
    salts = [salt(seed, boot, slot) for seed in (0, 1) for boot in "ab" for slot in range(500)]
    assert len(set(salts)) == len(salts)
    assert all(re.fullmatch("[0-9a-f]{16}", s) for s in salts)
    assert salt(1, "a", 2) == salt(1, "a", 2)


def test_parts_of_a_salt_cannot_be_mistaken_for_each_other() -> None:
    assert salt(1, "1", 11) != salt(11, "1", 1)
    assert salt(1, "2", 3) != salt(12, "", 3)


def test_a_prompt_has_about_the_tokens_asked_for() -> None:
    """One short frequent word is one token; the salt and mark-up take eight."""
    for tokens in (50, 100, 1000, 32_000):
        words = re.findall(r"\w+", generate(tokens, 7))
        assert abs(len(words) + 8 - tokens) <= 3


def test_even_the_shortest_prompt_asks_for_text() -> None:
    assert generate(0, 1).endswith("Write a few plain sentences about the words above.")


def test_a_seed_decides_the_text() -> None:
    assert generate(100, 1) == generate(100, 1)
    assert len({generate(100, seed) for seed in range(20)}) > 10


def test_a_salt_stands_at_the_head_unless_the_cache_shall_be_warm() -> None:
    """A prefix cache matches from the first token on."""
    assert prompt(Workload(prompt="hi"), "abc") == "[abc] hi"
    assert prompt(Workload(prompt="hi", cache=Cache.WARM), "abc") == "hi"
    assert prompt(Workload(), "abc").startswith("[abc] ")

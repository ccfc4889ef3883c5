"""Lines of generated Python: names that cannot clash, blocks, and the removal of what nothing reads."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

WIDTH = 110
_WORD = re.compile(r"[^\W\d]\w*")
_RESERVED = ("tl", "triton", "range", "float", "INDEX", "pid", "place", "first", "high", "along", "across")


@dataclass(slots=True)
class Line:
    """One line. With a `target` it only assigns that name, and goes if nothing reads the name afterwards,
    unless `kept`."""

    text: str
    target: str = ""
    kept: bool = False


@dataclass(slots=True)
class Nested:
    """A `for` or `if` with its body. `carried` names are assigned in it and read in the next iteration."""

    head: str
    body: list[Line | Nested] = field(default_factory=list["Line | Nested"])
    carried: tuple[str, ...] = ()


Lines = list[Line | Nested]


class Names:
    """Gives every thing a name that is free: the wish itself, or the wish with a number."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {*_RESERVED, *taken}

    def take(self, wish: str) -> str:
        """A fresh identifier close to the wish."""
        word = re.sub(r"\W", "_", wish) or "x"
        if word[0].isdigit() or keyword.iskeyword(word):
            word = "_" + word
        name, number = word, 1
        while name in self._taken:
            number += 1
            name = f"{word}_{number}"
        self._taken.add(name)
        return name

    def inner(self) -> Names:
        """Names for an inner scope: what is free here, given back at its end."""
        return Names(self._taken)


def words_of(text: str) -> set[str]:
    """The identifiers in a piece of code, comments left out."""
    return set(_WORD.findall(text.split("  # ", 1)[0]))


def assigned(pairs: Sequence[tuple[str, str]]) -> Lines:
    """Assign texts to names, all at once."""
    before: list[str] = []
    for target, text in pairs:
        if any(words_of(text) & {name} for name in before):
            names, texts = (", ".join(column) for column in zip(*pairs, strict=True))
            return [Line(f"{names} = {texts}")]
        before.append(target)
    return [Line(f"{target} = {text}", target, kept=True) for target, text in pairs]


def prune(lines: Sequence[Line | Nested], live: set[str]) -> tuple[Lines, set[str]]:
    """Drop assignments that nothing reads. `live` holds the names read afterwards; returns the lines that
    stay and the names that must exist before them."""
    kept: Lines = []
    live = set(live)
    for line in reversed(lines):
        if isinstance(line, Nested):
            again = live | set(line.carried)
            while True:
                body, needed = prune(line.body, again)
                if needed <= again:
                    break
                again |= needed
            if body:
                kept.append(Nested(line.head, body, line.carried))
                live |= needed | words_of(line.head)
            continue
        if line.target and not line.kept and line.target not in live:
            continue
        if line.target:
            live.discard(line.target)
        live |= words_of(line.text.split(" = ", 1)[1] if line.target else line.text)
        kept.append(line)
    kept.reverse()
    return kept, live


def render(lines: Sequence[Line | Nested], depth: int = 1) -> list[str]:
    """The text of lines, four spaces a level."""
    pad = "    " * depth
    done: list[str] = []
    for line in lines:
        if isinstance(line, Nested):
            done += [pad + line.head, *render(line.body, depth + 1)]
        else:
            done += _wrapped(line.text, pad)
    return done


def _wrapped(text: str, pad: str) -> list[str]:
    """A line, or a call with one argument a line where it is too long."""
    head, bracket, rest = text.partition("(")
    if len(pad) + len(text) <= WIDTH or not bracket or not rest.endswith(")"):
        return [pad + text]
    parts, depth = [""], 0
    for sign in rest[:-1]:
        depth += (sign in "([") - (sign in ")]")
        if depth < 0:
            return [pad + text]
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [f"{pad}{head}(", *(f"{pad}    {part.strip()}," for part in parts), f"{pad})"]

"""The words of Cleave's text forms: tokens, names, numbers, dims, extents and index terms.

Shared by everything that prints or parses (`text`, `parse`, and the tile program's text form). Whatever is
printed here parses back to an equal value: names that are not plain words stand in backquotes, constants
keep their type (`1`, `1.0`, `true`, `1/3`, `-0.0`, `inf`), strings are written as in JSON. Newlines mean
nothing; `#` starts a comment. Errors are `ParseError` with line, column and a caret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from cleave.errors import ParseError
from cleave.ir.dims import (
    Atom,
    Dim,
    Extent,
    Gather,
    Index,
    Inject,
    Join,
    Leaf,
    Lookup,
    Part,
    Parts,
    Term,
    Union,
    join_signed,
)
from cleave.ir.ops import Node, Number

RESERVED = frozenset(
    {"program", "candidate", "where", "return", "scalar", "size", "index", "cat", "contract", "inf", "nan"}
    | {"true", "false", "parts", "part", "join", "lookup", "extent"}
)
"""Words that stand for themselves: a name that is one of them is written in backquotes."""

_WORD = r"[^\W\d]\w*(?:\.\w+)*"
_TOKEN = re.compile(
    rf"""(?P<space>\s+|\#[^\n]*)
    |(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    |(?P<name>{_WORD})
    |(?P<quoted>`(?:[^`\\\n]|\\.)*`)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<sign><=|>=|==|->|\.\.|[\[\](){{}},:;=+\-*/|<>@])""",
    re.VERBOSE,
)
_ITEM = TypeVar("_ITEM")

# ---------------------------------------------------------------- printing


def is_word(name: str) -> bool:
    """Whether a name can stand in text without backquotes."""
    return re.fullmatch(_WORD, name) is not None and name not in RESERVED


def quote(name: str) -> str:
    """A name as text: itself, or in backquotes if it is not a plain word."""
    if is_word(name):
        return name
    return "`" + json.dumps(name, ensure_ascii=False)[1:-1].replace("`", "\\u0060") + "`"


def string_text(value: str) -> str:
    """A string in double quotes."""
    return json.dumps(value, ensure_ascii=False)


def number_text(value: Number) -> str:
    """A constant; its type can be read off its text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Fraction):
        return f"{value.numerator}/{value.denominator}"
    return float.__repr__(value) if isinstance(value, float) else str(int(value))


def dim_text(dim: Dim) -> str:
    """A dim: `S`, `(A | B)`, `parts(T)`, `part(T, 1)`."""
    match dim:
        case Atom(name):
            return quote(name)
        case Union(parts):
            inner = " | ".join(map(dim_text, parts))
            return f"({inner})" if len(parts) > 1 else f"({inner} |)".replace("( ", "(")
        case Parts(of, level) | Part(of, level):
            word = "parts" if isinstance(dim, Parts) else "part"
            return f"{word}({dim_text(of)})" if not level else f"{word}({dim_text(of)}, {level})"


def extent_text(value: Extent) -> str:
    """A linear expression in sizes."""
    return join_signed([(c, dim_text(d)) for d, c in value.terms], value.const)


def group_text(group: Iterable[Dim]) -> str:
    """One axis of a caller's tensor: a product of dims, or `1`."""
    return "*".join(map(dim_text, group)) or "1"


def term_text(value: Term, indices: Mapping[Index, str], nodes: Mapping[Node, str]) -> str:
    """An index term, for given names of indices and of the nodes that gathers read."""
    signed = [(c, _leaf_text(leaf, indices, nodes)) for leaf, c in value.leaves]
    return join_signed(signed + [(c, dim_text(d)) for d, c in value.offset.terms], value.offset.const)


def _leaf_text(leaf: Leaf, indices: Mapping[Index, str], nodes: Mapping[Node, str]) -> str:
    match leaf:
        case Index():
            return indices[leaf]
        case Gather(access):
            inner = ", ".join(term_text(t, indices, nodes) for t in access.terms)
            return f"{nodes[access.node]}[{inner}]"
        case Lookup(value):
            return f"lookup({quote(value)})"
        case Inject(part, inner):
            return f"in{part}({term_text(inner, indices, nodes)})"
        case Join(part, within):
            return f"join({term_text(part, indices, nodes)}, {term_text(within, indices, nodes)})"


def index_names(dims: Iterable[Dim], taken: Container[str]) -> tuple[str, ...]:
    """Names for indices over the given dims, in order: the dim's name in lower case, then `s2`, `s3`."""
    names: list[str] = []
    for dim in dims:
        base = _index_base(dim)
        stem = base + "_" if base[-1].isdigit() or base == "in" else base  # `in2` injects into a union
        name, count = base, 1
        while name in names or name in taken or not is_word(name) or re.fullmatch(r"in\d+", name):
            count += 1
            name = f"{stem}{count}"
        names.append(name)
    return tuple(names)


def _index_base(dim: Dim) -> str:
    match dim:
        case Atom(name):
            word = re.sub(r"\W", "_", name).lower()
            return word if re.match(r"[^\W\d]", word) else "i" + word
        case Union(parts):
            return "_".join(map(_index_base, parts)) or "u"
        case Parts(of, _):
            return "p" + _index_base(of)
        case Part(of, _):
            return _index_base(of)


# ---------------------------------------------------------------- parsing


@dataclass(frozen=True, slots=True)
class Token:
    """A word of the text; `kind` is `number`, `name`, `quoted`, `string`, `sign` or `end`."""

    kind: str
    text: str
    start: int


class Cursor:
    """The tokens of a text and a place among them."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens: list[Token] = []
        self._place = 0
        start = 0
        while start < len(text):
            found = _TOKEN.match(text, start)
            if found is None:
                raise self.error(f"unexpected character {text[start]!r}", Token("sign", text[start], start))
            if found.lastgroup != "space":
                self._tokens.append(Token(str(found.lastgroup), found.group(), start))
            start = found.end()
        self._end = Token("end", "", len(text.rstrip()))

    def peek(self, ahead: int = 0) -> Token:
        """The token that comes, or one further on."""
        place = self._place + ahead
        return self._tokens[place] if place < len(self._tokens) else self._end

    def take(self) -> Token:
        """The token that comes; go past it."""
        token = self.peek()
        self._place += 1
        return token

    def at(self, text: str, ahead: int = 0) -> bool:
        """Whether this word or sign comes."""
        token = self.peek(ahead)
        return token.text == text and token.kind in ("name", "sign")

    def accept(self, text: str) -> bool:
        """Go past this word or sign if it comes."""
        if self.at(text):
            self._place += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        """Go past this word or sign; `ParseError` if something else comes."""
        if not self.at(text):
            raise self.wrong(f"`{text}`")
        return self.take()

    def done(self) -> None:
        """`ParseError` unless the text ends here."""
        if self.peek().kind != "end":
            raise self.wrong("the end of the text")

    def name(self, what: str) -> str:
        """A name, quoted or not."""
        token = self.peek()
        if token.kind == "quoted":
            self.take()
            try:
                return str(json.loads(f'"{token.text[1:-1]}"'))
            except json.JSONDecodeError as error:
                raise self.error(f"a name in backquotes with a wrong escape: {token.text}", token) from error
        if token.kind != "name" or token.text in RESERVED:
            raise self.wrong(what)
        return self.take().text

    def string(self, what: str) -> str:
        """A string in double quotes."""
        token = self.peek()
        if token.kind != "string":
            raise self.wrong(what)
        self.take()
        try:
            return str(json.loads(token.text))
        except json.JSONDecodeError as error:
            raise self.error(f"a string with a wrong escape: {token.text}", token) from error

    def integer(self, what: str) -> int:
        """An integer, with or without a minus sign."""
        negative = self.accept("-")
        token = self.peek()
        if token.kind != "number" or not token.text.isdigit():
            raise self.wrong(what)
        self.take()
        return -int(token.text) if negative else int(token.text)

    def sequence(self, item: Callable[[], _ITEM], end: str) -> list[_ITEM]:
        """Items between commas up to `end`, which is taken too."""
        items: list[_ITEM] = []
        while not self.accept(end):
            if items:
                if not self.at(","):
                    raise self.wrong(f"`,` or `{end}`")
                self.take()
                if self.accept(end):
                    break
            items.append(item())
        return items

    def wrong(self, expected: str, hint: str = "") -> ParseError:
        """The error that something else was expected than what comes."""
        token = self.peek()
        found = "the end of the text" if token.kind == "end" else f"`{token.text}`"
        return self.error(f"expected {expected}, found {found}", token, hint)

    def error(self, what: str, token: Token, hint: str = "") -> ParseError:
        """A `ParseError` that shows the token's line with a caret below it."""
        line = self.text.count("\n", 0, token.start) + 1
        begin = self.text.rfind("\n", 0, token.start) + 1
        source = self.text[begin:].split("\n", 1)[0]
        column = token.start - begin
        gap = re.sub(r"[^\t]", " ", source[:column])
        shown = f"{what}\n{line:>6} | {source}\n       | {gap}^"
        return ParseError(shown, where=f"line {line}, column {column + 1}", hint=hint)


def at_number(cursor: Cursor) -> bool:
    """Whether a literal comes."""
    ahead = 1 if cursor.at("-") else 0
    words = ("inf", "nan") if ahead else ("inf", "nan", "true", "false")
    return cursor.peek(ahead).kind == "number" or any(cursor.at(word, ahead) for word in words)


def parse_number(cursor: Cursor) -> Number:
    """A literal as `number_text` writes it."""
    if cursor.at("true") or cursor.at("false"):
        return cursor.take().text == "true"
    negative = cursor.accept("-")
    if cursor.at("inf") or cursor.at("nan"):
        value = float(cursor.take().text)
        return -value if negative else value
    token = cursor.peek()
    if token.kind != "number":
        raise cursor.wrong("a literal")
    cursor.take()
    if not token.text.isdigit():
        return -float(token.text) if negative else float(token.text)
    whole = -int(token.text) if negative else int(token.text)
    if not cursor.accept("/"):
        return whole
    below = cursor.peek()
    divisor = cursor.integer("a denominator")
    if divisor <= 0:
        raise cursor.error("a fraction's denominator must be positive", below)
    return Fraction(whole, divisor)


def parse_dim(cursor: Cursor, atom: Callable[[], Atom]) -> Dim:
    """A dim as `dim_text` writes it; `atom` reads a name and makes the atom."""
    if cursor.accept("("):
        parts: list[Dim] = []
        while not cursor.accept(")"):
            if not cursor.accept("|"):
                parts.append(parse_dim(cursor, atom))
                if not cursor.at("|") and not cursor.at(")"):
                    raise cursor.wrong("`|` or `)`")
        return Union(tuple(parts))
    for word, make in (("parts", Parts), ("part", Part)):
        if cursor.at(word) and cursor.at("(", 1):
            cursor.take()
            cursor.take()
            of = parse_dim(cursor, atom)
            level = cursor.integer("a level") if cursor.accept(",") else 0
            cursor.expect(")")
            return make(of, level)
    return atom()

"""Forms as text for people: the same form gives the same text, whatever its binders are called inside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from cleave.algebra.forms import (
    UNIT,
    Apply,
    Binder,
    Element,
    Entry,
    Env,
    Factor,
    Log,
    Masked,
    Max,
    Mono,
    Place,
    Poly,
    Power,
    Predicate,
    Size,
    Some,
)  # fmt: skip
from cleave.ir.dims import Dim, Extent, Gather, Index, Inject, Join, Leaf, Lookup, Term, join_signed


def show(value: Poly, names: Env | None = None) -> str:
    """A polynomial. Free indices are called by `names`, else by their dim and number."""
    names = names or {}
    if not value.terms:
        return "0"
    text = ""
    for _, body, c in sorted((mono == UNIT, _mono(mono, names), c) for mono, c in value.terms.items()):
        size = abs(c)
        piece = _number(size) if body == "1" else body if size == 1 else f"{_number(size)}*{body}"
        if text:
            text += f" {'-' if c < 0 else '+'} {piece}"
        else:
            text = f"{'-' if c < 0 else ''}{piece}"
    return text


def _number(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value)
    return str(value) if value.denominator < 10_000 else repr(float(value))


def _mono(mono: Mono, names: Env) -> str:
    pieces = sorted(_powered(f, e, names) for f, e in mono.factors)
    if mono.exponent.terms:
        pieces.append(f"exp({show(mono.exponent, names)})")
    return "*".join(pieces) or "1"


def _powered(factor: Factor, e: Fraction, names: Env) -> str:
    text = show_factor(factor, names)
    if e == 1:
        return text
    return f"{text}^{e}" if e.denominator == 1 and e > 0 else f"{text}^({e})"


def show_factor(factor: Factor, names: Env | None = None) -> str:
    """A factor (see `show`)."""
    names = names or {}
    match factor:
        case Element():
            return _element(factor.name, factor.terms, names)
        case Size():
            return f"|{factor.dim}|" if factor.part is None else f"n[{show_term(factor.part, names)}]"
        case Place():
            return show_term(factor.term, names)
        case Binder():
            own = _bind(factor.binders, names)
            body = _mono(factor.body, own) if isinstance(factor.body, Mono) else show(factor.body, own)
            return f"{factor.head}_{_list(factor.binders, own)}({body})"
        case Max():
            return "max{" + "; ".join(sorted(_entry(e, names) for e in factor.entries)) + "}"
        case Some():
            return "some{" + "; ".join(_entry(e, names, value=False) for e in factor.entries) + "}"
        case Masked():
            return f"({show(factor.value, names)} where {show(factor.guard, names)})"
        case Power():
            return f"({show(factor.base, names)})"
        case Log():
            return f"log({show(factor.base, names)})"
        case Apply():
            return f"{factor.fn}({', '.join(show(a, names) for a in factor.args)})"
        case Predicate():
            return f"[{show(factor.value, names)} {factor.rel} 0]"
        case _:
            return type(factor).__name__


def _entry(entry: Entry, names: Env, *, value: bool = True) -> str:
    own = _bind(entry.binders, names)
    guard = "" if entry.guard.number == 1 else show(entry.guard, own)
    head = f"{_list(entry.binders, own)}: " if entry.binders else ""
    if not value:
        return head + guard
    return head + show(entry.value, own) + (f" where {guard}" if guard else "")


def _element(name: str, terms: Sequence[Term], names: Env) -> str:
    return name + (f"[{', '.join(show_term(t, names) for t in terms)}]" if terms else "")


def _bind(binders: Sequence[Index], names: Env) -> dict[Index, str]:
    """Names for bound indices that no index in scope has."""
    own = dict(names)
    taken = set(own.values())
    for index in binders:
        base = _letter(index.dim)
        name = next(n for n in (f"{base}{k or ''}'" for k in range(1000)) if n not in taken)
        own[index] = name
        taken.add(name)
    return own


def _letter(dim: Dim) -> str:
    text = "".join(ch for ch in str(dim).lower() if ch.isalnum() or ch == "_")
    return text or "i"


def _list(binders: Sequence[Index], names: Mapping[Index, str]) -> str:
    return ",".join(names[i] for i in binders)


def friendly(free: Iterable[Index]) -> dict[Index, str]:
    """Short names for free indices: the letters of their dims, numbered where several have the same."""
    names: dict[Index, str] = {}
    for index in sorted(free, key=lambda i: (str(i.dim), abs(i.number))):
        base = _letter(index.dim)
        names[index] = next(n for n in (f"{base}{k or ''}" for k in range(1000)) if n not in names.values())
    return names


def show_term(value: Term, names: Env | None = None) -> str:
    """An index term (see `show`)."""
    names = names or {}
    leaves = sorted((_leaf(leaf, names), c) for leaf, c in value.leaves)
    offset = value.offset
    sizes = [(c, f"|{d}|") for d, c in offset.terms]
    return join_signed([*((c, text) for text, c in leaves), *sizes], Extent(offset.const).const)


def _leaf(leaf: Leaf, names: Env) -> str:
    match leaf:
        case Index(dim, number):
            return names.get(leaf) or f"{_letter(dim)}{number}"
        case Gather(access):
            return _element(_source(access.node), access.terms, names)
        case Lookup(value):
            return value
        case Inject(part, inner):
            return f"in{part}({show_term(inner, names)})"
        case Join(part, within):
            return f"{show_term(part, names)}:{show_term(within, names)}"


def _source(node: object) -> str:
    from cleave.ir.ops import Input, Node

    assert isinstance(node, Node)
    return node.op.name if isinstance(node.op, Input) else "@" + node.digest[:6]

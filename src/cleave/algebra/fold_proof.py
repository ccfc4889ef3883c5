"""The proof of a Fold as data: its four programs, put together, are the program's own values (design.md, 3).

Nothing here knows how the Fold was found. With `S(A)` for `step(init, A)` and elements that are free inputs,
these obligations are proved by normal form, for dims `A` and `B` of every size:

- `values`: `finish(S(K))` are the program's values,
- `step`: `step(S(A), B) = S(A | B)`, and `merge`: `merge(S(A), S(B)) = S(A | B)`,
  once more for elements that a mask makes -inf in all of `A`, all of `B`, or both,
- `support`: a piece in which the support is false leaves the state as it was,
- `empty`: `merge(init, S(A)) = S(A) = merge(S(A), init)`.

By induction they give every partition and every order of merging, parts that are empty or dead included; that
`merge` is associative follows. Guards against what has seen nothing are taken as passed in the parts that
have seen something, which is what the obligations say; conditions of a yes-if are those of the parts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cleave.algebra.equal import abstracted
from cleave.algebra.frame import at_axes, plain
from cleave.algebra.lattice import pushed
from cleave.algebra.proof import prove
from cleave.algebra.support import Zeros
from cleave.ir.candidate import Fold
from cleave.ir.dims import Atom, Dim, Index, Inject, Part, Parts, Union, var
from cleave.ir.numerics import apply, numpy_dtype
from cleave.ir.ops import (
    FLOATS,
    Access,
    Const,
    Contract,
    Input,
    Map,
    Node,
    Reduce,
    Scalar,
    SizeOf,
    cat_node,
    const,
    input_node,
    make_node,
    map_node,
    size,
)
from cleave.ir.program import Output, Program, sort_nodes
from cleave.ir.rewrite import Replaced, replace_arguments, replace_nodes, rewrite

FIRST, SECOND = Atom("first_part"), Atom("second_part")
BOTH = Union((FIRST, SECOND))


@dataclass(frozen=True, slots=True)
class Obligation:
    """One thing that was to be proved: `yes`, `yes-if` with conditions on the parts, `no` or `unknown`."""

    name: str
    answer: str
    conditions: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class FoldProof:
    """The obligations of a Fold in order, and whether all of them hold."""

    obligations: tuple[Obligation, ...]

    @property
    def holds(self) -> bool:
        """Is every obligation a Yes, perhaps under conditions on the parts?"""
        return all(o.answer in ("yes", "yes-if") for o in self.obligations)

    @property
    def open(self) -> tuple[str, ...]:
        """The names of the obligations that are not proved."""
        return tuple(o.name for o in self.obligations if o.answer not in ("yes", "yes-if"))


State = Mapping[str, Node]
Dead = tuple[tuple[str, ...], tuple[str, ...]]
"""The elements that are masked in all of the first part, and of the second."""

_WHICH = ("first", "second")


def prove_fold(program: Program, fold: Fold) -> FoldProof:
    """Prove that a Fold computes its values of the program, for every partition."""
    if isinstance(fold.over, Parts | Part):
        why = f"{fold.over} is itself part of a partition"
        return FoldProof((Obligation("values", "unknown", why=why),))
    proof = _FoldProof(program, fold)
    return FoldProof(tuple(proof.obligations()))


class _FoldProof:
    def __init__(self, program: Program, fold: Fold) -> None:
        self.program = program
        self.fold = fold
        self.maskable = {
            e.name for e in fold.elements if e.access.node.dtype in FLOATS and Zeros().low(e.access)
        }
        self.scalars = tuple(n for n in program.inputs if isinstance(n.op, Scalar))

    def obligations(self) -> list[Obligation]:
        start = self.run(self.fold.init, FIRST, {})
        first = self.seen(FIRST, 0)
        found = [self.values()]
        for dead in self._deaths():
            one, two, both = (
                self.seen(FIRST, 0, dead),
                self.seen(SECOND, 1, dead),
                self.seen(BOTH, None, dead),
            )
            stepped = self.step(one, SECOND, self.elements(SECOND, 1, dead))
            where = " and ".join(
                f"{', '.join(d)} dead in the {w}" for w, d in zip(_WHICH, dead, strict=True) if d
            )
            found.append(self.check(f"step, {where}" if where else "step", stepped, both))
            found.append(self.check(f"merge, {where}" if where else "merge", self.merge(one, two), both))
        if self.fold.support is not None:
            after = self.step(first, SECOND, {**self.elements(SECOND, 1), **self.unsupported()})
            found.append(self.check("support", after, first))
        found.append(self.check("empty", self.merge(start, first), first))
        found.append(self.check("empty, the other way", self.merge(first, start), first))
        return found

    def _deaths(self) -> list[Dead]:
        """Which elements are masked in all of the first and of the second part: each in turn, or if there are
        many, all or none."""
        names = sorted(self.maskable)
        some = [(), *((n,) for n in names), tuple(names)] if len(names) == 2 else [(), tuple(names)]
        return list(itertools.product(dict.fromkeys(some), repeat=2))  # pyright: ignore[reportReturnType]

    # ------------------------------------------------------------ states

    def seen(self, dim: Dim, part: int | None, dead: Dead = ((), ())) -> State:
        """The state after one piece over `dim`: part 0 or 1 of `BOTH`, or all of it."""
        start = self.run(self.fold.init, dim, {})
        return self.step(start, dim, self.elements(dim, part, dead))

    def step(self, state: State, dim: Dim, elements: Mapping[str, Node]) -> State:
        return self.run(self.fold.step, dim, {**state, **elements})

    def merge(self, a: State, b: State) -> State:
        given = {f"a_{n}": x for n, x in a.items()} | {f"b_{n}": x for n, x in b.items()}
        return self.run(self.fold.merge, FIRST, {**given, **self.around()})

    def around(self) -> dict[str, Node]:
        """The elements that do not vary with the piece."""
        everything = self.elements(FIRST, 0)
        varying = {n.op.name for n in self.fold.step.inputs if isinstance(n.op, Input) and self._varies(n)}
        return {name: node for name, node in everything.items() if name not in varying}

    def _varies(self, node: Node) -> bool:
        return any(axis.dim == Part(self.fold.over) for axis in node.axes)

    def elements(self, dim: Dim, part: int | None, dead: Dead = ((), ())) -> dict[str, Node]:
        """Free inputs for the elements: over `BOTH`, read at part 0 or 1, or all of it. What a mask may make
        -inf is under a mask of its own; elements that `dead` names for a part are -inf there."""
        found: dict[str, Node] = {}
        by_name = {n.op.name: n for n in self.fold.step.inputs if isinstance(n.op, Input)}
        for element in self.fold.elements:
            own = by_name[element.name]
            place = next((n for n, a in enumerate(own.axes) if a.dim == Part(self.fold.over)), None)
            dims = [BOTH if n == place else a.dim for n, a in enumerate(own.axes)]
            whole = _free(element.name, dims, own.dtype, element.name in self.maskable)
            if place is None:
                found[element.name] = whole
                continue
            axes = [Index(dim if n == place else a.dim, n) for n, a in enumerate(own.axes)]
            gone = tuple(element.name in names for names in dead)
            if part is not None or all(gone):
                found[element.name] = _piece(whole, axes, place, part or 0, gone[part or 0])
            elif not any(gone):
                found[element.name] = whole
            else:
                pieces = [
                    _piece(
                        whole,
                        [Index(d, n) if n == place else a for n, a in enumerate(axes)],
                        place,
                        k,
                        gone[k],
                    )
                    for k, d in enumerate(BOTH.parts)
                ]
                found[element.name] = cat_node(axes, place, [p.read() for p in pieces], whole.dtype)
        return found

    def unsupported(self) -> dict[str, Node]:
        """The elements of the second part that are nothing where the support is false: -inf, 0 or false."""
        support = self.fold.support
        assert support is not None
        over = self.fold.over
        every = [i for e in self.fold.elements for i in e.access.indices]
        zeros, wanted = Zeros(frozenset(i for i in every if i.dim in (over, Part(over)))), _canonical(support)
        found: dict[str, Node] = {}
        for element in self.fold.elements:
            own = next(
                n for n in self.fold.step.inputs if isinstance(n.op, Input) and n.op.name == element.name
            )
            axes = [Index(SECOND if a.dim == Part(self.fold.over) else a.dim, a.number) for a in own.axes]
            ways: list[tuple[bool | float, list[tuple[Access, bool]]]] = [
                (False, zeros.false(element.access))
            ]
            if own.dtype in FLOATS:
                ways = [(-math.inf, zeros.low(element.access)), (0.0, zeros.zero(element.access))]
            elif own.dtype != "bool":
                continue
            for value, masks in ways:
                if any(_canonical(access, positive) == wanted for access, positive in masks):
                    found[element.name] = map_node("id", axes, [const(value, own.dtype)], own.dtype)
        return found

    def run(self, program: Program, dim: Dim, given: Mapping[str, Node]) -> dict[str, Node]:
        """The outputs of one of the Fold's programs, inputs replaced, pieces over `dim`, by name."""
        part = Part(self.fold.over)

        def visit(node: Node, replaced: Replaced) -> Access:
            op = node.op
            if isinstance(op, Input):
                return given[op.name].read()
            if isinstance(op, Scalar):
                return node.read()
            if isinstance(op, SizeOf):
                return size(dim, node.dtype) if op.dim == part else node.read()
            moved = _moved(node, part, dim, replaced)
            return _simple(moved).read()

        replaced = rewrite((o.node for o in program.outputs), visit)
        return {o.name: replaced[o.node].node for o in program.outputs}

    # ------------------------------------------------------------ obligations

    def values(self) -> Obligation:
        """`finish(step(init, K))` are the values of the program."""
        over, fold = self.fold.over, self.fold
        elements: dict[str, Node] = {}
        for element in fold.elements:
            own = next(n for n in fold.step.inputs if isinstance(n.op, Input) and n.op.name == element.name)
            part = Part(over)
            where = {i: var(Index(over, i.number)) for i in element.access.indices if i.dim == part}
            axes = [Index(over if a.dim == part else a.dim, a.number) for a in own.axes]
            elements[element.name] = map_node("id", axes, [element.access.at(where)], own.dtype)
        start = self.run(fold.init, over, {})
        state = self.step(start, over, elements)
        made = self.run(fold.finish, over, {**state, **elements})
        one = self._program([v.node for v in fold.values], self.program.inputs)
        two = self._program([made[v.name] for v in fold.values], self.program.inputs)
        proof = prove(*abstracted(one, two), points=0, steps=False)
        if not proof.holds:
            # Once more with maxima of what grows with a value as that of their maxima, which is a law, too.
            proof = prove(*abstracted(_pushed(one), _pushed(two)), points=0, steps=False)
        return Obligation("values", proof.answer, proof.conditions, proof.counterexample)

    def check(self, name: str, one: State, two: State) -> Obligation:
        inputs = {n: None for s in (one, two) for n in sort_nodes(s.values()) if isinstance(n.op, Input)}
        order = (*inputs, *self.scalars)
        a, b = (self._program([s[n] for n in self.fold.state], order) for s in (two, one))
        proof = prove(a, b, points=0, steps=False)
        return Obligation(name, proof.answer, proof.conditions, proof.counterexample)

    def _program(self, nodes: list[Node], inputs: tuple[Node, ...]) -> Program:
        outputs = tuple(
            Output(f"o{n}", node, tuple((k,) for k in range(len(node.axes)))) for n, node in enumerate(nodes)
        )
        used = {n for n in sort_nodes(nodes) if isinstance(n.op, Input | Scalar)}
        more = sorted((n for n in used if n not in inputs), key=lambda n: n.digest)
        return Program("fold", (*inputs, *more), outputs, self.program.sizes)


def _piece(whole: Node, axes: list[Index], place: int, part: int, dead: bool) -> Node:
    """One part of a value over `BOTH`, or -inf all over it."""
    if dead:
        return map_node("id", axes, [const(-math.inf, whole.dtype)], whole.dtype)
    terms = [var(Inject(part, var(a))) if n == place else var(a) for n, a in enumerate(axes)]
    return map_node("id", axes, [Access(whole, tuple(terms))], whole.dtype)


def _pushed(program: Program) -> Program:
    def visit(node: Node, replaced: Replaced) -> Access:
        return pushed(replace_arguments(node, replaced)).read()

    return replace_nodes(program, rewrite((o.node for o in program.outputs), visit))


def _canonical(access: Access, positive: bool = True) -> Access:
    """A condition over indices numbered in order."""
    order = sorted(access.indices, key=lambda i: i.number)
    new = [Index(i.dim, n) for n, i in enumerate(order)]
    moved = access.at({i: var(a) for i, a in zip(order, new, strict=True)})
    return moved if positive else map_node("not", new, [moved], "bool")(*new)


def _free(name: str, dims: list[Dim], dtype: str, maskable: bool) -> Node:
    layout = [(d,) for d in dims]
    value = input_node(f"free.{name}", layout, dtype)
    if not maskable:
        return value
    seen = input_node(f"seen.{name}", layout, "bool")
    args = (seen.read(), value.read(), const(-math.inf, dtype))
    return map_node("select", value.axes, args, dtype)


def _moved(node: Node, part: Dim, dim: Dim, replaced: Replaced) -> Node:
    """The node over other dims and arguments."""
    if not node.axes and not node.args:
        return node
    old = (*node.axes, *node.bound)
    new = tuple(Index(dim if i.dim == part else i.dim, i.number) for i in old)
    where = {o: var(n) for o, n in zip(old, new, strict=True) if o != n}
    made = replace_arguments(node, replaced) if not where else None
    if made is not None:
        return made
    args: list[Access] = []
    for access in node.args:
        moved = access.at(where)
        target = replaced[access.node]
        args.append(target.at(dict(zip(target.node.axes, moved.terms, strict=True))))
    axes, bound = new[: len(node.axes)], new[len(node.axes) :]
    match node.op:
        case Map(fn, _):
            return make_node(Map(fn, tuple(args)), axes, node.dtype)
        case Reduce(kind, _, _):
            return make_node(Reduce(kind, bound, args[0]), axes, node.dtype)
        case Contract():
            return make_node(Contract(bound, tuple(args)), axes, node.dtype)
        case _:
            return node


# ---------------------------------------------------------------- literals and guards


def _simple(node: Node) -> Node:
    """The node with literals computed, and guards against nothing seen, on what is no literal, passed."""
    value = _literal(node)
    if value is not None:
        return _constant(node, value)
    op = node.op
    if isinstance(op, Map) and op.fn in ("add", "max") and len(op.args) == 2:
        kept = _other(op.fn, *op.args)
        return node if kept is None else map_node("id", node.axes, [kept], node.dtype)
    if isinstance(op, Map) and op.fn == "select":
        condition, yes, no = op.args
        chosen = _constant_of(condition)
        if chosen is None:
            chosen = _guard(condition, no)
        if chosen is not None:
            return map_node("id", node.axes, [yes if chosen else no], node.dtype)
    return node


def _other(fn: str, one: Access, two: Access) -> Access | None:
    """What is left of a sum with 0, and of the larger of 1 and how many have been seen."""
    if fn == "add":
        return two if _constant_of(one) == 0 else one if _constant_of(two) == 0 else None
    return one if _constant_of(two) == 1 and _counted(one) else None


def _counted(access: Access) -> bool:
    """Is a value how many positions there are in a dim, or in several?"""
    op = plain(access).node.op
    if isinstance(op, Map) and op.fn in ("add", "mul"):
        return all(_counted(a) for a in op.args)
    ones = isinstance(op, Reduce) and op.kind == "sum" and _constant_of(op.arg) == 1
    return ones or isinstance(op, SizeOf)


def _constant(node: Node, value: Any) -> Node:
    made = const(value, node.dtype)
    return map_node("id", node.axes, [made], node.dtype) if node.axes else made.node


def _constant_of(access: Access) -> Any:
    """The literal that a value is everywhere; None if it is none."""
    op = plain(access).node.op
    if isinstance(op, Map) and op.fn in ("id", "cast"):
        return _constant_of(op.args[0])
    return op.value if isinstance(op, Const) else None


def _literal(node: Node) -> Any:
    """The literal that a node is everywhere, if its arguments say so; None if not."""
    op = node.op
    if isinstance(op, Reduce):
        value = _constant_of(op.arg)
        idle = op.kind in ("max", "min", "any", "all")
        return value if (idle and value is not None and _neutral(op.kind, value)) or value == 0 else None
    values = [_constant_of(a) for a in node.args]
    if isinstance(op, Contract):
        return 0.0 if 0 in values else None
    if not isinstance(op, Map) or op.fn == "id":
        return None
    if op.fn == "mul" and 0 in values:
        return 0.0
    if op.fn in ("add", "sub") and sum(v is None for v in values) == 1:
        # -inf and a finite value.
        known = next((n, v) for n, v in enumerate(values) if v is not None)
        sign = -1 if op.fn == "sub" and known[0] == 1 else 1
        return sign * known[1] if math.isinf(known[1]) else None
    if not values or any(v is None for v in values):
        return None
    arrays = [np.asarray(float(v) if not isinstance(v, bool) else v) for v in values]
    with np.errstate(all="ignore"):
        made = apply(op.fn, arrays, numpy_dtype(node.dtype, np.float64), np.float64)
    return bool(made) if node.dtype == "bool" else float(made)


def _neutral(kind: str, value: Any) -> bool:
    return value == {"max": -math.inf, "min": math.inf, "any": False, "all": True}[kind]


def _guard(condition: Access, no: Access) -> bool | None:
    """What a guard says of a part that has seen something: `x = -inf` is false, `|x| < inf` true, and `x = 0`
    false where 0 would come out anyway."""
    condition = plain(condition)
    op = condition.node.op
    if not isinstance(op, Map) or op.fn not in ("eq", "lt"):
        return None
    one, two = (plain(a.at(at_axes(condition))) for a in op.args)
    limit = _constant_of(two)
    if limit is None:
        return None
    if op.fn == "lt":
        absolute = isinstance(one.node.op, Map) and one.node.op.fn == "abs"
        return True if absolute and limit == math.inf else None
    if math.isinf(limit):
        return False
    return False if limit == 0 and _has_factor(plain(no), one) else None


def _has_factor(value: Access, factor: Access) -> bool:
    """Is a value a product, or a quotient of one, with this factor? It is 0 where the factor is."""
    if value == factor:
        return True
    op = value.node.op
    if not isinstance(op, Map) or op.fn not in ("mul", "div", "neg", "id"):
        return False
    args = [plain(a.at(at_axes(value))) for a in op.args]
    return any(_has_factor(a, factor) for a in (args[:1] if op.fn == "div" else args))

"""Programs read off flat forms: every way to build a cluster that the laws of sum and product give.

A *reading* of a cluster says in which order bound indices are eliminated, whether factors without a bound
index join before or behind the sum, which operand a shared factor joins, whether a sum of terms inside a
product is distributed, and whether a factor that two terms share is taken out. `Reader` rebuilds a whole
program for one choice of readings; common parts become one node because nodes are interned.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from cleave.algebra.build import Builder
from cleave.algebra.clusters import (
    SUMS,
    Flattener,
    Product,
    indices,
    invert,
    is_linear,
    leaf,
    rename,
    times,
)  # fmt: skip
from cleave.algebra.emission import each_of
from cleave.algebra.frame import at_axes, plain
from cleave.ir.dims import Index, var
from cleave.ir.ops import FLOATS, Access, Map, Node, map_node
from cleave.ir.program import Program
from cleave.ir.rewrite import replace_access, replace_arguments

MOST_ORDERS = 6
MOST_READINGS = 12


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to build a cluster. `law` is empty for the user's own way.

    `order` lists bound indices by position, first eliminated first; `late` says that free factors join behind
    the sum; `last` that a shared factor joins the last operand that has its indices, else the first;
    `opened` is the position of a factor that is a sum of terms and gets distributed; `common` says that two
    terms' shared factor is taken out."""

    law: str = ""
    order: tuple[int, ...] = ()
    late: bool = True
    last: bool = False
    opened: int = -1
    outer: bool = False
    """For a distributed factor: whether the outer indices are eliminated before those of its terms."""
    common: tuple[int, int] = (-1, -1)
    raw: bool = False
    """Whether the terms of a sum that opens, or that a factor leaves, stay as they are inside."""
    cancels: bool = False
    """Whether terms that were subtracted element by element are now subtracted after their sums."""


OWN = Reading()


@dataclass(slots=True)
class Reader:
    """Finds the readings of a program's clusters and rebuilds the program for a choice of them."""

    program: Program
    dtype: str
    opens: bool = False
    """Whether sums that several values read open too, to be summed again in each."""
    flat: Flattener = field(init=False)
    build: Builder = field(init=False)
    below: dict[Node, int] = field(init=False)
    """For each node, one bit for itself and each node below it."""
    chosen: int = 0
    """The bits of the nodes that are being built in another way."""

    def __post_init__(self) -> None:
        self.flat = Flattener(self.program)
        self.below = {}
        for number, node in enumerate(self.program.nodes):
            bits = 1 << number
            for access in node.reads:
                bits |= self.below[access.node]
            self.below[node] = bits
        if self.opens:
            self.flat.uses.clear()
        self.build = Builder(self.dtype)

    # ------------------------------------------------------------ readings

    def readings(self, node: Node) -> tuple[Reading, ...]:
        """The ways to build a node, the user's own first; different readings may give the same program."""
        if node.dtype not in FLOATS:
            return (OWN,)
        if isinstance(node.op, Map) and node.op.fn in SUMS:
            return (OWN, *self._common(node))
        if not is_linear(node):
            return (OWN,)
        form = self.flat.form(node)
        if not form.bound:
            return (OWN,)
        found = [OWN]
        orders = orders_of(form)
        choice = len(orders) > 1 or _shared(form) or form.free or form.coefficient not in (1, -1)
        for order in orders if choice else []:
            for last in (False, True) if _shared(form) else (False,):
                for late in (True, False) if form.free or form.coefficient not in (1, -1) else (True,):
                    found.append(Reading(_law(form, late, len(orders) > 1), order, late, last))
        found += self._distributed(form, orders)
        return tuple(found[:MOST_READINGS])

    def _distributed(self, form: Product, orders: Sequence[tuple[int, ...]]) -> list[Reading]:
        found: list[Reading] = []
        for at, (access, power) in enumerate(form.factors):
            op = access.node.op
            if (
                power not in (1, 2)
                or not isinstance(op, Map)
                or op.fn not in SUMS
                or not access.indices & set(form.bound)
            ):
                continue
            terms = self._terms(access)
            if power == 1:
                gains = any(
                    t.bound or any(not a.indices & set(form.bound) for a, _ in t.factors) for _, t in terms
                )
            else:
                # Each square is over fewer indices than the square of the sum.
                gains = all(not t.bound and indices(t.factors) < access.indices for _, t in terms)
            if gains:
                cancels = power == 2 or self._correlated(terms)
                law = "a sum of a sum is the sum of sums"
                nested = (False, True) if any(t.bound for _, t in terms) else (False,)
                found += [
                    Reading(law, order, True, False, at, outer, cancels=cancels)
                    for order in orders[:2]
                    for outer in nested
                ]
        return found

    def _terms(self, access: Access) -> list[tuple[int, Product]]:
        """The signed terms of a sum of two values."""
        op = access.node.op
        assert isinstance(op, Map)
        where = at_axes(access)
        one, two = (self.flat.of(a.at(where)) for a in op.args)
        return [(1, one), (1 if op.fn == "add" else -1, two)]

    def expanded(self, access: Access, power: Fraction, raw: bool = False) -> list[tuple[int, Product]]:
        """A sum of two values, or its square, as terms with whole coefficients; `raw` ones do not open."""
        terms = self._terms(access)
        if raw:
            args = (plain(a.at(at_axes(access))) for a in access.node.args)
            terms = [(sign, leaf(arg)) for (sign, _), arg in zip(terms, args, strict=True)]
        if power == 1:
            return terms
        (s, one), (t, two) = terms
        return [(1, times(one, one)), (2 * s * t, times(one, two)), (1, times(two, two))]

    def _correlated(self, terms: list[tuple[int, Product]]) -> bool:
        """Do two terms depend on one tensor? Then their difference may cancel."""
        sources = [_sources(t) for _, t in terms]
        return bool(sources[0] & sources[1])

    def _common(self, node: Node) -> list[Reading]:
        (_, one), (sign, two) = self._terms(node.read())
        found: list[Reading] = []
        if sign < 0 and one == two:  # a value less itself: nothing is spared, and what overflows is NaN
            return found
        for i, j in itertools.product(range(len(one.factors)), range(len(two.factors))):
            if _same_free(one, i, two, j) or _shares(one, i, two, j) is not None:
                found.append(Reading("a common factor leaves a sum", common=(i, j)))
        return found[:2]

    # ------------------------------------------------------------ rebuilding

    def alone(self, node: Node, reading: Reading) -> Access:
        """One value, built as a reading says, everything else the user's way."""
        self._choose([node])
        return self._visit(node, {node: reading}, {})

    def _choose(self, nodes: Iterable[Node]) -> None:
        # A node comes after all below it, so its own bit is its highest.
        self.chosen = sum(1 << self.below[node].bit_length() - 1 for node in nodes)

    def rebuild(self, choice: dict[Node, Reading]) -> Program:
        """The program with each chosen cluster built as its reading says."""
        made: dict[Node, Access] = {}
        outputs = [output.node for output in self.program.outputs]
        names: dict[Node, str] = {}
        self._choose(choice)
        for root in outputs:
            self._visit(root, choice, made)
        for node, name in self.program.names.items():
            names.setdefault(made[node].node if node in made else node, name)
        from dataclasses import replace

        new = tuple(
            replace(output, node=whole(made[output.node], output.node)) for output in self.program.outputs
        )
        return replace(self.program, outputs=new, names=names)

    def _visit(self, node: Node, choice: dict[Node, Reading], made: dict[Node, Access]) -> Access:
        if node in made:
            return made[node]
        if not self.below[node] & self.chosen:
            made[node] = node.read()
            return made[node]
        reading = choice.get(node, OWN)
        if not reading.law:
            for read in node.reads:
                self._visit(read.node, choice, made)
            made[node] = replace_arguments(node, made).read()
            return made[node]
        emit = _Emitter(self, choice, made)
        if isinstance(node.op, Map) and node.op.fn in SUMS:
            made[node] = emit.common(node, reading)
        else:
            made[node] = emit.cluster(self.flat.form(node), reading)
        return made[node]


class _Emitter:
    def __init__(self, reader: Reader, choice: dict[Node, Reading], made: dict[Node, Access]) -> None:
        self.reader = reader
        self.build = reader.build
        self.choice = choice
        self.made = made

    def leaf(self, access: Access) -> Access:
        self.reader._visit(access.node, self.choice, self.made)  # pyright: ignore[reportPrivateUsage]
        for term in access.terms:
            for inner in _gathers(term):
                self.reader._visit(inner.node, self.choice, self.made)  # pyright: ignore[reportPrivateUsage]
        return replace_access(access, self.made)

    def powered(self, access: Access, power: Fraction) -> Access:
        return self.build.power(self.leaf(access), power)

    def cluster(self, form: Product, reading: Reading) -> Access:
        if reading.opened < 0:
            return self.product(form, reading)
        access, power = form.factors[reading.opened]
        rest = form.factors[: reading.opened] + form.factors[reading.opened + 1 :]
        total: Access | None = None
        for sign, term in self.reader.expanded(access, power, reading.raw):
            whole_term = times(Product(form.coefficient * sign, form.bound, rest), term)
            inner = tuple(len(form.bound) + n for n in range(len(term.bound)))
            order = (*reading.order, *inner) if reading.outer else (*inner, *reading.order)
            part = Reading(reading.law, order, reading.late, reading.last)
            value = self.product(Product(abs(whole_term.coefficient), *_parts(whole_term)), part)
            negative = whole_term.coefficient < 0
            if total is None:
                total = self.build.map("neg", value) if negative else value
            else:
                total = self.build.sub(total, value) if negative else self.build.add(total, value)
        assert total is not None
        return total

    def product(self, form: Product, reading: Reading) -> Access:
        """A sum of a product, bound indices eliminated in the given order."""
        form = _counted(form, self.build.dtype)
        free, inside = list(form.free), list(form.inside)
        values: list[tuple[frozenset[Index], Access]] = []
        for access, power in inside:
            if power < 0 and values:
                # A quotient by a factor inside the sum divides the operand that has its indices.
                at = next((n for n, (own, _) in enumerate(values) if access.indices <= own), None)
                if at is not None:
                    own, value = values[at]
                    values[at] = own, self.build.div(value, self.powered(access, -power))
                    continue
            values.append((access.indices, self.powered(access, power)))
        if not reading.late and values:
            values = self._early(values, free, form.coefficient)
        order = [form.bound[n] for n in reading.order] if reading.order else list(form.bound)
        for index in order:
            if not any(index in own for own, _ in values):
                continue
            values = self._eliminate(values, index, form.bound, reading.last)
        return self._behind(values, free if reading.late or not values else [], form, reading)

    def _early(
        self, values: list[tuple[frozenset[Index], Access]], free: list[tuple[Access, Fraction]], c: Fraction
    ) -> list[tuple[frozenset[Index], Access]]:
        """Free factors and the coefficient join an operand before the sum."""
        values = list(values)
        for access, power in free:
            at = next((n for n, (own, _) in enumerate(values) if access.indices <= own), 0)
            own, value = values[at]
            joined = self.powered(access, abs(power))
            value = self.build.div(value, joined) if power < 0 else self.build.mul(value, joined)
            values[at] = own | access.indices, value
        if c != 1:
            own, value = values[0]
            values[0] = own, self.build.mul(value, self.build.number(c))
        return values

    def _eliminate(
        self,
        values: list[tuple[frozenset[Index], Access]],
        index: Index,
        bound: tuple[Index, ...],
        last: bool,
    ) -> list[tuple[frozenset[Index], Access]]:
        chosen = [(own, v) for own, v in values if index in own]
        others = [(own, v) for own, v in values if index not in own]
        # Indices that occur in exactly the same factors are eliminated together.
        together = [
            b for b in bound if all(b in own for own, _ in chosen) and not any(b in own for own, _ in others)
        ]
        if last:
            # A shared factor joins the last operand that has its indices.
            chosen = list(reversed(chosen))
        value = self.build.product(together, [v for _, v in chosen])
        at = values.index(chosen[0]) if not last else values.index(chosen[-1])
        return [*others[:at], (value.indices, value), *others[at:]]

    def _behind(
        self,
        values: list[tuple[frozenset[Index], Access]],
        free: list[tuple[Access, Fraction]],
        form: Product,
        reading: Reading,
    ) -> Access:
        build = self.build
        total: Access | None = None
        for _, value in values:
            total = value if total is None else build.mul(total, value)
        for access, power in free:
            joined = self.powered(access, abs(power))
            if power > 0:
                total = joined if total is None else build.mul(total, joined)
            else:
                total = build.div(total if total is not None else build.number(1.0), joined)
        total = total if total is not None else build.number(1.0)
        used = indices(form.factors)
        for index in form.bound:
            if index not in used:
                from cleave.ir.ops import size

                total = build.mul(total, size(index.dim, build.dtype))
        if form.coefficient != 1 and (reading.late or not values):
            total = build.mul(total, build.number(form.coefficient))
        return total

    def common(self, node: Node, reading: Reading) -> Access:
        (_, one), (sign, two) = self.reader._terms(node.read())  # pyright: ignore[reportPrivateUsage]
        i, j = reading.common
        free = _same_free(one, i, two, j)
        shared = None if free else _shares(one, i, two, j)
        access, binder = one.factors[i][0], None
        if shared is not None:
            access, binder, two = shared
        rests: list[Access] = []
        for term, at in ((one, i), (two, j)):
            factors = term.factors[:at] + term.factors[at + 1 :]
            bound = tuple(b for b in term.bound if b != binder)
            inner = Product(term.coefficient, bound, factors)
            rests.append(self.product(inner, Reading("", tuple(range(len(bound))))))
        power = one.factors[i][1]

        def multiplied(rest: Access) -> Access:
            if binder is not None:
                return self.build.product([binder], [self.leaf(access), rest])
            joined = self.powered(access, abs(power))
            return self.build.div(rest, joined) if power < 0 else self.build.mul(rest, joined)

        join = self.build.add if sign > 0 else self.build.sub
        if reading.raw:
            return join(*map(multiplied, rests))
        return multiplied(join(*rests))


def _same_free(one: Product, i: int, two: Product, j: int) -> bool:
    """Do two terms share a factor that is under no sum, to the same power?"""
    return one.factors[i] == two.factors[j] and one.factors[i] in one.free and two.factors[j] in two.free


def _shares(one: Product, i: int, two: Product, j: int) -> tuple[Access, Index, Product] | None:
    """The factor that two sums share under one bound index, that index, and the second sum with its own
    index called the same."""
    (a, p), (b, q) = one.factors[i], two.factors[j]
    if p != 1 or q != 1 or a.node is not b.node:
        return None
    mine = [x for x in one.bound if x in a.indices]
    other = [x for x in two.bound if x in b.indices]
    if len(mine) != 1 or len(other) != 1 or mine[0].dim != other[0].dim:
        return None
    renamed = rename(two, {other[0]: var(mine[0])})
    if renamed.factors[j][0] != a:
        return None
    return a, mine[0], renamed


def _counted(form: Product, dtype: str) -> Product:
    """The product with 1s for what runs inside a part and is not read: how often depends on the part."""
    used = indices(form.factors)
    idle = [i for i in form.bound if i not in used]
    known = (*form.bound, *sorted(used, key=lambda i: (str(i.dim), i.number)))
    more = tuple((each, Fraction(1)) for i in idle if (each := each_of(i, known, dtype)) is not None)
    return Product(form.coefficient, form.bound, (*form.factors, *more)) if more else form


def _parts(form: Product) -> tuple[tuple[Index, ...], tuple[tuple[Access, Fraction], ...]]:
    return form.bound, form.factors


def orders_of(form: Product) -> list[tuple[int, ...]]:
    """Orders of elimination that can differ: indices that occur in the same factors stay together."""
    classes: dict[frozenset[int], list[int]] = {}
    for n, index in enumerate(form.bound):
        where = frozenset(k for k, (a, _) in enumerate(form.factors) if index in a.indices)
        classes.setdefault(where, []).append(n)
    # Inner sums come last in `bound`: the user's own order eliminates them first.
    groups = list(reversed(classes.values()))
    found: list[tuple[int, ...]] = []
    for order in itertools.permutations(groups):
        found.append(tuple(n for group in order for n in group))
        if len(found) >= MOST_ORDERS:
            break
    return found


def _shared(form: Product) -> bool:
    """Is there a factor whose indices two others have?"""
    inside = form.inside
    return any(sum(1 for b, _ in inside if b is not a and a.indices < b.indices) > 1 for a, _ in inside)


def _law(form: Product, late: bool, many: bool) -> str:
    laws: list[str] = []
    if form.free or form.coefficient not in (1, -1):
        laws.append("a factor without the bound index leaves the sum" if late else "a factor joins the sum")
    if many:
        laws.append("sums over two indices commute")
    return ", ".join(laws) or "a product is associative and commutative"


def _sources(form: Product) -> frozenset[str]:
    found: set[str] = set()
    stack = [a.node for a, _ in form.factors]
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        name = getattr(node.op, "name", "")
        if name:
            found.add(name)
        stack += [a.node for a in node.reads]
    return frozenset(found)


def _gathers(term: object) -> list[Access]:
    from cleave.ir.dims import Gather, Term

    assert isinstance(term, Term)
    return [leaf.access for leaf, _ in term.leaves if isinstance(leaf, Gather)]


def whole(access: Access, like: Node) -> Node:
    """The access over the axes of `like` as a node of its own."""
    if access.node.dims == like.dims and access.terms == tuple(map(var, like.axes)):
        return access.node
    return map_node("id", like.axes, [access], access.node.dtype)


__all__ = ["OWN", "Reader", "Reading", "invert", "leaf", "plain", "whole"]

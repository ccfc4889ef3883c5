"""From recorded nodes to a `Program`: every size variable is settled now, so dims get names and digits terms.

`Builder.program` builds the part of a capture that runs between two PyTorch calls: values computed before
are inputs of it. What cannot be expressed is refused with the recorded call that asked for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy

from cleave.errors import Unsupported
from cleave.frontend.axes import Expr, Ix, Space, Var, leaf_vars, leaves_of, root
from cleave.frontend.fold import fold_constant
from cleave.frontend.values import Digit, Fix, Pick, Pre, Read, Span, Value, fresh_like, read
from cleave.ir.dims import Atom, Dim, Extent, Gather, Index, Inject, Leaf, Term, Union, extent, term, var
from cleave.ir.ops import (
    Access,
    Node,
    cat_node,
    const,
    contract_node,
    input_node,
    map_node,
    position,
    reduce_node,
    scalar_node,
    size,
)
from cleave.ir.program import Output, Program

Numbering = Mapping[Ix, Index]

EXTENSIONS: dict[str, Callable[..., Node]] = {}
"""How nodes of further kinds are built, by kind."""


def extension(kind: str) -> Callable[[Callable[..., Node]], Callable[..., Node]]:
    """Register how nodes of a kind are built: `(builder, pre, numbering, built) -> Node`."""

    def register(function: Callable[..., Node]) -> Callable[..., Node]:
        EXTENSIONS[kind] = function
        return function

    return register


class Refused(Unsupported):
    """A recorded call that no program can express now that all sizes are settled; it runs in PyTorch."""

    def __init__(self, call: int, what: str, where: str) -> None:
        super().__init__(what, where=where)
        self.call = call


class Names:
    """Names for dims: the user's where given, else made of the input's name and the axis."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.dim_of: dict[Var, Dim] = {}
        self.sizes: dict[Atom, int | Extent] = {}
        self.used: dict[str, None] = {}
        for item in space.vars:
            if item.declared:
                self.used[item.declared] = None

    def claim(self, wanted: str) -> str:
        """A name that nothing else has."""
        base = re.sub(r"\W", "_", wanted) or "N"
        name, number = base, 1
        while name in self.used:
            number += 1
            name = f"{base}_{number}"
        self.used[name] = None
        return name

    def dim(self, leaf: Var) -> Dim:
        """The dim of a leaf variable."""
        top = root(leaf)
        found = self.dim_of.get(top)
        if found is not None:
            return found
        if top.parts is not None:
            dim: Dim = Union(tuple(self._part(p) for p in top.parts))
        else:
            atom = Atom(top.declared or self.claim(top.label or "N"))
            dim = self.dim_of[top] = atom
            if top.value is not None:
                self.sizes[atom] = top.value
            elif top.length is not None:
                self.sizes[atom] = self._length(top)
        self.dim_of[top] = dim
        return dim

    def _length(self, top: Var) -> int | Extent:
        """The size of a dim that follows from others; one that is not linear in them is fixed, by a check."""
        try:
            return self.extent(top.length)
        except Unsupported:
            self.space.fix(top, top.hint)
            return top.hint

    def _part(self, part: Var) -> Dim:
        leaves = leaf_vars(part)
        if len(leaves) > 1:
            raise Unsupported("a concatenation along an axis that merges several dims")
        return self.dim(leaves[0]) if leaves else self.dim(part)

    def extent(self, user: Expr) -> Extent:
        """A size expression as a linear `Extent`."""
        poly = self.space.canon(user)
        const_part, terms = 0, list[tuple[Dim, int]]()
        symbols = {v.symbol: v for v in self.space.vars if v.parent is None}
        for monomial, coefficient in poly.as_coefficients_dict().items():
            if not sympy.sympify(coefficient).is_integer:
                raise Unsupported(f"a size that is not linear in others: {poly}")
            if monomial == 1:
                const_part = int(coefficient)
            elif monomial in symbols:
                terms.append((self.dim(symbols[monomial]), int(coefficient)))
            else:
                raise Unsupported(f"a size that is not linear in others: {poly}")
        return extent(const_part, *terms)


class Builder:
    """Builds programs of one capture; `names` and constants are shared by all of them."""

    def __init__(self, space: Space, names: Names, float_scalar: str) -> None:
        self.space, self.names, self.float_scalar = space, names, float_scalar
        self.kept: dict[Any, Any] = {}
        """What extensions built for several nodes at once, in the program that is being built."""

    def program(
        self,
        name: str,
        inputs: Sequence[tuple[str, Pre]],
        outputs: Sequence[tuple[str, Value]],
    ) -> Program:
        """`inputs` gives the nodes that are arguments (with their names), in order."""
        built: dict[Pre, Node] = {}
        lines: dict[Node, str] = {}
        nodes: list[Node] = []
        self.kept.clear()
        for label, pre in inputs:
            node = self._input(label, pre)
            nodes.append(node)
            built[pre] = node
        results: list[Output] = []
        for label, value in outputs:
            plain = value if self._is_plain(value) else copy_of(value)
            self._below(plain.node, built, lines)
            node = built[plain.node]
            seen = {ix: n for n, ix in enumerate(leaves_of(plain.node.axes))}
            layout = tuple(tuple(seen[ix] for ix in leaves_of(axis)) for axis in plain.axes)
            results.append(Output(label, node, layout))
        made = Program(name, tuple(nodes), tuple(results))
        sizes = {a: s for a, s in self.names.sizes.items() if a in made.dims or s is None}
        return Program(name, tuple(nodes), tuple(results), self._closed(sizes), lines=lines)

    def _closed(self, sizes: dict[Atom, int | Extent]) -> tuple[tuple[Atom, int | Extent], ...]:
        """Known sizes, with those of atoms that other sizes are computed from."""
        known = dict(sizes)
        stack = list(sizes.values())
        while stack:
            value = stack.pop()
            if isinstance(value, Extent):
                for dim, _ in value.terms:
                    if isinstance(dim, Atom) and dim in self.names.sizes and dim not in known:
                        known[dim] = self.names.sizes[dim]
                        stack.append(known[dim])
        return tuple((a, s) for a, s in self.names.sizes.items() if a in known)

    def _input(self, name: str, pre: Pre) -> Node:
        if pre.kind == "scalar":
            return scalar_node(name, self.float_scalar if pre.dtype.startswith("f") else pre.dtype)
        groups: list[list[Dim]] = []
        spec = pre.data if pre.kind == "input" else [(ix,) for ix in leaves_of(pre.axes)]
        for axis in spec:
            groups.append([self.names.dim(ix.var) for ix in leaves_of(axis)])
        return input_node(name, groups, pre.dtype)

    def _is_plain(self, value: Value) -> bool:
        if value.node.kind in ("input", "const", "scalar", "size"):
            return False
        if not all(isinstance(d, Ix) for d in value.digits):
            return False
        used = leaves_of(d for d in value.digits if isinstance(d, Ix))
        if used != leaves_of(value.node.axes):
            return False
        shown = [ix for axis in value.axes for ix in leaves_of(axis)]
        return len(set(used)) == len(used) and len(shown) == len(used) and set(shown) == set(used)

    def _below(self, top: Pre, built: dict[Pre, Node], lines: dict[Node, str]) -> None:
        stack: list[tuple[Pre, bool]] = [(top, False)]
        while stack:
            pre, ready = stack.pop()
            if pre in built:
                continue
            if ready:
                try:
                    node = self._node(pre, built)
                except Refused:
                    raise
                except Unsupported as error:
                    raise Refused(pre.call, error.what, pre.where) from error
                built[pre] = node
                if pre.where:
                    lines.setdefault(node, pre.where)
                continue
            stack.append((pre, True))
            stack += [(child, False) for child in reversed(below(pre)) if child not in built]

    # ------------------------------------------------------------ nodes

    def _node(self, pre: Pre, built: Mapping[Pre, Node]) -> Node:
        axes = leaves_of(pre.axes)
        bound = leaves_of(pre.bound)
        numbering = {ix: Index(self.names.dim(ix.var), n) for n, ix in enumerate((*axes, *bound))}
        own = [numbering[ix] for ix in axes]
        inner = [numbering[ix] for ix in bound]
        match pre.kind:
            case "const":
                return const(pre.data, pre.dtype).node
            case "size":
                return self._size(pre.data, pre.dtype)
            case "position":
                return self._position(pre, own, numbering)
            case "map":
                args = [self._access(r, numbering, built) for r in pre.args]
                return fold_constant(map_node(pre.data, own, args, pre.dtype))
            case "reduce":
                arg = self._access(pre.args[0], numbering, built)
                if not inner:
                    return map_node("id", own, [arg], pre.dtype)
                return reduce_node(pre.data, own, inner, arg, pre.dtype)
            case "contract":
                args = [self._access(r, numbering, built) for r in pre.args]
                if inner:
                    return contract_node(own, inner, args, pre.dtype)
                node = map_node("mul", own, args[:2], pre.dtype)
                for arg in args[2:]:
                    node = map_node("mul", own, [node(*own), arg], pre.dtype)
                return node
            case "cat":
                return self._cat(pre, own, numbering, built)
            case kind if kind in EXTENSIONS:
                return EXTENSIONS[kind](self, pre, numbering, built)
            case _:
                raise Unsupported(f"a value of another part of the capture ({pre.kind})")

    def _size(self, which: Var, dtype: str) -> Node:
        factors = [
            const(leaf.value, dtype) if leaf.value is not None else size(self.names.dim(leaf), dtype)
            for leaf in leaf_vars(which)
        ] or [const(1, dtype)]
        node = factors[0].node
        for factor in factors[1:]:
            node = fold_constant(map_node("mul", (), [node.read(), factor], dtype))
        return node

    def _position(self, pre: Pre, own: Sequence[Index], numbering: Numbering) -> Node:
        try:
            return position(own, self._affine(pre.data, numbering, {}), pre.dtype)
        except Unsupported:
            leaves = leaves_of(d for d in pre.data if isinstance(d, Ix))
            if len(pre.data) != len([d for d in pre.data if isinstance(d, Ix)]):
                raise
        # A dim that is a product with dynamic factors: the position is computed.
        node = position((), term(), pre.dtype)
        for ix in leaves:
            scale = size(self.names.dim(ix.var), pre.dtype)
            node = map_node("mul", node.axes, [node.read(), scale], pre.dtype)
            axes = [numbering[x] for x in leaves[: leaves.index(ix) + 1]]
            here = position([axes[-1]], axes[-1], pre.dtype)
            node = map_node("add", axes, [node(*axes[:-1]), here(axes[-1])], pre.dtype)
        return node

    def _cat(self, pre: Pre, own: Sequence[Index], numbering: Numbering, built: Mapping[Pre, Node]) -> Node:
        whole, parts = pre.data
        leaves = list(leaves_of((whole,)))
        if len(leaves) != 1 or root(leaves[0].var).parts is None:
            raise Unsupported("a concatenation whose size is known to be 1")
        axis: int = leaves_of(pre.axes).index(leaves[0])
        union = own[axis].dim
        assert isinstance(union, Union)
        pieces: list[Access] = []
        for number, (part, piece) in enumerate(zip(parts, pre.args, strict=True)):
            extra = {ix: Index(union.parts[number], own[axis].number) for ix in leaves_of((part,))}
            pieces.append(self._access(piece, {**numbering, **extra}, built))
        return cat_node(own, axis, pieces, pre.dtype)

    # ------------------------------------------------------------ terms

    def _access(self, what: Read, numbering: Numbering, built: Mapping[Pre, Node]) -> Access:
        node = built[what.node]
        terms: list[Term] = []
        for digit in what.digits:
            try:
                terms += self._terms(digit, numbering, built)
            except Refused:
                raise
            except Unsupported as error:
                if isinstance(digit, Span | Pick) and digit.call >= 0:
                    raise Refused(digit.call, error.what, what.node.where) from error
                raise
        return Access(node, tuple(terms))

    def _terms(self, digit: Digit, numbering: Numbering, built: Mapping[Pre, Node]) -> list[Term]:
        if isinstance(digit, Ix):
            return [var(numbering[ix]) for ix in leaves_of((digit,))]
        leaves = list(leaf_vars(digit.var))
        if not leaves:
            return []
        if isinstance(digit, Fix) and len(leaves) > 1:
            rest, found = digit.value, list[Term]()
            for leaf in reversed(leaves[1:]):
                if leaf.value is None:
                    raise Unsupported("one element of a dim that a reshape splits at a dynamic size")
                found.append(self._at(leaf, term(offset=rest % leaf.value)))
                rest //= leaf.value
            return [self._at(leaves[0], term(offset=rest)), *reversed(found)]
        if len(leaves) > 1:
            raise Unsupported("a slice or a gather along a dim that a reshape splits")
        if isinstance(digit, Span) and leaves[0].parts is not None:
            return [self._inject(leaves[0], digit, numbering, built)]
        return [self._at(leaves[0], self._affine((digit,), numbering, built))]

    def _at(self, leaf: Var, where: Term) -> Term:
        """A constant position of a union names its part."""
        if leaf.parts is None or where.leaves or where.offset.terms:
            return where
        rest = where.offset.const
        for number, part in enumerate(leaf.parts):
            if root(part).value is None:
                raise Unsupported("one element of a concatenation of dynamic sizes")
            if rest < (root(part).value or 0):
                return var(Inject(number, term(offset=rest)))
            rest -= root(part).value or 0
        raise Unsupported("an element beyond a concatenation")

    def _inject(self, leaf: Var, span: Span, numbering: Numbering, built: Mapping[Pre, Node]) -> Term:
        """A slice of a concatenation: which piece, and where in it."""
        start, at = self.space.canon(span.start), sympy.Integer(0)
        width = self.space.poly(span.width) if span.width is not None else sympy.Integer(1)
        inside = self._affine(span.inner, numbering, built)
        for number, part in enumerate(leaf.parts or ()):
            size_here = self.space.poly(part)
            skip = sympy.expand(start - at)
            last = sympy.expand(size_here - skip - width)
            fits = skip == 0 or (isinstance(skip, sympy.Integer) and skip > 0)
            if span.step == 1 and fits and isinstance(last, sympy.Integer) and last >= 0:
                offset = Extent(int(skip))
                place = term(*inside.leaves, offset=inside.offset + offset)
                nested = root(part)
                if nested.parts is not None and (skip or last):
                    raise Unsupported("a slice inside a concatenation of concatenations")
                return var(Inject(number, place))
            at = sympy.expand(at + size_here)
        raise Unsupported("a slice that covers more than one piece of a concatenation")

    def _affine(self, digits: Iterable[Digit], numbering: Numbering, built: Mapping[Pre, Node]) -> Term:
        """The position that a product of digits says, as one affine term."""
        parts: list[tuple[Term, Var]] = []
        for digit in digits:
            match digit:
                case Ix():
                    parts += [(var(numbering[ix]), root(ix.var)) for ix in leaves_of((digit,))]
                case Fix(where, value):
                    parts.append((term(offset=value), where))
                case Pick(where, access, _):
                    leaf: Leaf = Gather(self._access(access, numbering, built))
                    parts.append((var(leaf), where))
                case Span(where, start, step, _, inner, _):
                    below = self._affine(inner, numbering, built)
                    leaves = [(x, c * step) for x, c in below.leaves]
                    offset = below.offset * step + self.names.extent(start)
                    parts.append((term(*leaves, offset=offset), where))
        radix, leaves, offset = 1, list[tuple[Leaf, int]](), Extent()
        for n, (part, where) in reversed(list(enumerate(parts))):
            leaves += [(x, c * radix) for x, c in part.leaves]
            offset = offset + part.offset * radix
            if n:
                exact = self.space.poly(where)
                if not isinstance(exact, sympy.Integer):
                    raise Unsupported("a slice of a dim that a reshape splits at a dynamic size")
                radix *= int(exact)
        return term(*leaves, offset=offset)


def below(pre: Pre) -> list[Pre]:
    """What a node reads, gathers inside digits included."""
    found: list[Pre] = []
    stack: list[Digit] = [d for r in pre.args for d in r.digits]
    if pre.kind == "position":
        stack += pre.data
    found += [r.node for r in pre.args]
    while stack:
        digit = stack.pop()
        if isinstance(digit, Pick):
            found.append(digit.access.node)
            stack += digit.access.digits
        elif isinstance(digit, Span):
            stack += digit.inner
    return found


def copy_of(value: Value) -> Value:
    """A node of its own for a view."""
    axes = tuple(fresh_like(axis) for axis in value.axes)
    flat = tuple(ix for axis in axes for ix in axis)
    node = Pre(
        "map",
        "id",
        flat,
        value.dtype,
        (read(value, axes),),
        (),
        value.node.level,
        value.node.where,
        value.node.call,
    )
    return Value(node, flat, axes)

"""Views: how `reshape`, `permute`, slices, `expand`, `flip` and their kin change the digits of a value.

None of these is an operation of a program (design.md, section 2). A reshape groups and factors dims; a slice
with constant or symbolic bounds becomes an affine digit; what no access can express is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
from torch.utils._sympy.functions import FloorDiv

from cleave.errors import Unsupported
from cleave.frontend.axes import Expr, Ix, Space, Var, leaves_of, root
from cleave.frontend.values import Digit, Fix, Span, Value, swap

Axis = tuple[Ix, ...]


def permute(value: Value, order: Sequence[int]) -> Value:
    """Axes in another order."""
    return Value(value.node, value.digits, tuple(value.axes[i] for i in order))


def insert(value: Value, at: int) -> Value:
    """A new axis of size 1."""
    axes = list(value.axes)
    axes.insert(at, ())
    return Value(value.node, value.digits, tuple(axes))


def drop(space: Space, value: Value, at: int) -> Value:
    """Remove an axis of size 1."""
    for ix in leaves_of(value.axes[at]):
        space.fix(ix.var, 1)
    return Value(value.node, value.digits, value.axes[:at] + value.axes[at + 1 :])


def expand_axis(space: Space, value: Value, at: int, size: Expr | int, hint: int) -> Value:
    """Repeat an axis of size 1 (`expand`); an axis that has the size already stays."""
    own = leaves_of(value.axes[at])
    if own and space.canon(space.user_of(own)) == space.canon(size):
        return value
    if own and all(root(ix.var).hint == 1 for ix in own):
        for ix in own:
            space.fix(ix.var, 1)
        own = ()
    new: Axis = (Ix(space.sized(size, hint)),)
    axes = list(value.axes)
    if own:
        space.match(own, new)
        return value
    axes[at] = new
    return Value(value.node, value.digits, tuple(axes))


def repeat_inner(space: Space, value: Value, at: int, times: Expr | int, hint: int) -> Value:
    """`repeat_interleave`: element `n` is element `n // times`."""
    axes = list(value.axes)
    axes[at] = (*axes[at], Ix(space.sized(times, hint)))
    return Value(value.node, value.digits, tuple(axes))


def repeat_outer(space: Space, value: Value, at: int, times: Expr | int, hint: int) -> Value:
    """`repeat`: the axis as a whole, again and again."""
    axes = list(value.axes)
    axes[at] = (Ix(space.sized(times, hint)), *axes[at])
    return Value(value.node, value.digits, tuple(axes))


# ---------------------------------------------------------------- reshape


def reshape(space: Space, value: Value, sizes: Sequence[Expr | int], hints: Sequence[int]) -> Value:
    """`reshape`: the same elements in order, in axes of other sizes. At most one size is -1."""
    queue = [ix for axis in value.axes for ix in leaves_of(axis)]
    exact = [space.canon(size) for size in sizes]
    rest = next((n for n, e in enumerate(exact) if e == -1), None)
    if rest is None:
        rest = next((n for n, e in enumerate(exact) if e.has(FloorDiv)), None)
    axes: list[Axis] = [()] * len(sizes)
    for n in range(len(sizes) if rest is None else rest):
        axes[n] = _take(space, queue, sizes[n], hints[n], inner=False)
    if rest is not None:
        for n in range(len(sizes) - 1, rest, -1):
            axes[n] = _take(space, queue, sizes[n], hints[n], inner=True)
        axes[rest] = leaves_of(queue)
        if exact[rest] != -1:
            space.demand(space.user_of(queue), sympy.sympify(sizes[rest]))
    elif leaves_of(queue):
        for ix in leaves_of(queue):
            space.fix(ix.var, 1)
    return Value(value.node, value.digits, tuple(axes))


def _take(space: Space, queue: list[Ix], size: Expr | int, hint: int, *, inner: bool) -> Axis:
    """Take as many indices from the queue's front (or end) as make up `size`; factor one if need be."""
    taken: list[Ix] = []
    need, user, left = space.canon(size), sympy.sympify(size), hint
    while need != 1:
        queue[:] = leaves_of(queue)
        if not queue:
            if left != 1:
                raise Unsupported(f"a view that no product of dims can express (size {size})")
            space.fix(space.sized(user, 1), 1)
            break
        at = -1 if inner else 0
        ix = queue[at]
        var = root(ix.var)
        poly, hint_here = space.poly(var), var.hint
        ratio = space.quotient(need, poly)
        if need == poly or ratio is not None:
            taken.append(queue.pop(at))
            need, left = ratio if ratio is not None else sympy.Integer(1), left // max(hint_here, 1)
            user = need if isinstance(need, sympy.Integer) else FloorDiv(user, space.user(var))
            continue
        _factor(space, var, need, user, left, inner=inner)
        need = space.canon(user)
    return tuple(reversed(taken)) if inner else tuple(taken)


def _factor(space: Space, var: Var, need: Expr, user: Expr, left: int, *, inner: bool) -> None:
    """Make `need` one factor of `var` (or of both, where only a common factor exists)."""
    here = var.hint
    if isinstance(need, sympy.Mul):
        for other in space.vars:
            if other.parent is None and other.hint == here and other.symbol in need.args and other is not var:
                space.unify(var, other)
                return
    if isinstance(need, sympy.Symbol) and here > 1 and left > here and left % here == 0:
        target = space.sized(user, left)
        rest = space.share(target, var)
        space.refine(target, (rest, var) if inner else (var, rest))
        return
    if here == left:
        wanted = space.sized(user, left)
        space.unify(var, wanted)
        return
    if left and here % left == 0:
        wanted = space.sized(user, left)
        ratio = space.quotient(space.poly(var), need)
        other = (
            space.part_of(var, ratio, here // left, space.user(wanted))
            if ratio is not None
            else space.share(var, wanted)
        )
        space.refine(var, (other, wanted) if inner else (wanted, other))
        return
    if isinstance(need, sympy.Integer) and var.value is not None:
        common = int(sympy.igcd(need, var.value))
        if 1 < common < var.value:
            pair = space.known(common), space.known(var.value // common)
            space.refine(var, pair[::-1] if inner else pair)
            return
    raise Unsupported(f"a view that splits a dim of {here} at {left}")


# ---------------------------------------------------------------- slices


def single(space: Space, axis: Axis, what: str) -> Ix | None:
    """The one index of an axis, `None` if its size is 1; a product of dims is refused."""
    own = leaves_of(axis)
    if len(own) > 1:
        raise Unsupported(f"{what} of an axis that merges several dims")
    return own[0] if own else None


def select(space: Space, value: Value, at: int, position: Expr | int) -> Value:
    """Element `position` of an axis (non-negative); the axis goes."""
    own = leaves_of(value.axes[at])
    axes = value.axes[:at] + value.axes[at + 1 :]
    exact = space.canon(position)
    new: dict[Ix, Digit] = {}
    if len(own) == 1:
        var = root(own[0].var)
        fixed = isinstance(exact, sympy.Integer)
        new[own[0]] = Fix(var, int(exact)) if fixed else _span(space, var, sympy.sympify(position))
    elif own:
        if not isinstance(exact, sympy.Integer) or any(root(i.var).value is None for i in own[1:]):
            raise Unsupported("one element of an axis that merges several dynamic dims")
        rest = int(exact)
        for ix in reversed(own):
            var = root(ix.var)
            size = var.value if ix is not own[0] else None
            new[ix] = Fix(var, rest if size is None else rest % size)
            rest = rest if size is None else rest // size
    return Value(value.node, swap(value.digits, new), axes)


def _span(space: Space, var: Var, start: Expr) -> Span:
    space.sliced(var, start, space.known(1))
    return Span(var, start, 1, None, (), space.call)


def narrow(
    space: Space, value: Value, at: int, start: Expr | int, length: Expr | int, hint: int, step: int = 1
) -> Value:
    """`length` elements of an axis from `start`, every `step`-th (may be negative)."""
    own = list(leaves_of(value.axes[at]))
    first, exact = space.canon(start), space.canon(length)
    if step == 1 and first.is_zero and exact == space.canon(space.user_of(own)):
        return value
    if not own:
        raise Unsupported("an empty slice of an axis of size 1")
    if step > 1:
        every = _every(space, value, at, first, hint, step)
        if every is not None:
            return every
    if len(own) > 1:
        return _narrow_product(space, value, at, first, exact)
    var = root(own[0].var)
    if exact.has(FloorDiv) or first.has(FloorDiv):
        if step != 1:
            raise Unsupported(f"every {step}-th element of a dynamic dim of {var.hint}")
        _halve(space, var, first, exact)
        first, exact = space.canon(start), space.canon(length)
        var = root(leaves_of(value.axes[at])[0].var)
    width = space.sized(length, hint)
    new = Ix(width)
    var.scaled = var.scaled or step != 1
    space.sliced(var, sympy.sympify(start), width)
    digit = Span(var, sympy.sympify(start), step, width, (new,), space.call)
    axes = list(value.axes)
    axes[at] = (new,)
    return Value(value.node, swap(value.digits, {own[0]: digit}), tuple(axes))


def _narrow_product(space: Space, value: Value, at: int, first: Expr, length: Expr) -> Value:
    """A slice of a merged axis that keeps whole inner dims."""
    own = leaves_of(value.axes[at])
    inner = sympy.expand(sympy.Mul(*(space.poly(ix.var) for ix in own[1:])))
    begin = space.quotient(first, inner) if not first.is_zero else sympy.Integer(0)
    many = space.quotient(length, inner)
    var = root(own[0].var)
    if not isinstance(begin, sympy.Integer) or not isinstance(many, sympy.Integer):
        raise Unsupported("a slice of an axis that merges several dims")
    width = space.known(int(many))
    space.sliced(var, begin, width)
    new = Ix(width)
    axes = list(value.axes)
    axes[at] = (new, *own[1:])
    digit = Span(var, begin, 1, width, (new,), space.call)
    return Value(value.node, swap(value.digits, {own[0]: digit}), tuple(axes))


def _every(space: Space, value: Value, at: int, first: Expr, hint: int, step: int) -> Value | None:
    """`x[a::n]` where the dim is a product with `n`, or can become one."""
    own = leaves_of(value.axes[at])
    var = root(own[-1].var)
    if not isinstance(first, sympy.Integer) or not 0 <= first < step:
        return None
    if var.value != step or len(own) == 1:
        if len(own) > 1 or var.hint != hint * step or var.slices or var.parts is not None:
            return None
        small = space.known(step)
        space.refine(var, (space.known(hint) if var.value is not None else space.share(var, small), small))
        own = leaves_of(own)
    axes = list(value.axes)
    axes[at] = own[:-1]
    return Value(value.node, swap(value.digits, {own[-1]: Fix(root(own[-1].var), int(first))}), tuple(axes))


def _halve(space: Space, var: Var, *exprs: Expr) -> None:
    """A slice at `size // n`: the dim becomes a disjoint union of `n` equal parts."""
    for expr in exprs:
        for atom in sorted(expr.atoms(FloorDiv), key=str):
            base, divisor = atom.args
            if base == space.poly(var) and isinstance(divisor, sympy.Integer):
                halves(space, var, int(divisor))
                return
    raise Unsupported("a slice at a quotient of sizes")


def halves(space: Space, var: Var, count: int) -> Var:
    """Make a dim the disjoint union of `count` equal parts; returns the part."""
    top = root(var)
    if top.hint % count:
        raise Unsupported(f"a dim of {top.hint} in {count} equal parts")
    if top.parts is not None and len(top.parts) == count:
        return top.parts[0]
    part = space.share(top, space.known(count))
    if top.value is not None:
        space.fix(part, part.hint)
    space.concatenate(top, (part,) * count)
    return part


def diagonal(space: Space, value: Value, offset: int, first: int, second: int) -> Value:
    """`diagonal`: two axes read at one index, which becomes the last axis."""
    a, b = single(space, value.axes[first], "a diagonal"), single(space, value.axes[second], "a diagonal")
    if a is None or b is None or offset:
        raise Unsupported("a diagonal beside the main one, or of a single row")
    if root(a.var).hint != root(b.var).hint:
        raise Unsupported("a diagonal of a rectangle")
    space.match((a,), (b,))
    rows = leaves_of((a,))
    swapped = swap(value.digits, dict(zip(leaves_of((b,)), rows, strict=True)))
    kept = tuple(axis for n, axis in enumerate(value.axes) if n not in (first, second))
    return Value(value.node, swapped, (*kept, rows))

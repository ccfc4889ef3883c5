"""The text of a `Product`: a contraction of two tiles by the micro-kernels of `cpp_products.h`.

Each operand is seen as a pointer with one stride per index. Indices of one role that lie behind each other
in all tiles concerned are one index for the micro-kernel; batch indices and what is left over become loops
around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cleave.codegen.cpp_frame import Frame
from cleave.codegen.cpp_roles import roles_of
from cleave.codegen.cpp_text import Text, indent, loop_head, plus, times
from cleave.codegen.cpp_tiles import Product, Tile, factor_of, is_bf16
from cleave.errors import Bug
from cleave.ir.dims import Index
from cleave.schedule.tiles import ContractTile, Load


@dataclass(frozen=True, slots=True)
class View:
    """An operand: where its first element is, and the stride of each index. `dense` lists the axes of a tile
    that lies dense in memory."""

    pointer: str
    offset: Text
    strides: dict[Index, Text]
    dense: tuple[Index, ...]


def write_product(frame: Frame, product: Product) -> list[str]:
    """The text of a product."""
    statement = product.op.statement
    assert isinstance(statement, ContractTile)
    out = product.out
    first, second = product.op.args
    roles = roles_of(out.axes, first.axes, second.axes, statement.over)
    if roles is None:
        raise Bug(f"{out.name} is no product for the micro-kernel")
    a = _view(frame, product.op.args[roles.left])
    b = _view(frame, product.op.args[roles.right])
    c = _view(frame, out)
    rows = _inner(roles.rows, (a, c)) if roles.rows else ()
    columns = _inner(roles.columns, (b, c))
    depth = _inner(roles.depth, (a, b))
    around = [
        *roles.batch,
        *(i for i in roles.rows if i not in rows),
        *(i for i in roles.columns if i not in columns),
        *(i for i in roles.depth if i not in depth),
    ]
    repeated = any(i in roles.depth for i in around)
    lines = _prepare(frame, product, repeated)
    variables: dict[Index, Text] = {}
    opened: list[str] = []
    for index in around:
        count = frame.count(index)
        if count == 1:
            continue
        variable = frame.name_of(index)
        variables[index] = variable
        opened.append(loop_head(variable, count))
    counts = [times(*(frame.count(i) for i in group)) for group in (rows, columns, depth)]
    adds = "true" if product.start is not None or repeated else "false"
    panel = f"tile<{out.kind}>(memory, {product.panel.offset if product.panel else 0})"
    call = [
        f"{'product_bf16' if is_bf16(product.op) else 'product'}({', '.join(map(str, counts))},",
        f"        {_at(a, variables)}, {_row(a, rows)}, {a.strides[depth[-1]]},",
        f"        {_at(b, variables)}, {b.strides[depth[-1]]}, {b.strides[columns[-1]]},",
        f"        {_at(c, variables)}, {_row(c, rows)}, {adds}, {panel});",
    ]
    return [*lines, *opened, *indent(call, 1 if opened else 0)]


def _row(view: View, rows: tuple[Index, ...]) -> Text:
    """The stride of the rows; of a single row it is never used."""
    return view.strides[rows[-1]] if rows else 0


def _view(frame: Frame, tile: Tile) -> View:
    if tile.where == "direct":
        statement = tile.maker.statement
        assert isinstance(statement, Load)
        start = frame.place(statement.tensor, statement.terms, lambda _: 0, _no_lookup)
        strides: dict[Index, Text] = {}
        for index in tile.axes:
            total: Text = 0
            for term, stride in zip(statement.terms, frame.strides(statement.tensor), strict=True):
                factor = factor_of(term, index)
                total = plus(total, times(factor, stride))
            strides[index] = total
        return View(frame.pointer(statement.tensor), start.offset, strides, ())
    strides = {}
    step: Text = 1
    for index in reversed(tile.axes):
        strides[index] = step
        step = times(step, frame.count(index))
    return View(tile.root.text, 0, strides, tile.axes)


def _no_lookup(name: str) -> str:
    raise Bug(f"a product reads through {name}")


def _inner(role: tuple[Index, ...], views: tuple[View, View]) -> tuple[Index, ...]:
    """The last index of a role with those before it that are one with it in both tiles."""
    found = [role[-1]]
    for index in reversed(role[:-1]):
        if not all(_before(view.dense, index, found[0]) for view in views):
            break
        found.insert(0, index)
    return tuple(found)


def _before(axes: Sequence[Index], first: Index, second: Index) -> bool:
    return first in axes and second in axes and axes.index(first) + 1 == axes.index(second)


def _at(view: View, variables: dict[Index, Text]) -> str:
    offset = plus(
        view.offset, *(times(v, view.strides[i]) for i, v in variables.items() if i in view.strides)
    )
    return view.pointer if offset == 0 else f"{view.pointer} + {offset}"


def _prepare(frame: Frame, product: Product, repeated: bool) -> list[str]:
    """What the result is before the product adds to it."""
    out, start = product.out, product.start
    count = times(*(frame.count(i) for i in out.axes))
    if start is not None and start.root is not out.root:
        return [f"{loop_head('e', count)} {out.root.text}[e] = {start.root.text}[e];"]
    if start is None and repeated:
        return [f"{loop_head('e', count)} {out.root.text}[e] = 0;"]
    return []

"""The text form of tile programs: a statement a line, and what prints parses back to an equal value.

    tiles matmul(x: f32[N, K], w: f32[O, K]) -> (y: f32[N, O]) where N = 64 limit O <= 512 split K {
      workspace sums: f32[parts(K), N, O]
      kernel main(x, w, sums) grid(p: parts(K) by 1, n: N by 16, o: O by 16) warps 4 stages 3 {
        c[n, o]: f32 = fill 0.0
        carry acc[n, o]: f32 = c
        for k: K by 16 from part_start(p) to part_end(p) {
          x1[n, k]: f32 = load x[n, k]
          w1[o, k]: f32 = load w[o, k]
          dot[n, o]: f32 = contract[k](x1, w1)
          next[n, o]: f32 = add(acc, dot)
          update acc = next
        }
        store sums[p, n, o] = acc
      }
    }

Words, numbers, dims and names are those of `cleave.ir.lexis`. An index prints by its name in the kernel; in a
term, a size whose dim is named like an index is written `size(n)`. Where the kernel's `names` are not
simply its indices in order of appearance, numbered from 0, `indices(...)` says what they are.
`cleave.schedule.maps` derives which part of each tensor a level touches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cleave.errors import Bug
from cleave.ir.dims import (
    Dim,
    Extent,
    Gather,
    Index,
    Inject,
    Join,
    Leaf,
    Lookup,
    Term,
    atoms_of,
    join_signed,
)
from cleave.ir.lexis import dim_text, extent_text, group_text, number_text, quote
from cleave.ir.ops import number_key
from cleave.schedule.parse import parse_tiles
from cleave.schedule.tiles import (
    ZERO,
    AlignBound,
    Bound,
    Carry,
    Compute,
    ContractTile,
    Fill,
    Kernel,
    LimitBound,
    Load,
    Locate,
    Loop,
    Measure,
    PartBound,
    ReduceTile,
    SizeBound,
    SpanBound,
    Statement,
    Store,
    Tensor,
    TileProgram,
)

_WIDTH = 110


def print_tiles(tp: TileProgram) -> str:
    """The text of a tile program, ending in a newline. `Bug` where text could not say what it is: two
    tensors or two indices of a kernel with one name, an index without one, a kernel's tensor that the program
    does not list."""
    known: dict[str, Tensor] = {}
    for tensor in (*tp.inputs, *tp.outputs, *tp.workspaces):
        if tensor.name in known:
            raise Bug(f"{tp.name}: two tensors are named {tensor.name}")
        known[tensor.name] = tensor
    body = [f"workspace {_tensor(t, 'workspace')}" for t in tp.workspaces]
    for kernel in tp.kernels:
        for tensor in kernel.tensors:
            if known.get(tensor.name) != tensor:
                raise Bug(f"kernel {kernel.name} uses a tensor {tensor.name} that {tp.name} does not list")
        body += [*([""] if body else []), *_kernel(kernel)]
    return "\n".join([*_header(tp), *_indent(body), "}"]) + "\n"


def print_kernel(kernel: Kernel) -> str:
    """The text of one kernel, as it stands in its program."""
    return "\n".join(_kernel(kernel)) + "\n"


def _header(tp: TileProgram) -> list[str]:
    inputs = [_tensor(t, "input") for t in tp.inputs]
    outputs = ", ".join(_tensor(t, "output") for t in tp.outputs)
    end = f") -> ({outputs})"
    sizes = [
        f"{quote(a.name)} = {_extent_value(v) if isinstance(v, Extent) else int(v)}" for a, v in tp.sizes
    ]
    end += f" where {', '.join(sizes)}" if sizes else ""
    limits = ", ".join(f"{quote(atom.name)} <= {limit}" for atom, limit in tp.limits)
    end += f" limit {limits}" if limits else ""
    end += f" split {', '.join(map(dim_text, tp.splits))}" if tp.splits else ""
    start = f"tiles {quote(tp.name)}("
    line = f"{start}{', '.join(inputs)}{end} {{"
    if len(line) <= _WIDTH:
        return [line]
    return [start, *_indent(f"{text}," for text in inputs), f"{end} {{"]


def _extent_value(extent: Extent) -> str:
    return extent_text(extent) if extent.terms else f"extent({extent.const})"


def _tensor(tensor: Tensor, role: str) -> str:
    if tensor.role == "scalar" and role == "input" and not tensor.layout:
        return f"{quote(tensor.name)}: scalar {tensor.dtype}"
    if tensor.role != role:
        raise Bug(f"tensor {tensor.name} has role {tensor.role} where {role} belongs")
    return f"{quote(tensor.name)}: {tensor.dtype}[{', '.join(map(group_text, tensor.layout))}]"


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" if line else "" for line in lines]


# ---------------------------------------------------------------- kernels


def introduced(kernel: Kernel) -> tuple[Index, ...]:
    """The indices of grid, whole and loops, in the order in which text names them first."""
    found: dict[Index, None] = {axis.index: None for axis in kernel.grid}
    found.update({whole.index: None for whole in kernel.whole})
    stack = list(reversed(kernel.body))
    while stack:
        statement = stack.pop()
        if isinstance(statement, Loop):
            found[statement.index] = None
            stack += reversed(statement.body)
    return tuple(found)


def _kernel(kernel: Kernel) -> list[str]:
    names = dict(kernel.names)
    order = introduced(kernel)
    if len(names) != len(kernel.names) or len(set(names.values())) != len(names):
        raise Bug(f"kernel {kernel.name}: an index is named twice, or two indices alike: {kernel.names}")
    text = KernelText(kernel.name, names)
    parts = [f"kernel {quote(kernel.name)}({', '.join(quote(t.name) for t in kernel.tensors)})"]
    if tuple(kernel.names) != tuple((Index(i.dim, n), names.get(i)) for n, i in enumerate(order)):
        listed = [f"{text.declare(index)} = {index.number}" for index, _ in kernel.names]
        parts.append(f"indices({', '.join(listed)})")
    if kernel.grid:
        parts.append(f"grid({', '.join(f'{text.declare(a.index)} by {a.tile}' for a in kernel.grid)})")
    if kernel.whole:
        parts.append(f"whole({', '.join(f'{text.declare(w.index)} by {w.tile}' for w in kernel.whole)})")
    if kernel.lanes:
        parts.append(f"lanes({', '.join(f'({_join(map(text.index, lane))})' for lane in kernel.lanes)})")
    parts.append(f"warps {kernel.warps} stages {kernel.stages}")
    if kernel.group > 1:
        parts.append(f"group {kernel.group}")
    if kernel.descriptors:
        parts.append("descriptors")
    if kernel.groups:
        parts.append(f"groups {kernel.groups}")
    if kernel.merged:
        parts.append("merged")
    line = " ".join(parts)
    head = [f"{line} {{"]
    if len(line) > _WIDTH - 4:
        head = [parts[0], *_indent(_indent(parts[1:-1])), f"    {parts[-1]} {{"]
    return [*head, *_indent(text.body(kernel.body)), "}"]


def _join(items: Iterable[str]) -> str:
    return ", ".join(items)


class KernelText:
    """Texts inside one kernel, for given names of indices."""

    def __init__(self, kernel: str, names: Mapping[Index, str]) -> None:
        self._kernel, self._names = kernel, names
        self._taken = set(names.values())

    def index(self, index: Index) -> str:
        if index not in self._names:
            raise Bug(f"kernel {self._kernel}: index {index} has no name")
        return quote(self._names[index])

    def declare(self, index: Index) -> str:
        return f"{self.index(index)}: {dim_text(index.dim)}"

    def axes(self, name: str, axes: Sequence[Index]) -> str:
        return quote(name) + (f"[{_join(map(self.index, axes))}]" if axes else "")

    # ------------------------------------------------------------ terms and bounds

    def term(self, term: Term) -> str:
        signed = [(c, self._leaf(leaf)) for leaf, c in term.leaves]
        signed += [(c, self._size(dim)) for dim, c in term.offset.terms]
        return join_signed(signed, term.offset.const)

    def _size(self, dim: Dim) -> str:
        taken = any(atom.name in self._taken for atom in atoms_of(dim))
        return f"size({dim_text(dim)})" if taken else dim_text(dim)

    def _leaf(self, leaf: Leaf) -> str:
        match leaf:
            case Index():
                return self.index(leaf)
            case Lookup(value):
                return f"lookup({quote(value)})"
            case Inject(part, inner):
                return f"in{part}({self.term(inner)})"
            case Join(part, within):
                return f"join({self.term(part)}, {self.term(within)})"
            case Gather():
                raise Bug(f"kernel {self._kernel}: a term gathers from a node; use a lookup of a value")

    def bound(self, bound: Bound) -> str:
        match bound:
            case SizeBound(extent):
                return extent_text(extent)
            case SpanBound(index, end, offset):
                start = f"{'end' if end else 'start'}({self.index(index)})"
                return join_signed([(1, start), *((c, dim_text(d)) for d, c in offset.terms)], offset.const)
            case PartBound(part, end, offset):
                start = f"{'part_end' if end else 'part_start'}({self.index(part)})"
                return join_signed([(1, start), *((c, dim_text(d)) for d, c in offset.terms)], offset.const)
            case AlignBound(inner, tile, up, origin):
                since = f", {self.bound(origin)}" if origin != ZERO else ""
                return f"{'align_up' if up else 'align_down'}({self.bound(inner)}, {tile}{since})"
            case LimitBound(kind, bounds):
                if kind not in ("min", "max"):
                    raise Bug(f"kernel {self._kernel}: a limit of kind {kind!r}")
                return f"{kind}({_join(map(self.bound, bounds))})"

    # ------------------------------------------------------------ statements

    def body(self, body: Sequence[Statement]) -> list[str]:
        lines: list[str] = []
        for statement in body:
            match statement:
                case Loop():
                    lines += self._loop(statement)
                case Store(tensor, terms, value, first):
                    where = f"[{_join(map(self.term, terms))}]" if terms else ""
                    only = f" first({_join(map(self.index, first))})" if first else ""
                    lines.append(f"store {quote(tensor)}{where} = {quote(value)}{only}")
                case Carry(out, axes, dtype, init):
                    lines.append(f"carry {self.axes(out, axes)}: {dtype} = {quote(init)}")
                case Measure(out, dtype, _):
                    lines.append(f"{quote(out)}: {dtype} = {self._value(statement)}")
                case _:
                    out = self.axes(statement.out, statement.axes)
                    lines.append(f"{out}: {statement.dtype} = {self._value(statement)}")
        return lines

    def _loop(self, loop: Loop) -> list[str]:
        head = f"for {self.declare(loop.index)} by {loop.tile}"
        start, stop = f"from {self.bound(loop.start)}", f"to {self.bound(loop.stop)}"
        stop += f"{' exact' if loop.exact else ''}{' closed' if loop.closed else ''} {{"
        lines = [f"{head} {start} {stop}"]
        if len(lines[0]) > _WIDTH - 8:
            lines = [head, f"    {start}", f"    {stop}"]
        inner = self.body(loop.body)
        if loop.updates:
            inner.append(f"update {_join(f'{quote(name)} = {quote(value)}' for name, value in loop.updates)}")
        return [*lines, *_indent(inner), "}"]

    def _value(self, statement: Load | Fill | Measure | Locate | Compute | ReduceTile | ContractTile) -> str:
        match statement:
            case Load(_, _, _, tensor, terms, guarded, other):
                where = f"[{_join(map(self.term, terms))}]" if terms else ""
                text = f"load {quote(tensor)}{where}"
                if guarded:
                    return f"{text} else {number_text(other)}"
                return (
                    text if number_key(other) == number_key(0) else f"{text} unguarded {number_text(other)}"
                )
            case Fill(_, _, _, value):
                return f"fill {number_text(value)}"
            case Measure(_, _, extent):
                return f"measure {extent_text(extent)}"
            case Locate(_, _, _, term):
                return f"index({self.term(term)})"
            case Compute(_, _, _, fn, args):
                return f"{fn}({_join(map(quote, args))})"
            case ReduceTile(_, _, _, kind, over, arg):
                return f"reduce {kind}[{_join(map(self.index, over))}]({quote(arg)})"
            case ContractTile(_, _, _, over, args):
                return f"contract[{_join(map(self.index, over))}]({_join(map(quote, args))})"


__all__ = ["KernelText", "introduced", "parse_tiles", "print_kernel", "print_tiles"]

"""The rules of a well-formed tile program: `verify` raises `Bug` where one is broken.

It checks what can be known without sizes: names are defined before use and in scope, axes and dtypes
agree, accumulators are updated by loops inside their scope, every output element has one writer, workspaces
are written by an earlier kernel than reads them, split indices have splits. What depends on sizes (a load
inside its tensor, an `exact` loop without a short tile) shows when `interpret.run` executes the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cleave.errors import Bug
from cleave.ir.dims import (
    Atom,
    Dim,
    Extent,
    Gather,
    Index,
    Inject,
    Join,
    Lookup,
    Part,
    Parts,
    Term,
    Union,
)
from cleave.ir.ops import DTYPES, INTEGERS, MAPS, REDUCTIONS
from cleave.schedule.arithmetic import COMPARISONS
from cleave.schedule.merging import verify_merged
from cleave.schedule.shapes import looped
from cleave.schedule.tiles import (
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


def verify(tp: TileProgram) -> None:
    """Raise `Bug` unless the tile program keeps every rule; the message names kernel and statement."""
    tensors = _verify_tensors(tp)
    _verify_sizes(tp)
    written: set[str] = set()
    names: set[str] = set()
    for kernel in tp.kernels:
        if kernel.name in names:
            raise Bug(f"{tp.name}: two kernels are named {kernel.name}")
        names.add(kernel.name)
        written |= _verify_kernel(tp, kernel, tensors, written)
    verify_merged(tp)
    missing = [t.name for t in (*tp.outputs, *tp.workspaces) if t.name not in written]
    if missing:
        raise Bug(f"{tp.name}: no kernel stores {', '.join(missing)}")


def _verify_tensors(tp: TileProgram) -> dict[str, Tensor]:
    roles = ((tp.inputs, ("input", "scalar")), (tp.outputs, ("output",)), (tp.workspaces, ("workspace",)))
    tensors: dict[str, Tensor] = {}
    for group, allowed in roles:
        for tensor in group:
            if tensor.name in tensors:
                raise Bug(f"{tp.name}: two tensors are named {tensor.name}")
            if tensor.role not in allowed:
                raise Bug(f"{tp.name}: tensor {tensor.name} has role {tensor.role}, expected {allowed[0]}")
            if tensor.dtype not in DTYPES:
                raise Bug(f"{tp.name}: tensor {tensor.name} has unknown dtype {tensor.dtype!r}")
            if tensor.role == "scalar" and tensor.layout:
                raise Bug(f"{tp.name}: scalar {tensor.name} has axes")
            _verify_layout(tp, tensor)
            tensors[tensor.name] = tensor
    return tensors


def _verify_layout(tp: TileProgram, tensor: Tensor) -> None:
    for group in tensor.layout:
        if tensor.role == "workspace" and len(group) != 1:
            raise Bug(f"{tp.name}: workspace {tensor.name} has an axis of {len(group)} dims, expected one")
        for dim in group:
            if tensor.role != "workspace" and _parts_in(dim):
                raise Bug(
                    f"{tp.name}: {tensor.role} {tensor.name} has an axis over {dim}; only workspaces may"
                )
            _verify_dim(tp, dim, f"tensor {tensor.name}")


def _parts_in(dim: Dim) -> bool:
    return isinstance(dim, Parts | Part) or (isinstance(dim, Union) and any(map(_parts_in, dim.parts)))


def _verify_dim(tp: TileProgram, dim: Dim, where: str) -> None:
    """Split dims must be listed, and the inside of a part has no index of its own in a tile program."""
    match dim:
        case Atom():
            pass
        case Union(parts):
            for part in parts:
                _verify_dim(tp, part, where)
        case Parts(of, _):
            if of not in tp.splits:
                raise Bug(f"{tp.name}: {where} is over {dim}, but {of} is not among the splits")
        case Part():
            raise Bug(f"{tp.name}: {where} is over {dim}; use the dim itself between bounds of the part")


def _verify_sizes(tp: TileProgram) -> None:
    for what, items in (("sizes", tp.sizes), ("limits", tp.limits)):
        atoms = [atom for atom, _ in items]
        if len(set(atoms)) != len(atoms):
            raise Bug(f"{tp.name}: an atom stands twice among the {what}: {', '.join(map(str, atoms))}")
    if len(set(tp.splits)) != len(tp.splits):
        raise Bug(f"{tp.name}: a dim stands twice among the splits: {', '.join(map(str, tp.splits))}")


# ---------------------------------------------------------------- kernels


def _verify_kernel(
    tp: TileProgram, kernel: Kernel, tensors: Mapping[str, Tensor], written: set[str]
) -> set[str]:
    """Check one kernel; returns what it stores. `written` is what earlier kernels store."""
    for tensor in kernel.tensors:
        if tensors.get(tensor.name) != tensor:
            raise Bug(f"{tp.name}, kernel {kernel.name}: tensor {tensor.name} is not listed by the program")
    check = _Check(tp, kernel, {tensor.name: tensor for tensor in kernel.tensors})
    check.indices()
    check.body(kernel.body)
    for name in check.loads:
        if tensors[name].role in ("output", "workspace") and name not in written:
            raise Bug(f"{tp.name}, kernel {kernel.name}: loads {name}, which no earlier kernel stores")
    for name in check.stores:
        if name in written:
            raise Bug(f"{tp.name}, kernel {kernel.name}: stores {name}, which an earlier kernel stores")
        if tensors[name].role in ("input", "scalar"):
            raise Bug(f"{tp.name}, kernel {kernel.name}: stores the input {name}")
    return check.stores


class _Value:
    """What is known of a value: axes, dtype, and whether loops may update it."""

    def __init__(self, axes: tuple[Index, ...], dtype: str, carried: bool) -> None:
        self.axes, self.dtype, self.carried = axes, dtype, carried


class _Check:
    """A walk through one kernel with the indices and values in scope."""

    def __init__(self, tp: TileProgram, kernel: Kernel, tensors: Mapping[str, Tensor]) -> None:
        self.tp, self.kernel, self.tensors = tp, kernel, tensors
        self.names = dict(kernel.names)
        self.tiles: dict[Index, int] = {}
        self.loops: list[Index] = []
        self.scopes: list[dict[str, _Value]] = [{}]
        self.loads: set[str] = set()
        self.stores: set[str] = set()
        self.at = ""

    def bug(self, what: str) -> Bug:
        """The error that a rule is broken here."""
        where = f"{self.tp.name}, kernel {self.kernel.name}{f', {self.at}' if self.at else ''}"
        return Bug(f"{what}\n  at {where}")

    def name(self, index: Index) -> str:
        return self.names.get(index, str(index))

    def listed(self, indices: Iterable[Index]) -> str:
        return ", ".join(map(self.name, indices))

    # ------------------------------------------------------------ indices

    def indices(self) -> None:
        """The kernel's indices: names, numbers, tiles, lanes; opens the scope of the block."""
        kernel = self.kernel
        every = [*(a.index for a in kernel.grid), *(w.index for w in kernel.whole), *looped(kernel.body)]
        unique = list(dict.fromkeys(every))
        numbers = [index.number for index in unique]
        if len(set(numbers)) != len(numbers):
            raise self.bug(f"two indices have one number: {', '.join(map(str, unique))}")
        if len(self.names) != len(kernel.names) or len(set(self.names.values())) != len(self.names):
            raise self.bug(f"an index is named twice, or two indices alike: {', '.join(self.names.values())}")
        for index in unique:
            if index not in self.names:
                raise self.bug(f"index {index} has no name")
            _verify_dim(self.tp, index.dim, f"kernel {kernel.name}: index {self.name(index)}")
        for axis in kernel.grid:
            self.enter(axis.index, axis.tile)
            if isinstance(axis.index.dim, Parts) and axis.tile != 1:
                raise self.bug(
                    f"grid index {self.name(axis.index)} over {axis.index.dim} has tile {axis.tile}"
                )
        for whole in kernel.whole:
            self.enter(whole.index, whole.tile)
            size = _upper(whole.index.dim, self.tp)
            if size is None or size > whole.tile:
                bound = "no known limit" if size is None else f"up to {size} positions"
                raise self.bug(f"whole index {self.name(whole.index)} has {bound}, its tile is {whole.tile}")
        lanes = [index for lane in kernel.lanes for index in lane]
        if len(set(lanes)) != len(lanes):
            raise self.bug(f"an index is in two lanes: {self.listed(lanes)}")
        if not set(lanes) <= set(unique):
            raise self.bug(f"lanes hold an index that the kernel lacks: {self.listed(lanes)}")
        if kernel.warps < 1 or kernel.stages < 1:
            raise self.bug(f"{kernel.warps} warps, {kernel.stages} stages")

    def enter(self, index: Index, tile: int) -> None:
        if tile < 1:
            raise self.bug(f"index {self.name(index)} has tile {tile}")
        if index in self.tiles:
            raise self.bug(f"index {self.name(index)} has a span already")
        self.tiles[index] = tile

    def known(self, indices: Iterable[Index]) -> None:
        for index in indices:
            if index not in self.tiles:
                raise self.bug(f"index {self.name(index)} is not in scope")

    # ------------------------------------------------------------ values

    def value(self, name: str) -> _Value:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise self.bug(f"{name} is not in scope")

    def operand(self, name: str, axes: Sequence[Index]) -> _Value:
        """A value whose axes the result has, too."""
        value = self.value(name)
        extra = [index for index in value.axes if index not in axes]
        if extra:
            raise self.bug(f"{name} has axes {self.listed(extra)} that the result lacks")
        return value

    def define(self, name: str, axes: tuple[Index, ...], dtype: str, *, carried: bool = False) -> None:
        if any(name in scope for scope in self.scopes):
            raise self.bug(f"{name} is defined twice")
        if dtype not in DTYPES:
            raise self.bug(f"unknown dtype {dtype!r}")
        if len(set(axes)) != len(axes):
            raise self.bug(f"{name} has an axis twice: {self.listed(axes)}")
        self.known(axes)
        self.scopes[-1][name] = _Value(axes, dtype, carried)

    # ------------------------------------------------------------ terms and bounds

    def term_indices(self, term: Term) -> tuple[Index, ...]:
        """The indices of a term and of the values that it looks up."""
        found: list[Index] = []
        for leaf, _ in term.leaves:
            match leaf:
                case Index():
                    found.append(leaf)
                case Lookup(name):
                    if self.value(name).dtype not in INTEGERS:
                        raise self.bug(f"{name} is looked up as a position and is {self.value(name).dtype}")
                    found += self.value(name).axes
                case Inject(_, inner):
                    found += self.term_indices(inner)
                case Join(part, within):
                    found += [*self.term_indices(part), *self.term_indices(within)]
                case Gather():
                    raise self.bug("a term gathers from a node; a tile program looks values up by name")
        self.known(found)
        return tuple(dict.fromkeys(found))

    def terms(self, name: str, terms: Sequence[Term], axes: Sequence[Index] | None) -> tuple[Index, ...]:
        """The indices of the terms of an access to a tensor; those that are no axes must have tile 1."""
        if name not in self.tensors:
            raise self.bug(f"the kernel does not list tensor {name}")
        dims = [dim for group in self.tensors[name].layout for dim in group]
        if len(dims) != len(terms):
            raise self.bug(f"{len(terms)} terms for the {len(dims)} dims of {name}")
        for term, dim in zip(terms, dims, strict=True):
            for leaf, _ in term.leaves:
                if isinstance(leaf, Inject) and not (isinstance(dim, Union) and leaf.part < len(dim.parts)):
                    raise self.bug(f"part {leaf.part} of an axis of {name} over {dim}")
        indices = tuple(dict.fromkeys(i for term in terms for i in self.term_indices(term)))
        self.single(indices, axes)
        return indices

    def single(self, indices: Iterable[Index], axes: Sequence[Index] | None) -> None:
        for index in indices:
            if axes is not None and index not in axes and self.tiles[index] != 1:
                tile = self.tiles[index]
                raise self.bug(
                    f"index {self.name(index)}, whose tile is {tile} and not 1, is no axis of the result"
                )

    def bound(self, bound: Bound, over: Index) -> None:
        match bound:
            case SizeBound():
                pass
            case SpanBound(index, _, _):
                self.known([index])
            case PartBound(part, _):
                self.known([part])
                if not isinstance(part.dim, Parts) or part.dim.of != over.dim:
                    raise self.bug(
                        f"bounds of part {self.name(part)} over {part.dim} for a loop over {over.dim}"
                    )
            case AlignBound(inner, tile, _, origin):
                if tile < 1:
                    raise self.bug(f"a bound is aligned to {tile}")
                self.bound(inner, over)
                self.bound(origin, over)
            case LimitBound(kind, bounds):
                if kind not in ("min", "max") or not bounds:
                    raise self.bug(f"a limit of kind {kind!r} of {len(bounds)} bounds")
                for inner in bounds:
                    self.bound(inner, over)

    # ------------------------------------------------------------ statements

    def body(self, body: Sequence[Statement]) -> None:
        for statement in body:
            match statement:
                case Loop(index):
                    self.at = f"loop over {self.name(index)}"
                    self.loop(statement)
                case Store(tensor):
                    self.at = f"store of {tensor}"
                    self.store(statement)
                case Carry(out, axes, dtype, init):
                    self.at = f"carry {out}"
                    if self.operand(init, axes).dtype != dtype:
                        raise self.bug(
                            f"{out} is {dtype}, its first value {init} is {self.value(init).dtype}"
                        )
                    self.define(out, axes, dtype, carried=True)
                case _:
                    self.at = f"value {statement.out}"
                    self.made(statement)

    def made(self, statement: Load | Fill | Measure | Locate | Compute | ReduceTile | ContractTile) -> None:
        out, dtype = statement.out, statement.dtype
        axes = () if isinstance(statement, Measure) else statement.axes
        self.known(axes)
        match statement:
            case Load(_, _, _, tensor, terms):
                self.terms(tensor, terms, axes)
                self.loads.add(tensor)
                if self.tensors[tensor].dtype != dtype:
                    raise self.bug(f"loads {self.tensors[tensor].dtype} from {tensor} as {dtype}")
            case Locate(_, _, _, term):
                self.single(self.term_indices(term), axes)
                if dtype not in INTEGERS:
                    raise self.bug(f"a position as {dtype}")
            case Compute(_, _, _, fn, args):
                self.compute(fn, args, axes, dtype)
            case ReduceTile(_, _, _, kind, over, arg):
                self.reduced(over, axes)
                self.operand(arg, (*axes, *over))
                if kind not in REDUCTIONS or (kind in ("any", "all") and dtype != "bool"):
                    raise self.bug(f"reduction {kind!r} in {dtype}")
            case ContractTile(_, _, _, over, args):
                self.reduced(over, axes)
                if len(args) < 2:
                    raise self.bug(f"a contraction of {len(args)} operands")
                for arg in args:
                    self.operand(arg, (*axes, *over))
            case Fill() | Measure():
                pass
        self.define(out, axes, dtype)

    def compute(self, fn: str, args: Sequence[str], axes: Sequence[Index], dtype: str) -> None:
        if MAPS.get(fn) != len(args):
            raise self.bug(f"{fn} with {len(args)} arguments")
        if fn in COMPARISONS and dtype != "bool":
            raise self.bug(f"{fn} gives bool, not {dtype}")
        for number, arg in enumerate(args):
            value = self.operand(arg, axes)
            if fn == "select" and number == 0 and value.dtype != "bool":
                raise self.bug(f"the condition {arg} of a select is {value.dtype}")

    def reduced(self, over: Sequence[Index], axes: Sequence[Index]) -> None:
        self.known(over)
        if not over or len(set(over)) != len(over) or set(over) & set(axes):
            raise self.bug(f"a reduction over [{self.listed(over)}] that leaves [{self.listed(axes)}]")

    def store(self, store: Store) -> None:
        indices = self.terms(store.tensor, store.terms, None)
        value = self.operand(store.value, indices)
        self.stores.add(store.tensor)
        if store.tensor in self.loads:
            raise self.bug(f"the kernel loads {store.tensor} and stores it")
        if value.dtype != self.tensors[store.tensor].dtype:
            raise self.bug(f"stores {store.value}, {value.dtype}, to {self.tensors[store.tensor].dtype}")
        grid = [axis.index for axis in self.kernel.grid]
        if not set(store.first) <= set(grid):
            raise self.bug(f"`first` holds an index that is not in the grid: {self.listed(store.first)}")
        again = [i for i in (*grid, *self.loops) if i not in indices and i not in store.first]
        if again:
            raise self.bug(f"every tile of {self.listed(again)} stores the same elements of {store.tensor}")

    def loop(self, loop: Loop) -> None:
        self.bound(loop.start, loop.index)
        self.bound(loop.stop, loop.index)
        self.enter(loop.index, loop.tile)
        self.loops.append(loop.index)
        self.scopes.append({})
        self.body(loop.body)
        self.at = f"loop over {self.name(loop.index)}"
        targets = [name for name, _ in loop.updates]
        if len(set(targets)) != len(targets):
            raise self.bug(f"an accumulator is updated twice: {', '.join(targets)}")
        for name, new in loop.updates:
            old = self.value(name)
            if not old.carried or name in self.scopes[-1]:
                raise self.bug(f"the loop updates {name}, which is no accumulator declared outside it")
            if self.operand(new, old.axes).dtype != old.dtype:
                raise self.bug(f"{name} is {old.dtype}, its update {new} is {self.value(new).dtype}")
        self.scopes.pop()
        self.loops.pop()
        del self.tiles[loop.index]


def _upper(dim: Dim, tp: TileProgram) -> int | None:
    """The greatest size that sizes and limits allow, if they limit it."""
    match dim:
        case Atom():
            known = [n for atom, n in tp.limits if atom == dim]
            for atom, value in tp.sizes:
                if atom == dim:
                    bound = value if isinstance(value, int) else _upper_extent(value, tp)
                    known += [bound] if bound is not None else []
            return min(known, default=None)
        case Union(parts):
            bounds = [_upper(part, tp) for part in parts]
            return None if None in bounds else sum(bound for bound in bounds if bound is not None)
        case Parts() | Part():
            return None


def _upper_extent(extent: Extent, tp: TileProgram) -> int | None:
    total = extent.const
    for dim, coefficient in extent.terms:
        bound = _upper(dim, tp) if coefficient > 0 else 0
        if bound is None:
            return None
        total += coefficient * bound
    return total

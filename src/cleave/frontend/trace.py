"""Tracing: run the user's function on fake tensors, see every torch call, and lower it at once.

`Tracer` is a `TorchFunctionMode`. A fake tensor has the sizes of the captured call, so shapes, dtypes and
errors are eager's own; the sizes that the *user's* code sees are symbols (`SymInt`s), so what it does with
them is recorded: arithmetic becomes expressions, an `if` becomes a guard. Python numbers given as arguments
are symbols too. A call that cannot be lowered becomes an `EagerCall`: PyTorch runs it between two programs.
See docs/decisions/0002-capture.md.
"""

from __future__ import annotations

import contextlib
import linecache
import logging
import math
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._sympy.value_ranges import ValueRanges

from cleave.errors import Unsupported
from cleave.frontend.axes import Expr, Ix, Space, hint_of
from cleave.frontend.recorded import (
    EagerCall,
    Fallback,
    NumberInput,
    Poison,
    Retry,
    TensorInput,
    Whole,
    Wishes,
    foreign,
)
from cleave.frontend.values import DTYPE_NAMES, Pre, Recorder, Value, fresh_like, whole

Sym = torch.SymInt | torch.SymFloat | torch.SymBool

PLAIN = frozenset({
    "dtype", "device", "ndim", "dim", "ndimension", "layout", "names", "grad", "grad_fn", "is_leaf",
    "requires_grad", "output_nr", "type", "itemsize", "is_cuda", "is_cpu", "is_meta", "is_mps", "is_xpu",
    "is_mkldnn", "is_sparse", "is_quantized", "is_nested", "is_inference", "is_shared", "is_signed",
    "is_floating_point", "is_complex", "is_conj", "is_neg", "is_contiguous", "is_same_size",
    "element_size", "get_device", "_is_view", "has_names", "result_type", "can_cast", "__hash__",
    "__repr__", "__str__", "__format__", "__dir__", "__class__", "__reduce_ex__",
})  # fmt: skip
"""What a fake can answer without an operation."""
HIDDEN = frozenset({
    "stride", "storage_offset", "data_ptr", "as_strided", "as_strided_", "untyped_storage", "storage",
    "_typed_storage", "is_set_to", "set_", "resize_", "resize_as_", "numpy", "__array__",
    "__cuda_array_interface__", "__dlpack__", "share_memory_", "map_", "apply_", "register_hook",
    "retain_grad", "backward",
})  # fmt: skip
"""What asks for memory, which a program does not have."""
SAME_SHAPE = frozenset(
    {
        "cumsum",
        "cumprod",
        "logcumsumexp",
        "cummax",
        "cummin",
        "sort",
        "argsort",
        "dropout",
        "lgamma",
        "digamma",
    }
)
"""What PyTorch runs whose results have the shape of the first argument."""
LEADING_PACKAGES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


def _is_symbolic(leaf: Any) -> bool:
    return isinstance(leaf, Sym) or (isinstance(leaf, torch.Size) and any(isinstance(n, Sym) for n in leaf))


def name_of(func: Callable[..., Any]) -> str:
    """The plain name of a torch function, method or property getter; of a method whose arguments come in
    another order than those of the function with its name, with `Tensor.` before it."""
    if func == torch.Tensor.where:
        return "Tensor.where"
    name = getattr(func, "__name__", type(func).__name__)
    if name in ("__get__", "__set__"):
        owner = getattr(getattr(func, "__self__", None), "__name__", "?")
        return owner if name == "__get__" else f"{owner}="
    return name


def users_line() -> str:
    """`file:line: code` of the innermost frame that is neither PyTorch's nor Cleave's."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(LEADING_PACKAGES) and not file.startswith("<frozen"):
            code = linecache.getline(file, frame.f_lineno).strip()
            return f"{Path(file).name}:{frame.f_lineno}" + (f": {code}" if code else "")
        frame = frame.f_back
    return ""


class Tracer(TorchFunctionMode):
    """One run of a function on fakes."""

    def __init__(
        self, table: dict[str, Callable[..., Any]], wishes: Wishes, outside_name: Callable[..., str]
    ) -> None:
        super().__init__()
        self.table, self.wishes, self.outside_name = table, wishes, outside_name
        self.fakes = FakeTensorMode(allow_non_fake_inputs=False)
        self.env = ShapeEnv(duck_shape=False, specialize_zero_one=False)
        self.space = Space()
        self.recorder = Recorder(self.space)
        self.hints: dict[sympy.Symbol, int | float] = {}
        self.late: dict[sympy.Symbol, None] = {}
        self.numbers: dict[sympy.Symbol, NumberInput] = {}
        self.tensors: list[TensorInput] = []
        self.outside: dict[int, TensorInput] = {}
        self.values: dict[int, tuple[torch.Tensor, Value | Poison]] = {}
        self.input_storages: dict[int, str] = {}
        self.calls: list[EagerCall] = []
        self.fallbacks: list[Fallback] = []
        self.count = 0
        self.synced = 0
        self.result: Any = None
        self.symints: dict[sympy.Symbol, torch.SymInt] = {}
        self.floats = "f32"

    # ------------------------------------------------------------ inputs

    def symbol(self, name: str, value: float, *, size: bool) -> sympy.Symbol:
        """A symbol for a size or a number argument, with its value in this call."""
        source = ConstantSource(name)
        made = self.env.create_unspecified_symbol(value, source, DimDynamic.DYNAMIC)
        if not isinstance(made, sympy.Symbol):
            raise Whole(f"the argument {name} = {value} has no symbol")
        self.hints[made] = value
        if size:
            self.env.var_to_range[made] = ValueRanges(sympy.Integer(0), self.env.var_to_range[made].upper)
            self.symints[made] = self.env.create_symintnode(made, hint=int(value), source=source)  # type: ignore[assignment]
        return made

    def add_tensor(self, name: str, tensor: torch.Tensor, *, place: int = -1) -> TensorInput:
        """A tensor argument: a fake of its sizes, one variable per axis."""
        if tensor.dtype not in DTYPE_NAMES:
            raise Whole(f"argument {name} has dtype {tensor.dtype}")
        if foreign(tensor) and not isinstance(tensor, FakeTensor):
            raise Whole(f"argument {name} is {foreign(tensor)}")
        with self.fakes:
            fake = torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device=tensor.device)
        found = self._input(name, fake, late=False)
        found.place = place
        found.outside = tensor if place < 0 else None
        self.tensors.append(found)
        return found

    def _input(self, name: str, fake: torch.Tensor, *, late: bool) -> TensorInput:
        axes: list[tuple[Ix, ...]] = []
        symbols: list[sympy.Symbol] = []
        for number, size in enumerate(fake.shape):
            symbol = self.symbol(f"{name}.size({number})", size, size=True)
            var = self.space.fresh(size, symbol, f"{name.upper()}{number}")
            var.late = late
            if late:
                self.late[symbol] = None
            self.space.of_symbol[symbol] = var
            symbols.append(symbol)
            axes.append((Ix(var),))
        flat = tuple(ix for axis in axes for ix in axis)
        node = Pre("input", tuple(axes), flat, DTYPE_NAMES[fake.dtype], where="", call=-1)
        self.values[id(fake)] = (fake, whole(node, axes))
        if not late:
            self.input_storages[fake.untyped_storage()._cdata] = name
        return TensorInput(name, node, fake, symbols=tuple(symbols))

    def add_number(self, name: str, value: float, place: int) -> torch.SymInt | torch.SymFloat:
        """A Python int or float argument, as a symbol."""
        symbol = self.symbol(name, value, size=False)
        kind = "i64" if isinstance(value, int) else self.floats
        node = Pre("scalar", name, (), kind)
        self.numbers[symbol] = NumberInput(name, node, symbol, place)
        source = ConstantSource(name)
        if isinstance(value, int):
            return self.env.create_symintnode(symbol, hint=value, source=source)  # type: ignore[return-value]
        return self.env.create_symfloatnode(symbol, hint=value, source=source)  # type: ignore[return-value]

    # ------------------------------------------------------------ sizes and numbers

    def sync(self) -> None:
        """Equalities that the user's code asserted hold for dims too."""
        if len(self.env.replacements) == self.synced:
            return
        self.synced = len(self.env.replacements)
        for symbol, expr in list(self.env.replacements.items()):
            var = self.space.of_symbol.get(symbol)
            if var is None:
                continue
            if isinstance(expr, sympy.Integer):
                self.space.fix(var, int(expr))
            elif isinstance(expr, sympy.Symbol) and expr in self.space.of_symbol:
                self.space.unify(var, self.space.of_symbol[expr])

    def expr(self, number: Any) -> Any:
        """The expression of a symbolic number, or the number."""
        if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
            self.sync()
            return number.node.expr
        if isinstance(number, slice):
            return slice(self.expr(number.start), self.expr(number.stop), self.expr(number.step))
        return tuple(map(self.expr, number)) if isinstance(number, torch.Size) else number

    def concrete(self, number: Any) -> Any:
        """The value of a symbolic number in this call; records no guard."""
        if isinstance(number, torch.SymInt | torch.SymFloat):
            value = sympy.sympify(number.node.expr).xreplace(
                {s: sympy.sympify(v) for s, v in self.hints.items()}
            )
            return int(value) if isinstance(number, torch.SymInt) else float(value)
        if isinstance(number, torch.SymBool):
            return bool(number)
        if isinstance(number, slice):
            return slice(*map(self.concrete, (number.start, number.stop, number.step)))
        return tuple(map(self.concrete, number)) if isinstance(number, torch.Size) else number

    def size(self, number: Any) -> Expr | int:
        """A size given to an operation; int arguments are specialised."""
        if not isinstance(number, torch.SymInt):
            return int(number)
        free = [s for s in sympy.sympify(self.expr(number)).free_symbols if s in self.numbers]
        if free:
            int(number)
        expr = self.expr(number)
        return self.concrete(number) if free else expr

    def fixed(self, number: Any) -> Any:
        """A number that must be known while compiling (an axis): specialise on it."""
        if isinstance(number, torch.SymInt):
            return int(number)
        if isinstance(number, torch.SymFloat):
            return float(number)
        return number

    def symint(self, expr: Expr, hint: int) -> Any:
        """What the user's code sees of a size."""
        if isinstance(expr, sympy.Integer):
            return int(expr)
        self.sync()
        return self.env.create_symintnode(self.env.replace(expr), hint=hint)

    def sizes_of(self, value: Value) -> list[Any]:
        """The sizes of a tensor, as the user's code sees them."""
        return [self.symint(self.space.user_of(axis), hint_of(axis)) for axis in value.axes]

    # ------------------------------------------------------------ calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        if name in HIDDEN or name.endswith("="):
            raise Whole(
                f"torch.Tensor.{name} is about memory, which a program does not have", where=users_line()
            )
        leaves, spec = pytree.tree_flatten((args, kwargs))
        leaves = [self._known(leaf) for leaf in leaves]
        if name in PLAIN:
            args, kwargs = pytree.tree_unflatten(leaves, spec)
            return func(*args, **kwargs)
        if name in ("shape", "size", "numel", "nelement", "__len__"):
            return self._shape(name, *pytree.tree_unflatten(leaves, spec)[0])
        plain_args, plain_kwargs = pytree.tree_unflatten([self.concrete(leaf) for leaf in leaves], spec)
        where = users_line()
        before = leaves[0] if leaves and name.endswith("_") and not name.endswith("__") else None
        if name == "__setitem__":
            before = leaves[0]
        if before is not None and isinstance(before, torch.Tensor):
            self._may_write(before, name, where)
        if plain_kwargs.get("out") is not None:
            raise Whole(f"{name} with out=", where=where)
        result = func(*plain_args, **plain_kwargs)
        if name == "contiguous" and result is leaves[0] and self._is_given(result):
            # At another call the argument may have other strides: then it is not the result itself.
            result = result.view_as(result)
        if result is before is not None and name not in self.table and name[:-1] not in self.table:
            raise Whole(f"{name} has no lowering", where=where)
        if not any(isinstance(r, torch.Tensor) for r in pytree.tree_leaves(result)):
            if any(map(_is_symbolic, leaves)):  # a number made of sizes: `sym_sqrt`, `broadcast_shapes`
                args, kwargs = pytree.tree_unflatten(leaves, spec)
                return func(*args, **kwargs)
            return result
        self.count += 1
        self.recorder.call, self.recorder.where, self.result = self.count, where, result
        self.space.call = self.count
        traced = [self._traced(leaf) for leaf in leaves]
        self._lower(func, name, traced, spec, result, where, before)
        return result

    def _known(self, leaf: Any) -> Any:
        """A tensor from outside the function becomes an input."""
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, FakeTensor):
            return leaf
        found = self.outside.get(id(leaf))
        if found is None:
            found = self.add_tensor(self.outside_name(leaf, users_line()), leaf)
            self.outside[id(leaf)] = found
        return found.fake

    def _traced(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        found = self.values.get(id(leaf))
        if found is None:
            raise Whole("a tensor that was made where capture cannot see it", where=users_line())
        if isinstance(found[1], Poison):
            raise Retry(found[1].call, "its second result is used")
        return found[1]

    def _shape(self, name: str, tensor: Any, axis: Any = None) -> Any:
        sizes = self.sizes_of(self._traced(tensor))
        if name in ("shape", "size"):
            return torch.Size(sizes) if axis is None else sizes[self.fixed(axis)]
        if name == "__len__":
            if not sizes:
                raise TypeError("len() of a 0-d tensor")
            return int(sizes[0])
        total: Any = 1
        for size in sizes:
            total = total * size
        return total

    def _is_given(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self.input_storages

    def _may_write(self, target: torch.Tensor, name: str, where: str) -> None:
        """In-place operations are allowed on values that nothing else sees."""
        storage = target.untyped_storage()._cdata
        if storage in self.input_storages:
            what = f"{name} writes to the tensor {self.input_storages[storage]!r} that was given from outside"
            raise Whole(what, where=where)
        if name == "__setitem__":
            raise Whole("assignment to a part of a tensor", where=where)
        for other, _ in self.values.values():
            if other is not target and other.untyped_storage()._cdata == storage:
                raise Whole(f"{name} writes to a tensor that has views", where=where)

    def _lower(
        self, func: Any, name: str, traced: list[Any], spec: Any, result: Any, where: str, before: Any
    ) -> None:
        if torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled():
            raise Whole("autocast is on", where=where)
        args, kwargs = pytree.tree_unflatten(traced, spec)
        outputs = pytree.tree_leaves(result)
        reason = self.wishes.eager.get(self.count)
        lowered: Any = None
        if reason is None:
            try:
                lowered = self._try(name, args, kwargs, outputs, in_place=before is not None)
            except Whole:
                raise
            except Unsupported as error:
                reason = error.what
        if reason is None:
            for fake, value in zip(outputs, lowered, strict=True):
                if isinstance(fake, torch.Tensor):
                    self.values[id(fake)] = (fake, value)
            return
        if before is not None:
            raise Whole(f"{name} ({reason})", where=where)
        self._eager(func, name, args, kwargs, outputs, where, reason)

    def _try(self, name: str, args: Any, kwargs: Any, outputs: list[Any], *, in_place: bool) -> list[Any]:
        lower = self.table.get(name)
        if lower is None and in_place:
            lower = self.table.get(name[:-1])
        if lower is None:
            raise Unsupported("no lowering for this operation")
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, Value) and leaf.node.kind == "opaque":
                raise Unsupported("an operand of a dtype that programs do not have")
        try:
            found = lower(self, *args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise Unsupported(f"a form of the call that has no lowering ({error})") from error
            raise
        values = list(found) if isinstance(found, tuple | list) else [found]
        if len(values) != len(outputs):
            raise Unsupported(f"{len(values)} results were lowered where PyTorch gives {len(outputs)}")
        return [self._check(v, fake, in_place=in_place) for v, fake in zip(values, outputs, strict=True)]

    def _check(self, value: Any, fake: Any, *, in_place: bool) -> Any:
        if isinstance(value, Poison) or not isinstance(fake, torch.Tensor):
            return value
        if fake.dtype not in DTYPE_NAMES:
            raise Unsupported(f"the result has dtype {fake.dtype}")
        if in_place and value.dtype != DTYPE_NAMES[fake.dtype]:
            from cleave.frontend.emit import cast

            value = cast(self, value, DTYPE_NAMES[fake.dtype])
        shape = tuple(hint_of(axis) for axis in value.axes)
        if shape != tuple(fake.shape) or value.dtype != DTYPE_NAMES[fake.dtype]:
            raise Unsupported(
                f"lowered to {value.dtype}{list(shape)} where PyTorch gives {fake.dtype}{list(fake.shape)}"
            )
        return value

    def _eager(
        self, func: Any, name: str, args: Any, kwargs: Any, outputs: list[Any], where: str, reason: str
    ) -> None:
        values = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Value)]
        level = max((v.level for v in values), default=0)
        nodes: list[Pre | None] = []
        for number, fake in enumerate(outputs):
            if not isinstance(fake, torch.Tensor):
                nodes.append(None)
                continue
            if fake.dtype not in DTYPE_NAMES:
                nodes.append(Pre("opaque", number, (), "f64", level=level + 1, where=where, call=self.count))
                axes = tuple((Ix(self.space.known(n)),) for n in fake.shape)
                self.values[id(fake)] = (fake, Value(nodes[-1], (), axes))  # type: ignore[arg-type]
                continue
            label = f"{name.strip('_')}{len(self.calls)}"
            if name in SAME_SHAPE and values and tuple(map(hint_of, values[0].axes)) == tuple(fake.shape):
                axes = tuple(fresh_like(axis) for axis in values[0].axes)
                flat = tuple(ix for axis in axes for ix in axis)
                node = Pre("input", axes, flat, DTYPE_NAMES[fake.dtype])
                self.values[id(fake)] = (fake, whole(node, axes))
            else:
                node = self._input(label, fake, late=True).node
            node.level = level + 1
            nodes.append(node)
        symbolic = pytree.tree_map(self.expr, (args, kwargs))
        self.calls.append(EagerCall(func, symbolic[0], symbolic[1], tuple(nodes), level, where, name))
        self.fallbacks.append(Fallback(name, where, reason))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Fake tensors and this mode, without gradients; `math.sqrt` of a size stays symbolic."""
        with _LOCK, torch.no_grad(), _symbolic_sqrt(), _quiet(), self.fakes, self:
            yield


_LOCK = threading.RLock()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """An error in the user's function is raised; PyTorch would log pages of its own frames besides."""
    logger = logging.getLogger(fake_tensor.__name__)
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


@contextlib.contextmanager
def _symbolic_sqrt() -> Iterator[None]:
    """`1 / math.sqrt(q.shape[-1])` is how most attention is written; Python's own asks for the number."""
    plain = math.sqrt

    def sqrt(x: Any) -> Any:
        return torch._sym_sqrt(x) if isinstance(x, torch.SymInt | torch.SymFloat) else plain(x)  # type: ignore[attr-defined]

    math.sqrt = sqrt
    try:
        yield
    finally:
        math.sqrt = plain

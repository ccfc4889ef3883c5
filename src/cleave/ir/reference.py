"""What a program means: an interpreter in NumPy, in float64, that does each operation as it is written.

Everything is tested against it. Integers and bools keep their types, floats are float64 (or the type that
is asked for), casts among floats do nothing. A term that leaves its axis reads the nearest element (a
program only does that where a `select` drops the value); a gather out of range raises `Invalid`. Over
`Part(K)` an array has the size of the largest part; what stands beyond a part's own size is arbitrary,
and reductions skip it. The operations: `evaluation`; pointwise: `numerics`; sizes of dims: `sizes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cleave.errors import Bug, Invalid
from cleave.ir.candidate import Candidate, Fold
from cleave.ir.dims import Dim, Part, Parts
from cleave.ir.evaluation import Evaluation, Space, run_plain
from cleave.ir.numerics import Array, FloatType, convert, numpy_dtype
from cleave.ir.ops import Input, Node, Scalar
from cleave.ir.program import Output, Program
from cleave.ir.sizes import infer_sizes

Given = Mapping[str, Any]
"""Arguments by name: arrays, or numbers for scalars."""

Tree = int | tuple["Tree", ...]
"""An order of merging: part numbers, nested; the parts of a tuple are merged left to right."""


def evaluate(
    program: Program,
    inputs: Given,
    sizes: Mapping[Dim, int] | None = None,
    partitions: Mapping[Dim, Sequence[int]] | None = None,
    dtype: FloatType = np.float64,
) -> dict[str, Array]:
    """The outputs by name, in the caller's layout.

    `sizes` gives what does not follow from the shapes. `partitions[K]` lists the sizes of the parts of `K`,
    for a program with `Parts(K)` and `Part(K)`; nested or parallel partitions may be told apart by giving
    `Parts(K, level)` instead of `K`. Raises `Invalid` for arguments that do not fit."""
    meaning = _meaning(program, inputs, sizes, partitions, dtype)
    with np.errstate(all="ignore"):
        meaning.compute([output.node for output in program.outputs])
        return {output.name: _lay_out(meaning.values[output.node], output) for output in program.outputs}


def evaluate_fold(
    candidate: Candidate,
    fold: Fold,
    inputs: Given,
    partition: Sequence[int | Sequence[int]],
    dtype: FloatType = np.float64,
    *,
    tree: Tree | None = None,
    sizes: Mapping[Dim, int] | None = None,
) -> dict[str, Array]:
    """The values of a Fold by name, each over its node's axes, computed piece by piece in `dtype`.

    `partition` cuts `fold.over`: each part starts from `init` and runs `step` once, or once for each size
    if the part is a sequence of sizes; then the parts are merged left to right, or as `tree` says, and
    `finish` is run. What `step` reads comes from evaluating the candidate's program in float64."""
    outer = _meaning(candidate.program, inputs, sizes, None, np.float64)
    parts = [(part,) if isinstance(part, int) else tuple(part) for part in partition]
    total = outer.extent(fold.over)
    if sum(map(sum, parts)) != total:
        raise Invalid(f"the parts of {fold.over} are {list(partition)}, expected a sum of {total}")
    with np.errstate(all="ignore"):
        outer.compute([element.access.node for element in fold.elements])
        scalars = {n.op.name: np.asarray(inputs[n.op.name]) for n in candidate.program.inputs
                   if isinstance(n.op, Scalar)}  # fmt: skip
        # What does not vary with the piece is there for merge and finish, too.
        fixed = {n.op.name for n in fold.step.inputs if isinstance(n.op, Input) and not _pieces(fold, n)}
        scalars |= {name: value for name, value in _elements(fold, outer, 0, 0).items() if name in fixed}
        start = run_plain(fold.init, scalars, outer.sizes, dtype)
        states: list[dict[str, Array]] = []
        place = 0
        for part in parts:
            state = start
            for size in part:
                elements = _elements(fold, outer, place, size)
                elements |= scalars
                state = run_plain(fold.step, {**state, **elements}, _piece_sizes(fold, outer, size), dtype)
                place += size
            states.append(state)
        merged = _merge(fold, states, tree, scalars, outer.sizes, dtype) if states else start
        return run_plain(fold.finish, {**merged, **scalars}, outer.sizes, dtype)


def _pieces(fold: Fold, node: Node) -> bool:
    """Whether a value that `step` reads varies with the piece."""
    return any(isinstance(axis.dim, Part) and axis.dim.of == fold.over for axis in node.axes)


def _merge(
    fold: Fold,
    states: list[dict[str, Array]],
    tree: Tree | None,
    scalars: Mapping[str, Array],
    sizes: Mapping[Dim, int],
    dtype: FloatType,
) -> dict[str, Array]:
    if isinstance(tree, int):
        return states[tree]
    inner = (
        states if tree is None else [_merge(fold, states, branch, scalars, sizes, dtype) for branch in tree]
    )
    merged = inner[0]
    for other in inner[1:]:
        both = {f"a_{name}": merged[name] for name in fold.state}
        both |= {f"b_{name}": other[name] for name in fold.state}
        merged = run_plain(fold.merge, {**both, **scalars}, sizes, dtype)
    return merged


def _piece_sizes(fold: Fold, outer: Evaluation, size: int) -> dict[Dim, int]:
    """The sizes inside a piece: those outside, and the size of every `Part` of the folded dim."""
    nodes = (*fold.step.inputs, *fold.step.nodes)
    dims = {index.dim for node in nodes for index in (*node.axes, *node.bound)}
    return {**outer.sizes, **{d: size for d in dims if isinstance(d, Part) and d.of == fold.over}}


def _elements(fold: Fold, outer: Evaluation, place: int, size: int) -> dict[str, Array]:
    """What `step` reads of the piece `[place, place + size)`."""
    axes = {node.op.name: node.axes for node in fold.step.inputs if isinstance(node.op, Input | Scalar)}
    found: dict[str, Array] = {}
    for element in fold.elements:
        if element.name not in axes:
            raise Bug(f"step of the fold over {fold.over} has no input {element.name}")
        space = Space(
            [
                (i, place, size)
                if isinstance(i.dim, Part) and i.dim.of == fold.over
                else (i, 0, outer.extent(i.dim))
                for i in axes[element.name]
            ]
        )
        found[element.name] = np.broadcast_to(outer.read(element.access, space), space.shape)
    return found


def _lay_out(array: Array, output: Output) -> Array:
    """A node's value as the tensor that the caller gets."""
    shape = [int(np.prod([array.shape[n] for n in group], dtype=int)) for group in output.layout]
    return np.array(np.transpose(array, [n for group in output.layout for n in group]).reshape(shape))


def _meaning(
    program: Program,
    inputs: Given,
    sizes: Mapping[Dim, int] | None,
    partitions: Mapping[Dim, Sequence[int]] | None,
    dtype: FloatType,
) -> Evaluation:
    """Check the arguments, and bind sizes and inputs."""
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    found = infer_sizes(program, {name: array.shape for name, array in arrays.items()}, sizes)
    parts = {dim: tuple(int(n) for n in ns) for dim, ns in (partitions or {}).items()}
    meaning = Evaluation(program, found, parts, dtype)
    for dim, ns in parts.items():
        whole = dim.of if isinstance(dim, Parts | Part) else dim
        if min(ns, default=0) < 0 or sum(ns) != meaning.extent(whole):
            raise Invalid(f"the parts of {whole} are {list(ns)}, expected a sum of {meaning.extent(whole)}")
    for node in program.inputs:
        assert isinstance(node.op, Input | Scalar)
        name = node.op.name
        if name not in arrays:
            raise Invalid(f"there is no value for argument {name}", where=f"program {program.name}")
        _check_kind(name, node, arrays[name])
        shape = [meaning.extent(dim) for dim in node.dims]
        meaning.values[node] = convert(arrays[name].reshape(shape), numpy_dtype(node.dtype, dtype))
    return meaning


def _check_kind(name: str, node: Node, array: Array) -> None:
    kinds = {"f": "fiub", "i": "iub", "b": "b"}[numpy_dtype(node.dtype, np.float64).kind.replace("u", "i")]
    if array.dtype.kind not in kinds:
        raise Invalid(f"argument {name} has dtype {array.dtype}, expected {node.dtype}")
    if isinstance(node.op, Scalar) and array.shape:
        raise Invalid(f"argument {name} has shape {array.shape}, expected a number")

"""Launching: checks of arguments, sizes, part counts, fresh outputs, threads, overhead."""

from __future__ import annotations

import inspect
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import cleave
import tile_examples as te
from cleave import knobs
from cleave.errors import Bug, Invalid
from cleave.ir.dims import Atom, Index, Parts, extent
from cleave.runtime import caller
from cleave.runtime.build import Function
from cleave.runtime.launch import Launcher
from cleave.schedule.tiles import GridAxis, Kernel, TileProgram
from tile_attention import attention
from tile_builder import Block, tensor

N, K = Atom("N"), Atom("K")


@pytest.fixture(scope="module", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with knobs.scope(cache_dir=folder):
        yield folder


@pytest.fixture(scope="module")
def softmax(cache_folder: Path) -> Launcher:
    return Launcher(te.softmax_keep().tiles)


@pytest.fixture(scope="module")
def matmul(cache_folder: Path) -> Launcher:
    return Launcher(te.matmul().tiles)


@pytest.fixture(scope="module")
def norm_linear(cache_folder: Path) -> Launcher:
    return Launcher(te.norm_linear().tiles)


# ---------------------------------------------------------------- arguments


def test_wrong_number_of_arguments(matmul: Launcher) -> None:
    with pytest.raises(Invalid, match=r"1 arguments, expected 2: x, w\n  at program matmul_f32"):
        matmul(torch.randn(3, 4))


def test_wrong_dtype(matmul: Launcher) -> None:
    with pytest.raises(Invalid, match=r"argument w has dtype torch.float64, expected torch.float32"):
        matmul(torch.randn(3, 4), torch.randn(3, 4).double())


def test_wrong_device(matmul: Launcher) -> None:
    with pytest.raises(Invalid, match=r"argument x is on meta, expected cpu"):
        matmul(torch.randn(3, 4, device="meta"), torch.randn(3, 4))


def test_wrong_rank(matmul: Launcher) -> None:
    with pytest.raises(Invalid, match=r"argument x has 1 axes \(shape \(3,\)\), expected 2"):
        matmul(torch.randn(3), torch.randn(3, 4))


def test_sizes_that_contradict(matmul: Launcher) -> None:
    with pytest.raises(Invalid, match=r"argument w has size 5 on axis 1 \(K\), expected 4"):
        matmul(torch.randn(3, 4), torch.randn(3, 5))


def test_no_tensor_and_no_number(matmul: Launcher, norm_linear: Launcher) -> None:
    with pytest.raises(Invalid, match=r"argument w is a float, expected a tensor \(f32\)"):
        matmul(torch.randn(3, 4), 1.0)
    good = (torch.randn(2, 4), torch.randn(4), torch.randn(3, 4))
    with pytest.raises(Invalid, match=r"argument eps is a Tensor, expected a number \(f32\)"):
        norm_linear(*good, torch.tensor(1.0))
    with pytest.raises(Invalid, match=r"argument eps is a bool"):
        norm_linear(*good, True)
    norm_linear(*good, 1)


def test_sparse_tensors_are_refused(matmul: Launcher) -> None:
    with pytest.raises(Invalid, match=r"argument x has layout torch.sparse_coo"):
        matmul(torch.eye(4).to_sparse(), torch.randn(3, 4))


def test_limits(softmax: Launcher) -> None:
    with pytest.raises(Invalid, match=r"K has size 200, this variant of softmax_keep takes 128 at most"):
        softmax(torch.randn(3, 200))


def test_an_error_is_not_kept(matmul: Launcher) -> None:
    """The same call fails again, and a right one still works."""
    for _ in range(2):
        with pytest.raises(Invalid):
            matmul(torch.randn(3, 4), torch.randn(3, 5))
    matmul(torch.randn(3, 4), torch.randn(3, 4))


def test_other_targets() -> None:
    with pytest.raises(Bug, match="cuda"):
        Launcher(te.matmul().tiles, "cuda")


def test_sizes_of_a_call(matmul: Launcher) -> None:
    assert matmul.sizes_of(torch.randn(3, 4), torch.randn(5, 4)) == {N: 3, K: 4, Atom("O"): 5}


def test_scalars_are_read_at_every_call(norm_linear: Launcher) -> None:
    """U41."""
    x, g, w = torch.randn(2, 8), torch.ones(8), torch.randn(3, 8)
    for eps in (0.5, 1.5, 100.0, 0.5):
        want = (x * torch.rsqrt((x * x).mean(1, keepdim=True) + eps)) @ w.t()
        torch.testing.assert_close(norm_linear(x, g, w, eps)[0], want)


# ---------------------------------------------------------------- outputs


def test_one_build_for_all_sizes_and_strides(matmul: Launcher) -> None:
    """U16, U59: equal sizes at the first call, then others, 0 and 1 among them; dense, then transposed."""
    for n, o, k in ((4, 4, 4), (4, 7, 4), (1, 1, 1), (0, 3, 5), (3, 0, 5), (3, 2, 0), (40, 33, 65)):
        x, w = torch.randn(n, k), torch.randn(o, k)
        torch.testing.assert_close(matmul(x, w)[0], x @ w.t())
        torch.testing.assert_close(matmul(x.t().contiguous().t(), w)[0], x @ w.t())


def test_outputs_are_fresh(softmax: Launcher) -> None:
    """U52: a later call leaves earlier results alone."""
    a, b = torch.randn(5, 7), torch.randn(5, 7)
    first = softmax(a)[0]
    kept = first.clone()
    second = softmax(b)[0]
    assert first.equal(kept) and first.data_ptr() != second.data_ptr()


def test_inputs_are_left_alone_and_outputs_never_alias_them() -> None:
    """U46: an identity is a copy."""
    n, k = Index(N, 0), Index(K, 1)
    x, y, z = (tensor(name, role, "f32", *dims) for name, role, dims in
               (("x", "input", (N, K)), ("y", "output", (N, K)), ("z", "output", (K, N))))  # fmt: skip
    b = Block()
    b.load("x1", (n, k), x, n, k)
    b.store(y, "x1", n, k)
    b.store(z, "x1", k, n)
    kernel = Kernel("main", (x, y, z), (GridAxis(n, 4), GridAxis(k, 4)), (), (), tuple(b.body), ())
    launcher = Launcher(TileProgram("copy", (x,), (y, z), (), (kernel,)))
    value = torch.randn(9, 6)
    kept = value.clone()
    same, turned = launcher(value)
    assert same.equal(value) and turned.equal(value.t()) and value.equal(kept)
    assert same.data_ptr() != value.data_ptr()
    assert same.is_contiguous() and turned.is_contiguous()
    assert launcher(torch.randn(1, 6).expand(9, 6))[0].stride() == (6, 1)


def test_results_do_not_require_gradients(softmax: Launcher) -> None:
    assert not softmax(torch.randn(3, 4, requires_grad=True))[0].requires_grad


def test_sizes_that_are_derived_or_fixed() -> None:
    """An output whose size follows from another one: K = N + 1."""
    n, k = Index(N, 0), Index(K, 1)
    x, y = tensor("x", "input", "f32", N), tensor("y", "output", "f32", N, K)
    b = Block()
    b.load("x1", (n,), x, n)
    b.locate("at", (k,), k)
    b.compute("f", (k,), "cast", "at")
    b.store(y, b.compute("y1", (n, k), "add", "x1", "f"), n, k)
    kernel = Kernel("main", (x, y), (GridAxis(n, 4), GridAxis(k, 4)), (), (), tuple(b.body), ())
    sizes = ((K, extent(1, (N, 1))),)
    launcher = Launcher(TileProgram("derived", (x,), (y,), (), (kernel,), sizes))
    x1 = torch.randn(6)
    torch.testing.assert_close(launcher(x1)[0], x1[:, None] + torch.arange(7.0))


# ---------------------------------------------------------------- splits, threads


def test_part_counts_are_chosen_by_sizes() -> None:
    asked: list[int] = []

    def choose(tiles: TileProgram, sizes: object) -> dict[Atom, int]:
        asked.append(1)
        return {K: 3}

    launcher = Launcher(te.matmul_split().tiles, choose=choose)
    x, w = torch.randn(5, 37), torch.randn(7, 37)
    for _ in range(3):
        torch.testing.assert_close(launcher(x, w)[0], x @ w.t())
    assert len(asked) == 1
    torch.testing.assert_close(launcher(x[:, :2], w[:, :2])[0], x[:, :2] @ w[:, :2].t())
    assert len(asked) == 2
    by_rule = Launcher(te.matmul_split().tiles)
    torch.testing.assert_close(by_rule(x, w)[0], x @ w.t())
    bound = next(iter(by_rule._bound.values()))  # pyright: ignore[reportPrivateUsage]
    assert bound.sizes[Parts(K)] >= 1


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    launcher = Launcher(attention().tiles)
    q, k, v = torch.randn(6, 70, 16), torch.randn(2, 90, 16), torch.randn(2, 90, 16)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            results.append(launcher(q, k, v, 0.25)[0])
    finally:
        torch.set_num_threads(before)
    assert results[0].equal(results[1]) and results[0].equal(results[2])


def test_workspaces_are_not_allocated_again() -> None:
    """A later call takes a room that an earlier one left; what it holds then does not show."""
    launcher = Launcher(te.matmul_split().tiles, choose=lambda tiles, sizes: {K: 3})
    x, w = torch.randn(50, 370), torch.randn(70, 370)
    want = launcher(x, w)[0]
    assert caller._rooms, "the room was not given back"  # pyright: ignore[reportPrivateUsage]
    rooms = list(caller._rooms)  # pyright: ignore[reportPrivateUsage]
    for room in rooms:
        room.memory.fill_(255)  # NaN in every float format
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caller, "public_empty", lambda *_: pytest.fail("memory was allocated"))
        for _ in range(3):
            assert launcher(x, w)[0].equal(want)
    assert caller._rooms == rooms  # pyright: ignore[reportPrivateUsage]
    assert all(room.address % caller.LINE == 0 for room in rooms)


def test_workspaces_of_calls_at_once_are_apart() -> None:
    launcher = Launcher(te.matmul_split().tiles, choose=lambda tiles, sizes: {K: 3})
    values = [(torch.randn(90, 370), torch.randn(70, 370)) for _ in range(4)]
    wants = [x @ w.t() for x, w in values]
    wrong: list[float] = []

    def work(number: int) -> None:
        for _ in range(60):
            error = (launcher(*values[number])[0] - wants[number]).abs().max().item()
            if not error < 1e-3:
                wrong.append(error)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def threads_of(launcher: Launcher, *args: torch.Tensor) -> list[int]:
    """What the kernels of a call are told about threads."""
    told: list[int] = []
    library = launcher._library  # pyright: ignore[reportPrivateUsage]
    kept = dict(library.bare)
    launcher._bound.clear()  # pyright: ignore[reportPrivateUsage]

    def watched(function: Function) -> Function:
        def call(*given: object) -> int:
            told.append(int(re.findall(r"\d+", repr(given[-1]))[-1]))
            return function(*given)

        return call

    library.bare.update({name: watched(function) for name, function in kept.items()})
    try:
        launcher(*args)
        launcher(*args)
    finally:
        library.bare.update(kept)
        launcher._bound.clear()  # pyright: ignore[reportPrivateUsage]
    return told


def test_the_number_of_threads_is_obeyed(matmul: Launcher) -> None:
    """PyTorch's, at the moment of the call; a small one wakes none."""
    before = torch.get_num_threads()
    large, small = (torch.randn(300, 500), torch.randn(400, 500)), (torch.randn(3, 5), torch.randn(4, 5))
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert threads_of(matmul, *large) == [threads] * 2
            assert threads_of(matmul, *small) == [1, 1]
    finally:
        torch.set_num_threads(before)


def test_part_counts_follow_the_number_of_threads() -> None:
    """What was worked out for one number of threads does not serve another one."""
    launcher = Launcher(te.matmul_split().tiles)
    x, w = torch.randn(5, 40000), torch.randn(7, 40000)
    before = torch.get_num_threads()
    found: list[int] = []
    try:
        for threads in (1, 2, 8, 1, 8):
            torch.set_num_threads(threads)
            torch.testing.assert_close(launcher(x, w)[0], x @ w.t(), rtol=1e-3, atol=1e-2)
            found.append(launcher._bound_for((x, w)).sizes[Parts(K)])  # pyright: ignore[reportPrivateUsage]
    finally:
        torch.set_num_threads(before)
    assert len(launcher._bound) == 3  # pyright: ignore[reportPrivateUsage]
    assert found[0] == found[3] <= found[1] <= found[2] == found[4] and found[0] < found[2]


def test_one_function_is_planned_for_each_number_of_threads() -> None:
    """No further compile of the function; its calls are right with any number of threads."""
    f = cleave.jit(lambda x, w: (x @ w).softmax(-1))
    x, w = torch.randn(3, 4096), torch.randn(4096, 65)
    before = torch.get_num_threads()
    try:
        for threads in (2, 1, 3, 1, 2):
            torch.set_num_threads(threads)
            for _ in range(3):
                torch.testing.assert_close(f(x, w), (x @ w).softmax(-1), rtol=1e-3, atol=1e-5)
    finally:
        torch.set_num_threads(before)
    (compiled,) = f.compiled
    assert f.compile_count == 1 and not f.fallbacks
    assert {key[0] for key in compiled.chosen} == {1, 2, 3}


FORKED = """
import os, signal, torch, cleave
f = cleave.jit(lambda x: (x * 2).softmax(-1))
x = torch.randn(512, 2048)
wanted = f(x)
assert torch.get_num_threads() > 1
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        same = f(x).numpy().tobytes() == wanted.numpy().tobytes()
        os._exit(0 if same else 3)
    assert os.waitpid(pid, 0)[1] == 0
assert f(x).equal(wanted)
print("all fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_a_forked_process_calls_what_ran_on_several_threads_before() -> None:
    """OpenMP's threads stay behind in the parent, and its library would wait for them."""
    env = {**os.environ, "OMP_NUM_THREADS": "2", "CLEAVE_CACHE_DIR": str(knobs.knobs().cache_dir)}
    done = subprocess.run(
        [sys.executable, "-c", FORKED], env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout == "all fine\n", done.stdout + done.stderr[-2000:]


def test_threads_of_python_with_their_own_numbers_of_threads(matmul: Launcher, softmax: Launcher) -> None:
    """The same and different programs at once, while the number of threads changes."""
    x, w, s = torch.randn(130, 500), torch.randn(140, 500), torch.randn(300, 100)
    want, soft = x @ w.t(), s.softmax(-1)
    wrong: list[float] = []

    def work(number: int) -> None:
        for turn in range(40):
            torch.set_num_threads(1 + (number + turn) % 3)
            errors = (matmul(x, w)[0] - want).abs().max(), (softmax(s)[0] - soft).abs().max()
            wrong.extend(float(e) for e, most in zip(errors, (1e-3, 1e-5), strict=True) if not e < most)

    before = torch.get_num_threads()
    try:
        workers = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        torch.set_num_threads(before)
    assert wrong == []


def test_calls_from_several_threads(matmul: Launcher) -> None:
    values = [(torch.randn(30 + n, 50), torch.randn(20, 50)) for n in range(4)]
    wrong: list[float] = []

    def work(number: int) -> None:
        x, w = values[number]
        want = x @ w.t()
        for _ in range(100):
            error = (matmul(x, w)[0] - want).abs().max().item()
            if not error < 1e-4:
                wrong.append(error)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_signatures_are_kept_within_bounds(softmax: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    from cleave.runtime import launch

    monkeypatch.setattr(launch, "KEPT_SIGNATURES", 3)
    for n in range(10):
        softmax(torch.randn(n, 4))
        assert len(softmax._bound) <= 4 or n == 0  # pyright: ignore[reportPrivateUsage]


def test_a_call_adds_little_to_the_kernel(softmax: Launcher) -> None:
    """U86: some microseconds; the bound here allows for a busy machine."""
    x = torch.randn(4, 16)
    softmax(x)
    best = math.inf
    for _ in range(50):
        begin = time.thread_time()
        for _ in range(20):
            softmax(x)
        best = min(best, (time.thread_time() - begin) / 20)
    assert best < 30e-6, f"{best * 1e6:.1f} us"


def test_float64_programs_work_in_double() -> None:
    n = Index(N, 0)
    x, y = tensor("x", "input", "f64", N), tensor("y", "output", "f64", N)
    b = Block()
    b.load("x1", (n,), x, n)
    b.store(y, b.compute("y1", (n,), "exp", "x1", dtype="f64"), n)
    kernel = Kernel("main", (x, y), (GridAxis(n, 8),), (), (), tuple(b.body), ())
    launcher = Launcher(TileProgram("double", (x,), (y,), (), (kernel,)))
    value = torch.randn(19, dtype=torch.float64)
    np.testing.assert_allclose(launcher(value)[0].numpy(), np.exp(value.numpy()), rtol=1e-15)


def test_memory_is_filled_from_the_moment_that_it_is_asked_for(softmax: Launcher) -> None:
    """How memory is had is not decided once for all calls like the first."""
    x = torch.randn(3, 8)
    call = softmax.prepared(x)
    assert call is not None
    text = inspect.getclosurevars(call).nonlocals
    seen: list[bool] = []
    quick, careful = text["quick"], text["careful"]
    assert quick is not careful
    with pytest.MonkeyPatch.context() as patch:
        for name, kind in (("quick", True), ("careful", False)):
            cell = call.__closure__[call.__code__.co_freevars.index(name)]  # pyright: ignore
            old = cell.cell_contents
            patch.setattr(
                cell, "cell_contents", lambda *how, old=old, kind=kind: (seen.append(kind), old(*how))[1]
            )
        call(x)
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            call(x)
        finally:
            torch.use_deterministic_algorithms(False)
        call(x)
    count = len(seen) // 3
    assert seen == [True] * count + [False] * count + [True] * count and count

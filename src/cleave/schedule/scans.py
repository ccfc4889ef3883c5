"""Instantiating scans: loops whose steps follow each other (`cleave.ir.ops.Scan`)."""

from __future__ import annotations

from collections.abc import Sequence

from cleave.errors import Infeasible
from cleave.ir.dims import Index, Term, term, var
from cleave.ir.loops import Loop as ScanLoop
from cleave.ir.ops import Node
from cleave.schedule.nodes import Env, Nodes
from cleave.schedule.values import LoopPlan, Slot, Value, Work


class Scans(Nodes):
    """The part of `instance.Builder` that runs scans."""

    def _scanned(self, env: Env, scan: ScanLoop, result: int, terms: tuple[Term, ...]) -> Work[Value]:
        """A result of a scan: its state after the loop, or what the step at the loop's position hands out."""
        own = terms if result < scan.states else terms[1:]
        if self._sizes.get(scan.over) == 1:  # one step: no loop, no state
            self.visits.setdefault((f"state scan {scan.key}", "step"), []).append(own)
            return (yield self._node(self._scan_env(env, scan, None), scan.body.outputs[result].node, own))
        time = None if result < scan.states else terms[0].variable
        loop = self._scan_loop(env, scan, own, time)
        if time is not None or result >= scan.states:
            self.visits.setdefault((f"state scan {scan.key}", "time"), []).append((terms[0],))
            if time != loop.index:
                raise Infeasible(
                    f"steps of a scan over {scan.over} are read out of order in kernel {self.spec.name}"
                )
            inner = self._scan_env(env, scan, loop)
            return (yield self._node(inner, scan.body.outputs[result].node, own))
        slot: Slot = yield self._scan_state(self._scan_env(env, scan, loop), scan, result, own)
        return slot.result

    def _scan_loop(self, env: Env, scan: ScanLoop, terms: Sequence[Term], time: Index | None) -> LoopPlan:
        """The loop of a scan: the one over the index at which its steps are read, else the one that writes
        along the same dim, else one of its own."""
        loop = self.graph.loop_of(time) if time is not None else None
        if loop is None and env.scan is None:
            loop = next((x for x in self.graph.loops if x.mode == "map" and x.index.dim == scan.over), None)
        if loop is None:
            indices = {i for t in terms for i in self.graph.term_indices(t)}
            inner = {env.loop.index} if env.loop is not None else set[Index]()
            outer = frozenset(i for i in {*indices, *inner} if self.graph.loop_of(i) is not None)
            key = (f"scan {env.serial} {scan.key}", outer)
            loop = self._loops.get(key)
            if loop is None:
                loop = LoopPlan(self.graph.fresh(scan.over), "whole", None, outer)
                self.graph.loops.append(loop)
                self._loops[key] = loop
        loop.sequential = True
        if None not in loop.supports:
            loop.supports.append(None)
        return loop

    def _scan_env(self, env: Env, scan: ScanLoop, loop: LoopPlan | None) -> Env:
        key = (f"scan {env.serial} {scan.key}", loop.index.number if loop else -1, "scan")
        if key not in self._envs:
            self._envs[key] = Env(f"scan {scan.key}", len(self._envs), "scan", loop, scan=scan, outer=env)
        return self._envs[key]

    def _scan_state(self, env: Env, scan: ScanLoop, number: int, terms: tuple[Term, ...]) -> Work[Slot]:
        """The carried tile of a state; what its next value needs is carried too. States are read where they
        are written: an element of one follows from the same element of the others."""
        loop, outer = env.loop, env.outer
        assert loop is not None and outer is not None
        if any(t.leaves and t.variable is None for t in terms) or var(loop.index) in terms:
            raise Infeasible(f"a state of the scan over {scan.over} is read at other positions than its own")
        name = scan.names[number]
        key = (loop.index.number, f"scan {env.serial}", name, terms)
        slot = self._slots.get(key)
        if slot is not None:
            return slot
        self.visits.setdefault((f"state scan {scan.key}", name), []).append(terms)
        node = scan.body.inputs[number]
        axes = tuple(dict.fromkeys(i for t in terms for i in self.graph.term_indices(t)))
        slot = self.graph.slot(loop, name, axes, node.dtype)
        self._slots[key] = slot
        replacement = dict(zip(node.axes, terms, strict=True))
        init: Value = yield self._read(outer, scan.args[number], replacement)
        slot.init = self._as_dtype(init, node.dtype)
        slot.step = yield self._node(env, scan.body.outputs[number].node, terms)
        return slot

    def _scan_input(self, env: Env, scan: ScanLoop, node: Node, terms: tuple[Term, ...]) -> Work[Value]:
        """What a body's input is: the state as it stands, or what the step reads."""
        number = next(n for n, given in enumerate(scan.body.inputs) if given is node)
        replacement = dict(zip(node.axes, terms, strict=True))
        if env.loop is not None and number < scan.states:
            slot: Slot = yield self._scan_state(env, scan, number, terms)
            return slot.old
        assert env.outer is not None
        replacement[scan.time(number)] = var(env.loop.index) if env.loop is not None else term()
        value: Value = yield self._read(env.outer, scan.args[number], replacement)
        return self._as_dtype(value, node.dtype)

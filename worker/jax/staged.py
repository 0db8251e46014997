"""JAX: a function that is compiled in several parts, so that some of its results are there before others.

XLA gives all results of a compiled function at once. This module knows no session and no gradient.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeGuard

import jax
import numpy as np
from jax.extend import core

Stages = Sequence[Sequence[int]]


class Staged:
    """A function whose chosen results are computed first, stage by stage, and all others after them.

    The function is traced once for each form of its arguments, and the operations that a stage needs, beyond
    those before it, are compiled by themselves. JAX runs them one after the other while the caller goes on,
    so that each result can be waited for by itself.

    Args:
        function: A function from pytrees of arrays to one, without side effects. The memory of its first
            argument is used for its results.
        chosen: Returns the part of a pytree like the function's result whose leaves are chosen.
    """

    def __init__(self, function: Callable[..., Any], chosen: Callable[[Any], Any]) -> None:
        self._function = function
        self._chosen = chosen
        self._parts: dict[Any, _Parts] = {}

    def __call__(self, stages: Stages, *arguments: Any) -> Any:
        """Return the function's result, whose arrays may still be computed.

        Args:
            stages: The numbers of the chosen leaves of each stage but the last.
            arguments: The function's.
        """
        leaves, structure = jax.tree.flatten(arguments)
        form = (structure, *map(_form, leaves), *map(tuple, stages))
        if form not in self._parts:
            self._parts[form] = self._divide(stages, arguments)
        return self._parts[form](leaves)

    def _divide(self, stages: Stages, arguments: Any) -> "_Parts":
        closed, shapes = jax.make_jaxpr(self._function, return_shape=True)(*arguments)
        structure: Any = jax.tree.structure(shapes)
        places = jax.tree.leaves(self._chosen(structure.unflatten(range(structure.num_leaves))))
        donated = len(jax.tree.leaves(arguments[0]))
        return _Parts(closed, [[places[number] for number in stage] for stage in stages], structure, donated)


class _Part(NamedTuple):
    """A part of a function's operations: its inputs, its results, and the inputs that no later part needs."""

    run: Callable[..., Any]
    inputs: list[core.Var]
    results: list[core.Var]
    ends: list[core.Var]


class _Parts:
    """A traced function's operations in parts that are compiled by themselves.

    Args:
        closed: The function.
        stages: The numbers of the results of each part but the last.
        donated: The number of its first inputs whose memory is used for results.
    """

    def __init__(self, closed: core.ClosedJaxpr, stages: Stages, structure: Any, donated: int) -> None:
        self._closed = closed
        self._structure = structure
        jaxpr = closed.jaxpr
        kept, own = {*jaxpr.invars, *jaxpr.constvars}, {*jaxpr.invars[:donated]}
        wanted = set(filter(_is_variable, jaxpr.outvars))
        self._parts: list[_Part] = []
        for equations in reversed(_assigned(jaxpr, stages)):
            made = dict.fromkeys(variable for equation in equations for variable in equation.outvars)
            used = [variable for equation in equations for variable in equation.invars]
            inputs = list(dict.fromkeys(v for v in used if _is_variable(v) and v not in made))
            results = [variable for variable in made if variable in wanted]
            ends = [variable for variable in inputs if variable not in wanted and variable not in kept]
            described = jaxpr.debug_info._replace(
                arg_names=("",) * len(inputs), result_paths=("",) * len(results)
            )
            part = jaxpr.replace(
                constvars=[], invars=inputs, outvars=results, eqns=equations, debug_info=described
            )
            given = [n for n, variable in enumerate(inputs) if variable in own and variable not in wanted]
            run = jax.jit(core.jaxpr_as_fun(core.ClosedJaxpr(part, [])), donate_argnums=given)
            self._parts.insert(0, _Part(run, inputs, results, ends))
            wanted.update(inputs)

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """Return the results for the leaves of the function's arguments."""
        jaxpr = self._closed.jaxpr
        known = dict(zip(jaxpr.invars, leaves, strict=True))
        known |= dict(zip(jaxpr.constvars, self._closed.consts, strict=True))
        for part in self._parts:
            known |= dict(zip(part.results, part.run(*map(known.__getitem__, part.inputs)), strict=True))
            for variable in part.ends:
                del known[variable]  # so that its memory is free
        return self._structure.unflatten(
            known[result] if _is_variable(result) else result.val for result in jaxpr.outvars
        )


def _assigned(jaxpr: core.Jaxpr, stages: Stages) -> list[list[core.JaxprEqn]]:
    """Assign each equation to the first stage that needs it, or to the last, in their order."""
    makers = {variable: n for n, equation in enumerate(jaxpr.eqns) for variable in equation.outvars}
    stage_of = [len(stages)] * len(jaxpr.eqns)
    for stage, results in enumerate(stages):
        needed = [jaxpr.outvars[result] for result in results]
        while needed:
            variable = needed.pop()
            maker = makers.get(variable) if _is_variable(variable) else None
            if maker is not None and stage_of[maker] == len(stages):
                stage_of[maker] = stage
                needed.extend(jaxpr.eqns[maker].invars)
    return [
        [equation for equation, its in zip(jaxpr.eqns, stage_of, strict=True) if its == stage]
        for stage in range(len(stages) + 1)
    ]


def _is_variable(atom: Any) -> TypeGuard[core.Var]:
    return not isinstance(atom, core.Literal)


def _form(leaf: Any) -> tuple[Any, ...]:
    """Return what a traced function depends on of an argument's leaf."""
    is_weak = getattr(leaf, "weak_type", isinstance(leaf, int | float | complex))
    return np.shape(leaf), jax.dtypes.result_type(leaf), is_weak

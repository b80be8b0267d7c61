"""Where the norms stand, read off the graph that autograd makes of the first recorded forward anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from .. import surgery
from .._torch import has_hooks
from ..surgery.find import in_use
from .budget import Budget
from .guard import Guard


class Placement:
    """Of one model, once: ``expect`` before a forward that trains, which is then read. ``found`` is the structure, or None while it
    could not be read."""

    def __init__(self, model: nn.Module, survey: surgery.Survey, guard: Guard, budget: Budget) -> None:
        self.model, self.survey, self.guard, self.budget = model, survey, guard, budget
        self.found: surgery.Structure | None = None
        self.tries = 3  # a forward that is not the step's, such as an evaluation, uses one up
        self._capture: surgery.GraphCapture | None = None

    def expect(self) -> None:
        if self.found is None and self._capture is None and self.tries > 0 and "placement" not in self.guard.off:
            self.tries -= 1
            self.guard("placement", self._attach)()

    def _attach(self) -> None:
        norms = [site.module for site in self.survey.norms]
        before = [has_hooks(norm, aside="passive") for norm in norms]
        self._capture = _Guarded(self.model, self.survey, self.guard, self.read)
        self._capture.attach()
        if [has_hooks(norm, aside="passive") for norm in norms] != before and surgery.find_residuals(self.model):
            self.forget()  # its hooks would take fused sums apart, and with them the pattern of dropout
            self.tries = 0

    def read(self, output: Any) -> None:
        """After the forward and before the backward pass, which takes the graph down."""
        capture, self._capture = self._capture, None
        if capture is None:
            return
        with self.budget:
            capture.detach()
            if output is not None:
                flow = capture.finish(output)
                self.found = surgery.structure_of(flow, in_use(self.survey, flow.given_more), "graph")

    def again(self) -> None:
        """The forward that was expected has raised: another one is tried."""
        if self._capture is not None:
            self.forget()
            self.tries += 1
            self.expect()

    def forget(self) -> None:
        if self._capture is not None:
            self._capture.detach()
            self._capture = None


class _Guarded(surgery.GraphCapture):
    """Its hooks never raise into the model; ``done`` gets what the model returns. (Not earlier: torch asks whether a hook takes
    keywords when it calls it, and one that has been taken off does not.)"""

    def __init__(self, model: nn.Module, survey: surgery.Survey, guard: Guard, done: Callable[[Any], None]) -> None:
        super().__init__(model, survey.norms, survey.unknown)
        enter, leave = super()._enter, super()._leave

        def leaving(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            leave(module, args, kwargs, output)
            if module is model:
                done(output)

        self._enter = guard("placement", enter)  # type: ignore[method-assign]
        self._leave = guard("placement", leaving)  # type: ignore[method-assign]

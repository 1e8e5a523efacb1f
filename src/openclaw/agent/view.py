"""What of the conversation one run shows its model: pruned, fitted to the window, measured."""

from __future__ import annotations

from typing import Any

from openclaw.agent.fit import check_room, fit
from openclaw.agent.pruning import Pruner, effective, is_pruned, last_touch
from openclaw.agent.tokens import GrowingSum, PromptBudget, Scale, prompt_budget, reported_prompt
from openclaw.clock import Clock
from openclaw.config.schema import ContextPruning
from openclaw.messages import AssistantMessage, Message
from openclaw.models.base import Model


class PromptView:
    """Made for one run, asked before each of its model calls. Nothing here reaches the transcript."""

    def __init__(
        self,
        model: Model,
        overhead: int,
        scale: Scale,
        clock: Clock,
        *,
        pruning: ContextPruning,
        wanted_output: int | None = None,
    ) -> None:
        self._model = model
        self._overhead = overhead
        self._scale = scale
        self._clock = clock
        self._wanted_output = wanted_output
        self._sent = 0
        self._budget: PromptBudget | None = None
        self._pruning = pruning
        self.pruner: Pruner | None = None
        self._all, self._shown = GrowingSum(), GrowingSum()
        self.shortened = 0
        """Messages that had to be shortened or left out at the last call: more than the window holds was said."""

    @property
    def budget(self) -> PromptBudget:
        """Worked out again when another call has taught something about the estimate."""
        scale = self._scale.value
        if self._budget is None or self._budget.scale != scale:
            self._budget = prompt_budget(self._model, self._overhead, scale, self._wanted_output)
        return self._budget

    def check_room(self) -> None:
        """Raises ``DoesNotFit`` when no conversation of any length could be sent."""
        check_room(self.budget)

    def remember(self, memo: dict[Any, Any]) -> None:
        """Counts from where an earlier run of the same branch stopped counting."""
        self._all, self._shown = memo.setdefault("tokens", (self._all, self._shown))

    def begin(self, messages: list[Message]) -> None:
        """With what the run finds said already: whether the provider's cache has expired is decided from it."""
        if is_pruned(self._pruning, self._model):
            settings = effective(self._pruning, self._model)
            self.pruner = Pruner(settings, self._model, last_touch(messages, self._model))

    def fits(self, messages: list[Message]) -> bool:
        budget = self.budget
        return budget.size_of(self._all.of(messages)) <= budget.window - budget.output

    def of(self, messages: list[Message]) -> list[Message]:
        if self.pruner is not None:
            messages = self.pruner.apply(messages, self._clock.now_ms())
        budget, estimated = self.budget, self._shown.of(messages)
        fitted = fit(messages, budget, estimated)
        self.shortened = fitted.shortened
        self._sent = budget.size_of(estimated) if fitted.messages is messages else budget.size(fitted.messages)
        return fitted.messages

    def learn(self, answer: AssistantMessage) -> None:
        """Compares what was sent with what the provider counted."""
        if answer.stop_reason in ("error", "aborted"):
            return
        self._scale.learn(self._estimate(), reported_prompt(answer.usage))

    def was_too_large(self) -> None:
        """The provider refused what was thought to fit."""
        self._scale.too_large(self._estimate(), self._model.context_window)

    def _estimate(self) -> int:
        return round(self._sent / self._scale.value)

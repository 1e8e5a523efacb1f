"""What of the conversation one run shows its model: pruned, fitted to the window, measured."""

from __future__ import annotations

from typing import Any

from openclaw.agent.fit import SMALLEST_ROOM, check_room, fit
from openclaw.agent.pruning import Pruner, effective, is_pruned, last_touch
from openclaw.agent.tokens import GrowingSum, PromptBudget, Scale, prompt_budget, prompt_tokens, reported_prompt
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
        self._estimated = 0
        """Of the last prompt as it was sent."""
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
        """Whether these can be sent as they are. False as well when nothing could be."""
        return self._all.of(messages) <= self.budget.room >= SMALLEST_ROOM

    def of(self, messages: list[Message]) -> list[Message]:
        if self.pruner is not None:
            messages = self.pruner.apply(messages, self._clock.now_ms())
        # Most often what is shown is what was said, and has been counted as that.
        estimated = self._all.further(messages)
        if estimated is None:
            estimated = self._shown.of(messages)
        self.shortened, budget = 0, self.budget
        if estimated > budget.room:
            fitted = fit(messages, budget, estimated)
            messages, self.shortened, estimated = fitted.messages, fitted.shortened, prompt_tokens(fitted.messages)
        self._estimated = self._overhead + estimated
        return messages

    def learn(self, answer: AssistantMessage) -> None:
        """Compares what was sent with what the provider counted."""
        if answer.stop_reason not in ("error", "aborted"):
            self._scale.learn(self._estimated, reported_prompt(answer.usage))

    def was_too_large(self) -> None:
        """The provider refused what was thought to fit."""
        self._scale.too_large(self._estimated, self._model.context_window)

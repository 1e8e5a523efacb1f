"""The ``plan`` tool: the steps of a longer task with their states, kept in the session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Meta

from openclaw.tools.arguments import RecordTool, ToolArguments
from openclaw.tools.base import ToolContext, ToolError, ToolResult, text_result
from openclaw.untrusted_text import disarmed

StepStatus: TypeAlias = Literal["pending", "in_progress", "completed", "cancelled"]
MOST_STEPS = 20
LONGEST_STEP = 200
_SIGNS: dict[str, str] = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]", "cancelled": "[-]"}


class PlanStep(msgspec.Struct, frozen=True):
    step: str
    status: StepStatus = "pending"


class Plans(Protocol):
    """Where the plan of each session is kept."""

    async def save(self, agent_id: str, session_key: str, steps: Sequence[PlanStep]) -> bool:
        """Replace the plan of a session. Returns False if there is no such session."""
        ...


def plan_lines(steps: Sequence[PlanStep]) -> list[str]:
    """One line for each step: its number, state and text."""
    return [f"{number}. {_SIGNS[step.status]} {step.step}" for number, step in enumerate(steps, 1)]


def plan_summary(steps: Sequence[PlanStep]) -> str:
    """How many steps are done, and the one under way: ``2/5 done · now: Write the tests``."""
    done = sum(step.status in ("completed", "cancelled") for step in steps)
    current = next((step.step for step in steps if step.status == "in_progress"), "")
    return f"{done}/{len(steps)} done" + (f" · now: {current}" if current else "")


def is_finished(steps: Sequence[PlanStep]) -> bool:
    return all(step.status in ("completed", "cancelled") for step in steps)


class PlanStepArguments(ToolArguments):
    step: Annotated[str, Meta(max_length=LONGEST_STEP, description="What is to be done, in a few words")]
    status: StepStatus = "pending"


class PlanArguments(ToolArguments):
    steps: Annotated[
        list[PlanStepArguments],
        Meta(max_length=MOST_STEPS, description="The whole plan; it replaces the one before. Empty removes it"),
    ]


class PlanTool(RecordTool[PlanArguments]):
    name = "plan"
    summary = "Keep a short plan of a longer task and the state of its steps"
    description = (
        "Write or update the plan of a task with three or more steps. Pass all steps each time, at most one of them "
        "in_progress. Update it when a step begins or ends. The plan stays in view when the conversation is compacted."
    )

    def __init__(self, plans: Plans) -> None:
        self._plans = plans

    async def execute(self, arguments: PlanArguments, context: ToolContext) -> ToolResult:
        # The plan is shown outside the conversation, so text that a guest dictated must not pose as the Gateway's.
        steps = [PlanStep(disarmed(" ".join(item.step.split())), item.status) for item in arguments.steps]
        if any(not step.step for step in steps):
            raise ToolError("Every step needs a text.")
        if sum(step.status == "in_progress" for step in steps) > 1:
            raise ToolError("Only one step can be in_progress. Mark the others as pending or completed.")
        if not await self._plans.save(context.agent_id, context.session_key, steps):
            raise ToolError("There is no session to keep the plan in.")
        details = {"steps": msgspec.to_builtins(steps)}
        if not steps:
            return text_result("The plan is removed.", details)
        return text_result("\n".join([f"Plan ({plan_summary(steps)}):", *plan_lines(steps)]), details)


def read_steps(stored: object) -> list[PlanStep]:
    """Read the steps of a session's entry. What cannot be read is left out, because people edit the store."""
    if not isinstance(stored, list):
        return []
    steps: list[PlanStep] = []
    for item in stored[:MOST_STEPS]:  # pyright: ignore[reportUnknownVariableType]
        try:
            step = msgspec.convert(item, PlanStep)
        except msgspec.ValidationError:
            continue
        if step.step.strip():
            steps.append(msgspec.structs.replace(step, step=step.step[:LONGEST_STEP]))
    return steps

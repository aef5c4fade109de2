"""The keys of an ``ensemble.yaml`` and their types. ``schema`` checks what goes beyond one value."""

from __future__ import annotations

import math
import shlex
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from nodemanager.core.notation import NotationError, parse_fsd
from nodemanager.ensemble.file.conditions import read_condition
from nodemanager.ensemble.file.model import Action, ActionKind, Condition

COUNT_MAX = 1_000_000
SECONDS_MAX = 100 * 365 * 86400.0


def _whole(value: Any) -> Any:
    """Accept 2.0 for 2, as YAML does not tell them apart."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _one_if_zero(value: Any) -> Any:
    """Read 0 as 1, as ensemble-python does."""
    return 1 if value == 0 and not isinstance(value, bool) else value


def _seconds(value: Any) -> Any:
    """Accept a number of seconds, or a text such as "30s" or "5m"."""
    if isinstance(value, str):
        try:
            value = parse_fsd(value)
        except NotationError as error:
            raise ValueError(f'use a number of seconds, or a duration such as "90s": {error.fault}') from error
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError('use a number of seconds, or a duration such as "90s"')  # noqa: TRY004 - pydantic collects it
    if not 0 <= value <= SECONDS_MAX or math.isnan(value):
        raise ValueError("a duration is 0 or more, and less than a hundred years")
    return float(value)


def _condition(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError('use a number, or comparisons such as "> 5"')  # noqa: TRY004 - pydantic collects it
    return read_condition(value)


def _command(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError('use one text, such as "sleep 10". Quote words such as true, yes and 1')  # noqa: TRY004
    try:
        words = tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"the quotes of the command do not match: {error}") from error
    if not words:
        raise ValueError("the command is empty")
    if "\0" in value:
        raise ValueError("the command contains a null character")
    return words


def _name(value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise ValueError("a name has at least one character, and only printable ones")
    return value


Whole = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[Whole, Field(ge=0, le=COUNT_MAX)]
AtLeastOne = Annotated[Whole, Field(ge=1, le=COUNT_MAX)]
OneIfZero = Annotated[AtLeastOne, BeforeValidator(_one_if_zero)]
Seconds = Annotated[float, BeforeValidator(_seconds)]
Name = Annotated[str, AfterValidator(_name)]


class Keys(BaseModel):
    """A mapping that has only known keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


class LoggingKeys(Keys):
    debug: bool = False
    heartbeat: Seconds = 0.0


class JobKeys(Keys):
    name: Name
    command: Annotated[Any, AfterValidator(_command)]
    workdir: str | None = None
    count: Number = 1
    nodes: OneIfZero = 1
    tasks: OneIfZero = 1
    duration: Seconds = 0.0
    cores: AtLeastOne = 1
    gpus: Number = 0
    exclusive: bool = False
    environment: dict[str, str | int | float] = {}
    queue: str = ""
    requires: Annotated[str, Field(pattern=r"^([^\s,&|()]+(,[^\s,&|()]+)*)?$")] = ""
    urgency: Annotated[Whole, Field(ge=0, le=31)] = 16
    after: str | list[str] = []
    retries: Annotated[Whole, Field(ge=0, le=1000)] = 0


class ActionKeys(Keys):
    name: Annotated[ActionKind, Field(strict=False)]
    label: str = ""
    value: OneIfZero = 1
    repetitions: Number = 1
    backoff: Whole | str | None = None
    message: str = ""

    @model_validator(mode="before")
    @classmethod
    def _read_as_ensemble_python(cls, keys: Any) -> Any:
        """Leave out keys without a value, and the sign of shrink, which does not count there."""
        if not isinstance(keys, dict):
            return keys
        given = {key: value for key, value in keys.items() if value is not None}
        value = given.get("value")
        if given.get("name") == ActionKind.SHRINK and isinstance(value, int | float) and value < 0:
            given["value"] = -value
        return given

    def action(self) -> Action:
        """Return the action. Raises ``ValueError`` for a backoff that is no number of matches and no duration."""
        matches, seconds = 0, 0.0
        if isinstance(self.backoff, str):
            seconds = _seconds(self.backoff)
        elif self.backoff is not None:
            matches = max(0, self.backoff)
        return Action(self.name, self.label, self.value, self.repetitions, matches, seconds, self.message)


class RuleKeys(Keys):
    trigger: str
    name: str = ""
    when: Annotated[Condition | None, BeforeValidator(_condition)] = None
    action: ActionKeys


class FileKeys(Keys):
    jobs: list[JobKeys]
    rules: list[RuleKeys]
    logging: LoggingKeys = LoggingKeys()
    custom: str = ""

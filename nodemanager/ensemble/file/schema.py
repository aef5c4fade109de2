"""Read an ``ensemble.yaml``, or report every fault of it at once, each with its line and column.

What ensemble-python accepts is accepted. It also accepts unknown keys and ignores them; here they are faults of
kind UNKNOWN, which ``ensemble check`` refuses and ``ensemble run`` only shows.
"""

from __future__ import annotations

import ast
import math
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from nodemanager.config.text.ini import nearest_name
from nodemanager.core.notation import NotationError, parse_fsd
from nodemanager.ensemble.file.conditions import read_condition, read_metric
from nodemanager.ensemble.file.model import (
    TRIGGERS,
    Action,
    ActionKind,
    Condition,
    Ensemble,
    JobSet,
    MetricName,
    Rule,
    Trigger,
)
from nodemanager.ensemble.file.yaml_text import Path, Place, YamlFault, YamlText, read_yaml

HEARTBEAT_S = 60.0  # if a rule grows or shrinks and the file names no heartbeat
_SIZE_ACTIONS = frozenset({ActionKind.GROW, ActionKind.SHRINK})
_GROUP_ACTIONS = frozenset({ActionKind.SUBMIT, ActionKind.CANCEL})


class Severity(StrEnum):
    ERROR = "error"  # the file cannot run
    UNKNOWN = "unknown key"  # ignored when the file runs
    WARNING = "warning"  # it runs, and probably does not do what its author meant


@dataclass(frozen=True, slots=True, order=True)
class SchemaFault:
    """One fault, at a line and a column from 1."""

    line: int
    column: int
    severity: Severity
    text: str

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.severity}: {self.text}"


class EnsembleError(Exception):
    """The file cannot run. ``faults`` lists everything that is wrong, in the order of the lines."""

    def __init__(self, faults: Sequence[SchemaFault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = tuple(faults)


def read_ensemble(text: str) -> tuple[Ensemble, tuple[SchemaFault, ...]]:
    """Return the ensemble and its oddities. Raises ``EnsembleError``."""
    try:
        source = read_yaml(text)
    except YamlFault as fault:
        raise EnsembleError([SchemaFault(*fault.place, Severity.ERROR, fault.why)]) from fault
    reading = _Reading(source)
    ensemble = reading.ensemble()
    faults = sorted(set(reading.faults))
    if ensemble is None:
        raise EnsembleError(faults)
    return ensemble, tuple(faults)


def read_action(value: object, groups: Collection[str]) -> Action:
    """Read the action that a custom function returned. Raises ``ValueError``."""
    try:
        action = ActionKeys.model_validate(value).action()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the action"
        raise ValueError(f"{where}: {_message(first)}") from error
    if action.kind is ActionKind.CUSTOM:
        raise ValueError("a custom function cannot return another custom action")
    if action.kind in _GROUP_ACTIONS and action.label not in groups:
        raise ValueError(_no_group(action.label, groups, f"{action.kind} needs the label of a group"))
    return action


class _Reading:
    """Reads one file and collects its faults."""

    def __init__(self, source: YamlText) -> None:
        self.faults: list[SchemaFault] = []
        self._source = source

    def ensemble(self) -> Ensemble | None:
        for place, key in self._source.doubles:
            self._note(place, Severity.ERROR, f'the key "{key}" is there twice')
        keys = self._keys()
        if keys is None:
            return None
        sets = tuple(self._job_set(index, job) for index, job in enumerate(keys.jobs))
        groups = tuple(jobs.group for jobs in sets)
        self._check_after(sets, groups)
        functions = self._functions(keys.custom)
        rules = [self._rule(index, rule, groups, functions) for index, rule in enumerate(keys.rules)]
        if not any(rule.trigger == Trigger.START for rule in keys.rules):
            self._at(
                ("rules",), Severity.WARNING, "no rule has the trigger start, so nothing will ever be submitted"
            )
        if any(fault.severity is Severity.ERROR for fault in self.faults):
            return None
        made = tuple(rule for rule in rules if rule)
        heartbeat_s = keys.logging.heartbeat
        if not heartbeat_s and any(rule.action.kind in _SIZE_ACTIONS for rule in made):
            heartbeat_s = HEARTBEAT_S
        return Ensemble(sets, made, heartbeat_s, keys.custom, keys.logging.debug)

    # --- single values ---

    def _keys(self) -> FileKeys | None:
        """Check the file's values one by one; None if they have errors. Unknown keys are noted and taken out."""
        value = self._source.value
        if not isinstance(value, Mapping):
            self._note((1, 1), Severity.ERROR, "the file must have the keys jobs and rules")
            return None
        try:
            return FileKeys.model_validate(value)
        except ValidationError as error:
            faults = error.errors(include_url=False)
        unknown = [fault for fault in faults if fault["type"] == "extra_forbidden"]
        for fault in faults:
            self._note_value(fault)
        known: Mapping[str, Any] = _without(value, [fault["loc"] for fault in unknown])
        if len(unknown) < len(faults):
            self._check_what_could_be_read(known)
            return None
        return FileKeys.model_validate(known)

    def _note_value(self, fault: Any) -> None:
        path: Path = tuple(part for part in fault["loc"] if not _is_of_a_union(part))
        shown = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
        if fault["type"] == "extra_forbidden":
            place = self._source.places.get((*path, "key"), self._source.place(path))
            likely = nearest_name(str(path[-1]), _known_keys(path[:-1]))
            hint = f'; did you mean "{likely}"?' if likely else ""
            self._note(place, Severity.UNKNOWN, f"{shown}: this key is not known{hint}")
            return
        self._at(path, Severity.ERROR, f"{shown}: {_message(fault)}")

    def _check_what_could_be_read(self, value: Mapping[str, Any]) -> None:
        """Check labels, triggers and metrics too, although other values are wrong: all faults are shown at once."""
        jobs, rules = value.get("jobs"), value.get("rules")
        names = [job.get("name") for job in jobs if isinstance(job, Mapping)] if isinstance(jobs, list) else []
        groups = [name for name in names if isinstance(name, str)]
        custom = value.get("custom")
        functions = self._functions(custom if isinstance(custom, str) else "")
        for index, rule in enumerate(rules if isinstance(rules, list) else []):
            try:
                keys = RuleKeys.model_validate(rule)
            except ValidationError:
                continue
            self._rule(index, keys, groups, functions)

    # --- jobs ---

    def _job_set(self, index: int, keys: JobKeys) -> JobSet:
        for name in keys.environment:
            if not name or "=" in name or "\0" in name:
                self._at(("jobs", index, "environment", name), Severity.ERROR, f'"{name}" cannot name a variable')
        after = (keys.after,) if isinstance(keys.after, str) else tuple(keys.after)
        return JobSet(
            group=keys.name,
            command=keys.command,
            workdir=keys.workdir or "",
            count=keys.count,
            nodes=keys.nodes,
            tasks=max(keys.tasks, keys.nodes),
            duration_s=keys.duration,
            cores=keys.cores,
            gpus=keys.gpus,
            exclusive=keys.exclusive,
            environment={name: str(value) for name, value in keys.environment.items()},
            queue=keys.queue,
            requires=keys.requires,
            urgency=keys.urgency,
            after=after,
            retries=keys.retries,
        )

    def _check_after(self, sets: Sequence[JobSet], groups: Collection[str]) -> None:
        needs = {jobs.group: {*jobs.after} for jobs in sets}
        for index, jobs in enumerate(sets):
            for group in jobs.after:
                if group not in groups:
                    self._at(("jobs", index, "after"), Severity.ERROR, _no_group(group, groups))
            if _leads_to(jobs.group, jobs.group, needs):
                self._at(("jobs", index, "after"), Severity.ERROR, f"the group {jobs.group} waits for itself")

    # --- rules ---

    def _rule(self, index: int, keys: RuleKeys, groups: Sequence[str], functions: Collection[str]) -> Rule | None:
        path: Path = ("rules", index)
        action = self._action(path, keys.action, groups, functions)
        if keys.trigger not in TRIGGERS:
            likely = nearest_name(keys.trigger, TRIGGERS)
            hint = f'; did you mean "{likely}"?' if likely else f". The triggers are {', '.join(TRIGGERS)}"
            self._at((*path, "trigger"), Severity.ERROR, f'"{keys.trigger}" is not a trigger{hint}')
            return None
        metric, group = None, ""
        if keys.trigger == Trigger.METRIC:
            metric = self._metric(path, keys, groups)
        elif keys.trigger != Trigger.START and keys.name and keys.name != keys.trigger:
            group = keys.name
            if group not in groups:
                text = f"{_no_group(group, groups)}, so this rule never matches"
                self._at((*path, "name"), Severity.WARNING, text)
        if keys.when is not None and keys.trigger != Trigger.METRIC:
            self._at((*path, "when"), Severity.WARNING, "when has an effect with the trigger metric only")
        if action is None:
            return None
        return Rule(index + 1, keys.trigger, keys.name, action, group, metric, keys.when)

    def _metric(self, path: Path, keys: RuleKeys, groups: Sequence[str]) -> MetricName | None:
        never = "so this rule never matches"
        try:
            metric = read_metric(keys.name, groups)
        except ValueError as error:
            text = (
                str(error) if keys.name else "a metric rule needs the name of a metric, such as count.GROUP.success"
            )
            self._at((*path, "name"), Severity.WARNING, f"{text}: {never}")
            return None
        if metric.group not in groups:
            self._at((*path, "name"), Severity.WARNING, f"{_no_group(metric.group, groups)}, {never}")
        return metric

    def _action(
        self, path: Path, keys: ActionKeys, groups: Sequence[str], functions: Collection[str]
    ) -> Action | None:
        label: Path = (*path, "action", "label")
        if keys.name in _GROUP_ACTIONS and keys.label not in groups:
            self._at(
                label, Severity.ERROR, _no_group(keys.label, groups, f"{keys.name} needs the label of a group")
            )
        if keys.name is ActionKind.CUSTOM and keys.label not in functions:
            likely = nearest_name(keys.label, functions)
            hint = f'; did you mean "{likely}"?' if likely else ""
            self._at(label, Severity.ERROR, f'custom: defines no function "{keys.label}"{hint}')
        try:
            return keys.action()
        except ValueError as error:
            self._at((*path, "action", "backoff"), Severity.ERROR, f"backoff: {error}")
            return None

    def _functions(self, custom: str) -> frozenset[str]:
        """Return the names that the custom source defines."""
        try:
            module = ast.parse(custom)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # nested too deep, say
            line = getattr(error, "lineno", None) or 1
            why = f"custom: its line {line} is not Python: {getattr(error, 'msg', error) or 'it nests too deep'}"
            self._at(("custom",), Severity.ERROR, why)
            return frozenset()
        return frozenset(_defined_names(module))

    # --- faults ---

    def _at(self, path: Path, severity: Severity, text: str) -> None:
        self._note(self._source.place(path), severity, text)

    def _note(self, place: Place, severity: Severity, text: str) -> None:
        self.faults.append(SchemaFault(*place, severity, text))


def _defined_names(module: ast.Module) -> Iterator[str]:
    for statement in ast.walk(module):
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.alias(name=name, asname=asname):
                yield asname or name


def _leads_to(start: str, goal: str, needs: Mapping[str, Collection[str]]) -> bool:
    seen: set[str] = set()
    rest = [*needs.get(start, ())]
    while rest:
        group = rest.pop()
        if group == goal:
            return True
        if group not in seen:
            seen.add(group)
            rest += needs.get(group, ())
    return False


def _no_group(group: str, groups: Collection[str], if_empty: str = "") -> str:
    if not group:
        return if_empty or "no group is named"
    likely = nearest_name(group, groups)
    return f'no group is called "{group}"' + (f'; did you mean "{likely}"?' if likely else "")


def _message(fault: Any) -> str:
    match fault["type"]:
        case "missing":
            return "this key is missing"
        case "value_error":
            return str(fault["ctx"]["error"])
        case "enum":
            return f'"{fault["input"]}" is not known: use {", ".join(ActionKind)}'
        case "model_type" | "dict_type":
            return "a mapping is needed, such as name: value"
        case "list_type":
            return "a list is needed"
    return f"{fault['msg'].removeprefix('Input should be ')} is needed, not {fault['input']!r}"


def _known_keys(path: Path) -> Collection[str]:
    """Return the known keys of the mapping at a path."""
    model: type[FileKeys | JobKeys | RuleKeys | ActionKeys | LoggingKeys] = FileKeys
    match [part for part in path if isinstance(part, str)]:
        case ["jobs"]:
            model = JobKeys
        case ["rules"]:
            model = RuleKeys
        case ["rules", "action"]:
            model = ActionKeys
        case ["logging"]:
            model = LoggingKeys
    return model.model_fields


def _is_of_a_union(part: str | int) -> bool:
    """Whether a part of pydantic's location names a choice of types, and nothing in the file."""
    return isinstance(part, str) and (part in {"str", "int", "float"} or "[" in part)


def _without(value: Any, paths: Sequence[Sequence[str | int]]) -> Any:
    """Return the value without the keys at the paths."""
    if isinstance(value, Mapping):
        gone = {path[0] for path in paths if len(path) == 1}
        return {key: _without(item, _below(key, paths)) for key, item in value.items() if key not in gone}
    if isinstance(value, list):
        return [_without(item, _below(index, paths)) for index, item in enumerate(value)]
    return value


def _below(part: str | int, paths: Sequence[Sequence[str | int]]) -> list[Sequence[str | int]]:
    return [path[1:] for path in paths if len(path) > 1 and path[0] == part]


# --- the keys of an ``ensemble.yaml`` and their types -----------------------------------------------------
#
# ``schema`` checks what goes beyond one value.


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

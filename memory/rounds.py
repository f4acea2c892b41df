"""Records: rounds, their posts and attachments. Frozen, all the way down."""

# Modules of pydantic models do not import annotations from __future__: pydantic would compile each of them again.

import dataclasses
import functools
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NoReturn, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, InstanceOf, PlainValidator, ValidationError
from pydantic_core import PydanticSerializationError

from .arguments import find_near, name_kind
from .errors import MessageError

T = TypeVar("T")


class FrozenMapping(dict[str, Any]):
    """A dict that cannot be changed: it compares, copies, pickles and turns into JSON as a dict does."""

    __slots__ = ()

    def _refuse(self, *_args: object, **_more: object) -> NoReturn:
        raise TypeError("this mapping belongs to a record and is read-only; change a copy: dict(mapping)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenMapping, (dict(self),)


EMPTY = FrozenMapping()
#: Types of values that nobody can change.
ATOMS = frozenset((str, type(None), int, float, bool))
_PLAIN = ATOMS | {list, tuple}

#: How deep a value may nest. JSON parsers and printers recurse too, and give up near here.
MAX_DEPTH = 200
#: How long an integer may be: Python refuses to print or parse much longer ones.
MAX_BITS = 14_000


def freeze(value: Any, depth: int = 0) -> Any:
    """Return *value* as deeply immutable data: mappings as ``FrozenMapping``, lists as tuples.

    Raises ``MessageError`` for what JSON cannot hold: such a value would be lost when the session is saved.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise MessageError(f"an integer of more than {MAX_BITS} bits cannot be stored; convert it to text")
        if isinstance(value, float) and not math.isfinite(value):
            raise MessageError("JSON has no infinite numbers and no NaN; convert them to text or null")
        return value
    if depth > MAX_DEPTH:
        raise MessageError(f"this value is nested more than {MAX_DEPTH} deep; flatten it")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise MessageError(f"keys must be strings, not {type(key).__name__}; convert them first")
        return FrozenMapping({key: freeze(item, depth + 1) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(freeze(item, depth + 1) for item in value)
    raise MessageError(f"{type(value).__name__} cannot be stored as JSON; convert it to text, numbers, lists and dicts")


def freeze_mapping(value: Any) -> FrozenMapping:
    """Return *value*, a mapping, deeply read-only. Raises ``MessageError`` for anything else."""
    if not isinstance(value, Mapping):
        raise MessageError(f"expected a mapping, got {type(value).__name__}")
    frozen: FrozenMapping = freeze(value) if value else EMPTY
    return frozen


def thaw(value: Any) -> Any:
    """Return a copy of *value* in plain dicts and lists, for callers who may change it."""
    kind = type(value)  # asking for a Mapping would take most of the time
    if kind is FrozenMapping or kind is dict or (kind not in _PLAIN and isinstance(value, Mapping)):
        return {key: item if type(item) in ATOMS else thaw(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [item if type(item) in ATOMS else thaw(item) for item in value]
    return value


def run_dump(dump: Callable[[], T]) -> T:
    """Call *dump*, a dumping method of pydantic's, and raise an interrupt in it as itself."""
    try:
        return dump()
    except PydanticSerializationError as error:
        cause = error.__cause__
        if cause is not None and not isinstance(cause, Exception):
            raise cause from None
        for interrupt in (KeyboardInterrupt(), SystemExit(1)):  # by name, all that is left; no value is in there
            if type(interrupt).__name__ in str(error):
                raise interrupt from None
        raise


class cached_property(functools.cached_property[T]):  # noqa: N801  (read as @property is)
    """``functools.cached_property`` without its lock.

    Before Python 3.12, one lock serves all instances, and a child that is forked while a thread holds it would wait for
    ever. Without it, two threads that ask at once may both compute the value, so it must be the same for both.
    """

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        self.lock = nullcontext()


#: The role that asks.
USER = "User"

#: The last two are hidden.
RoundState = Literal["created", "finished", "failed", "undone"]


def _round_offset(stamp: datetime) -> datetime:
    """Return the same moment in UTC if its zone's offset has seconds, as old local mean times do: the stores' texts
    cannot express that."""
    if stamp.tzinfo is UTC:
        return stamp
    offset = stamp.utcoffset()
    return stamp if offset is None or offset.total_seconds() % 60 == 0 else stamp.astimezone(UTC)


Stamp = Annotated[datetime, AfterValidator(_round_offset)]
# Not pydantic's `str`: that validates UTF-8, and would refuse the lone surrogates that models and terminals do produce.
Text = InstanceOf[str]
if TYPE_CHECKING:
    FieldMapping = Mapping
else:
    #: The type of a field that is a mapping. Pydantic takes any mapping for a dict, but builds a Mapping's schema with
    #: warnings ignored: in the whole process, and in whichever thread uses the model first.
    FieldMapping = dict
Extra = Annotated[FieldMapping[str, Any], PlainValidator(freeze_mapping)]
Clock = Callable[[], datetime]


#: Ids that are drawn at once. Each draw asks the system and releases the interpreter's lock, which a busy thread could
#: take in the middle of a turn.
ID_BATCH_SIZE = 128
_ids: list[str] = []
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_ids.clear)  # a child draws its own


def make_id() -> str:
    """Return a random id of 32 hexadecimal digits."""
    try:
        return _ids.pop()  # one step: any number of threads may be at it
    except IndexError:
        digits = token_hex(16 * ID_BATCH_SIZE)
        _ids.extend([digits[at : at + 32] for at in range(32, len(digits), 32)])
        return digits[:32]


def utc_now() -> datetime:
    return datetime.now(UTC)


#: Held while pydantic builds a model: before 2.14 it does not expect two threads at it, and since then it has a lock of
#: its own, which a child that is forked meanwhile would wait for.
_building = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_building.acquire, after_in_parent=_building.release, after_in_child=_building.release)


class _Signature:
    """The arguments of a model, for ``help`` and editors. Pydantic puts its own in this place when it builds it."""

    def __get__(self, record: object, model: type[BaseModel]) -> Any:
        if record is None:
            model.model_rebuild(raise_errors=False)
            if vars(model)["__signature__"] is not self:  # else an annotation is not defined yet
                return model.__signature__
        raise AttributeError("__signature__")


class FrozenModel(BaseModel):
    """A frozen model, which pydantic builds when it is first used: most processes use few of them."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        if not cls.__pydantic_complete__:
            setattr(cls, "__signature__", _Signature())  # noqa: B010  (else that of a wider model would be shown)

    @classmethod
    def model_rebuild(cls, *, _parent_namespace_depth: int = 2, **options: Any) -> bool | None:
        """Build the model now, if it is not. One thread at a time; the others wait."""
        with _building:
            return super().model_rebuild(_parent_namespace_depth=_parent_namespace_depth + 1, **options)


def build_models(kind: type[FrozenModel] = FrozenModel) -> None:
    """Build every model of that *kind* that was imported and is not built."""
    kind.model_rebuild(raise_errors=False)
    for narrower in kind.__subclasses__():
        build_models(narrower)


class Record(FrozenModel):
    """A frozen record. Unknown fields are refused, so that a typing mistake is not stored for ever.

    Wrong fields raise ``MessageError``, which names the fields and not their values.
    """

    # Errors end up in logs: they name the field and never quote its value.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    #: The fields that may be given by place.
    by_place: ClassVar[tuple[str, ...]] = ()
    #: An example for the error message; empty: the fields explain themselves.
    example: ClassVar[str] = ""

    if not TYPE_CHECKING:  # type checkers keep the signature that pydantic gives them

        def __init__(self, *leading: Any, **fields: Any) -> None:
            if leading:
                fields = name_arguments(self.by_place, leading, fields)
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise self._make_refusal(*(_describe_fault(type(self), fault) for fault in error.errors())) from error

        # Pydantic takes this for its own constructor, so records that are read from a log or a copy bypass it, and with
        # it the checks for hosts. ``model_validate`` raises pydantic's own error.
        __init__.__pydantic_base_init__ = True

        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(
                f"a {type(self).__name__} does not change; make another one:"
                f" .model_copy(update={{{name!r}: ...}}) gives it, unchecked"
            )

        def __delattr__(self, name: str) -> None:
            setattr(self, name, None)

    @classmethod
    def _make_refusal(cls, *faults: str) -> MessageError:
        example = f"; it is made like {cls.example}" if cls.example else ""
        return MessageError(f"this is no {cls.__name__}, and nothing was stored: {'; '.join(faults)}{example}")


def _describe_fault(record: type[Record], fault: Any) -> str:
    """Return the field that pydantic refused, and the reason, without the value."""
    name, wrong = ".".join(map(str, fault["loc"])), fault["msg"].removeprefix("Input ")
    match fault["type"]:
        case "missing":
            return f"{name}: is missing"
        case "extra_forbidden":
            near = find_near(name[:100], record.model_fields)
            return f"{name}: unknown" + (f"; did you mean {near!r}?" if near else "")
        case "value_error":
            return f"{name}: {fault['ctx']['error']}"
    of_its_kind = fault["type"].startswith(("greater", "less"))
    return f"{name}: {wrong}" if of_its_kind else f"{name}: {wrong}, not {name_kind(fault['input'])}"


def name_arguments(names: Sequence[str], leading: Sequence[object], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return *fields* with the *leading* values, given by place, under the first of *names*.

    Raises ``TypeError``, as a function call does, for too many values and for one that is given twice.
    """
    if len(leading) > len(names):
        known = ", ".join(names)
        raise TypeError(f"{len(leading)} values by place, at most {len(names)}: {known}; give the rest by name")
    placed = dict(zip(names, leading, strict=False))
    if twice := placed.keys() & fields.keys():
        raise TypeError(f"{', '.join(sorted(twice))} given both by place and by name; give it once")
    return {**placed, **fields}


M = TypeVar("M", bound=BaseModel)
C = TypeVar("C")
#: Told apart by the class of the class: isinstance(record, BaseModel) is slow.
_RecordType = type(BaseModel)


def copy_with(record: C, /, **updates: Any) -> C:
    """Return a copy of *record*, a pydantic model, a dataclass or a named tuple, with *updates*: the one way to do so.

    Fields of a model are not checked, so pass values that were checked when they came in. Takes a fraction of the time
    of ``model_copy``, and leaves out private attributes and which fields were set: so a configuration has a method of
    its own, which checks; and so has a snapshot, which is copied for each entry of the log.
    """
    if isinstance(type(record), _RecordType):
        return create_unchecked(type(record), record.__dict__ | updates)  # type: ignore[type-var]
    if isinstance(record, tuple):
        return record._replace(**updates)  # type: ignore[attr-defined, no-any-return]
    return dataclasses.replace(record, **updates)  # type: ignore[type-var]


def create_unchecked(kind: type[M], fields: dict[str, Any]) -> M:
    """Return a record of that *kind*. Nothing is checked. *fields* are all its fields; the record keeps the dict.

    Such records share one set of "fields that were set". Nobody reads it of them, and the garbage collector has one
    object less to visit per record.
    """
    record = object.__new__(kind)
    _put_fields(record, fields)
    _put_fields_set(record, _FIELDS_SET)
    _put_extra(record, None)
    _put_private(record, None)
    return record


#: Not a frozenset, though nobody changes it: pydantic's copies call its ``copy`` and add to the result.
_FIELDS_SET: set[str] = set()
# Setters of the slots that pydantic gives a record. They take half the time of object.__setattr__, and each entry of
# the log makes several records.
_put_fields, _put_fields_set, _put_extra, _put_private = (
    vars(BaseModel)[slot].__set__
    for slot in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


class Attachment(Record):
    """An addition to the text of a post: a plan, code, the result of an execution."""

    id: Text = Field(default_factory=make_id)
    #: The host's own word for it: ``plan``, ``python``, ``execution_result``, ...
    type: Text
    content: Text = ""
    extra: Extra = EMPTY


class ToolCall(Record):
    """A model's request to run a tool; its answer is the post with the same ``tool_call_id``."""

    id: Text
    name: Text
    #: As the model wrote them: usually JSON, but never parsed here.
    arguments: Text = ""


class Post(Record):
    """One message inside a round, from one role to another."""

    id: Text = Field(default_factory=make_id)
    send_from: Text
    send_to: Text
    message: Text = ""
    attachment_list: tuple[Attachment, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    #: Set on a tool's result: the id of the call it answers.
    tool_call_id: Text | None = None
    #: ``message``, or a host's own word, by which ``drop`` and ``offload_large`` choose posts.
    kind: Text = "message"
    #: Its place in its round, from 1; 0 if it is in none.
    number: int = 0
    created_at: Stamp = Field(default_factory=utc_now)
    #: Whatever else the host wants kept; JSON values only.
    extra: Extra = EMPTY


class Round(Record):
    """One user query and everything that happened until the next."""

    id: Text = Field(default_factory=make_id)
    user_query: Text
    state: RoundState = "created"
    post_list: tuple[Post, ...] = ()
    created_at: Stamp = Field(default_factory=utc_now)
    #: The round's place in the log, from 1; 0 if it is in no log.
    number: int = 0
    extra: Extra = EMPTY

    @property
    def closed(self) -> bool:
        """Whether no post is added any more: it is finished, failed or undone."""
        return self.state != "created"

    @property
    def is_hidden(self) -> bool:
        """Whether no prompt, summary or recall shows it: it failed, or the conversation went on from before it."""
        return self.state in ("failed", "undone")

"""Configuration: what is refused and how it is said, and how file, environment and role make one."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from compactor import CompactorConfig, ConfigError, ContextError, Limit, Settings, drop
from prompts import PromptError, PromptTemplate, list_shipped, load

FIELDS = tuple(CompactorConfig.model_fields)


def refusal(**values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        CompactorConfig(**values)
    return str(caught.value)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no variables of ours."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("COMPACTOR_"):
            monkeypatch.delenv(name)
    return tmp_path


def settings(data: Any, env: dict[str, str] | None = None, **more: Any) -> Settings:
    return Settings.from_dict(data, env=env or {}, **more)


def settings_refusal(data: Any, env: dict[str, str] | None = None, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        settings(data, env, **more)
    return str(caught.value)


def file_refusal(text: str | bytes, **more: Any) -> str:
    Path("config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        Settings.from_file(env={}, **more)
    assert str(caught.value).startswith("config.json: "), "the message names the file"
    return str(caught.value)


def test_limits_are_read_from_a_file_and_nonsense_is_refused(tmp_path: Path) -> None:
    """As the arguments of ``Limit``, for ``compactor worker``."""
    file = tmp_path / "config.json"
    file.write_text('{"compaction.limits": [{"max_concurrency": 2, "per": "tenant"}, {"max_tokens_per_minute": 9}]}')
    base = Settings.from_file(file, env={}).defaults
    assert base.limits == (Limit(max_concurrency=2, per="tenant"), Limit(max_tokens_per_minute=9))
    assert base.copy_with(threshold=3).limits == base.limits
    for wrong, said in [
        ([{"max": 1}], "there is no 'max'"),
        ([{"max_concurrency": 0}], "from 1 on"),
        ([{}], "give a Limit"),
        (3, "tuple"),
        ([3], "arguments of Limit"),
    ]:
        with pytest.raises(ConfigError, match=said):
            CompactorConfig(limits=wrong)  # type: ignore[arg-type]


# --- CompactorConfig ------------------------------------------------------------------------------------------------


def test_the_defaults_are_the_documented_ones() -> None:
    """A compactor without configuration behaves as the documentation says."""
    assert CompactorConfig().model_dump() == {
        "threshold": 10,
        "retain_recent": 3,
        "retain_at_least": 0,
        "prompt_template_path": "",
        "enabled": True,
        "max_tokens": None,
        "token_ratio": 0.75,
        "summarizer_input_tokens": 24_000,
        "target_tokens": 1_000,
        "summary_attempts": 2,
        "call_timeout": 120.0,
        "backoff_initial": 1.0,
        "backoff_max": 60.0,
        "circuit_breaker_failures": 5,
        "circuit_breaker_reset": 60.0,
        "limits": (),
        "exempt_tools": (),
        "model": "",
        "summarizer_provider": "openai",
        "summarizer_model": "",
        "summarizer_base_url": "",
        "summarizer_api_key_env": "",
        "summarizer_provider_compaction": False,
    }


@pytest.mark.parametrize(
    "values",
    [
        {"threshold": 0, "retain_recent": 0},
        {"threshold": 3, "retain_recent": 50},
        {"max_tokens": 1, "token_ratio": 1.0},
        {"max_tokens": None, "target_tokens": None},
        {"summarizer_input_tokens": 256, "target_tokens": 1, "circuit_breaker_failures": 1},
        {"call_timeout": 5, "backoff_initial": 2, "backoff_max": 2, "circuit_breaker_reset": 0.001, "token_ratio": 1},
        {"threshold": 10**30},
        {"enabled": False, "model": "gpt-4o"},
    ],
)
def test_what_makes_sense_is_taken(values: dict[str, Any]) -> None:
    """The edges of each range are in it, and whole numbers are seconds too."""
    config = CompactorConfig(**values)
    assert {name: getattr(config, name) for name in values} == values


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("threshold", -1, "greater than or equal to 0, not -1"),
        ("threshold", True, "a valid integer, not True"),
        ("threshold", 7.0, "a valid integer, not 7.0"),
        ("threshold", "7", "a valid integer, not '7'"),
        ("threshold", None, "a valid integer, not None"),
        ("retain_recent", -3, "greater than or equal to 0"),
        ("retain_recent", math.nan, "a valid integer, not nan"),
        ("prompt_template_path", 7, "a valid string, not 7"),
        ("prompt_template_path", None, "a valid string"),
        ("enabled", 1, "a valid boolean, not 1"),
        ("enabled", "false", "a valid boolean, not 'false'"),
        ("max_tokens", 0, "greater than 0"),
        ("max_tokens", "8k", "a valid integer, not '8k'"),
        ("max_tokens", False, "a valid integer, not False"),
        ("token_ratio", 0, "greater than 0"),
        ("token_ratio", 1.01, "less than or equal to 1"),
        ("token_ratio", math.nan, "a finite number, not nan"),
        ("token_ratio", True, "a valid number, not True"),
        ("summarizer_input_tokens", 255, "greater than or equal to 256"),
        ("target_tokens", 0, "greater than 0"),
        ("summary_attempts", 0, "greater than or equal to 1"),
        ("call_timeout", 0, "greater than 0"),
        ("call_timeout", math.inf, "a finite number, not inf"),
        ("call_timeout", 1e9, "less than or equal to 4000000"),
        ("backoff_initial", -1.0, "greater than 0"),
        ("backoff_max", "60", "a valid number, not '60'"),
        ("circuit_breaker_failures", 0, "greater than or equal to 1"),
        ("circuit_breaker_reset", -math.inf, "a finite number"),
        ("model", b"gpt", "a valid string"),
    ],
)
def test_nonsense_is_refused_when_it_is_made(name: str, value: Any, wanted: str) -> None:
    """The message names the field, what is wrong with its value, and the default."""
    message = refusal(**{name: value})
    assert message.startswith(f"{name}: should be {wanted}")
    assert message.endswith(f"leave it out for the default, {CompactorConfig.model_fields[name].default!r}")


def test_the_longest_wait_is_not_below_the_first() -> None:
    """Said where the longest is left at its default too."""
    assert CompactorConfig(backoff_initial=60.0).backoff_max == 60.0
    for values in ({"backoff_initial": 100}, {"backoff_initial": 100.0, "backoff_max": 99.5}):
        assert refusal(**values) == "backoff_max: should be at least backoff_initial, 100; raise this or lower that"


def test_a_wrong_first_wait_is_the_only_thing_said() -> None:
    """The longest is not held against a value that is refused itself."""
    assert "backoff_max" not in refusal(backoff_initial=-1)


@pytest.mark.parametrize(
    ("name", "near"), [("treshold", "threshold"), ("max_token", "max_tokens"), ("retain", "retain_recent")]
)
def test_an_unknown_field_is_refused_with_the_nearest(name: str, near: str) -> None:
    """A typing mistake is not silently a default."""
    assert refusal(**{name: 7}) == f"{name}: unknown; did you mean {near!r}?"


def test_a_field_like_no_other_is_refused_with_all_there_are() -> None:
    """Where nothing is near, the message lists what can be set, and never the value: it may be a secret."""
    message = refusal(api_key="sk-secret")
    assert message == f"api_key: unknown; there are {', '.join(FIELDS)}"


def test_all_problems_are_told_at_once() -> None:
    """Nobody has to run it once for each mistake."""
    with pytest.raises(ConfigError) as caught:
        CompactorConfig(threshold=-1, token_ratio=2, treshold=3)
    assert [name for name, _ in caught.value.problems] == ["threshold", "token_ratio", "treshold"]
    assert str(caught.value) == "; ".join(f"{name}: {wrong}" for name, wrong in caught.value.problems)


def test_a_huge_value_is_not_repeated() -> None:
    """A message stays a line."""
    assert len(refusal(threshold="x" * 100_000)) < 200


def test_config_errors_belong_to_the_tree_and_survive_a_process_boundary() -> None:
    """``except ContextError`` and ``except ValueError`` both catch them; a worker can send one home."""
    assert issubclass(ConfigError, ContextError)
    assert issubclass(ConfigError, ValueError)
    error = ConfigError(("threshold", "too low"), ("model", "unknown"))
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (str(again), again.problems) == ("threshold: too low; model: unknown", error.problems)


def test_the_prompt_is_loaded_when_the_configuration_is_made(folder: Path) -> None:
    """A prompt that is changed or removed later changes nothing that runs."""
    assert CompactorConfig().prompt == load()
    assert CompactorConfig(prompt_template_path="planner").prompt == load("planner")
    file = folder / "mine.yaml"
    file.write_text("content: '{content} Go.'", encoding="utf-8")
    for path in ("mine.yaml", str(file), file):
        config = CompactorConfig(prompt_template_path=path)  # type: ignore[arg-type]
        assert isinstance(config.prompt, PromptTemplate)
        assert config.prompt_template_path == str(path)
    file.unlink()
    assert config.prompt.content == "{content} Go."


def test_a_prompt_that_cannot_be_used_is_refused(folder: Path) -> None:
    """It is found out at start-up, not at the first compaction; the loader's error is the cause."""
    (folder / "mine.yaml").write_text("content: Summarize.", encoding="utf-8")
    for path, wrong in (
        ("mine.yaml", "lacks {content}"),
        ("nowhere.yaml", "not found"),
        ("Sum up {content}", "text of a prompt"),
    ):
        with pytest.raises(ConfigError, match=wrong) as caught:
            CompactorConfig(prompt_template_path=path)
        assert caught.value.problems[0][0] == "prompt_template_path"
        assert isinstance(caught.value.__cause__, PromptError)


def test_a_path_without_a_suffix_stays_a_path(folder: Path) -> None:
    """A ``Path`` never names a shipped prompt, also where it is read again from what was written down."""
    (folder / "planner").write_text("content: 'mine {content} Go.'", encoding="utf-8")
    config = CompactorConfig(prompt_template_path=Path("planner"))  # type: ignore[arg-type]
    assert config.prompt.content == CompactorConfig(**config.model_dump()).prompt.content == "mine {content} Go."
    assert CompactorConfig(prompt_template_path="planner").prompt.name == "planner"


def test_a_missing_file_never_becomes_the_shipped_prompt(folder: Path) -> None:
    """Neither in code nor in settings, and the error says what to write for the shipped one."""
    with pytest.raises(ConfigError, match=r"'planner\.yaml': not found.*for the shipped prompt write 'planner'"):
        CompactorConfig(prompt_template_path="planner.yaml")
    refused = settings_refusal({"planner.compaction_prompt_path": "planner.yaml"})
    assert refused.startswith("planner.compaction_prompt_path: prompt 'planner.yaml': not found")


def test_a_configuration_is_a_value() -> None:
    """It can be compared, hashed, copied and pickled, and does not change."""
    config = CompactorConfig(threshold=4, prompt_template_path="planner")
    pickled = pickle.loads(pickle.dumps(config))  # noqa: S301 - our own bytes
    assert {config, copy.deepcopy(config), pickled, CompactorConfig(threshold=4, prompt_template_path="planner")} == {
        config
    }
    assert pickled.prompt == config.prompt
    assert config != CompactorConfig(threshold=5, prompt_template_path="planner")
    with pytest.raises(AttributeError, match="does not change"):
        config.threshold = 5  # type: ignore[misc]


def test_copy_with_makes_a_new_one_and_checks_it() -> None:
    """What was not changed stays; what was is as good as new."""
    config = CompactorConfig(threshold=4, retain_recent=1)
    changed = config.copy_with(threshold=7, prompt_template_path="planner")
    assert (changed.threshold, changed.retain_recent, changed.prompt) == (7, 1, load("planner"))
    assert (config.threshold, config.prompt) == (4, load())
    with pytest.raises(ConfigError, match="threshold"):
        config.copy_with(threshold=-1)


def test_with_defaults_sets_what_nobody_has_set() -> None:
    """Not even to its default; the prompt stays, also one that is no file, and nonsense is refused."""
    mine = PromptTemplate("mine", "{content}\n\nSum it up.")
    config = (
        CompactorConfig(retain_recent=3)
        .copy_with(threshold=7)
        .with_prompt(mine)
        .with_defaults(retain_recent=0, threshold=1)
    )
    assert (config.retain_recent, config.threshold, config.prompt) == (3, 7, mine)
    assert CompactorConfig().with_defaults(retain_recent=0).with_defaults(retain_recent=1).retain_recent == 0
    with pytest.raises(ConfigError, match="target_tokens"):
        config.with_defaults(target_tokens=-1)


@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None])
def test_what_is_no_whole_number_is_a_value_error(value: Any) -> None:
    """Named, with what it should be; ``True`` is no number."""
    with pytest.raises(ValueError, match=r"^keep_rounds: must be a whole number from 0 on, not ") as raised:
        drop("user", keep_rounds=value)
    assert isinstance(raised.value, ConfigError)


def test_it_can_be_a_part_of_a_hosts_own_model() -> None:
    """Hosts that use pydantic see our message in theirs."""

    class Host(BaseModel):
        compaction: CompactorConfig

    assert Host.model_validate({"compaction": {"threshold": 7}}).compaction.prompt == load()
    with pytest.raises(ValidationError, match="did you mean 'threshold'"):
        Host.model_validate({"compaction": {"treshold": 7}})


# --- Settings: keys and roles ---------------------------------------------------------------------------------------


def test_without_keys_each_role_has_the_defaults_and_its_shipped_prompt() -> None:
    """An empty file is a good start."""
    empty = settings({})
    assert empty == Settings()
    assert empty.roles == ()
    assert empty.defaults == empty.for_role("") == empty.for_role("Researcher") == CompactorConfig()
    for role in list_shipped():
        assert empty.for_role(role).prompt.name == role
    assert empty.for_role("CodeInterpreter").prompt == load("code_interpreter")


@pytest.mark.parametrize(
    "data",
    [
        {"compaction.threshold": 7, "planner.compaction.threshold": 4, "planner.compaction.enabled": False},
        {"compaction": {"threshold": 7}, "planner": {"compaction": {"threshold": 4, "enabled": False}}},
        {"compaction": {"threshold": 7}, "planner.compaction": {"threshold": 4}, "Planner.compaction.enabled": False},
        {"compaction": {"threshold": 7}, "planner": {"compaction.threshold": 4, "compaction": {"enabled": False}}},
    ],
)
def test_keys_are_dotted_or_nested(data: dict[str, Any]) -> None:
    """All spellings say the same; what is set for a role comes before what is set for all."""
    made = settings(data)
    assert made.roles == ("planner",)
    assert (made.for_role("Planner").threshold, made.for_role("Planner").enabled) == (4, False)
    assert made.for_role("Planner").retain_recent == 3
    assert (made.for_role("Other").threshold, made.for_role("Other").enabled) == (7, True)


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_can_be_set_for_all_and_for_one(name: str) -> None:
    """The file knows all that ``CompactorConfig`` knows."""
    values: dict[str, Any] = {
        "prompt_template_path": "assistant",
        "enabled": False,
        "model": "gpt-4o",
        "token_ratio": 0.5,
        "limits": (Limit(max_concurrency=20, per="provider"),),
        "exempt_tools": ("load_skill",),
        "summarizer_provider": "gemini",
        "summarizer_model": "gpt-5-mini",
        "summarizer_base_url": "http://localhost:11434/v1",
        "summarizer_api_key_env": "MY_KEY",
        "summarizer_provider_compaction": True,
    }
    value = values.get(name, 300 if name == "summarizer_input_tokens" else 20)
    made = settings({f"compaction.{name}": value})
    assert getattr(made.for_role("Planner"), name) == getattr(made.defaults, name) == value
    made = settings({f"planner.compaction.{name}": value})
    assert getattr(made.for_role("Planner"), name) == value
    assert made.defaults == CompactorConfig()


@pytest.mark.parametrize(
    ("role", "key"),
    [
        ("Planner", "planner"),
        ("CodeInterpreter", "code_interpreter"),
        ("code-interpreter", "CodeInterpreter"),
        ("Code Interpreter", "code_interpreter"),
        ("WebUIAgent", "web_ui_agent"),
        ("Agent2Test", "agent2_test"),
        ("team.planner", "team_planner"),
        ("Übersetzer", "übersetzer"),
    ],
)
def test_a_role_and_its_snake_case_are_the_same(role: str, key: str) -> None:
    """The host names the agent as it likes, the file as files do."""
    assert settings({f"{key}.compaction.threshold": 4}).for_role(role).threshold == 4


def test_a_role_has_its_own_prompt(folder: Path) -> None:
    """By the short key or the long one, from a path or a shipped name."""
    (folder / "mine.yaml").write_text("content: '{content} Go.'", encoding="utf-8")
    made = settings(
        {"planner.compaction_prompt_path": "mine.yaml", "Coder.compaction.prompt_template_path": "code_interpreter"}
    )
    assert made.roles == ("coder", "planner")
    assert made.for_role("Planner").prompt.content == "{content} Go."
    assert made.for_role("Coder").prompt.name == "code_interpreter"


def test_the_shipped_prompt_of_a_role_stands_back_for_what_was_set() -> None:
    """It stays where only other fields are set; a prompt for all, and an empty one, are somebody's choice."""
    assert settings({"planner.compaction.threshold": 4}).for_role("Planner").prompt.name == "planner"
    everywhere = settings({"compaction.prompt_template_path": "assistant", "planner.compaction.threshold": 4})
    assert (
        everywhere.for_role("Planner").prompt.name == everywhere.for_role("CodeInterpreter").prompt.name == "assistant"
    )
    assert settings({"planner.compaction_prompt_path": ""}).for_role("Planner").prompt.name == "default"


def test_prompt_paths_are_relative_to_the_files_folder_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration can be moved with its prompts, and stays right when the host changes its directory."""
    etc = folder / "etc"
    etc.mkdir()
    for place in (folder, etc):
        (place / "mine.yaml").write_text(f"content: '{place.name} {{content}} Go.'", encoding="utf-8")
    (etc / "config.json").write_text('{"compaction.prompt_template_path": "mine.yaml"}', encoding="utf-8")
    made = Settings.from_file("etc/config.json", env={})
    assert made.defaults.prompt.content.startswith("etc ")
    assert (
        settings({"compaction.prompt_template_path": Path("mine.yaml")}, base_dir="etc").defaults.prompt
        == made.defaults.prompt
    )
    assert settings({"compaction.prompt_template_path": "mine.yaml"}).defaults.prompt.content.startswith(folder.name)
    monkeypatch.chdir("/")
    assert made.defaults.copy_with(threshold=2).prompt == made.defaults.prompt


def test_settings_are_a_value() -> None:
    """They can be compared, hashed and pickled, and do not change."""
    made = settings({"planner.compaction.threshold": 4})
    assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301 - our own bytes
    assert len({made, settings({"planner": {"compaction": {"threshold": 4}}})}) == 1
    with pytest.raises(AttributeError):
        made.defaults = CompactorConfig()  # type: ignore[misc]


# --- Settings: what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("compation.threshold", "compaction.threshold"),
        ("COMPACTION.THRESHOLD", "compaction.threshold"),
        ("compaction.treshold", "compaction.threshold"),
        ("compaction.compaction_prompt_path", "compaction.prompt_template_path"),
        ("compaction.threshold.rounds", "compaction.threshold"),
        ("planner.compaction.treshold", "planner.compaction.threshold"),
        ("planner.compaction_treshold", "planner.compaction.threshold"),
        ("planner.compaction_promt_path", "planner.compaction_prompt_path"),
        ("planner.compression_prompt_path", "planner.compaction_prompt_path"),
        ("threshold", "compaction.threshold"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(key: str, near: str) -> None:
    """A typing mistake is not silently a default."""
    message = settings_refusal({key: "sk-secret"})
    assert message.startswith(f"{key}: unknown setting; did you mean {near!r}?")
    assert "sk-secret" not in message, "a value may be a secret that is in the wrong place"


@pytest.mark.parametrize(
    "key",
    [
        "",
        ".",
        "...",
        "compaction",
        "compaction.",
        ".compaction.threshold",
        "-.compaction.threshold",
        "compaction.compaction.threshold",
        "a.b.compaction.threshold",
        "5",
    ],
)
def test_what_looks_like_a_key_of_ours_is_not_taken_for_one(key: str) -> None:
    """Neither half a key nor a role without a name sets anything."""
    assert settings_refusal({key: 5}).startswith(f"{key}: unknown setting")


def test_keys_that_are_not_text_are_refused_like_others() -> None:
    """``from_dict`` is given what the host has."""
    assert settings_refusal({5: 5}).startswith("5: unknown setting")
    assert settings({"ports": {5: 5}}, ignore="ports") == Settings()


def test_a_hosts_own_keys_are_ignored_where_it_says_so() -> None:
    """By what they begin with, one or several, dotted or nested."""
    theirs = {"llm": {"api_key": "x", "models": [{}]}, "planner.prompt_file_path": "y", "session": None}
    assert settings(theirs, ignore=("llm.", "planner.", "session")) == Settings()
    assert settings(theirs, ignore="") == Settings()
    message = settings_refusal(theirs, ignore="llm.")
    assert "llm" not in message
    assert "planner.prompt_file_path: unknown setting" in message
    assert "pass what it begins with as ignore=" in message


def test_our_own_keys_are_never_ignored() -> None:
    """A host that ignores ``planner.`` still sets the planner's compaction, and hears of its mistakes."""
    assert settings({"planner.compaction.threshold": 4}, ignore="").for_role("Planner").threshold == 4
    for key in ("planner.compaction.treshold", "planner.compaction_promt_path", "compaction.x", "Compaction"):
        message = settings_refusal({key: 4, "planner.prompt_file_path": "y"}, ignore=("planner.", "", key))
        assert message.startswith(f"{key}: unknown setting")
        assert "ignore=" not in message


def test_all_unknown_keys_are_told_at_once() -> None:
    """Nobody has to run it once for each mistake."""
    message = settings_refusal({"llm": {"key": 1, "base": 2}, "compaction": {"x": 1}})
    assert [part.partition(":")[0] for part in message.split("; ") if ": unknown" in part] == [
        "llm.key",
        "llm.base",
        "compaction.x",
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"compaction.threshold": 7, "compaction": {"threshold": 7}}, "compaction.threshold: is set twice; keep one"),
        (
            {"planner.compaction_prompt_path": "x", "planner": {"compaction": {"prompt_template_path": "x"}}},
            "planner.compaction.prompt_template_path: sets the same as planner.compaction_prompt_path; keep one",
        ),
        (
            {"CodeInterpreter.compaction.threshold": 1, "code_interpreter.compaction.threshold": 1},
            "code_interpreter.compaction.threshold: sets the same as CodeInterpreter.compaction.threshold; keep one",
        ),
    ],
)
def test_a_setting_that_is_set_twice_is_refused(data: dict[str, Any], message: str) -> None:
    """Nobody has to know which of two spellings wins."""
    assert settings_refusal(data) == message


@pytest.mark.parametrize(
    ("data", "start"),
    [
        ({"compaction.threshold": "7"}, "compaction.threshold: should be a valid integer, not '7'"),
        ({"planner": {"compaction": {"threshold": True}}}, "planner.compaction.threshold: should be a valid integer"),
        ({"compaction.call_timeout": math.nan}, "compaction.call_timeout: should be a finite number"),
        ({"CodeInterpreter.compaction.model": None}, "CodeInterpreter.compaction.model: should be a valid string"),
        ({"planner.compaction_prompt_path": 7}, "planner.compaction_prompt_path: should be a valid string"),
        ({"planner.compaction_prompt_path": "no.yaml"}, "planner.compaction_prompt_path: prompt 'no.yaml': not found"),
        ({"compaction.backoff_initial": 99}, "compaction.backoff_max: should be at least backoff_initial, 99"),
        ({"planner.compaction.backoff_initial": 99}, "planner.compaction.backoff_max: should be at least"),
        (
            {"compaction.backoff_max": 9, "a.compaction.backoff_initial": 10},
            "compaction.backoff_max: should be at least",
        ),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_it_was_given(data: dict[str, Any], start: str) -> None:
    """The message says what to change where the user wrote it; it is found when the settings are made."""
    assert settings_refusal(data).startswith(start)
    assert file_refusal(json.dumps(data)).startswith(f"config.json: {start}")


def test_settings_without_an_end_are_refused() -> None:
    """Objects are followed no deeper than a key of ours goes."""
    endless: dict[str, Any] = {}
    endless["compaction"] = endless
    assert "unknown setting" in settings_refusal(endless)
    endless["x"] = endless
    del endless["compaction"]
    assert settings(endless, ignore="x") == Settings()


@pytest.mark.parametrize("data", [None, [], "compaction", 7])
def test_settings_are_an_object(data: Any) -> None:
    """A list or a number says nothing."""
    assert settings_refusal(data) == "settings: must be one object of settings, as in {...}"
    assert file_refusal(json.dumps(data)) == "config.json: must be one object of settings, as in {...}"


# --- Settings: the file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b"\n  "])
def test_a_file_is_read(folder: Path, start: bytes) -> None:
    """``config.json`` in the working directory unless another is named; a byte-order mark is no part of it."""
    Path("config.json").write_bytes(start + '{"compaction.model": "é"}'.encode())
    for made in (Settings.from_file(env={}), Settings.from_file(folder / "config.json", {})):
        assert made.defaults.model == "é"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(b"", "is not JSON (line 1, column 1", id="empty"),
        pytest.param(b'{\n  "a": 7\n  "b": 8\n}', "is not JSON (line 3, column 3", id="no comma"),
        pytest.param(b"\x89PNG\xff", "is not UTF-8 text (byte 0); save it as UTF-8", id="binary"),
        pytest.param('{"a": 1}'.encode("utf-16"), "is not UTF-8 text", id="utf-16"),
        pytest.param(b'{"a": ' + b"9" * 5_000 + b"}", "is not JSON that can be read (ValueError)", id="a huge number"),
        pytest.param(b'{"a": ' + b"[" * 200_000, "is not JSON that can be read (RecursionError)", id="brackets"),
        pytest.param(
            b'{"compaction": {"model": "a", "model": "b"}}', "model: stands twice in one object; keep one", id="twice"
        ),
        pytest.param(
            b'{"compaction.call_timeout": NaN}', "compaction.call_timeout: should be a finite number", id="nan"
        ),
        pytest.param(
            b'{"compaction.token_ratio": 1e999}', "compaction.token_ratio: should be a finite number", id="inf"
        ),
    ],
)
def test_a_file_that_is_no_settings_is_refused(text: bytes, message: str) -> None:
    """Whatever it is, the error is a ``ConfigError`` that names the file and the place."""
    assert file_refusal(text).startswith(f"config.json: {message}")


def test_a_file_that_cannot_be_read_is_refused(folder: Path) -> None:
    """Missing, a folder, or a name that no file system takes."""
    for path in ("nowhere.json", folder):
        with pytest.raises(ConfigError, match="cannot be read") as caught:
            Settings.from_file(path, {})
        assert Path(path).name in str(caught.value)
    with pytest.raises(ConfigError):
        Settings.from_file("\x00", {})


def test_an_error_holds_nothing_of_the_file() -> None:
    """Neither its message nor its cause: a configuration holds keys, and errors are logged."""
    for text in ('{"key": "sk-secret"', '{"key": "sk-secret", "key": 1}', '{"a": {"b": "sk-secret"}}'):
        Path("config.json").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            Settings.from_file(env={})
        assert "sk-secret" not in str(caught.value)
        assert caught.value.__cause__ is None


# --- Settings: the environment --------------------------------------------------------------------------------------


def test_the_environment_comes_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables set what the same keys set; an empty mapping stands for none."""
    data = {"compaction.threshold": 7, "compaction.retain_recent": 2, "planner.compaction.threshold": 4}
    Path("config.json").write_text(json.dumps(data), encoding="utf-8")
    monkeypatch.setenv("COMPACTOR_COMPACTION__THRESHOLD", "20")
    monkeypatch.setenv("COMPACTOR_CODE_INTERPRETER__COMPACTION_PROMPT_PATH", "assistant")
    for made in (Settings.from_file(), Settings.from_dict(data)):
        assert (made.defaults.threshold, made.defaults.retain_recent) == (20, 2)
        assert made.for_role("Planner").threshold == 4, "what is set for a role stays before what is set for all"
        assert made.for_role("CodeInterpreter").prompt.name == "assistant"
        assert made.roles == ("code_interpreter", "planner")
    assert Settings.from_file(env={}).defaults.threshold == 7
    assert Settings.from_file(env={"COMPACTOR_PLANNER__COMPACTION__THRESHOLD": "9"}).for_role("Planner").threshold == 9


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("threshold", "20", 20),
        ("threshold", " 20 ", 20),
        ("summarizer_input_tokens", "24_000", 24_000),
        ("max_tokens", "8000", 8_000),
        ("max_tokens", "none", None),
        ("target_tokens", "Null", None),
        ("token_ratio", "0.5", 0.5),
        ("call_timeout", "30", 30.0),
        ("call_timeout", "1e2", 100.0),
        ("enabled", "false", False),
        ("enabled", "0", False),
        ("enabled", "OFF", False),
        ("enabled", "yes", True),
        ("model", "20", "20"),
        ("model", "none", "none"),
        ("model", "", ""),
        ("prompt_template_path", "planner", "planner"),
    ],
)
def test_a_variable_is_read_as_its_fields_type(name: str, text: str, value: Any) -> None:
    """The environment has only text; what it says is what the file would say."""
    made = settings({}, {f"COMPACTOR_COMPACTION__{name.upper()}": text})
    assert getattr(made.defaults, name) == value
    assert type(getattr(made.defaults, name)) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("THRESHOLD", "many", "a valid integer, not 'many'"),
        ("THRESHOLD", "", "a valid integer, not ''"),
        ("THRESHOLD", "none", "a valid integer, not 'none'"),
        ("THRESHOLD", "-1", "greater than or equal to 0, not -1"),
        ("THRESHOLD", "1.5", "a valid integer, not '1.5'"),
        ("ENABLED", "maybe", "a valid boolean, not 'maybe'"),
        ("CALL_TIMEOUT", "nan", "a finite number"),
        ("CALL_TIMEOUT", "inf", "a finite number"),
        ("MAX_TOKENS", "8k", "a valid integer, not '8k'"),
    ],
)
def test_a_variable_that_is_not_of_its_type_is_refused(name: str, text: str, wanted: str) -> None:
    """The message names the variable."""
    variable = f"COMPACTOR_COMPACTION__{name}"
    assert settings_refusal({}, {variable: text}).startswith(f"{variable}: should be {wanted}")


def test_a_prompt_that_a_variable_names_is_looked_up_like_the_files(folder: Path) -> None:
    """Its error names the variable."""
    etc = folder / "etc"
    etc.mkdir()
    (etc / "mine.yaml").write_text("content: '{content} Go.'", encoding="utf-8")
    variable = "COMPACTOR_PLANNER__COMPACTION_PROMPT_PATH"
    made = settings({"planner.compaction_prompt_path": "nowhere"}, {variable: "mine.yaml"}, base_dir=etc)
    assert made.for_role("Planner").prompt.content == "{content} Go."
    assert settings_refusal({}, {variable: "x.yaml"}).startswith(f"{variable}: prompt 'x.yaml': not found")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("COMPACTOR_COMPACTION__TRESHOLD", "COMPACTOR_COMPACTION__THRESHOLD"),
        ("COMPACTOR_COMPATION__THRESHOLD", "COMPACTOR_COMPACTION__THRESHOLD"),
        ("COMPACTOR_COMPACTION_THRESHOLD", "COMPACTOR_COMPACTION__THRESHOLD"),
        ("COMPACTOR_PLANNER__COMPACTION_THRESHOLD", "COMPACTOR_PLANNER__COMPACTION__THRESHOLD"),
        ("COMPACTOR_PLANNER__COMPACTION__PROMPT_PATH", "COMPACTOR_PLANNER__COMPACTION_PROMPT_PATH"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest(name: str, near: str) -> None:
    """Also one that is an underscore short; it is never passed over in silence, and its value never shown."""
    assert settings_refusal({}, {name: "sk-secret"}) == f"{name}: unknown setting; did you mean {near!r}?"


def test_other_variables_are_none_of_ours() -> None:
    """Neither what others set, nor our variables that are no settings."""
    env = {"PATH": "/bin", "COMPACTOR_API_KEY": "k", "MY_COMPACTOR_X__Y": "1", "A__B": "1", "COMPACTOR": "1"}
    assert settings({}, env) == Settings()
    assert settings_refusal({}, {"COMPACTOR_LLM__API_KEY": "k"}, ignore="") == "COMPACTOR_LLM__API_KEY: unknown setting"


def test_two_variables_that_set_the_same_are_refused() -> None:
    """Where names are told apart by case, one of two would win by chance."""
    env = {"COMPACTOR_COMPACTION__THRESHOLD": "1", "COMPACTOR_compaction__threshold": "2"}
    assert settings_refusal({}, env) == (
        "COMPACTOR_compaction__threshold: sets the same as COMPACTOR_COMPACTION__THRESHOLD; keep one"
    )


# --- Invariants -----------------------------------------------------------------------------------------------------

words = st.sampled_from(
    ["compaction", "planner", "Planner", "threshold", "treshold", "compaction_prompt_path", "model", "", "x"]
)
trees = st.recursive(
    st.sampled_from([0, 7, -1, 1.5, True, None, "7", "planner", "x", [], math.nan]),
    lambda inner: st.dictionaries(st.lists(words, min_size=1, max_size=3).map(".".join), inner, max_size=4),
    max_leaves=8,
)


@hypothesis_settings(deadline=None)
@given(st.dictionaries(st.lists(words, min_size=1, max_size=3).map(".".join), trees, max_size=4), st.booleans())
def test_any_object_makes_settings_or_a_config_error(data: dict[str, Any], lenient: bool) -> None:
    """Nothing else is ever raised, and what is made is whole."""
    try:
        made = settings(data, ignore="" if lenient else ())
    except ConfigError:
        return
    for role in ("", "Planner", "other", *made.roles):
        assert isinstance(made.for_role(role).prompt, PromptTemplate)


def test_a_prompt_need_not_be_a_file() -> None:
    """It stays when something else is changed, goes when another is named, and leaves the first configuration alone."""
    first, mine = CompactorConfig(prompt_template_path="planner"), PromptTemplate("mine", "{content}\n\nSum it up.")
    config = first.with_prompt(mine)
    assert config.copy_with(threshold=3).prompt is mine
    assert config.copy_with(prompt_template_path="planner").prompt.name == first.prompt.name == "planner"

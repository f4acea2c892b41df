"""Summarizers that a configuration names: a host changes them without code."""

from __future__ import annotations

from typing import Any

import pytest
from model_server import ModelServer, completion, reply
from scene import PRICES, ROLE, SOON, end_of, memory_of

from compactor import (
    CompactorConfig,
    ConfigError,
    ContextCompactor,
    ExtractiveSummarizer,
    OpenAISummarizer,
    Sessions,
    Settings,
    SummarizerError,
)

KEY = "sk-0123456789"


def compactor_of(settings: Settings, role: str = ROLE, **options: Any) -> ContextCompactor:
    return ContextCompactor.for_role(memory_of(9), role, settings.for_role(role), **options)


def test_a_file_names_model_endpoint_and_key_of_each_role(monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds for every role, what one role has instead, and the key from the environment."""
    monkeypatch.setenv("PLANNER_KEY", KEY)
    with ModelServer() as server:
        server.always(reply(completion(PRICES)))
        settings = Settings.from_dict(
            {
                "compaction.threshold": 7,
                "compaction.summarizer": {"model": "model-1", "base_url": server.base_url},
                "planner": {"compaction": {"summarizer": {"model": "model-2", "api_key_env": "PLANNER_KEY"}}},
                "critic.compaction.summarizer.provider": "extractive",
            },
            env={},
        )
        with compactor_of(settings) as compactor:
            assert compactor.wait_idle(SOON)
            assert end_of(compactor) == 6
        (request,) = server.requests
        assert (request.body["model"], request.headers["authorization"]) == ("model-2", f"Bearer {KEY}")
        assert isinstance(compactor_of(settings, "Critic").summarizer, ExtractiveSummarizer)
        assert compactor_of(settings, "Other").summarizer.model == "model-1"  # type: ignore[attr-defined]
        compactor.summarizer.close()  # type: ignore[attr-defined]


def test_equal_settings_share_one_summarizer() -> None:
    """Ten thousand sessions have one client; and who gives a summarizer gets that one."""
    settings = Settings.from_dict(
        {"compaction.summarizer": {"model": "shared", "base_url": "http://127.0.0.1:9"}}, env={}
    )
    one, other = compactor_of(settings).summarizer, compactor_of(settings, "Other").summarizer
    assert isinstance(one, OpenAISummarizer)
    assert one is other
    given = ExtractiveSummarizer()
    assert compactor_of(settings, summarizer=given).summarizer is given
    assert isinstance(ContextCompactor.for_role(memory_of(1), ROLE).summarizer, ExtractiveSummarizer)
    with Sessions(config=settings.defaults) as sessions, sessions.open("s") as session:
        assert session.compactor.summarizer is one


def test_a_new_key_is_used_and_a_closed_summarizer_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """By compactors that are made from then on; those that have the old summarizer keep it."""
    with ModelServer() as server:
        server.always(reply(completion(PRICES)))
        named = {"model": "rotated", "base_url": server.base_url, "api_key_env": "ROTATED_KEY"}
        values = {"compaction.threshold": 7, "compaction.summarizer": named}
        settings, made = Settings.from_dict(values, env={}), list[Any]()
        for key in (KEY, f"{KEY}-2", f"{KEY}-2"):
            monkeypatch.setenv("ROTATED_KEY", key)
            with compactor_of(settings) as compactor:
                assert compactor.wait_idle(SOON)
            made.append(compactor.summarizer)
            assert compactor_of(settings).summarizer is made[-1]
            if len(made) > 1:
                made[-1].close()
        made[0].close()
        assert len(set(map(id, made))) == 3
        sent = [request.headers["authorization"].removeprefix("Bearer ") for request in server.requests]
        assert sent == [KEY, f"{KEY}-2", f"{KEY}-2"]


def test_the_environment_names_it_too() -> None:
    """Before the file, with two underscores for each dot."""
    env = {
        "COMPACTOR_PLANNER__COMPACTION__SUMMARIZER__MODEL": "of-the-environment",
        "COMPACTOR_COMPACTION__SUMMARIZER__BASE_URL": "http://127.0.0.1:9",
    }
    settings = Settings.from_dict({"planner.compaction.summarizer.model": "of-the-file"}, env=env)
    config = settings.for_role("Planner")
    assert (config.summarizer_model, config.summarizer_base_url) == ("of-the-environment", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            {"provider": "mistral", "model": "m"},
            "planner.compaction.summarizer.provider: should be 'openai', 'anthropic'",
        ),
        ({"modle": "m"}, "did you mean 'planner.compaction.summarizer"),
        ({"model": "m", "api_key": KEY}, "planner.compaction.summarizer.api_key: unknown setting"),
        ({"model": "m", "api_key_env": KEY}, "should be the name of an environment variable"),
    ],
)
def test_mistakes_name_the_setting_and_never_a_key(values: dict[str, str], told: str) -> None:
    """A key that was put into the file is in no error."""
    with pytest.raises(ConfigError) as caught:
        Settings.from_dict({"planner.compaction.summarizer": values}, env={})
    assert told in str(caught.value)
    assert KEY not in str(caught.value)


def test_a_role_asks_for_its_providers_own_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside roles that do not, on the same model; Gemini has none."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    values = {"compaction.summarizer.model": "model-1", "planner.compaction.summarizer.provider_compaction": True}
    settings = Settings.from_dict(values, env={"COMPACTOR_CRITIC__COMPACTION__SUMMARIZER__PROVIDER_COMPACTION": "true"})
    asks = [compactor_of(settings, role).summarizer.provider for role in (ROLE, "Critic", "Other")]  # type: ignore[attr-defined]
    assert asks == ["responses", "responses", ""]
    with pytest.raises(ConfigError, match="provider_compaction: is not for gemini"):
        compactor_of(Settings.from_dict({**values, "compaction.summarizer.provider": "gemini"}, env={}))


def test_what_is_missing_is_told_when_the_compactor_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key, by the name of its variable; and an address that is none."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    for values, told in (
        ({"summarizer_model": "m", "summarizer_api_key_env": "NO_SUCH_KEY"}, "names NO_SUCH_KEY, which is not set"),
        ({"summarizer_model": "m"}, "set OPENAI_API_KEY"),
        ({"summarizer_model": "m", "summarizer_base_url": "no address"}, "compaction.summarizer.base_url"),
    ):
        with pytest.raises((SummarizerError, ConfigError), match=told):
            ContextCompactor.for_role(memory_of(1), ROLE, CompactorConfig(**values))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("provider", "anthropic"),
        ("base_url", "http://127.0.0.1:9"),
        ("api_key_env", "A_KEY"),
        ("provider_compaction", True),
    ],
)
def test_a_provider_without_a_model_is_told(name: str, value: str | bool) -> None:
    """A host that names one does not mean sentences chosen offline. A role with a model of its own is no mistake."""
    settings = Settings.from_dict(
        {"compaction.summarizer": {name: value}, "planner.compaction.summarizer.provider": "extractive"}, env={}
    )
    with pytest.raises(ConfigError, match=rf"compaction.summarizer.model: is missing: .*summarizer.{name} is set"):
        compactor_of(settings, "Critic")
    assert isinstance(compactor_of(settings).summarizer, ExtractiveSummarizer)

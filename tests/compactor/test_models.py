"""What is known of a model by its name: window and prices, however the name is spelled."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import pytest
from genai_prices.data import providers
from genai_prices.types import ModelInfo, TieredPrices
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compactor import ConfigError, Dollars, ModelFacts, Prices, find_model, window_of

LISTED = [(provider.id, model) for provider in providers for model in provider.models]
IDS = sorted({model.id for _, model in LISTED})


def input_price(model: ModelInfo) -> float | None:
    """Dollars of a million tokens, in short prompts, at noon."""
    price = model.get_prices(datetime.now(UTC).replace(hour=12))
    if price.input_mtok is None or price.output_mtok is None:
        return None
    return float(price.input_mtok.base if isinstance(price.input_mtok, TieredPrices) else price.input_mtok)


# -- the spellings that people use ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spellings",
    [
        "gpt-4o GPT-4o openai/gpt-4o openai:gpt-4o azure/gpt-4o azure/eu/gpt-4o gpt-4o-2024-08-06",
        "gpt-4o-mini gpt-4o-mini-2024-07-18 openrouter/openai/gpt-4o-mini",
        "gpt-5.3 GPT-5.3 azure/gpt-5-3 gpt-5.3-2026-03-01",
        "o1-mini o1-mini-2024-09-12 openai/o1-mini",
        "gpt-4-turbo gpt-4-1106-preview gpt-4-turbo-2024-04-09",
        "gpt-3.5-turbo gpt-35-turbo openai:gpt-3.5-turbo",
        "ft:gpt-4o-mini:org::id ft:gpt-4o-mini-2024-07-18:my-org:suffix:id",
        "claude-opus-4-6 claude-opus-4.6 anthropic/claude-opus-4.6 CLAUDE-OPUS-4-6",
        "claude-sonnet-4-5-20250929 claude-sonnet-4.5 anthropic:claude-sonnet-4-5 claude-sonnet-4-5@20250929",
        "us.anthropic.claude-sonnet-4-20250514-v1:0 bedrock/converse/us.anthropic.claude-sonnet-4-20250514-v1:0 "
        "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-sonnet-4-20250514-v1:0",
        "meta.llama3-2-3b-instruct-v1:0 eu.meta.llama3-2-3b-instruct-v1:0",
        "llama-3.1-8b llama3.1:8b Llama-3.1-8B-Instruct ollama/llama3.1:8b meta-llama/Llama-3.1-8B",
        "qwen2.5-7b qwen2.5:7b-instruct-q4_K_M Qwen/Qwen2.5-7B-Instruct",
        "gpt-oss-20b gpt-oss:20b openai/gpt-oss-20b",
        "grok-3 x-ai/grok-3 xai/grok-3 grok-3-latest",
        "kimi-k2 moonshotai/kimi-k2",
        "deepseek-chat deepseek/deepseek-chat DeepSeek-Chat",
        "glm-4.6 zai-org/GLM-4.6 GLM-4.6",
        "mistral-large mistral-large-latest mistral/mistral-large-latest",
        "gemini-2.5-flash google/gemini-2.5-flash gemini/gemini-2.5-flash google-gla:gemini-2.5-flash",
    ],
)
def test_a_model_is_known_in_every_usual_spelling(spellings: str) -> None:
    """With the provider's name or without, as a dated snapshot, in capitals, as a deployment, as a file of weights."""
    first, *others = spellings.split()
    facts = find_model(first)
    assert facts.window is not None
    assert facts.dollars is not None
    assert window_of(first) == facts.window
    assert {name: find_model(name) for name in others} == dict.fromkeys(others, facts)


@pytest.mark.parametrize(
    ("name", "window", "dollars"),
    [
        ("gpt-4o", 128_000, 2.5),
        ("gpt-4", 8_192, 30),
        ("gpt-5.3", 128_000, 1.75),
        ("o1-mini", 128_000, 1.1),
        ("claude-opus-4-6", 1_000_000, 5),
        ("ft:gpt-4o-mini:org::id", 128_000, 0.3),
        ("us.anthropic.claude-3-5-sonnet-20241022-v2:0", 200_000, 3),
    ],
)
def test_windows_and_prices_are_the_providers(name: str, window: int, dollars: float) -> None:
    """Dollars per million tokens of input. A name that begins another's is not taken for it."""
    facts = find_model(name)
    assert facts.dollars is not None
    assert (facts.window, facts.dollars.input * 1e6) == (window, pytest.approx(dollars))


def test_all_prices_of_a_model_are_given() -> None:
    """What is cached costs less, what is written to the cache may cost more; without such a price it is plain input."""
    assert find_model("claude-sonnet-4-5").dollars == pytest.approx(Dollars(3e-6, 3e-7, 3.75e-6, 15e-6))
    assert find_model("gpt-4").dollars == pytest.approx(Dollars(3e-5, 3e-5, 3e-5, 6e-5))


def test_a_name_that_resembles_anothers_is_not_taken_for_it() -> None:
    """A distilled model is another model, and so is the next version of a known one."""
    assert find_model("deepseek-r1-distill-llama-70b").dollars != find_model("deepseek-r1").dollars
    for unknown in (
        "gpt-9",
        "claude-opus-4-99",
        "claude-opus-99-8",
        "my-gpt-4o",
        "azure/my-deployment",
        "no-such-model",
    ):
        assert find_model(unknown) == ModelFacts(), unknown


@pytest.mark.parametrize("name", ["llama3.1", "qwen3", "gpt-oss", "deepseek", "glm", "kimi", "mistral:latest", "grok"])
def test_a_name_that_several_models_share_has_a_careful_window_and_no_price(name: str) -> None:
    """Three quarters of them take as much."""
    facts = find_model(name)
    assert facts.window is not None
    assert facts.dollars is None
    with pytest.raises(ConfigError, match="is unknown; name it"):
        Prices.of_model(name)


def test_what_is_free_costs_nothing() -> None:
    """Nobody else's price is taken for it."""
    name = "meta-llama/llama-3.3-70b-instruct:free"
    assert find_model(name).dollars == Dollars(0, 0, 0, 0)
    assert find_model(name).window == find_model("llama-3.3-70b").window
    with pytest.raises(ConfigError, match=r"input of .* is free"):
        Prices.of_model(name)


# -- whatever the name ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_listed_model_is_found_at_its_provider() -> None:
    """With its own window and price where the list has them: none is hidden by another."""
    spelled_alike = {(provider, model.id) for provider, model in LISTED if model.id.startswith(f"{provider}/")}
    for provider, model in LISTED:
        if (provider, f"{provider}/{model.id}") in spelled_alike:
            continue  # the name is another model's own
        facts, price = find_model(f"{provider}/{model.id}"), input_price(model)
        assert model.context_window in (None, facts.window), (provider, model.id)
        if price is not None:
            assert facts.dollars is not None, (provider, model.id)
            assert facts.dollars.input == pytest.approx(price / 1e6), (provider, model.id)


@pytest.mark.slow
def test_every_listed_model_is_found_without_its_provider() -> None:
    """With a window and a price where somebody lists them for this name."""
    for name in IDS:
        same = [model for _, model in LISTED if model.id == name]
        facts = find_model(name)
        assert facts.window is not None or not any(model.context_window for model in same), name
        assert facts.dollars is not None or all(input_price(model) is None for model in same), name


PIECES = st.sampled_from(
    ["/", ":", ".", "-", "_", "@", " ", "ft:", "arn:", "azure", "us.", "openai", "gpt", "4o", "claude", "llama", "3", "1",
     "-it", "-v1:0", ":free", ":latest", "-2024-08-06", "\x00", "\ud800", "İ", "²", "漢"]
)  # fmt: skip


@given(st.text() | st.lists(PIECES, max_size=60).map("".join) | st.sampled_from(IDS).flatmap(
    lambda name: st.sampled_from([name.upper(), f" {name} ", name.replace("-", "_"), f"x/{name}", name[:-1], name[1:]])
))  # fmt: skip
@settings(max_examples=100, deadline=None)
@example("")
@example("a/" * 10_000)
@example("-it" * 85)
@example("/a" * 64 + "-it" * 40)
@example("ft:")
@example(":free")
@example("instruct")
def test_any_text_has_an_answer(name: str) -> None:
    """Plain numbers that are over 0, or None."""
    facts = find_model(name)
    assert facts.window is None or facts.window > 0
    assert facts.dollars is None or all(price >= 0 for price in facts.dollars)
    assert len(name) <= 256 or facts == ModelFacts()
    assert window_of(name) == facts.window


# -- what it costs to know --------------------------------------------------------------------------------------------


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.slow
def test_a_turn_without_a_model_imports_no_prices() -> None:
    """They take 0.2 s, which nobody's first message waits for."""
    run(
        "import sys\n"
        "from compactor import CompactorConfig, ContextCompactor, Memory, compose\n"
        "memory = Memory()\n"
        "with ContextCompactor.for_role(memory, 'assistant') as compactor:\n"
        "    memory.append({'role': 'user', 'content': 'Where is my parcel?'})\n"
        "    compose(memory, budget=8_000)\n"
        "    assert compactor.wait_idle(30)\n"
        "assert not [name for name in sys.modules if name.startswith(('genai_prices', 'httpx2'))]\n"
    )


@pytest.mark.slow
def test_with_a_model_only_the_compactors_thread_imports_them() -> None:
    """Start, append and compose go on meanwhile."""
    run(
        "import sys, threading\n"
        "from compactor import CompactorConfig, ContextCompactor, Memory, compose\n"
        "threads = []\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'genai_prices':\n"
        "            threads.append(threading.current_thread())\n"
        "sys.meta_path.insert(0, Finder())\n"
        "memory = Memory()\n"
        "config = CompactorConfig(model='gpt-4o')\n"
        "with ContextCompactor.for_role(memory, 'assistant', config) as compactor:\n"
        "    memory.append({'role': 'user', 'content': 'Where is my parcel?'})\n"
        "    compose(memory, budget=8_000, model='gpt-4o')\n"
        "    assert compactor.wait_idle(30)\n"
        "assert threads and threading.main_thread() not in threads\n"
    )


@pytest.mark.slow
def test_the_list_itself_is_not_kept() -> None:
    """Full garbage collections would walk its 16,000 objects; who imports it gets it anew."""
    run(
        "import sys, compactor.models, genai_prices\n"
        "assert 'genai_prices.data' not in sys.modules\n"
        "assert genai_prices.calc_price(genai_prices.Usage(input_tokens=10), 'gpt-4o').total_price > 0\n"
    )

"""Who may call next under shared limits: limits hold, tenants take turns, and nobody is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from compactor import ConfigError, Limit
from compactor.cost.admission import Capacity, Claim, choose_ticket

PROVIDERS, TENANTS = ("a", "b"), ("ada", "bob", "cyd")
ALL = [
    Limit(max_concurrency=3, per="provider"),
    Limit(max_concurrency=2, per="tenant"),
    Limit(max_tokens_per_minute=100, per="model"),
    Limit(max_spend_per_hour=50.0, per="tenant"),
]


def first_of_lanes(tickets: list[Claim]) -> list[Claim]:
    firsts: dict[tuple[str, str, str], Claim] = {}
    for one in sorted(tickets, key=lambda one: one.at):
        firsts.setdefault((one.tenant, one.provider, one.model), one)
    return [*firsts.values()]


class Fairness(RuleBasedStateMachine):
    """Tenants queue and calls end in any order; whoever ends one admits who is next."""

    @initialize(limits=st.lists(st.sampled_from(ALL), min_size=1, max_size=4, unique=True))
    def begin(self, limits: list[Limit]) -> None:
        self.limits = limits
        self.now = 0.0
        self.tickets: list[Claim] = []
        self.permits: list[Claim] = []
        self.marks: dict[str, float] = {}
        self.usage: dict[tuple[str, object], list[tuple[float, float]]] = {}
        #: By ticket: how often somebody of another tenant was served before it, with no more permits in use.
        self.passed: dict[str, int] = {}

    @rule(
        tenant=st.sampled_from(TENANTS),
        provider=st.sampled_from(PROVIDERS),
        tokens=st.integers(1, 60),
        spend=st.integers(1, 40),
    )
    def queue(self, tenant: str, provider: str, tokens: int, spend: int) -> None:
        self.now += 1
        key = f"{self.now:g}"
        self.tickets.append(Claim(key, tenant, provider, f"model of {provider}", tokens, spend, self.now))
        self.passed[key] = 0
        self.admit()

    @precondition(lambda self: self.permits)
    @rule(place=st.integers(0, 100), share=st.floats(0, 1))
    def end(self, place: int, share: float) -> None:
        self.now += 1
        ended = self.permits.pop(place % len(self.permits))
        for limit in self.limits:
            for unit, _ in limit.list_amounts():
                until = self.now + (60 if unit == "tokens" else 3_600)
                self.usage.setdefault((ended.make_scope(limit.per), unit), []).append(
                    (until, share * ended.get_amount(unit))
                )
        self.admit()

    @rule(provider=st.sampled_from(PROVIDERS), seconds=st.integers(1, 50))
    def close(self, provider: str, seconds: int) -> None:
        self.marks[Claim("", provider=provider).closed_mark] = self.now + seconds

    @rule(seconds=st.sampled_from([1, 30, 60, 4_000]))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.admit()

    def room(self) -> Capacity:
        return Capacity(self.limits, self.permits, self.marks, self.now, self.usage)  # type: ignore[arg-type]

    def admit(self) -> None:
        while True:
            firsts = first_of_lanes(self.tickets)
            ticket, self.seconds = choose_ticket(self.room(), firsts)
            if ticket is None:
                return
            assert self.room().find_wait(ticket) == 0, "there was no room for it"
            in_use = {tenant: sum(one.tenant == tenant for one in self.permits) for tenant in TENANTS}
            for other in firsts:
                fits = self.room().find_wait(other) == 0
                if fits and other.provider == ticket.provider and other.tenant != ticket.tenant:
                    of_provider = {t: self.count(t, ticket.provider) for t in TENANTS}
                    counted = of_provider if self.limits_of("provider") or self.limits_of("model") else in_use
                    assert counted[ticket.tenant] <= counted[other.tenant], "room went to who had more"
                    self.passed[other.key] += 1
                    assert self.passed[other.key] <= 3 * len(TENANTS), "others were served again and again"
            self.tickets.remove(ticket)
            self.permits.append(ticket)
            self.marks[ticket.served_mark] = self.now = self.now + 0.001

    def count(self, tenant: str, provider: str) -> int:
        return sum((one.tenant, one.provider) == (tenant, provider) for one in self.permits)

    def limits_of(self, per: str) -> bool:
        return any(limit.per == per for limit in self.limits)

    @invariant()
    def limits_hold(self) -> None:
        """Whatever is in use or was used."""
        for limit in getattr(self, "limits", ()):
            for scope in {one.make_scope(limit.per) for one in self.permits}:
                inside = [one for one in self.permits if one.make_scope(limit.per) == scope]
                assert limit.max_concurrency is None or len(inside) <= limit.max_concurrency
                for unit, most in limit.list_amounts():
                    used = sum(amount for until, amount in self.usage.get((scope, unit), ()) if until > self.now)
                    assert used + sum(one.get_amount(unit) for one in inside) <= most * 1.001

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """Who is first of all and fits has a permit."""
        if firsts := first_of_lanes(getattr(self, "tickets", [])):
            self.admit()
            firsts = first_of_lanes(self.tickets)
            if firsts:
                first = min(firsts, key=self.room().rank)
                assert self.room().find_wait(first) != 0

    def teardown(self) -> None:
        """Once nobody comes, everybody is served, by the ends of calls and the times that ``choose_ticket`` names."""
        for _ in range(3 * len(getattr(self, "tickets", ())) + len(getattr(self, "permits", ())) + 3):
            if not self.tickets:
                break
            self.admit()
            if self.permits:
                self.end(0, 0.5)
            elif self.seconds is not None:
                self.now += self.seconds
        else:
            assert not getattr(self, "tickets", ()), "somebody was never served"


TestFairness = Fairness.TestCase
TestFairness.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def test_room_goes_to_the_tenant_with_the_fewest_calls_then_to_the_one_served_longest_ago() -> None:
    """And then to the oldest ticket."""
    limits = [Limit(max_concurrency=3, per="provider")]
    ada, bob, cyd = (Claim(name, name, "p", at=at) for at, name in enumerate(("ada", "bob", "cyd")))
    assert choose_ticket(Capacity(limits, [], {}, 9.0), [cyd, bob, ada]) == (ada, None)
    assert choose_ticket(Capacity(limits, [ada], {}, 9.0), [cyd, bob, ada]) == (bob, None)
    assert choose_ticket(Capacity(limits, [], {bob.served_mark: 8.0, ada.served_mark: 9.0}, 9.0), [bob, ada]) == (
        bob,
        None,
    )
    assert choose_ticket(Capacity(limits, [ada, ada, ada], {}, 9.0), [cyd, bob]) == (None, None)


def test_who_lacks_what_its_own_tenant_may_spend_holds_up_nobody() -> None:
    """Who lacks tokens that all share keeps others from taking them, or it would wait for ever."""
    limits = [Limit(max_tokens_per_minute=100, per="model"), Limit(max_spend_per_hour=10.0, per="tenant")]
    poor = Claim("poor", "ada", "p", "m", tokens=90, spend=9.0, at=1.0)
    large = Claim("large", "bob", "p", "m", tokens=90, spend=1.0, at=2.0)
    small = Claim("small", "cyd", "p", "m", tokens=10, spend=1.0, at=3.0)
    spent = {(poor.make_scope("tenant"), "spend"): [(3_000.0, 2.0)]}
    used = {(poor.make_scope("model"), "tokens"): [(30.0, 20.0), (70.0, 20.0)]}
    assert choose_ticket(Capacity(limits, [], {}, 10.0, spent), [poor, small]) == (small, None)
    assert choose_ticket(Capacity(limits, [], {}, 10.0, {**spent, **used}), [poor, large, small]) == (None, 60.0)
    assert choose_ticket(Capacity(limits, [], {}, 10.0, {**spent, **used}), [small]) == (small, None)


def test_a_closed_provider_holds_up_nobody_elses_work() -> None:
    """And says when it opens."""
    limits = [Limit(max_concurrency=3, per="provider")]
    one, other = Claim("one", "ada", "p", at=1.0), Claim("other", "ada", "q", at=2.0)
    closed = {one.closed_mark: 25.0}
    assert choose_ticket(Capacity(limits, [], closed, 10.0), [one, other]) == (other, None)
    assert choose_ticket(Capacity(limits, [], closed, 10.0), [one]) == (None, 15.0)
    assert choose_ticket(Capacity(limits, [], closed, 25.0), [one]) == (one, None)


def test_a_call_of_more_tokens_than_a_minute_has_gets_the_minute_to_itself() -> None:
    """Else it would wait for ever."""
    limits = [Limit(max_tokens_per_minute=100, per="model")]
    huge = Claim("huge", "ada", "p", "m", tokens=500)
    assert choose_ticket(Capacity(limits, [], {}, 0.0), [huge]) == (huge, None)
    assert choose_ticket(
        Capacity(limits, [], {}, 0.0, {(huge.make_scope("model"), "tokens"): [(7.0, 1.0)]}), [huge]
    ) == (None, 7.0)


@pytest.mark.parametrize(
    "wrong", [{}, {"max_concurrency": 0}, {"max_tokens_per_minute": 1.5}, {"max_spend_per_hour": 0}, {"per": "team"}]
)
def test_a_limit_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Limit(**({"max_concurrency": 1} if "per" in wrong else {}), **wrong)  # type: ignore[arg-type]

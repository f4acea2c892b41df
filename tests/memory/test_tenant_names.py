"""A session's name in a store names its tenant, and no other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor import ConfigError
from memory.stores import join_name, split_name

TENANTS = st.just("") | st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)
SESSIONS = st.text(st.characters(exclude_categories=["Cc", "Cs"]))


@given(TENANTS, SESSIONS)
def test_tenant_and_session_come_back_out_of_the_name(tenant: str, session: str) -> None:
    """So no two tenants share a session."""
    assert split_name(join_name(tenant, session)) == (tenant, session)


@pytest.mark.parametrize(
    ("tenant", "session"), [("a b", "s"), ("x" * 65, "s"), ("é", "s"), ("", "a\x1fs"), ("a", "\n")]
)
def test_names_that_could_be_anothers_are_refused(tenant: str, session: str) -> None:
    """The local tenant could name another's session by the separator."""
    with pytest.raises(ConfigError, match="must"):
        join_name(tenant, session)


@pytest.mark.parametrize("name", ["s", "", "\x1fs", "a b\x1fs"])
def test_a_name_without_a_tenant_is_the_sessions_own(name: str) -> None:
    """As names were before there were tenants."""
    assert split_name(name) == ("", name)

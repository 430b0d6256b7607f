"""What launchers and loggers put in front is found by the character that it begins with."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.logs import heads


@pytest.mark.parametrize("name", heads.ITEMS)
@given(data=st.data())
def test_heads__each_item_is_looked_for_where_it_may_begin(name: str, data: st.DataObject) -> None:
    item = data.draw(st.from_regex(re.compile(heads.ITEMS[name], re.ASCII), fullmatch=True))
    assert name in heads.items_at(item[0], heads.BAR in item).groupindex

"""Numbers and ends of connections."""

from kcover_ebpf import ids
from kcover_ebpf.ids import Endpoint


def test_endpoint__one_that_is_reported_again_is_read_once() -> None:
    first, second = (Endpoint.known("10.0.0.1:29500") for _ in range(2))
    assert first == Endpoint("10.0.0.1", 29500)
    assert first is second


def test_endpoint__what_is_longer_than_an_address_is_not_remembered() -> None:
    kept = ids._known.cache_info().currsize
    assert Endpoint.known(f"{'a' * 200}:1") == Endpoint("a" * 200, 1)
    assert ids._known.cache_info().currsize == kept

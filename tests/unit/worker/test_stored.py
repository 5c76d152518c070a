"""What an engine stored, read back from layouts that nobody told us, and compared with correct rounding."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kvquant_eval.core.stored import StoredCodes
from kvquant_eval.worker.stored import DTYPES, EVERY, TOKENS, StoredAudit, compare, learn

BLOCKS, BLOCK, HEADS, SIZE = 5, 32, 3, 64
E4M3 = torch.float8_e4m3fn


def rounded(x: Tensor) -> Tensor:
    return x.float().clamp(-448, 448).to(E4M3).view(torch.uint8)


def truncated(x: Tensor) -> Tensor:
    """The next code towards zero, unless the value is one."""
    code = rounded(x)
    too_large = code.view(E4M3).float().abs() > x.float().abs()
    return torch.where(too_large, code - 1, code)


class Backend:
    """Stores K transposed and V as it comes, behind each other, heads outermost: [blocks, heads, 2 * block * size]."""

    def __init__(self, store: Any = rounded) -> None:
        self.store = store

    def do_kv_cache_update(self, layer: Any, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
        flat = cache.view(cache.shape[0], HEADS, 2, BLOCK * SIZE)
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                k = self.store(key[token].float() / layer._k_scale)
                v = self.store(value[token].float() / layer._v_scale)
                flat[slot // BLOCK, :, 0].view(HEADS, SIZE, BLOCK)[:, :, slot % BLOCK] = k
                flat[slot // BLOCK, :, 1].view(HEADS, BLOCK, SIZE)[:, slot % BLOCK] = v


def layer(store: Any = rounded, k_scale: Any = 1.0, v_scale: Any = 1.0) -> Any:
    made = SimpleNamespace(impl=Backend(store), kv_cache_dtype="fp8", layer_name="model.layers.0.attn")
    made._k_scale, made._v_scale = torch.tensor(k_scale), torch.tensor(v_scale)
    return made


def empty() -> Tensor:
    return torch.zeros(BLOCKS, HEADS, 2 * BLOCK * SIZE, dtype=torch.uint8)


def some(tokens: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    k, v = (torch.randn(tokens, HEADS, SIZE, generator=generator).bfloat16() for _ in range(2))
    return k, v


def audited(made: Any, tokens: int = 20) -> StoredAudit:
    """After one step that stored ``tokens`` tokens from slot 40 on, with two of padding."""
    audit = StoredAudit(made, BLOCKS)
    key, value = some(tokens)
    slots = torch.arange(40, 40 + tokens)
    slots[[3, -1]] = -1
    audit(made, key, value, empty(), slots)
    return audit


def test_an_engine_that_rounds_correctly() -> None:
    audit = audited(layer())
    for codes in (audit.k, audit.v):
        assert (codes.values, codes.identical) == (18 * HEADS * SIZE, 18 * HEADS * SIZE)
        assert (codes.ulps, codes.bias, codes.worst) == (0, 0, 0)
        assert codes.magnitude_stored == codes.magnitude_right


@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.37, 2.0), ([0.5, 1.1, 4.0], [0.3, 0.3, 3.0])])
def test_an_engine_that_truncates(scales: tuple[Any, Any]) -> None:
    """Half of the values would round up; they lie one step too low. Scales change nothing about it."""
    k_scale, v_scale = (torch.tensor(s).view(-1, 1).tolist() if isinstance(s, list) else s for s in scales)
    audit = audited(layer(truncated, k_scale, v_scale))
    for codes in (audit.k, audit.v):
        assert 0.4 < codes.identical / codes.values < 0.6
        assert -codes.bias == codes.ulps == codes.values - codes.identical
        assert codes.worst == 1
        assert codes.magnitude_stored < codes.magnitude_right
        assert codes.magnitude_stored < 0.98 * codes.magnitude


def test_where_each_value_lies_is_learned() -> None:
    made, cache = layer(), empty()
    k_places, v_places = learn(made.impl.do_kv_cache_update, made, some(1)[0], cache, BLOCKS)
    assert k_places.shape == v_places.shape == (BLOCK, HEADS, SIZE)
    assert (k_places[1, 0, 0], k_places[0, 0, 1], k_places[0, 1, 0]) == (1, BLOCK, 2 * BLOCK * SIZE)
    assert (v_places[1, 0, 0], v_places[0, 0, 1]) == (BLOCK * SIZE + SIZE, BLOCK * SIZE + 1)
    assert torch.cat([k_places, v_places]).flatten().sort().values.tolist() == list(range(2 * BLOCK * HEADS * SIZE))
    assert not cache.any(), "the engine's own cache is not written to"


def test_what_cannot_be_read_back_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """An engine that stores nothing at all, one with two bytes a value, one without a scale: a line in the log, and the
    run goes on.
    """
    for store, cache in ((lambda x: torch.zeros_like(x).byte(), empty()), (rounded, empty().short())):
        made = layer(store)
        audit = StoredAudit(made, BLOCKS)
        for _ in range(2):
            audit(made, *some(4), cache, torch.arange(4))
        assert (audit.readable, audit.k.values, audit.step) == (False, 0, 2)
    made = layer()
    made._k_scale = None
    made.impl.do_kv_cache_update = lambda *_: None
    audit = StoredAudit(made, BLOCKS)
    audit(made, *some(4), empty(), torch.arange(4))
    assert not audit.readable
    assert [record.message.split(": ")[1] for record in caplog.records] == ["stored codes are not read back"] * 3


def test_a_sample_of_steps_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvquant_eval.worker.stored.TOKENS", 5)
    made = layer()
    audit, cache = StoredAudit(made, BLOCKS), empty()
    for _ in range(EVERY + 1):
        audit(made, *some(8), cache, torch.arange(8))
    assert audit.k.values == 2 * 5 * HEADS * SIZE
    audit.reset()
    audit(made, *some(3), cache, torch.arange(3))
    assert audit.k.values == 3 * HEADS * SIZE
    assert TOKENS == 256


def one(x: list[float], codes: list[int], dtype: str = "fp8_e4m3") -> StoredCodes:
    stored = torch.tensor(codes, dtype=torch.uint8).view(1, 1, -1)
    return compare(torch.tensor(x).view(1, 1, -1), stored, torch.ones(1, 1), dtype)


def test_counts_by_hand() -> None:
    """1.0 is 0x38, 448 is 0x7E; 0.001 rounds to 2 ** -9 = 0.00195, code 1, as it is over half of that."""
    found = one([1.0, -1.0, 448.0, 1000.0, 0.001, 0.0], [0x38, 0xB9, 0x7D, 0x7E, 0x00, 0x80])
    assert found == StoredCodes(
        values=6,
        identical=3,
        ulps=3,
        bias=-1,
        worst=1,
        saturated=1,
        saturated_right=2,
        flushed=1,
        flushed_right=0,
        magnitude=pytest.approx(1450.001),
        magnitude_stored=pytest.approx(1.0 + 1.125 + 416 + 448),
        magnitude_right=pytest.approx(2 + 896 + 2**-9),
    )


def test_zeros_of_both_signs_are_one_code() -> None:
    found = one([-1e-9, 0.0, -0.0], [0x00, 0x80, 0x00])
    assert (found.identical, found.ulps, found.flushed, found.flushed_right) == (3, 0, 1, 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_finite_whatever_is_stored(dtype: str) -> None:
    """NaN and infinity, given and stored: what is counted goes into JSON."""
    values = [math.nan, math.inf, -math.inf, 1.0, 1.0, 1.0]
    found = one(values, [0x7F, 0x7C, 0xFC, 0x7F, 0x7C, 0xFF], dtype)
    assert found.values == 6
    for name in ("magnitude", "magnitude_stored", "magnitude_right"):
        assert math.isfinite(getattr(found, name))


def test_a_block_does_not_depend_on_the_one_before() -> None:
    """What could not be read in one is read in the next, as after a restart."""
    made, cache = layer(), empty()
    audit = StoredAudit(made, BLOCKS)
    made._k_scale, kept = None, made._k_scale
    audit.update = lambda *_: None
    audit(made, *some(4), cache, torch.arange(4))
    assert (audit.readable, audit.k.values, audit.v.values) == (False, 0, 0)
    made._k_scale, audit.update = kept, made.impl.do_kv_cache_update
    audit.reset()
    audit(made, *some(4), cache, torch.arange(4))
    assert audit.k.values == audit.v.values == 4 * HEADS * SIZE


def test_a_wrong_sign_is_far_away() -> None:
    assert one([1.0], [0xB8]).ulps == 2 * 0x38


@pytest.mark.parametrize("dtype", DTYPES)
def test_largest_codes_are_known(dtype: str) -> None:
    largest = torch.finfo(DTYPES[dtype]).max
    code = int(torch.tensor(largest).to(DTYPES[dtype]).view(torch.uint8))
    found = one([largest * 2, -largest], [code, code + 128], dtype)
    assert (found.saturated, found.saturated_right, found.identical) == (2, 2, 2)

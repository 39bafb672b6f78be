"""How much each key may ask for at once and per minute.

The rate is a token bucket: a key that was quiet may use its minute's requests at once, and then
gets them back evenly. Reads no clock. Exercised by `pytest tests/unit/api/test_keys.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hasten.api.security.keys import Key

MINUTE_S = 60.0


@dataclass(slots=True)
class _Use:
    """`num_left` requests were left of the minute's at `at_s`."""

    num_left: float
    at_s: float
    num_active: int = 0


@dataclass(frozen=True, slots=True)
class Exceeded:
    """What a key has too much of, and when it may try again."""

    message: str
    retry_after_s: float


class KeyLimits:
    """What each key uses now. `begin` and `end` go in pairs."""

    def __init__(self) -> None:
        self._uses: dict[str, _Use] = {}

    def num_active(self, key: Key) -> int:
        use = self._uses.get(key.name)
        return 0 if use is None else use.num_active

    def begin(self, key: Key, now_s: float) -> Exceeded | None:
        """Count one more request, or say why not."""
        rate, most = key.requests_per_minute, key.max_concurrent_requests
        use = self._uses.setdefault(key.name, _Use(float(rate or 0), now_s))
        if most is not None and use.num_active >= most:
            return Exceeded(f"{most} requests of this key are being answered", 1.0)
        if rate is not None:
            use.num_left = min(rate, use.num_left + (now_s - use.at_s) * rate / MINUTE_S)
            use.at_s = now_s
            if use.num_left < 1:
                wait_s = (1 - use.num_left) * MINUTE_S / rate
                return Exceeded(f"this key may send {rate} requests per minute", wait_s)
            use.num_left -= 1
        use.num_active += 1
        return None

    def end(self, key: Key) -> None:
        self._uses[key.name].num_active -= 1

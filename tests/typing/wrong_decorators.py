"""What a skipped call returns is None, and a decorated function takes what it took."""

from typing import Literal

import incumbent


@incumbent.exclusive("order:{order_id}", if_held="skip")
def ship(order_id: int, *, fast: bool = False) -> str:
    return f"{order_id} {fast}"


@incumbent.once("nightly", per="12h")
async def nightly(day: str) -> str:
    return day


@incumbent.exclusive("report")
def report(day: str) -> str:
    return day


class Shop:
    @incumbent.exclusive("shop", if_held="skip")
    def close(self, day: str) -> str:
        return day


def calls(shop: Shop) -> None:
    ship(7).upper()  # E: union-attr reportOptionalMemberAccess
    shop.close("monday").upper()  # E: union-attr reportOptionalMemberAccess
    ship("7")  # E: arg-type reportArgumentType
    ship(7, slow=True)  # E: call-arg reportCallIssue
    report(7)  # E: arg-type reportArgumentType
    shop.close(7)  # E: arg-type reportArgumentType


async def awaits() -> str:
    (await nightly("monday")).upper()  # E: union-attr reportOptionalMemberAccess
    await nightly(7)  # E: arg-type reportArgumentType
    return await nightly("monday")  # E: return-value reportReturnType


def policy_that_is_not_known_yet(if_held: Literal["raise", "skip"]) -> str:
    @incumbent.exclusive("report", if_held=if_held)
    def work() -> str:
        return "done"

    return work()  # E: return-value reportReturnType


incumbent.exclusive("a", if_held="never")  # E: call-overload reportCallIssue reportArgumentType
incumbent.once("report")  # E: call-arg reportCallIssue

"""What a type checker knows about a program that uses the package. It is checked by mypy --strict, and not run."""
import asyncio
from typing import Any, Dict, Optional

import idem
import idem.asgi
import idem.http
import idem.sql
import idem.wsgi

client = idem.Client("idem://127.0.0.1:6390", scope="shop", mode="loose")
number: int = client.once("k", lambda: 7, arguments=[1], wait=5)
client.once("k", None)  # type: ignore[call-overload]  # the result of a function, and not the function


@client.once("order-{order}")
def place(order: int) -> Dict[str, int]:
    return {"order": order}


placed: Dict[str, int] = place(7)
place("seven")  # type: ignore[arg-type]

with client.begin("b") as claim:
    fence: int = claim.fence
    claim.result = 5


async def main() -> None:
    there = idem.AsyncClient()

    async def work() -> str:
        return "x"

    text: str = await there.once("k", work)

    @there.once("order-{order}")
    async def order_of(order: int) -> str:
        return text

    answer: str = await order_of(1)
    async with there.begin(answer) as mine:
        mine.check()
    await there.redeem(await there.issue("ann"), "ann")


asyncio.run(main())
token: str = client.issue("ann", ttl=60)
try:
    client.redeem(token, "ann")
except idem.InProgress as busy:
    after: float = busy.retry_after
except idem.Failed as failed:
    kind: Optional[str] = failed.type
status: int = idem.http.send("http://127.0.0.1/", "{}", key="k").status


def from_database(db: Any) -> int:
    return idem.sql.once(db, "k", lambda: 7, arguments=None)


def app(environ: Dict[str, Any], start_response: Any) -> Any:
    return [b""]


guarded = idem.wsgi.Middleware(app, client, scope=lambda environ: environ.get("HTTP_X_TENANT"))
idem.wsgi.Middleware(app, "idem://127.0.0.1")  # type: ignore[arg-type]

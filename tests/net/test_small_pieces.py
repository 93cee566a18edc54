"""What is small goes out at once."""

import asyncio
import socket
from typing import cast

from headrace.net.listening import bind


class Told(asyncio.Protocol):
    """Notes whether the system may hold small pieces back on the connection it is given."""

    def __init__(self) -> None:
        self.no_delay: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = cast("socket.socket", transport.get_extra_info("socket"))
        self.no_delay.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


async def no_delay_of_a_connection() -> int:
    protocol = Told()
    with bind("127.0.0.1", 0) as listener:
        listener.open()
        server = await asyncio.get_running_loop().create_server(lambda: protocol, sock=listener)
        async with server:
            with socket.create_connection(listener.getsockname()):
                return await asyncio.wait_for(protocol.no_delay, 10)


def test_no_token_waits_in_the_system_for_the_client_to_acknowledge_the_one_before() -> None:
    """The body of a short answer, and now and then a token, came 40 ms late."""
    assert asyncio.run(no_delay_of_a_connection())

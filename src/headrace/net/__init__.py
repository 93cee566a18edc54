"""Everything with a socket: the OpenAI wire format, the server, the engine's process."""

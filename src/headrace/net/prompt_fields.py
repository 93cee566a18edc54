"""The fields of a body that are, or become, prompts.

messages, tools, ... --read_chat_prompt--> Chat            prompt --read_prompts--> str | token ids, ...
"""

from typing import Any

import msgspec

from headrace.core.ports import Chat, ChatMessage
from headrace.net.bodies import CalledTool, ChatBody, Message, TokenizeChatBody
from headrace.net.fields import BadField, refuse, shown
from headrace.net.tool_fields import template_tools

Prompt = str | tuple[int, ...] | Chat

_UNSUPPORTED: dict[str, tuple[Any, ...]] = {"chat_template": ()}
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


def read_chat_prompt(body: ChatBody | TokenizeChatBody) -> Chat:
    """Raises `BadField`."""
    refuse(body, _UNSUPPORTED)
    if body.continue_final_message and body.add_generation_prompt:
        raise BadField(
            "continue_final_message",
            "continue_final_message and add_generation_prompt exclude each other",
            "set add_generation_prompt to false",
        )
    kwargs = dict(body.chat_template_kwargs or {})
    if body.documents is not None:
        kwargs["documents"] = body.documents
    if body.reasoning_effort is not None:
        kwargs["reasoning_effort"] = body.reasoning_effort
        kwargs.setdefault("enable_thinking", body.reasoning_effort != "none")
    return Chat(
        messages=tuple(_message(message, place) for place, message in enumerate(body.messages)),
        tools=template_tools(body.tools),
        add_generation_prompt=body.add_generation_prompt is not False and not body.continue_final_message,
        continue_final_message=bool(body.continue_final_message),
        template_kwargs=kwargs,
    )


def read_prompts(prompt: str | list[str | int | list[int]]) -> tuple[Prompt, ...]:
    """Raises `BadField`."""
    if isinstance(prompt, str):
        return (prompt,)
    ids = tuple(item for item in prompt if isinstance(item, int))
    if ids and len(ids) == len(prompt):
        return (ids,)
    if not prompt or ids:
        raise BadField("prompt", f"prompt is {shown(prompt)}: empty, or token ids mixed with other things")
    return tuple(tuple(item) if isinstance(item, list) else str(item) for item in prompt)


def _message(message: Message, place: int) -> ChatMessage:
    more: dict[str, Any] = {}
    if message.tool_calls:
        more["tool_calls"] = [_tool_call(call, place) for call in message.tool_calls]
    for name in ("tool_call_id", "name"):
        if (value := getattr(message, name)) is not None:
            more[name] = value
    if reasoning := message.reasoning or message.reasoning_content:
        more["reasoning"] = more["reasoning_content"] = reasoning
    return ChatMessage(message.role, _text(message, place), more)


def _text(message: Message, place: int) -> str:
    """Parts are joined by line breaks, as vLLM does."""
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    texts: list[str] = []
    for part in message.content:
        text = part.refusal if part.type == "refusal" else part.text if part.type in _TEXT_PARTS else None
        if text is None:
            raise BadField(
                f"messages[{place}].content",
                f"content parts of type {shown(part.type)} are not supported",
                "send parts of type text",
            )
        texts.append(text)
    return "\n".join(texts)


def _tool_call(call: CalledTool, place: int) -> dict[str, Any]:
    """With its arguments as an object, which is how templates want them."""
    function: dict[str, Any] = {"name": call.function.name, "arguments": _arguments(call, place)}
    return {"id": call.id, "type": call.type, "function": function}


def _arguments(call: CalledTool, place: int) -> dict[str, Any]:
    arguments = call.function.arguments
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadField(
            f"messages[{place}].tool_calls",
            f"the arguments of the call to {shown(call.function.name)} are no JSON object: {error}",
        ) from error

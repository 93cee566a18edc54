"""Run by vLLM's environment: what `transformers` computes, in float32, from a GGUF file.

stdin {"path", "prompt", "text": token ids}  ->  stdout {"logprobs" of the text, "answer": drawn greedily}
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

ANSWER_TOKENS = 24


def main() -> None:
    asked = json.load(sys.stdin)
    path = Path(asked["path"])
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    with torch.inference_mode():
        text = torch.tensor([asked["text"]])
        logprobs = torch.log_softmax(model(text).logits[0, :-1], -1).gather(1, text[0, 1:, None])[:, 0]
        prompt = torch.tensor([asked["prompt"]])
        mask = torch.ones_like(prompt)
        whole = model.generate(
            prompt, attention_mask=mask, do_sample=False, max_new_tokens=ANSWER_TOKENS, pad_token_id=2
        )
    json.dump(
        {"logprobs": logprobs.tolist(), "answer": whole[0, len(asked["prompt"]) :].tolist()}, sys.stdout
    )


main()

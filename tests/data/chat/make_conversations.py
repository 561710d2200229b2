#!/usr/bin/env python3
"""Writes conversations.json: chat templates of each known family in the forms they are published
in, and what Jinja makes of them. Needs jinja2. Run it in this folder after a change and read the
difference."""

import json

from jinja2.sandbox import ImmutableSandboxedEnvironment

CHATML_LOOP = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

QWEN_LOOP = r"""
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""


def qwen3(generation, trim=False):
    """Thinking is cut from earlier answers; `generation` is the tail of the template."""
    content = "message.content|trim" if trim else "message.content"
    system = "messages[0].content|trim" if trim else "messages[0].content"
    return (
        r"""
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + (SYSTEM) + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last_query_index=messages|length - 1) %}
{%- for message in messages %}
    {%- set content = CONTENT %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
""".replace("CONTENT", content).replace("SYSTEM", system)
        + generation
    )


QWEN3_GENERATION = r"""{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""
QWEN3_THINKING_GENERATION = r"""{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n<think>\n' }}
{%- endif %}"""
QWEN35_GENERATION = r"""{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- else %}
        {{- '<think>\n' }}
    {%- endif %}
{%- endif %}"""
QWEN35_SMALL_GENERATION = QWEN35_GENERATION.replace("is false", "is true")
QWEN35_SMALL_GENERATION = QWEN35_SMALL_GENERATION.replace(
    r"'<think>\n'", "@").replace(r"'<think>\n\n</think>\n\n'", r"'<think>\n'").replace(
    "@", r"'<think>\n\n</think>\n\n'")

LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + "
    "'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
LLAMA31 = r"""{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + "
    "system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}"
    "{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}"
    "{% endif %}{% endfor %}"
)

MISTRAL_V01 = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ message['content'] + eos_token + ' ' }}{% endif %}{% endfor %}"
)


def mistral(when, user_open, user_close, answer):
    return (
        """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if WHEN and system_message is defined %}
            {{- "OPEN" + system_message + "\\n\\n" + message["content"] + "CLOSE" }}
        {%- else %}
            {{- "OPEN" + message["content"] + "CLOSE" }}
        {%- endif %}
    {%- else %}
        {{- ANSWER }}
    {%- endif %}
{%- endfor %}
""".replace("WHEN", when).replace("OPEN", user_open).replace("CLOSE", user_close)
        .replace("ANSWER", answer)
    )


GEMMA = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'assistant') %}"
    "{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
GEMMA3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {{ message['content'] | trim }}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
""".replace("}}\n    {{ message['content'] | trim }}\n    {{",
            "}}{{ message['content'] | trim }}{{")

TULU = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ '<|system|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'user' %}"
    "{{ '<|user|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'assistant' %}"
    "{% if not loop.last %}{{ '<|assistant|>\n'  + message['content'] + eos_token + '\n' }}"
    "{% else %}{{ '<|assistant|>\n'  + message['content'] + eos_token }}{% endif %}{% endif %}"
    "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"
)
OLMO = (
    "{{ eos_token }}{% for message in messages %}\n{% if message['role'] == 'user' %}\n"
    "{{ '<|user|>\n' + message['content'] }}\n{% elif message['role'] == 'assistant' %}\n"
    "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
ZEPHYR = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n"
    "{{ '<|user|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n"
    "{{ '<|system|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'assistant' %}\n"
    "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)

QWEN25_HEAD = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are a pump. You can\'t stop.' }}
    {%- endif %}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are a pump. You can\'t stop.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}"""

# name: family, template, BOS, EOS, takes a system message
TEMPLATES = {
    "chatml": ("chatml", CHATML_LOOP, None, "<|im_end|>", True),
    "chatml_default_system": (
        "chatml",
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nYou are a mill that grinds text<|im_end|>\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        "<|im_start|>", "<|im_end|>", True),
    "qwen25": ("chatml", QWEN25_HEAD + QWEN_LOOP, None, "<|im_end|>", True),
    "qwen3": ("qwen3", qwen3(QWEN3_GENERATION), None, "<|im_end|>", True),
    "qwen3_thinking": ("qwen3", qwen3(QWEN3_THINKING_GENERATION), None, "<|im_end|>", True),
    "qwen35": ("qwen3", qwen3(QWEN35_GENERATION, True), None, "<|im_end|>", True),
    "qwen35_small": ("qwen3", qwen3(QWEN35_SMALL_GENERATION, True), None, "<|im_end|>", True),
    "llama3": ("llama3", LLAMA3, "<|begin_of_text|>", "<|eot_id|>", True),
    "llama31": ("llama3", LLAMA31, "<|begin_of_text|>", "<|eot_id|>", True),
    "llama2": ("llama2", LLAMA2, "<s>", "</s>", True),
    "mistral_v01": ("mistral", MISTRAL_V01, "<s>", "</s>", False),
    "mistral_v02": ("mistral", mistral("loop.first", " [INST] ", " [/INST]",
                                       '" " + message["content"] + eos_token'), "<s>", "</s>",
                    True),
    "mistral_v03": ("mistral", mistral("loop.last", "[INST] ", "[/INST]",
                                       '" " + message["content"]|trim + eos_token'), "<s>", "</s>",
                    True),
    "mistral_nemo": ("mistral", mistral("loop.last", "[INST]", "[/INST]",
                                        'message["content"] + eos_token'), "<s>", "</s>", True),
    "gemma": ("gemma", GEMMA, "<bos>", "<eos>", False),
    "gemma3": ("gemma", GEMMA3, "<bos>", "<eos>", True),
    "olmoe": ("tulu", TULU, "<|endoftext|>", "<|endoftext|>", True),
    "olmo": ("tulu", OLMO, None, "<|endoftext|>", False),
    "zephyr": ("zephyr", ZEPHYR, "<s>", "</s>", True),
}

USER = {"role": "user", "content": "What is a quern?"}
ANSWER = {"role": "assistant", "content": "A hand mill."}
CONVERSATIONS = [
    [USER],
    [{"role": "system", "content": "Be brief."}, USER],
    [USER, ANSWER, {"role": "user", "content": "Who used it?"}],
    [{"role": "system", "content": " Be\nbrief.\n"}, USER, ANSWER,
     {"role": "user", "content": "\n  Who \u4f60\u597d used it?  \n"},
     {"role": "assistant", "content": "  Bakers.\n"}, USER],
    [USER, {"role": "assistant", "content": "<think>\nA mill?\n</think>\n\nA hand mill."}, USER],
]


def render(template, bos, eos, messages):
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(
        messages=messages, add_generation_prompt=True, bos_token=bos or "", eos_token=eos)


def main():
    rows = []
    for name, (family, template, bos, eos, takes_system) in TEMPLATES.items():
        cases = []
        for messages in CONVERSATIONS:
            if messages[0]["role"] == "system" and not takes_system:
                continue
            cases.append({"messages": messages, "text": render(template, bos, eos, messages)})
        rows.append({"name": name, "family": family, "template": template, "bos": bos, "eos": eos,
                     "cases": cases})
    with open("conversations.json", "w", encoding="utf-8") as file:
        json.dump(rows, file, indent=1, ensure_ascii=False)
        file.write("\n")


if __name__ == "__main__":
    main()

"""The default pair, float32, temperature 0, exact rule: 100 prompts of 128 tokens, equal to autoregressive text.

A text is the target's greedy text if and only if each of its tokens is the argmax after all tokens before it. So one
plain pass of transformers over prompt and answer, without our loop, cache or masks, checks a whole text; our own
autoregressive loop is compared on the eight prompts of the batch test.
"""

import pytest
import torch
from toys import answers, run, texts_of

from explorer.engine.loading import load_drafter, load_model
from explorer.engine.metrics import count
from explorer.engine.models import LanguageModel
from explorer.engine.pair import ModelPair, encode_chat

pytestmark = pytest.mark.weights

MAX_NEW_TOKENS = 128
# Rows decoded together: more share one reading of the weights, fewer keep their states in the processor's cache.
BATCH = 25
# Two best logits closer than this may swap between passes of different shapes.
TIE = 1e-4

CHAT = """
Hi! Who are you?
Why is the sky blue?
Tell me a short story about a lighthouse keeper and a storm.
What should I cook tonight with rice, eggs and spinach?
Explain photosynthesis to a ten-year-old.
I feel nervous before an exam. What can I do?
Write a polite email that asks for a day off.
What is the difference between weather and climate?
Give me advice for a first job interview.
Describe the taste of an orange to someone who never had one.
Is it better to read paper books or e-books?
Write a four-line poem about the sea.
Summarise the plot of Romeo and Juliet in three sentences.
How do vaccines work?
What happens when ice melts in salt water?
Convince me to take the stairs.
Who was Marie Curie?
What would a cat say about Mondays?
Explain what an interest rate is.
Plan a weekend in Lisbon.
How do I remove coffee stains from a shirt?
Pretend to be a pirate and greet me.
What are black holes?
Rewrite this more formally: gonna be late, sorry!
Why do leaves change colour in autumn?
""".strip().split("\n")
CODE = """
Write a Python function that reverses a string.
Write a Python function that returns the n-th Fibonacci number.
What does this do? for i in range(3): print(i)
Write a JavaScript function that adds two numbers.
Fix this: def f(x) return x+1
Write an SQL query that counts the rows of a table called users.
Explain recursion with an example in Python.
Write a C program that prints Hello, world!
Write HTML for a page with a heading and a list of three fruits.
What is the difference between a list and a tuple in Python?
Write a regular expression for a date such as 2024-05-17.
Write a bash loop that renames all .txt files to .md.
Write a unit test for a function add(a, b).
Sort the list [3, 1, 2] in Python and print it.
Write a class Stack with push and pop.
""".strip().split("\n")
MATHS = """
What is 17 + 25?
What is 12 times 12?
A train travels 60 km in 45 minutes. How fast is it in km/h?
Solve for x: 2x + 3 = 11.
What is 15 % of 80?
List the first ten prime numbers.
Anna has 5 apples and gives 2 away. How many are left?
What is the area of a circle with radius 3?
Count from 1 to 20.
Is 91 a prime number?
What is the square root of 144?
Convert 100 degrees Fahrenheit to Celsius.
What is 2 to the power of 10?
Write the multiplication table of 7.
If 3 pens cost 4.50, what do 7 pens cost?
""".strip().split("\n")
LISTS = """
List ten animals.
Give me five names for a bakery.
List the days of the week.
List the planets in order from the sun.
Name three rivers in Africa.
Write a shopping list for a pancake breakfast.
List five pros and five cons of working from home.
List synonyms of happy.
Repeat the word banana twenty times.
Write the alphabet, one letter per line.
""".strip().split("\n")
LANGUAGES = """
Wie geht es dir heute?
Übersetze ins Deutsche: The weather is nice.
Raconte-moi une histoire courte.
Quelle est la capitale de la France ?
¿Cuál es la capital de España?
Escribe una frase sobre el mar.
Qual è il tuo colore preferito?
Como se diz bom dia em inglês?
日本の首都はどこですか。
请用一句话介绍你自己。
Привет! Как дела?
مرحبا، كيف حالك؟
안녕하세요, 자기소개를 해 주세요.
नमस्ते, आप कैसे हैं?
Γεια σου, τι κάνεις;
""".strip().split("\n")
ODD = [
    "😀😀😀 What do these mean?",
    "a",
    "?",
    "${7*6} `tick` <b>bold</b>",
    "{{template}} \\n \t tabs",
    "1 2 3 4 5 6 7 8 9",
    "the the the the the the the the",
    "SELECT * FROM users WHERE name = 'Robert'); DROP TABLE users;--",
    "Q: 2+2\nA: 4\nQ: 3+3\nA:",
    "Once upon a time",
    "THIS IS ALL CAPITALS. PLEASE ANSWER IN CAPITALS.",
    "Copy exactly: x7Kq-93zP-Lm20",
    "Translate to French: cat, dog, house, tree, river",
    "Complete: to be or not to be,",
    "Finish the pattern: ab, abab, ababab,",
    "https://example.com/path?query=1#part What is this?",
    "What comes next: Monday, Tuesday, Wednesday,",
    "My name is Zyx. What is my name?",
    "Say nothing.",
    "A text to shorten. " + "The meeting was moved from the small room to the large one because more people came. " * 6,
]
PROMPTS = CHAT + CODE + MATHS + LISTS + LANGUAGES + ODD


@pytest.fixture(scope="module")
def target(default_weights) -> LanguageModel:
    return load_model("default", "float32")


@pytest.fixture(scope="module")
def prompt_ids(target) -> list[list[int]]:
    # By length, so that a batch pads little.
    return sorted((encode_chat(target, prompt) for prompt in PROMPTS), key=len)


def test_there_are_a_hundred_different_prompts():
    assert len(set(PROMPTS)) == len(PROMPTS) == 100


def check_greedy(target: LanguageModel, prompts: list[list[int]], texts: list[list[int]], batch_size: int = 10) -> int:
    """Fail at the first token that is not the target's best, up to ties; returns how many ties there were."""
    ties = 0
    for first in range(0, len(prompts), batch_size):
        rows = list(zip(prompts[first : first + batch_size], texts[first : first + batch_size], strict=True))
        width = max(len(prompt) + len(text) for prompt, text in rows)
        ids = torch.tensor([prompt + text + [0] * (width - len(prompt) - len(text)) for prompt, text in rows])
        keep = width - min(len(prompt) for prompt, _ in rows) + 1
        with torch.inference_mode():
            best = target.model(ids, logits_to_keep=keep, use_cache=False).logits.topk(2)
        for row, (prompt, text) in enumerate(rows):
            places = slice(len(prompt) - 1 - (width - keep), len(prompt) - 1 - (width - keep) + len(text))
            choices, gaps = best.indices[row, places], best.values[row, places, 0] - best.values[row, places, 1]
            for place in (choices[:, 0] != torch.tensor(text)).nonzero().flatten().tolist():
                near = target.tokenizer.decode(prompt[-40:])
                print(f"{near!r}, token {place}: {text[place]}, best {choices[place].tolist()}, gap {gaps[place]:.1e}")
                assert gaps[place] < TIE
                assert text[place] == choices[place, 1]
                ties += 1
    return ties


@pytest.mark.parametrize(
    ("drafter", "draft_length", "chosen"),
    [
        ("auto", 2, slice(0, None, 20)),
        ("ngram", 3, slice(4, None, 60)),
        pytest.param("auto", 1, slice(None), marks=pytest.mark.slow),
        pytest.param("ngram", 3, slice(2, None, 4), marks=pytest.mark.slow),
    ],
)
def test_exact_text_is_the_autoregressive_text(target, prompt_ids, drafter, draft_length, chosen):
    """All hundred with one draft a round, for time's sake: a pass costs as much as it has columns here."""
    pair = ModelPair(target, load_drafter(target, drafter))
    assert (pair.drafter.kind == "ngram") == (drafter == "ngram"), "the bundled drafter was not found"
    prompts, events, texts = prompt_ids[chosen], [], []
    for first in range(0, len(prompts), BATCH):
        batch = prompts[first : first + BATCH]
        found = run(pair, batch, draft_length=draft_length, max_new_tokens=MAX_NEW_TOKENS)
        events += found
        texts += texts_of(found, len(batch))
    counts = count(events)
    print(
        f"{drafter}: tau {counts.tokens_per_round:.3f}, {counts.num_emitted} tokens, {counts.acceptance_rate:.1%} kept"
    )
    assert check_greedy(target, prompts, texts) <= 3
    assert counts.tokens_per_round > 1.05
    assert all(len(text) == MAX_NEW_TOKENS or text[-1] in target.end_ids for text in texts)
    if len(texts) == len(prompt_ids):
        assert sum(len(text) == MAX_NEW_TOKENS for text in texts) > len(texts) // 4
        assert any(text[-1] in target.end_ids for text in texts)


@pytest.mark.parametrize("drafter", ["auto", pytest.param("ngram", marks=pytest.mark.slow)])
def test_batch_eight_is_batch_one(target, prompt_ids, drafter):
    pair = ModelPair(target, load_drafter(target, drafter))
    prompts = prompt_ids[5::13][:8]
    settings = {"draft_length": 4, "max_new_tokens": 16}
    together = answers(pair, prompts, **settings)
    alone = [answers(pair, [prompt], **settings)[0] for prompt in prompts]
    plain = answers(pair, prompts, rule="ar", max_new_tokens=16)
    if not together == alone == plain:
        assert check_greedy(target, prompts, together) + check_greedy(target, prompts, alone) <= 2
        assert check_greedy(target, prompts, plain) <= 1

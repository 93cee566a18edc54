"""Prompts of many kinds for comparing answers: short and long, code, tables, many scripts, nonsense."""

LETTER = (
    "Dear neighbours, the river has risen again and the lower meadow is under water. The mill will stand "
    "still until the sluice has been cleared, which takes four people and most of a day. We have two pumps, "
    "one of them borrowed. Whoever has waders, please come to the bridge at seven; bring bread, the kettle "
    "is there. Children may watch from the bank, not from the wall. The school bus goes by the upper road. "
)
CODE = '''def median(values):
    """Middle of the sorted values."""
    ordered = sorted(values)
    half, odd = divmod(len(ordered), 2)
    return ordered[half] if odd else (ordered[half - 1] + ordered[half]) / 2

'''

SHORT = (
    "What is the capital of France?",
    "Name three rivers in Europe.",
    "Why is the sky blue?",
    "Write a haiku about winter.",
    "How many legs does a spider have?",
    "Translate 'good morning' into Spanish.",
    "Who wrote Hamlet?",
    "What is 17 times 23?",
    "Give me a synonym for 'quick'.",
    "Is a whale a fish?",
    "Explain gravity to a child.",
    "What does HTTP stand for?",
    "List the primary colours.",
    "Tell me a joke about a horse.",
    "When did the Second World War end?",
    "What is the boiling point of water in Fahrenheit?",
)
SCRIPTS = (
    "Wie heißt die Hauptstadt von Österreich?",
    "¿Cuál es la montaña más alta del mundo?",
    "Où se trouve la bibliothèque, s'il vous plaît ?",
    "東京の人口はどれくらいですか?",
    "北京是哪个国家的首都?",
    "Какая самая длинная река в России?",
    "ما هي عاصمة مصر؟",
    "한국의 수도는 어디입니까?",
    "Ποια είναι η πρωτεύουσα της Ελλάδας;",
    "What do these mean: 😀 🎉 🚀 👩‍👩‍👧 🇫🇷?",
    "naïve café – “quoted” … ½ × √2 ≈ 0.707",  # noqa: RUF001 - unusual characters are the point
    "Zalgo t̷e̷x̷t̷ and combining e\u0301 accents",
)
STRUCTURED = (
    CODE + "def mode(values):\n",
    "SELECT name, count(*) FROM orders JOIN users ON users.id = orders.user_id WHERE",
    '{"name": "Ada", "born": 1815, "fields": ["mathematics", "computing"], "notes":',
    "| city | people |\n|---|---|\n| Rome | 2.8 M |\n| Paris | 2.1 M |\n| Madrid |",
    "#include <stdio.h>\nint main(void) {\n    for (int i = 0; i < 10; i++)",
    "<html><head><title>Menu</title></head><body><ul><li>Soup</li>",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "git commit -m 'Fix the",
    "    \n\n\t  indented by mistake\n\n",
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "the the the the the the the the the",
    "x",
)
LONG = (
    LETTER + "Summarise the letter in one sentence:",
    LETTER * 2 + "When does the work begin?",
    LETTER * 3 + "List what people should bring.",
    CODE * 4 + "# The same in JavaScript:\n",
    " ".join(str(number * number) for number in range(120)) + " What is the pattern?",
    LETTER + CODE + LETTER + "What is odd about this text?",
    "Colours: " + ", ".join(f"shade {number} of {hue}" for number in range(20) for hue in ("red", "blue")),
    "水は方円の器に随う。" * 12 + "意味は?",
)
CHATS = tuple(
    f"<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    for question in (
        "What is a headrace?",
        "Write a limerick about a miller.",
        "How do I cook rice?",
        "What is photosynthesis?",
        "Give me a plan for a day in Rome.",
        "Correct this: 'He go to school yesterday.'",
        "What is the difference between a list and a tuple in Python?",
        "Name five trees.",
    )
)
"""These share a beginning of more than one block."""

PROMPTS = SHORT + SCRIPTS + STRUCTURED + LONG + CHATS

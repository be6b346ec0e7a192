"""Twenty prompts of different lengths; some share a prefix."""

SYSTEM = "You are a careful assistant. Answer in one or two short sentences, with no preamble."
QUESTIONS = [
    "What is the capital of France?",
    "Name three primary colours.",
    "Why is the sky blue?",
    "Write a haiku about autumn rain.",
    "Translate 'good morning' into Spanish.",
    "What does HTTP stand for?",
    "How many legs does a spider have?",
    "Explain gravity to a child.",
]
CHATS = [
    [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    for question in QUESTIONS
]
TEXTS = [
    "Once upon a time",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "1, 1, 2, 3, 5, 8, 13,",
    "Water boils at",
    "In the beginning of the nineteenth century, trade between the islands and the mainland "
    "was carried by small sailing ships, which left the harbour with the morning tide and",
    "Dear Sir or Madam,\n\nI am writing to",
    "a",
    "The planets of the solar system, in order of their distance from the sun, are Mercury,",
    "Roses are red,",
    "import numpy as np\n\n",
    "The recipe needs two eggs, a cup of flour, a pinch of salt, and",
]
PROMPTS = [*CHATS, *TEXTS]
assert len(PROMPTS) == 20

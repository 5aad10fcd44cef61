"""The quickstart's text: sentences of a small grammar, the same on every machine for the same seed."""

import random

NOUNS = ("daemon machine gradient trainer network packet bucket tensor operator cable switch model layer step plan "
         "river garden letter window kitchen teacher sailor market mountain village winter morning").split()
VERBS = ("sends carries merges reads counts measures follows remembers repairs watches answers finds crosses writes "
         "paints").split() + ["waits for", "asks about"]
ADJECTIVES = ("quiet slow patient narrow honest careful bright distant heavy small early final ordinary busy "
              "forgotten gentle").split()
ADVERBS = ("again", "slowly", "twice", "before noon", "without a word", "at once", "every day", "in the end", "by hand")
JOINERS = ("and", "but", "while", "because", "until")
ALPHABET = "\n .abcdefghijklmnopqrstuvwxyz"


def _noun_phrase(pick):
    article = pick.choice(("the", "the", "a", "every"))
    adjective = pick.choice(ADJECTIVES) + " " if pick.random() < 0.5 else ""
    return f"{article} {adjective}{pick.choice(NOUNS)}"


def _clause(pick):
    ending = " " + pick.choice(ADVERBS) if pick.random() < 0.4 else ""
    return f"{_noun_phrase(pick)} {pick.choice(VERBS)} {_noun_phrase(pick)}{ending}"


def generate(characters, seed):
    """About `characters` of text; lines of one sentence."""
    pick, sentences, length = random.Random(seed), [], 0
    while length < characters:
        sentence = _clause(pick)
        while pick.random() < 0.35:
            sentence += f" {pick.choice(JOINERS)} {_clause(pick)}"
        sentences.append(sentence + ".\n")
        length += len(sentences[-1])
    return "".join(sentences)


def encode(text):
    code = {character: number for number, character in enumerate(ALPHABET)}
    return [code[character] for character in text]

"""Beginnings of texts, written by hand, for the teacher to go on with.

A model of 135 million parameters that begins with a token at random seldom comes to how-tos, to
questions or to talk in a story. So it is led there, by combinations of a few words, cut so short
that what a text is about is the teacher's own choice. None is from a data set.
"""

from itertools import product

ACTIONS = (
    "clean", "fix", "make", "build", "cook", "remove", "store", "paint", "cut", "open", "grow",
    "wash", "sew", "dry", "hang", "move", "fold", "sharpen", "plant", "measure", "decorate",
    "repair", "polish", "protect", "freeze",
)  # fmt: skip
THINGS = (
    "a wooden table", "a bicycle", "your shoes", "a cake", "tomatoes", "an old shirt", "a window",
    "the kitchen sink", "a small garden", "paper", "a metal pipe", "eggs", "a candle", "the car",
    "a glass jar", "your hair", "a coat", "bread", "a rope", "a phone", "the floor", "a chair",
    "soup", "a bottle", "a box",
)  # fmt: skip
ASKING = (
    "Question: How do you {action}", "Question: How do I {action} {thing}",
    "Question: To {action}", "Question: How can I {action} {thing} without",
    "How to {action} {thing}:", "How to {action} {thing}. First", "How do you {action} {thing}?",
)  # fmt: skip
SCIENCE = (
    "plants", "the Moon", "water", "an animal", "a magnet", "rocks", "energy", "the Sun", "cells",
    "a student", "heat", "light", "sound", "bacteria", "a volcano", "the ocean", "a seed",
    "electricity", "blood", "weather", "gravity", "soil", "a gas", "a mixture", "the Earth",
    "insects", "a metal", "bones", "a food chain", "an atom",
)  # fmt: skip
SCHOOL = (
    "Question: Which of these is a property of {about}",
    "Question: What is the main reason that {about}", "Question: Which best describes how {about}",
    "Question: What happens to {about} when", "Question: Why is {about}",
    "Question: Which statement about {about}", "Question: {about}",
    "Question: What causes {about}", "Scientists who study {about}", "{about} can be",
)  # fmt: skip
PEOPLE = (
    "A man", "A woman", "A young girl", "The team", "A group of children", "The boy", "A person",
)  # fmt: skip
SCENES = (
    "Making lunch", "Playing ball", "Riding a horse", "Cleaning the house", "Swimming",
    "Cutting wood", "Getting dressed", "Finding a job", "Caring for pets", "Playing music",
    "Fishing", "Dancing", "Fixing the roof", "Traveling", "Health", "Home and garden",
    "Family life", "Computers", "Cooking", "Sports",
)  # fmt: skip
SEEN = (
    "{scene}: {people} is", "{scene}: {people}", "{people} is seen", "{people} stands",
    "{scene}: Choose",
)  # fmt: skip
NAMES = (
    "Sarah", "Tom", "the old man", "my mother", "Jack", "Anna", "her brother", "Emily",
    "the captain", "David", "he", "she", "Mike", "the girl", "Kate", "his wife", "the doctor",
    "Ben",
)  # fmt: skip
TALES = (
    '"I don\'t know," {name} said', "{name} looked at", '"What is it?" {name} asked',
    "When {name}", "{name} opened the door and", '"You have to," said {name}',
    "It was late when {name}", "{name} had never", '"Please," {name} whispered',
    "I turned around and saw {name}", "{name} sat down on", "The next morning {name}",
    '"No," {name} replied, "',
)  # fmt: skip
CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\n"
)


def _first_upper(text: str) -> str:
    return text[0].upper() + text[1:]


def openings() -> list[str]:
    """All of them; kinds have about equally many, but for conversations, which have fewer."""
    asking = {
        form.format(action=action, thing=thing)
        for form, action, thing in product(ASKING, ACTIONS, THINGS)
    }
    school = [
        form.format(about=about if form[0] != "{" else _first_upper(about))
        for form, about in product(SCHOOL, SCIENCE)
    ]
    seen = [
        form.format(scene=scene, people=people)
        for form, scene, people in product(SEEN, SCENES, PEOPLE)
    ]
    tales = [_first_upper(form.format(name=name)) for form, name in product(TALES, NAMES)]
    kinds = (sorted(asking), school, seen, tales)
    most = max(map(len, kinds))
    return [text for kind in kinds for text in kind * round(most / len(kind))] + [CHAT] * (
        most // 2
    )

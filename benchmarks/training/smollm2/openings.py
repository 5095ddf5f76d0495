"""Beginnings of texts, written by hand, for the teacher to go on with.

A model of 135 million parameters that begins with a token at random seldom comes to how-tos, to
questions or to talk in a story. So it is led there, by combinations of a few words, cut so short
that what a text is about is the teacher's own choice. None is from a data set.
"""

from itertools import product
from random import Random

EACH = 2400
"""Of a kind."""

ACTIONS = (
    "clean", "fix", "make", "build", "cook", "remove", "store", "paint", "cut", "open", "grow",
    "wash", "sew", "dry", "hang", "move", "fold", "sharpen", "plant", "measure", "decorate",
    "repair", "polish", "protect", "freeze", "boil", "bake", "glue", "sand", "drill", "carry",
    "pack", "wrap", "ship", "sell", "buy", "choose", "replace", "cover", "warm", "cool", "peel",
    "slice", "mix", "soften", "straighten", "lock", "label", "mend", "stretch", "fill", "empty",
    "lift", "attach", "unclog", "whiten", "dye", "iron", "smooth", "trim", "tie", "knit", "melt",
    "season", "reheat", "organize", "recycle",
)  # fmt: skip
THINGS = (
    "a wooden table", "a bicycle", "your shoes", "a cake", "tomatoes", "an old shirt", "a window",
    "the kitchen sink", "a small garden", "paper", "a metal pipe", "eggs", "a candle", "the car",
    "a glass jar", "your hair", "a coat", "bread", "a rope", "a phone", "the floor", "a chair",
    "soup", "a bottle", "a box", "a wall", "potatoes", "a lamp", "jeans", "a fence", "a knife",
    "leather", "a pillow", "rice", "a mirror", "a bag", "a picture frame", "chicken", "a door",
    "a blanket", "plastic", "an apple pie", "a drawer", "onions", "a pan", "a ladder", "curtains",
    "a hat", "a tent", "cookies", "a toy", "nails", "a shelf", "fish", "a rug", "meat", "a pot",
    "a bucket", "an envelope", "jewelry", "a dress", "a mattress", "beans", "a lawn", "the oven",
    "a toilet", "a bracelet", "a sandwich", "a roof", "a necklace", "butter", "a keyboard",
    "a dog bed", "a tire", "wood", "a brick path", "a wound", "a cup of tea", "pasta", "a backpack",
)  # fmt: skip
ASKING = (
    "Question: How do you {action}", "Question: How do I {action} {thing}",
    "Question: To {action}", "Question: How can I {action} {thing} without",
    "How to {action} {thing}:", "How to {action} {thing}. First", "How do you {action} {thing}?",
    "Question: {thing}", "Question: What is the best way to {action} {thing}",
    "Question: To {action} {thing},", "Question: When you {action} {thing}",
    "Question: How to {action} {thing} at home\nAnswer:",
    "Question: How do you {action} {thing}?\nAnswer:", "Question: to {action}",
)  # fmt: skip
SCIENCE = (
    "plants", "the Moon", "water", "an animal", "a magnet", "rocks", "energy", "the Sun", "cells",
    "a student", "heat", "light", "sound", "bacteria", "a volcano", "the ocean", "a seed",
    "electricity", "blood", "weather", "gravity", "soil", "a gas", "a mixture", "the Earth",
    "insects", "a metal", "bones", "a food chain", "an atom", "a river", "the heart", "a fossil",
    "wind", "a planet", "ice", "the lungs", "photosynthesis", "evaporation", "a lever", "friction",
    "an ecosystem", "a virus", "a gene", "salt", "a mineral", "an earthquake", "a glacier",
    "a predator", "a tree", "oxygen", "carbon dioxide", "a circuit", "a chemical reaction",
    "a solution", "mass", "temperature", "the seasons", "erosion", "a mountain", "a desert",
    "a rain forest", "birds", "fish", "mammals", "a frog", "a fungus", "roots", "a leaf",
    "a flower", "muscles", "the brain", "digestion", "the skin", "a balance", "a thermometer",
    "a microscope", "an experiment", "a telescope", "a star", "the solar system", "tides",
    "the water cycle", "fuel", "coal", "a solar panel", "pollution", "a habitat", "adaptation",
    "DNA", "protein", "speed", "a force", "waves", "a lens", "a prism", "sediment", "limestone",
    "the atmosphere", "clouds", "a hurricane", "density",
)  # fmt: skip
SCHOOL = (
    "Question: Which of these is a property of {about}",
    "Question: What is the main reason that {about}", "Question: Which best describes how {about}",
    "Question: What happens to {about} when", "Question: Why is {about}",
    "Question: Which statement about {about}", "Question: {about}",
    "Question: What causes {about}", "Scientists who study {about}", "{about} can be",
    "Question: How does {about}", "Question: Which of the following {about}",
    "Question: A student wants to know how {about}", "Question: What is one way that {about}",
    "Question: Which tool would be used to {about}", "Question: {about} is an example of",
    "Question: Where", "Question: In what way is {about}", "Question: What kind of {about}",
    "Question: What role does {about}", "Question: Which part of {about}",
    "Question: An example of {about}\nAnswer:", "Question: What is {about}?\nAnswer:",
    "Question: Which change would {about}", "Question: Most of {about}",
)  # fmt: skip
PEOPLE = (
    "A man", "A woman", "A young girl", "The team", "A group of children", "The boy", "A person",
    "Two men", "A lady", "The woman", "Several people", "A group of people", "The man",
    "A little boy", "The players", "A dog", "A young man", "An old woman", "Two girls", "A crowd",
    "He", "She", "They", "The girls", "A chef", "A worker",
)  # fmt: skip
SCENES = (
    "Making lunch", "Playing ball", "Riding a horse", "Cleaning the house", "Swimming",
    "Cutting wood", "Getting dressed", "Finding a job", "Caring for pets", "Playing music",
    "Fishing", "Dancing", "Fixing the roof", "Traveling", "Health", "Home and garden",
    "Family life", "Computers", "Cooking", "Sports", "Washing a car", "Climbing", "Running",
    "Skiing", "Painting a wall", "Making a drink", "Shaving", "Brushing hair", "Throwing a ball",
    "Lifting weights", "Sailing", "Surfing", "Baking bread", "Washing clothes",
    "Sharpening a knife", "Playing guitar", "Playing drums", "Martial arts", "Gymnastics",
    "Skating", "Mowing grass", "Raking", "Shoveling", "Wrapping a box", "Making coffee",
    "Walking a dog", "Riding a bike", "Ice", "Jumping rope", "Rowing a boat", "Archery", "Bowling",
    "Hair", "Makeup", "Cars", "Holidays", "Hobbies", "Friends", "Money", "School", "Gardening",
    "Moving house", "Camping", "Learning a language", "Packing", "Writing", "Cats",
)  # fmt: skip
SEEN = (
    "{scene}: {people} is", "{scene}: {people}", "{people} is seen", "{people} stands",
    "{scene}: Choose", "{scene}: How to", "{people} are", "{scene}: {people} are",
    "{people} walks", "{people} then", "{scene}: The", "{people} is shown", "{scene}: Use",
    "{scene}: Make", "{people} holds up",
)  # fmt: skip
NAMES = (
    "Sarah", "Tom", "the old man", "my mother", "Jack", "Anna", "her brother", "Emily",
    "the captain", "David", "he", "she", "Mike", "the girl", "Kate", "his wife", "the doctor",
    "Ben", "John", "Mary", "my father", "the boy", "Peter", "Lily", "her sister", "James",
    "the woman", "Alex", "Grace", "the soldier", "Robert", "Claire", "his mother", "Daniel", "Rose",
    "the stranger", "Sam", "Maggie", "the king", "Nick", "Jenny", "her father", "Luke", "Rachel",
    "the detective", "Chris", "Laura", "my sister", "the driver", "Adam", "Ellie", "Mr. Brown",
    "Mrs. White", "they", "the teacher", "Max", "Julia", "his friend", "Will", "Sophie",
    "the guard", "Eric", "Amy", "the nurse",
)  # fmt: skip
TALES = (
    "\"I don't know,\" {name} said", "{name} looked at", '"What is it?" {name} asked',
    "When {name}", "{name} opened the door and", '"You have to," said {name}',
    "It was late when {name}", "{name} had never", '"Please," {name} whispered',
    "I turned around and saw {name}", "{name} sat down on", "The next morning {name}",
    '"No," {name} replied, "', '"Where are we going?" {name}', "{name} took a deep breath",
    "{name} smiled at", "{name} shook", '"Are you all right?" {name}', "{name} walked over to",
    "For a moment {name}", "{name} laughed and", '"I thought you', "{name} reached for",
    '"Of course," said {name}, "', "After dinner {name}", "{name} had been",
    "{name} stood in front of", '"Come on," {name}', "{name} could not", "I told {name}",
    "{name} heard", '"Look at', "{name} picked up", "Before {name} could", "{name} remembered",
    '"Do you remember when {name}', "{name} closed", "Behind {name}",
    '"Thank you," {name} said, and',
)  # fmt: skip
CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\n"
)


def _first_upper(text: str) -> str:
    return text[0].upper() + text[1:]


def openings(seed: int = 0) -> list[str]:
    """So many of each kind, at random where there are more; a conversation has one alone."""
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
    draw = Random(seed).sample
    kinds = (sorted(asking), school, sorted(set(seen)), tales)
    return [text for kind in kinds for text in draw(kind, EACH)] + [CHAT] * (EACH // 5)

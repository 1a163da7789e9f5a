"""Generated messages, ordinary and spam, for measurements of texts."""

import random
from collections.abc import Iterator

HAM = "i you the to a and me in my it so ok just get how when up what not go if home now we at do "
HAM += "know like good got come time day love will going want one need back sorry see still later"
SPAM = "call free txt claim prize mobile your now stop to text reply win urgent cash £ won new tone"
LATER = "parcel delivery fee link account verify bank update suspended track https confirm"


def made(rows: int, seed: int) -> Iterator[tuple[dict[str, str], int]]:
    """Generated messages, 13 % spam. In the second half, half of the spam is of a new kind."""
    draw = random.Random(seed)
    kinds = [text.split() for text in (HAM, SPAM, LATER)]
    for row in range(rows):
        is_spam = draw.random() < 0.13
        kind = 0 if not is_spam else 2 if row > rows / 2 and draw.random() < 0.5 else 1
        said = [draw.choice(kinds[kind]) for _ in range(draw.randint(4, 14))]
        # Spam also has ordinary words, and ordinary messages also mention prizes and parcels.
        said += [draw.choice(kinds[0]) for _ in range(draw.randint(2, 8))]
        if draw.random() < (0.7 if is_spam else 0.05):
            said.append(str(draw.randrange(10**4, 10**11)))
        if not is_spam and draw.random() < 0.2:
            said.append(draw.choice(kinds[1] + kinds[2]))
        draw.shuffle(said)
        text = " ".join(said)
        yield {"text": text}, int(is_spam)

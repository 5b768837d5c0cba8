"""Word lists and sentence forms that the extraction task builds its texts from.

Names, cities and wordings are combined, so a short list here gives a large space of texts. The names `Lee` and
`Rome` belong to the worked example in the prompt and are left out, as is the age 30.
"""

from itertools import product


def _words(text: str) -> tuple[str, ...]:
    """The words of a text; an underscore stands for a blank inside a name."""
    return tuple(word.replace("_", " ") for word in text.split())


FIRST_NAMES = _words(
    """
    Ahmed Aisha Alice Amara Amelia Anders Anita Anton Arjun Beatriz Bella Boris Brenda Camila Carlos Cecilia
    Clara Connor Daniel Daria David Deepa Diego Elena Elias Emily Erik Esther Fatima Felix Fiona Francesca
    Gabriel Gloria Grace Hana Hannah Harold Hassan Helen Hiroshi Hugo Ingrid Irene Isabel Ivan Jamal Jasmine
    Joanna Jonas Julia Kamal Karin Katya Keiko Kenji Kofi Kwame Lars Laura Leo Lucia Magnus Malik Marcus
    Maria Marta Mateo Mei Miguel Mina Mohammed Monica Nadia Naomi Nina Noah Olga Oliver Omar Oscar Patrick
    Paula Pedro Peter Priya Rachel Rafael Rajesh Rosa Ruth Samir Samuel Sara Sergei Simon Sofia Stella Sven
    Teresa Thomas Tomas Ursula Valentina Victor Wei William Yara Zoe
    """
)

SURNAMES = _words(
    """
    Abbott Abebe Andersen Andrade Baker Barros Bauer Becker Bennett Berg Blake Bishop Borges Brandt Brooks
    Burke Campbell Cardoso Carter Castillo Chen Clark Cohen Collins Conti Cooper Costa Cruz Dalton Desai
    Diallo Dixon Dubois Duarte Edwards Evans Farah Fernandez Ferrari Fischer Fletcher Foster Fuchs Fujita
    Garcia Gibson Grant Greene Griffin Gupta Hansen Harper Hayashi Hayes Hernandez Hoffman Holm Hughes
    Hussain Ibrahim Ito Ivanov Jackson Jansen Jensen Johnson Joshi Kamara Kato Keller Khan Kim Kimura Klein
    Koch Kumar Lambert Larsen Laurent Lewis Lopez Mancini Marino Martin Mendes Meyer Miller Mitchell Molina
    Moreau Morgan Moretti Murphy Murray Navarro Nguyen Nielsen Novak Obi Osman Owens Palmer Park Parker
    Patel Pereira Perez Petrov Phillips Popov Quinn Rahman Ramos Reid Reyes Ricci Richter Rivera Roberts
    Rojas Romano Rossi Ryan Salazar Sanchez Santos Sato Schmidt Schulz Sharma Silva Simmons Singh Smith Soto
    Spencer Suzuki Tanaka Taylor Thompson Torres Tran Turner Usman Vasquez Vega Wagner Walker Walsh Wang
    Ward Watson Weber Wilson Wood Yamada Young Zhang
    """
)

CITIES = _words(
    """
    Aberdeen Accra Adelaide Algiers Amsterdam Ankara Athens Atlanta Auckland Austin Bangkok Barcelona Basel
    Beijing Belfast Belgrade Bergen Berlin Bogota Bologna Bonn Boston Brisbane Bristol Brussels Bucharest
    Budapest Buenos_Aires Cairo Calgary Cape_Town Cardiff Chennai Chicago Cleveland Cologne Copenhagen Cork
    Dallas Delhi Denver Detroit Dhaka Dresden Dublin Durban Edinburgh Florence Frankfurt Geneva Genoa Ghent
    Glasgow Granada Hamburg Havana Helsinki Hong_Kong Houston Istanbul Jakarta Johannesburg Karachi Kingston
    Krakow Kyoto Lagos Lahore Leeds Leipzig Lima Lisbon Liverpool London Los_Angeles Lyon Madrid Malaga
    Manchester Manila Melbourne Memphis Miami Milan Montevideo Montreal Mumbai Munich Nagoya Nairobi Nantes
    Naples New_Orleans Nice Osaka Oslo Ottawa Oxford Palermo Paris Perth Philadelphia Phoenix Portland Porto
    Prague Quebec Quito Riga San_Diego Santiago Seattle Seoul Seville Shanghai Singapore Stockholm
    Sydney Tallinn Tampa Tehran Tokyo Toronto Tunis Turin Utrecht Valencia Vancouver Venice Vienna Warsaw
    Wellington Winnipeg York Zurich
    """
)

JOBS = _words(
    """
    architect baker barber bus_driver carpenter chemist cook dentist doctor electrician engineer farmer
    firefighter gardener geologist journalist lawyer librarian mechanic musician nurse painter pharmacist
    photographer pilot plumber potter sailor tailor teacher translator vet waiter welder
    """
)

_OPENINGS = ("{name}", "My neighbor {name}", "My friend {name}", "The {job} {name}", "{name}, a {job},")
_AGES = (
    "is {age} years old",
    "is {age}",
    "turned {age} in May",
    "recently turned {age}",
    "just turned {age}",
)
_CITIES = (
    "lives in {city}",
    "has a flat in {city}",
    "works in {city}",
    "is based in {city}",
    "moved to {city}",
    "calls {city} home",
    "runs a shop in {city}",
)
_ENDINGS = ("", " with two cats", " and plays chess")
_OTHER_CITY = " but was born in {other_city}"
_LEADS = ("At {age}, {name}", "{name} ({age})", "{name}, {age},")


def _sentence_forms() -> tuple[str, ...]:
    """All wordings, as format strings over name, age, city, job and other_city."""
    forms = [f"{lead} {city}{end}." for lead, city, end in product(_LEADS, _CITIES, (*_ENDINGS, _OTHER_CITY))]
    forms += [f"{{name}} {age} and {city}{_OTHER_CITY}." for age, city in product(_AGES, _CITIES)]
    for opening, age, city in product(_OPENINGS, _AGES, _CITIES):
        endings = _ENDINGS if opening.endswith("{name}") else ("",)  # keeps prompts short
        forms += [f"{opening} {age} and {city}{end}." for end in endings]
        forms.append(f"{opening} {city} and {age}.")
    forms += [f"In {{city}} I met {{name}}, a {{job}} who {age}." for age in _AGES]
    return tuple(forms)


SENTENCE_FORMS: tuple[str, ...] = _sentence_forms()

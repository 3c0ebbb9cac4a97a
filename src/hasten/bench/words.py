"""Words for made-up text. Common English, so that nearly every one is a single token with any tokenizer."""

from __future__ import annotations

_TEXT = """
about above across after again air all along also always animal answer area arm around ask away back bad bank base
beach bear beat bed begin behind bell below best better between big bird black blue board boat body book both bottom box
bread break bridge bright bring brother brown build burn bus business buy call camp car card care carry cat catch cause
center chair chance change check child choose church circle city class clean clear climb clock close cloud coat cold
color come common company complete control cook cool copy corn corner cost count country course cover cross crowd cry
current cut dance dark daughter day deal decide deep desk door double down draw dream dress drink drive drop dry during
each ear early earth east easy eat edge effect egg eight either electric end energy engine enough enter equal even
evening event ever every exact example expect eye face fact fair fall family famous far farm fast father fear feed feel
few field fight figure fill final find fine finger finish fire first fish five flat floor flow flower fly follow food
foot force forest form forward four free fresh friend front fruit full game garden gas gather general gentle girl give
glass gold good government grand grass gray great green ground group grow guess guide hair half hand happen happy hard
head hear heart heat heavy help here high hill history hold hole home hope horse hospital hot hour house human hundred
hunt ice idea inside interest iron island job join judge jump keep key kind king kitchen know lady lake land language
large last late laugh law lead learn leave left leg less letter level library lie life lift light line list listen
little live local long look lost loud love low machine main make man map mark market matter meal mean measure meat
meet member metal method middle mile milk million mind minute miss model moment money month moon morning mother
mountain mouth move music name nation nature near neck need never new news next night nine noise north nose note
nothing notice number object ocean off offer office often oil old once only open order other outside over own page
paint pair paper parent part party pass past path pattern pay people perhaps period person picture piece place plain
plan plane plant play point police poor position possible power present press price print problem process produce
product program public pull push question quick quiet race rain raise range rate reach read ready real reason record
red region rest result return rich ride right ring rise river road rock room round row rule run safe sail salt same
sand save say scale school science sea search season seat second see seed seem sell send sense serve set seven several
shape share sharp ship shoe shop short shoulder show side sign silver simple since sing sister sit six size skin sky
sleep slow small smell smile snow soft soil soldier solution some song soon sound south space speak special speed
spend spot spring square stage stand star start state station stay steel step stick still stone stop store storm story
straight strange stream street strong student study sugar summer sun support sure surface system table tail take talk
tall teach team tell ten test thank thick thin thing think third those thought thousand three through throw time tiny
today together tone top total touch toward town track trade train travel tree trip trouble true trust try turn twenty
two type uncle under unit until use valley value very view village visit voice wait walk wall want war warm wash watch
water wave way wear weather week weight west wheel where while white whole why wide wife wild will win wind window
winter wire wish woman wonder wood word work world write wrong yard year yellow yes young
"""
WORDS: tuple[str, ...] = tuple(_TEXT.split())

QUESTIONS: tuple[str, ...] = (
    "Tell me what the text above says about the {a} and the {b}.",
    "How does the {a} relate to the {b}? Explain it step by step.",
    "Write a short summary with a view to the {a}, then one about the {b}.",
    "Which of the two matters more here, the {a} or the {b}, and why?",
    "List every mention of the {a}; then say what is missing about the {b}.",
)

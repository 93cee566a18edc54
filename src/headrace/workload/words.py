"""Common English words, each one token (with the space before it) in practically every BPE vocabulary.

A text of n of them is about n tokens whatever the model, so a workload can promise lengths
without knowing the tokenizer. The order is part of every seeded text: append, never reorder.
"""

_TEXT = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government number
night point home water room mother area money story fact month lot right study book eye job word
business issue side kind head house service friend father power hour game line end member law car
city community name president team minute idea body information back parent face level office door
health person art war history party result change morning reason research girl moment air
teacher force education foot boy age policy music market sense nation plan college interest
experience effect use class control field development role effort rate heart show leader light
voice wife police mind price report decision son view relationship town road arm difference value
building action season society tax director position player record paper space ground form event
official matter center couple site project activity star table need court oil situation cost
industry figure street image phone data picture practice piece land product doctor wall patient
worker news test movie north love support technology step baby computer type attention film tree
source organization hair window culture chance brother energy period course summer hospital plant
opportunity term letter condition choice rule daughter south husband floor campaign material
population economy medical fire future bank west sport board subject officer rest behavior
performance fight top goal second bed order author fill focus foreign agency nature color
store sound movement page race concern series language response animal factor decade article east
artist scene stock career treatment approach size fund media sign thought list individual quality
pressure answer resource meeting success cup amount ability staff character growth loss
degree region television box training trade deal election feeling standard bill message
analysis benefit lawyer section glass skill sister professor operation stage compare
authority design sort knowledge station strategy truth song example environment leg dark
present public local social great small large young important different possible early
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())

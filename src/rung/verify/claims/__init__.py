"""What each entry of the catalogue estimates: derived from its definition, and written down before it is measured.

    claim        what is claimed, and the sources of bias by name
    scene        the oracle's numbers for every sequence, and sums over them
    objectives   exact gradients that methods are compared with
    definitions  the parts of published formulas, in numpy
    reinforce, plus_plus, trust, group   one claim for each entry

A prediction is a closed form where there is one, and otherwise the published definition, written again in numpy and
enumerated by the oracle. It shares no code with what it predicts.
"""

from rung.verify.claims import group, plus_plus, reinforce, trust
from rung.verify.claims.claim import SOURCES, Claim, Standing

CLAIMS: dict[str, Claim] = {
    claim.name: claim for claim in (*reinforce.CLAIMS, *plus_plus.CLAIMS, *trust.CLAIMS, *group.CLAIMS)
}

__all__ = ["CLAIMS", "SOURCES", "Claim", "Standing"]

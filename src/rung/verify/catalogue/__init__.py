"""`rung verify` and `rung verify METHOD`, as data: the catalogue measured against its claims.

check        one method on one case, beside its claim
ladder       its sources of bias, taken out one after the other
kl_part      what its KL does alone
all_methods  side by side: `survey`
one_method   from all sides: `examine`
"""

from rung.verify.catalogue.all_methods import survey
from rung.verify.catalogue.one_method import examine

__all__ = ["examine", "survey"]

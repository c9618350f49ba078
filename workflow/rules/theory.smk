# Theory checks are runs of kind check: the rule `run` makes them, in chunks of their own.


rule theory:
    input:
        lambda wildcards: SUITE.checks(),

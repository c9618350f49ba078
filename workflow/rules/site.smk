# The static page; it holds aggregates, never an item for each run.


rule page:
    input:
        f"scratch/plan/{TIER}/site.key",
    output:
        SITE,
    localrule: True
    shell:
        "python -m repro site --tier {TIER:q}"


rule site:
    input:
        lambda wildcards: SUITE.keys("site"),
        SITE,
